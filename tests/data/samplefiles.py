"""Tiny files in the official formats, written by the tests."""

import gzip
import hashlib
import io
import json
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from mpd_agl.data import cifar, fileset, registry
from mpd_agl.data.types import EventStream

PLANE = 3072


def tree(folder: Path) -> set[str]:
    """Everything under a folder, to see that nothing half-written stayed."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*")} if folder.exists() else set()


def cifar_images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def planes(x_NHWC: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x_NHWC.transpose(0, 3, 1, 2)).reshape(len(x_NHWC), PLANE)


def cifar10_sample(per_batch: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Six batches; every class occurs in the training batches together and in the test batch when per_batch >= 10."""
    return cifar_images(6 * per_batch), np.arange(6 * per_batch) % 10


def pin(path: Path) -> None:
    """Let a pickle that a test wrote pass for the official file of that name (see conftest)."""
    cifar.MD5[path.name] = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def write_cifar10_python(folder: Path, per_batch: int = 10, protocol: int = 3) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = cifar10_sample(per_batch)
    for i in range(6):
        rows = slice(i * per_batch, (i + 1) * per_batch)
        title = f"training batch {i + 1} of 5" if i < 5 else "testing batch 1 of 1"
        batch = {b"batch_label": title.encode(), b"labels": y[rows].tolist(), b"data": planes(x[rows])}
        name = f"data_batch_{i + 1}" if i < 5 else "test_batch"
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        pin(folder / name)
    return x, y


def write_cifar10_binary(folder: Path, per_batch: int = 10) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = cifar10_sample(per_batch)
    for i in range(6):
        rows = slice(i * per_batch, (i + 1) * per_batch)
        content = np.concatenate([y[rows, None].astype(np.uint8), planes(x[rows])], 1)
        (folder / (f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin")).write_bytes(content.tobytes())
    return x, y


def write_cifar10_sheets(folder: Path, per_batch: int = 10) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = cifar10_sample(per_batch)
    for i in range(6):
        sheet = x[i * per_batch : (i + 1) * per_batch].reshape(per_batch, 1024, 3)
        Image.fromarray(sheet).save(folder / (f"data_batch_{i + 1}.png" if i < 5 else "test_batch.png"))
    (folder / "train_lables.json").write_text(json.dumps(y[: 5 * per_batch].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(y[5 * per_batch :].tolist()))
    return x, y


def tiny_cifar10(monkeypatch, per_batch: int = 10, **changes) -> fileset.FileSet:
    """The registry's CIFAR-10 with few images and no hashes, unless given."""
    spec = replace(
        registry.get("cifar10"),
        counts={"train": 5 * per_batch, "test": per_batch},
        **{"sha256": {}, "labels_sha256": {}, **changes},
    )
    monkeypatch.setitem(registry.DATASETS, "cifar10", spec)
    return spec


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, zipped: bool = True) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder.mkdir(parents=True, exist_ok=True)
    rng, out = np.random.default_rng(1), {}
    for split, stem, count in (("train", "train", 30), ("test", "t10k", 20)):
        x, y = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), np.arange(count) % 10
        for name, array in ((f"{stem}-images-idx3-ubyte", x), (f"{stem}-labels-idx1-ubyte", y)):
            content = idx_bytes(array)
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                (folder / name).write_bytes(content)
        out[split] = (x, y)
    return out


WNIDS = ("n00000003", "n00000001", "n00000002")


def jpeg_bytes(seed: int, mode: str = "RGB", size: tuple[int, int] = (64, 64), kind: str = "JPEG") -> bytes:
    rng, out = np.random.default_rng(seed), io.BytesIO()
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    image = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))
    image.save(out, kind, quality=90)
    return out.getvalue()


def write_tinyimagenet(folder: Path, per_class: int = 12) -> None:
    """Three classes; some images greyscale; numbers above 9, so that text order and number order differ."""
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("".join(f"{w}\tword {w[-1]}, other\n" for w in WNIDS))
    lines, number = [], 0
    for k, wnid in enumerate(WNIDS):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(per_class):
            (images / f"{wnid}_{i}.JPEG").write_bytes(jpeg_bytes(100 * k + i, "L" if i % 3 == 0 else "RGB"))
        for _ in range(4):
            (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(jpeg_bytes(1000 + number))
            lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63")
            number += 1
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def events(count: int, side: int, seed: int = 0, last: int = 300_000) -> EventStream:
    rng = np.random.default_rng(seed)
    return EventStream(
        t_E=np.sort(rng.integers(0, last, count)).astype(np.int64),
        x_E=rng.integers(0, side, count).astype(np.uint16),
        y_E=rng.integers(0, side, count).astype(np.uint16),
        p_E=rng.integers(0, 2, count).astype(np.uint8),
        width=side,
        height=side,
    )


def same_events(a: EventStream, b: EventStream) -> bool:
    return (
        all(np.array_equal(getattr(a, f), getattr(b, f)) for f in ("t_E", "x_E", "y_E", "p_E"))
        and all(getattr(a, f).dtype == getattr(b, f).dtype for f in ("t_E", "x_E", "y_E", "p_E"))
        and (a.width, a.height) == (b.width, b.height)
    )


def tar_of(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as pack:
        pack.add(folder, folder.name)
    return archive


def zip_of(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as pack:
        for path in sorted(folder.rglob("*")):
            pack.write(path, path.relative_to(folder.parent))
    return archive


def make_zip(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes | str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, content in members:
            pack.writestr(name, content, compress_type=zipfile.ZIP_DEFLATED)
    return path


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as pack:
        for info, content in members:
            info.size = len(content)
            pack.addfile(info, io.BytesIO(content))
    return path


def make_pt(path: Path, content: bytes) -> Path:
    """A zip file as torch.save writes, with these bytes as its pickle."""
    with zipfile.ZipFile(path, "w") as pack:
        pack.writestr("archive/data.pkl", content)
        pack.writestr("archive/version", "3\n")
    return path


NMNIST_FOLDERS = {"train": "Train", "test": "Test"}


def write_aedat(path: Path, events: EventStream, *, transpose: bool = False) -> None:
    """As jAER would: the inverse of `recordings.read_aedat`."""
    column_E, row_E = (events.y_E, events.x_E) if transpose else (events.x_E, events.y_E)
    words_E2 = np.empty((len(events), 2), ">i4")
    words_E2[:, 0] = (127 - row_E.astype(int) << 8) | (127 - column_E.astype(int) << 1) | (1 - events.p_E.astype(int))
    words_E2[:, 1] = events.t_E
    path.write_bytes(b"#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n" + words_E2.tobytes())


def write_bin(path: Path, events: EventStream) -> None:
    """N-MNIST's format: the inverse of `recordings.read_bin`."""
    bytes_E5 = np.empty((len(events), 5), np.uint8)
    bytes_E5[:, 0], bytes_E5[:, 1] = events.x_E, events.y_E
    bytes_E5[:, 2] = (events.p_E.astype(int) << 7) | (events.t_E >> 16)
    bytes_E5[:, 3], bytes_E5[:, 4] = (events.t_E >> 8) & 0xFF, events.t_E & 0xFF
    path.write_bytes(bytes_E5.tobytes())
