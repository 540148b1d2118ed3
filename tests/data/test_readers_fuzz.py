"""Ten thousand damaged files: each ends in data that keeps its promises, or in one sentence. Nothing else."""

import gzip
import io
import os
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mpd_agl.data import archives, cifar, idx, images, recordings, store, tinyimagenet
from mpd_agl.data.types import EventStream, LoadOptions
from mpd_agl.errors import InputError
from tests.data.samplefiles import cifar_images, idx_bytes, jpeg_bytes, pin, planes, tree

FACTOR = int(os.environ.get("MPD_AGL_FUZZ", "1"))
"""How many times as many cases at night (`make faults`)."""


def fuzz(examples, factor=FACTOR):
    ignored = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(
        max_examples=examples * factor, deadline=None, database=None, derandomize=True, suppress_health_check=ignored
    )


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Bytes near a valid file: some changed, a piece left out or doubled, the end cut off; or anything at all."""
    at = st.integers(0, max(0, len(whole) - 1))

    def change(edits, cut, piece):
        content = bytearray(whole)
        for place, value in edits:
            content[place] = value
        start, length, twice = piece
        part = content[start : start + length]
        content[start : start + length] = part + part if twice else b""
        return bytes(content[: len(content) - cut])

    return st.one_of(
        st.builds(
            change,
            st.lists(st.tuples(at, st.integers(0, 255)), max_size=6),
            st.one_of(st.just(0), st.integers(0, len(whole))),
            st.one_of(st.just((0, 0, False)), st.tuples(at, st.integers(0, 40), st.booleans())),
        ),
        st.binary(max_size=200),
    )


def check_stream(stream: EventStream, side: int) -> None:
    assert len(stream) > 0
    assert (np.diff(stream.t_E) >= 0).all()
    assert stream.x_E.max() < side
    assert stream.y_E.max() < side
    assert stream.p_E.max() <= 1
    assert (stream.x_E.dtype, stream.p_E.dtype, stream.t_E.dtype) == (np.uint16, np.uint8, np.int64)
    assert len(stream.t_E) == len(stream.x_E) == len(stream.y_E) == len(stream.p_E)


def or_one_sentence(read, *args):
    """What `read` gives, or None after a proper refusal."""
    refused: list[str] = []
    try:
        return read(*args)
    except InputError as error:
        refused.append(str(error))
    assert "some_file" in refused[0]
    assert "\n" not in refused[0]
    return None


AEDAT = b"#!AER-DAT2.0\r\n# made by a test\r\n" + b"".join(
    (((i * 37) % 32768).to_bytes(4, "big") + (100 * i).to_bytes(4, "big")) for i in range(20)
)
NMNIST = b"".join(bytes([i % 34, (3 * i) % 34, 0x80 * (i % 2), i, 7]) for i in range(30))
IDX = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(out, kind)
    return out.getvalue()


def event_arrays() -> list[bytes]:
    events = np.zeros(20, [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
    events["t"], events["x"], events["p"] = np.arange(20), np.arange(20) % 7, np.arange(20) % 2
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, events)
    np.savez(npz, **{name: events[name] for name in "txyp"})
    return [npy.getvalue(), npz.getvalue()]


def check_image(image: np.ndarray, *shape: int) -> None:
    assert (image.shape, image.dtype) == (shape, np.uint8)


def check_idx(array: np.ndarray, axes: int) -> None:
    assert array.ndim == axes


FILES = {
    "aedat": (2200, [AEDAT], recordings.read_aedat, lambda stream: check_stream(stream, 128)),
    "nmnist": (2000, [NMNIST], recordings.read_bin, lambda stream: check_stream(stream, 34)),
    "idx images": (1000, [IDX], lambda path: idx.read_idx(path, 3), lambda array: check_idx(array, 3)),
    "idx labels": (500, [IDX], lambda path: idx.read_idx(path, 1), lambda array: check_idx(array, 1)),
    "jpeg": (
        *(400, [jpeg_bytes(1), jpeg_bytes(2, "L")]),
        *(tinyimagenet.read_jpeg, lambda image: check_image(image, 64, 64, 3)),
    ),
    "any image": (
        *(400, [picture(kind) for kind in images.FORMATS]),
        *(lambda path: images.read_square(path, 8, 3), lambda image: check_image(image, 8, 8, 3)),
    ),
    "event arrays": (
        *(400, event_arrays()),
        *(recordings.read_numpy, lambda stream: check_stream(stream, max(stream.width, stream.height))),
    ),
}
"""Cases, valid files, how such a file is read, and what must hold of the result."""


@pytest.mark.parametrize("kind", FILES)
def test_damaged_files(place, kind):
    examples, whole, read, check = FILES[kind]

    @fuzz(examples)
    @given(st.sampled_from(whole).flatmap(damaged))
    def run(content):
        path = place / "some_file"
        path.write_bytes(content)
        found = or_one_sentence(read, path)
        if found is not None:
            check(found)
        del found
        path.unlink()

    run()


BATCH = {b"data": np.arange(12, dtype=np.uint8).reshape(2, 6), b"labels": [3, 4], b"filenames": [b"a.png", b"b.png"]}


@fuzz(2600)
@given(st.sampled_from([0, 2, 3, 4, 5]).flatmap(lambda p: damaged(pickle.dumps(BATCH, protocol=p))))
def test_pickle(place, content):
    """Only the one file that is pinned is opened."""
    path = place / "some_file"
    path.write_bytes(pickle.dumps(BATCH, protocol=3))
    pin(path)
    path.write_bytes(content)
    batch = or_one_sentence(cifar.read_pickle, path)
    assert (batch is not None) == (content == pickle.dumps(BATCH, protocol=3))
    path.unlink()


def small_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as pack:
        pack.writestr("a/one.txt", "one" * 20)
        pack.writestr("two.bin", bytes(range(64)))
    return out.getvalue()


def small_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as pack:
        for name, content in (("a/one.txt", b"one" * 20), ("two.bin", bytes(range(64)))):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            pack.addfile(info, io.BytesIO(content))
    return out.getvalue()[:2560]


def small_gz() -> bytes:
    return gzip.compress(small_tar(), mtime=0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@fuzz(700)
@given(st.sampled_from([small_zip(), small_tar(), small_gz()]).flatmap(damaged))
def test_archives(place, content):
    folder = place / "archives"
    folder.mkdir(exist_ok=True)
    (folder / "some_file").write_bytes(content)
    out = or_none(archives.unpack, [folder / "some_file"], folder / "out")
    if out is None:
        assert tree(folder) == {"some_file"}
    else:
        assert all(p.is_file() or p.is_dir() for p in out.rglob("*"))
        assert {p.name for p in folder.iterdir()} == {"some_file", "out"}
        shutil.rmtree(out)


def or_none(read, *args):
    try:
        return read(*args)
    except InputError:
        return None


ROW = bytes([3]) + planes(cifar_images(1)).tobytes()


@fuzz(300)
@given(damaged(ROW * 2))
def test_cifar_binary(place, content):
    folder = place / "cifar"
    folder.mkdir(exist_ok=True)
    names = [f"{name}.bin" for split in cifar.LAYOUT10.files.values() for name in split]
    for name in names:
        if not (folder / name).exists():
            (folder / name).write_bytes(ROW)
    (folder / "data_batch_2.bin").write_bytes(content)
    splits = or_none(lambda: cifar.CIFAR10.required_in(folder, LoadOptions()).read())
    good = len(content) > 0 and len(content) % len(ROW) == 0 and max(content[:: len(ROW)]) < 10
    assert (splits is not None) == good
    if splits is not None:
        found = store.digest(splits["train"])
        assert found.count == 4 + len(content) // len(ROW)
        assert len(found.per_class) == 10


@fuzz(300)
@given(st.data())
def test_header_of_a_converted_set(place, data):
    root = place / "some_file"
    if not root.exists():
        x, y = cifar_images(3), np.array([0, 1, 2])
        split = store.Pixels(shape=x.shape, y_N=y, classes=("a", "b", "c"), parts=lambda: iter([("f", x)]), origin="o")
        store.write(root, {"train": split}, lambda *_: None, {"name": "toy"})
        (root / "header").write_bytes((root / "train" / "header.json").read_bytes())
    (root / "train" / "header.json").write_bytes(data.draw(damaged((root / "header").read_bytes())))
    stored = or_one_sentence(store.open_split, root, "train")
    if stored is not None:
        assert stored.x_NHWC.size == 9216
        assert len(stored.y_N) == len(stored.x_NHWC) == 3
