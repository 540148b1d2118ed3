"""MNIST and Fashion-MNIST: the official idx files, plain or gzipped.

An idx file is two zero bytes, a type (8: uint8), the number of axes, one big-endian uint32 per axis, then the values.
"""

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.store import Pixels
from mpd_agl.errors import InputError

NAMES = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}
MAX_BYTES = 256 << 20


def find(folder: Path) -> Path | None:
    """The folder that holds the idx files: `folder` itself or one of the places packages put them."""
    for place in (folder, folder / "raw", folder / "package" / "data", folder / "data"):
        if place.is_dir() and any(_file(place, stem) for pair in NAMES.values() for stem in pair):
            return place
    return None


def _file(place: Path, stem: str) -> Path | None:
    axes = 3 if stem.endswith("images") else 1
    for name in (f"{stem}-idx{axes}-ubyte", f"{stem}.idx{axes}-ubyte"):
        for suffix in ("", ".gz"):
            if (place / (name + suffix)).is_file():
                return place / (name + suffix)
    return None


def files(place: Path) -> list[Path]:
    """List the four files; refuse if one is missing."""
    found = []
    for pair in NAMES.values():
        for stem in pair:
            path = _file(place, stem)
            if path is None:
                axes = 3 if stem.endswith("images") else 1
                raise InputError(
                    f"there is no {stem}-idx{axes}-ubyte[.gz] in {place}. Put the four official files there."
                )
            found.append(path)
    return found


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read one idx file of unsigned bytes with the given number of axes."""
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(2) == b"\x1f\x8b"
        if gzipped:
            with gzip.open(path, "rb") as stream:
                content = stream.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as raw:
                content = raw.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read ({reason[:80]}). Get the file again.") from error
    return decode_idx(content, path, axes)


def decode_idx(content: bytes, path: Path, axes: int) -> NDArray[np.uint8]:
    """Decode the bytes of an idx file; `path` is what an error calls them."""
    head = 4 + 4 * axes
    if len(content) > MAX_BYTES or len(content) < head or content[:4] != bytes((0, 0, 8, axes)):
        raise InputError(f"{path} is no idx file of unsigned bytes with {axes} axes. Get the official file.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    expected = head + math.prod(shape)
    if len(content) != expected or expected == head:
        raise InputError(
            f"{path} has {len(content):,} bytes, its header says {expected:,}: it is cut short or damaged. "
            "Get the file again."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def read(place: Path, classes: tuple[str, ...], side: int = 28) -> dict[str, Pixels]:
    """Open both splits; the images come as one part per split."""
    paths = files(place)
    return {"train": _split(paths[0], paths[1], classes, side), "test": _split(paths[2], paths[3], classes, side)}


def _split(images: Path, labels: Path, classes: tuple[str, ...], side: int) -> Pixels:
    y_N = read_idx(labels, 1).astype(np.int64)
    if y_N.max() >= len(classes):
        raise InputError(f"{labels} holds the label {y_N.max()}, outside 0..{len(classes) - 1}. Get the official file.")
    x_NHW = read_idx(images, 3)
    if x_NHW.shape[1:] != (side, side):
        raise InputError(
            f"{images} holds images of {x_NHW.shape[1]}x{x_NHW.shape[2]} pixels, expected {side}x{side}. Get the "
            "official file."
        )
    if len(x_NHW) != len(y_N):
        raise InputError(
            f"{images} holds {len(x_NHW):,} images, {labels.name} {len(y_N):,} labels: training and test files are "
            "mixed."
        )

    def parts() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        yield str(images), x_NHW[..., None]

    return Pixels(shape=(*x_NHW.shape, 1), y_N=y_N, classes=classes, parts=parts, origin=str(images.parent))
