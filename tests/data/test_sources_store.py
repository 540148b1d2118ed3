import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from mpd_agl.data import store
from mpd_agl.errors import InputError
from tests.data.samplefiles import cifar_images, tree

CLASSES = ("a", "b", "c")


def split_of(x, y, parts=2):
    def give():
        for i, part in enumerate(np.array_split(x, parts)):
            yield f"file_{i}", part

    return store.Pixels(shape=x.shape, y_N=y, classes=CLASSES, parts=give, origin="somewhere")


@pytest.fixture
def data():
    return cifar_images(12), np.arange(12) % 3


def write(root, x, y, check=lambda *_: None):
    return store.write(root, {"train": split_of(x, y)}, check, {"name": "toy", "source": "test"})


def test_what_is_written_is_read_back_mapped(tmp_path, data):
    x, y = data
    write(tmp_path / "toy", x, y)
    stored = store.open_split(tmp_path / "toy", "train")
    assert isinstance(stored.x_NHWC, np.memmap)
    np.testing.assert_array_equal(stored.x_NHWC, x)
    np.testing.assert_array_equal(stored.y_N, y)
    assert stored.y_N.dtype == np.int64
    assert stored.header["sha256"] == hashlib.sha256(x.tobytes()).hexdigest()
    assert stored.header["source"] == "test"
    assert stored.header["shape"] == [12, 32, 32, 3]
    assert stored.header["made_by"].startswith("mpd-agl ")
    assert tree(tmp_path) == {
        "toy",
        "toy/train",
        *(f"toy/train/{n}" for n in ("pixels.u8", "labels.i64", "header.json")),
    }
    with pytest.raises(ValueError, match="read-only"):
        stored.x_NHWC[0] = 0


def test_the_digest_counts_and_averages_exactly(data):
    x, y = data
    found = store.digest(split_of(x, y))
    np.testing.assert_allclose(found.mean, (x / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.std, (x / 255).std((0, 1, 2)), rtol=1e-9)
    assert found.per_class == (4, 4, 4)


def test_the_hash_does_not_depend_on_how_the_parts_are_cut(data):
    x, y = data
    assert len({store.digest(split_of(x, y, parts)).sha256 for parts in (1, 2, 5, 12)}) == 1


@pytest.mark.parametrize(
    ("give", "reason"),
    [
        (lambda x: x[:5], "somewhere gave 5 images for 12 labels"),
        (lambda x: x[:, :31], r"f\.png holds uint8 images of shape \(31, 32, 3\)"),
        (lambda x: x / 255, r"f\.png holds float64 images"),
    ],
)
def test_other_images_than_announced_are_refused(tmp_path, data, give, reason):
    x, y = data
    wrong = replace(split_of(x, y), parts=lambda: [("f.png", give(x))])
    with pytest.raises(InputError, match=reason):
        store.write(tmp_path / "toy", {"train": wrong}, lambda *_: None, {})
    assert tree(tmp_path) == set()


def test_a_refused_check_leaves_nothing(tmp_path, data):
    def refuse(split, pixels, digest):
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        write(tmp_path / "toy", *data, refuse)
    assert tree(tmp_path) == set()


@pytest.mark.parametrize("failing", ["fsync", "replace", "json"])
def test_a_full_disk_leaves_nothing_and_says_so(tmp_path, data, monkeypatch, failing):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    target = {"fsync": (os, "fsync"), "replace": (os, "replace"), "json": (json, "dumps")}[failing]
    monkeypatch.setattr(*target, full)
    with pytest.raises(InputError, match=r"cannot write .*toy: No space left on device"):
        write(tmp_path / "toy", *data)
    assert tree(tmp_path) == set()


def test_two_writers_at_once_end_with_one_whole_set(tmp_path, data):
    x, y = data
    barrier = threading.Barrier(4)

    def check(*_):
        barrier.wait(10)

    threads = [threading.Thread(target=write, args=(tmp_path / "toy", x, y, check)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.verify(store.open_split(tmp_path / "toy", "train"))
    assert [p.name for p in tmp_path.iterdir()] == ["toy"]


def damage(root, name, content):
    path = root / "train" / name
    path.write_bytes(content(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("pixels.u8", lambda b: b[:-1], "pixels.u8 has 36,863 bytes, expected 36,864"),
        ("labels.i64", lambda b: b[:-8], "labels.i64 is damaged"),
        ("labels.i64", lambda b: b"\x01" + b[1:], "labels.i64 is damaged"),
        ("header.json", lambda b: b[:-10], "is not a converted data set"),
        ("header.json", lambda b: b"[]", "is not a converted data set"),
        ("header.json", lambda b: b.replace(b'"format": 1', b'"format": 2'), "another format"),
        ("header.json", lambda b: b.replace(b'"uint8"', b'"object"'), "another format"),
    ],
)
def test_a_damaged_store_is_refused_when_opened(tmp_path, data, name, content, reason):
    write(tmp_path / "toy", *data)
    damage(tmp_path / "toy", name, content)
    with pytest.raises(InputError, match=r"Remove .*toy and it is converted again") as caught:
        store.open_split(tmp_path / "toy", "train")
    assert reason in str(caught.value)


def test_a_flipped_bit_is_found_by_verify(tmp_path, data):
    write(tmp_path / "toy", *data)
    store.verify(store.open_split(tmp_path / "toy", "train"))
    damage(tmp_path / "toy", "pixels.u8", lambda b: b[:9000] + bytes([b[9000] ^ 1]) + b[9001:])
    opened = store.open_split(tmp_path / "toy", "train")  # cheap: does not read the pixels
    with pytest.raises(InputError, match=r"pixels\.u8 is damaged"):
        store.verify(opened)


def test_an_interrupt_leaves_nothing(tmp_path, data):
    x, y = data

    def parts():
        yield "file_0", x[:6]
        raise KeyboardInterrupt

    pixels = store.Pixels(shape=x.shape, y_N=y, classes=CLASSES, parts=parts, origin="o")
    with pytest.raises(KeyboardInterrupt):
        store.write(tmp_path / "toy", {"train": pixels}, lambda *_: None, {})
    assert tree(tmp_path) == set()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path, data):
    script = f"""
import os, pathlib, signal
from mpd_agl.data.atomic import new_folder
with new_folder(pathlib.Path({str(tmp_path / "toy")!r})) as scratch:
    (scratch / "half").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    alive = tmp_path / left.name.replace(left.name.split("-")[-1].split(".")[0], str(os.getpid()))
    alive.mkdir()  # another conversion that still runs
    write(tmp_path / "toy", *data)
    assert {p.name for p in tmp_path.iterdir()} == {"toy", alive.name}
