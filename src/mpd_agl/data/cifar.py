"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the official python and binary files, and the PNG sheets of a mirror.

All three forms give the same images in the same order, so the hash of the decoded pixels is the same for all of them.
This is the only file of the package that touches pickle.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.images import opened
from mpd_agl.data.store import Pixels
from mpd_agl.errors import InputError

SIDE = 32
PLANE = 3 * SIDE * SIDE
MAX_BYTES = 256 << 20  # the largest official file has 155 MB
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
"""The published md5 of each pickle file of both sets, as torchvision lists them too."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names in one of the two archives."""

    title: str
    python_folder: str
    python: dict[str, tuple[str, ...]]
    label_key: bytes
    binary_folder: str
    binary: dict[str, tuple[str, ...]]
    label_bytes: int
    """Bytes before the pixels of a binary row; the last of them is the label."""
    sheets: dict[str, tuple[str, ...]] | None = None


CIFAR10 = Layout(
    title="CIFAR-10",
    python_folder="cifar-10-batches-py",
    python={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    label_key=b"labels",
    binary_folder="cifar-10-batches-bin",
    binary={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    label_bytes=1,
    sheets={"train": tuple(f"data_batch_{i}.png" for i in range(1, 6)), "test": ("test_batch.png",)},
)
CIFAR100 = Layout(
    title="CIFAR-100",
    python_folder="cifar-100-python",
    python={"train": ("train",), "test": ("test",)},
    label_key=b"fine_labels",
    binary_folder="cifar-100-binary",
    binary={"train": ("train.bin",), "test": ("test.bin",)},
    label_bytes=2,
)


def find(folder: Path, layout: Layout) -> tuple[str, Path] | None:
    """Look for one of the forms in `folder` or its official subfolder: ("python" | "binary" | "sheets", where)."""
    for form, sub, names in (
        ("python", layout.python_folder, layout.python),
        ("binary", layout.binary_folder, layout.binary),
        ("sheets", "package", layout.sheets or {}),
    ):
        for place in (folder, folder / sub):
            if any((place / name).is_file() for split in names.values() for name in split):
                return form, place
    return None


def files(form: str, place: Path, layout: Layout) -> list[Path]:
    """List the files that one form consists of; refuse if one is missing."""
    names = {"python": layout.python, "binary": layout.binary, "sheets": layout.sheets or {}}[form]
    paths = [place / name for split in names.values() for name in split]
    if form == "sheets":
        paths += [place / name for name in _SHEET_LABELS.values()]
    for path in paths:
        if not path.is_file():
            raise InputError(
                f"{layout.title} in {place} is incomplete: there is no file {path.name}. Get the official archive "
                "again."
            )
    return paths


def read(form: str, place: Path, layout: Layout, classes: tuple[str, ...]) -> dict[str, Pixels]:
    """Open both splits. Labels are read and checked at once, images when they are asked for."""
    files(form, place, layout)
    reader = {"python": _read_python, "binary": _read_binary, "sheets": _read_sheets}[form]
    return {split: reader(place, layout, split, classes) for split in ("train", "test")}


def _split(
    place: Path,
    names: Sequence[str],
    labels: list[NDArray[np.int64]],
    classes: tuple[str, ...],
    part: Callable[[Path], NDArray[np.uint8]],
) -> Pixels:
    for name, y_N in zip(names, labels, strict=True):
        if len(y_N) and (y_N.min() < 0 or y_N.max() >= len(classes)):
            bad = int(y_N.min()) if y_N.min() < 0 else int(y_N.max())
            raise InputError(
                f"{place / name} holds the label {bad}, outside 0..{len(classes) - 1}. Get the official file."
            )

    def parts() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        for name in names:
            yield str(place / name), part(place / name)

    y_N = np.concatenate(labels)
    return Pixels(shape=(len(y_N), SIDE, SIDE, 3), y_N=y_N, classes=classes, parts=parts, origin=str(place))


def _planes_to_images(x_NP: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of three colour planes to images_NHWC."""
    return np.ascontiguousarray(x_NP.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


class _Unpickler(pickle.Unpickler):
    """Builds containers, numbers, text and NumPy arrays; any other name in the pickle ends the reading."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module.split(".")[0] != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return known[name]


def read_pickle(path: Path) -> dict[bytes, Any]:
    """Read one of CIFAR's official pickle files.

    A pickle is a program. Its bytes are therefore compared with the published md5 before the first instruction runs,
    and a file that is not official is never run.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"{path} has {size:,} bytes, more than any CIFAR file. Get the official archive.")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Check data_dir (--data.data-dir).") from error
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != MD5.get(path.name):
        other = next((name for name, md5 in MD5.items() if md5 == digest), None)
        got = f"it is {other}, so files were swapped" if other else f"its md5 is {digest}"
        raise InputError(
            f"{path} is damaged or not the official one ({got}) and was not opened. Get the official archive again."
        )
    batch: dict[bytes, Any] = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    return batch


def _read_python(place: Path, layout: Layout, split: str, classes: tuple[str, ...]) -> Pixels:
    batches = {place / name: read_pickle(place / name) for name in layout.python[split]}
    labels = [np.array(batch[layout.label_key], np.int64) for batch in batches.values()]
    return _split(place, layout.python[split], labels, classes, lambda path: _planes_to_images(batches[path][b"data"]))


def _binary_rows(path: Path, label_bytes: int) -> NDArray[np.uint8]:
    row, size = label_bytes + PLANE, path.stat().st_size
    if size == 0 or size % row:
        raise InputError(
            f"{path} has {size:,} bytes, not a multiple of {row:,}: it is cut short or of another kind. Get the file "
            "again."
        )
    return np.memmap(path, np.uint8, "r").reshape(-1, row)


def _binary_images(path: Path, label_bytes: int) -> NDArray[np.uint8]:
    return _planes_to_images(np.asarray(_binary_rows(path, label_bytes)[:, label_bytes:]))


def _read_binary(place: Path, layout: Layout, split: str, classes: tuple[str, ...]) -> Pixels:
    names, skip = layout.binary[split], layout.label_bytes
    labels = [np.asarray(_binary_rows(place / name, skip)[:, skip - 1]).astype(np.int64) for name in names]
    return _split(place, names, labels, classes, partial(_binary_images, label_bytes=skip))


_SHEET_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package spells them like this


def _sheet(path: Path) -> NDArray[np.uint8]:
    """A PNG with one image per row of pixels: 1024 wide, RGB."""
    with opened(path, formats=("PNG",)) as image:
        if image.width != SIDE * SIDE or image.mode not in ("RGB", "RGBA"):
            raise InputError(
                f"{path} is a {image.mode} image {image.width} wide, expected RGB 1024 wide. Get the package again."
            )
        return np.asarray(image.convert("RGB")).reshape(-1, SIDE, SIDE, 3)


def _read_sheets(place: Path, layout: Layout, split: str, classes: tuple[str, ...]) -> Pixels:
    assert layout.sheets is not None
    names, path = layout.sheets[split], place / _SHEET_LABELS[split]
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, list) or not all(type(v) is int for v in values):
            raise ValueError("no list of integers")
        y_N = np.array(values, np.int64)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is no list of labels ({str(error)[:80]}). Get the package again.") from error
    if not len(y_N) or len(y_N) % len(names):
        raise InputError(f"{path} holds {len(y_N):,} labels for {len(names)} sheets. Get the package again.")
    return _split(place, names, np.split(y_N, len(names)), classes, _sheet)
