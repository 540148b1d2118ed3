"""Image sets after their first conversion: one raw uint8 array per split, its labels and a header.

    NAME-KEY/train/pixels.u8     images_NHWC or frames_NTHWC, C order, memory-mapped when opened
    NAME-KEY/train/labels.i64    little-endian int64, one per image
    NAME-KEY/train/header.json   shape, sha256 of both files, classes, mean, std, source, facts of the reader,
                                 the version that made it

Opening checks the header, the sizes and the labels; `verify` reads every pixel.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl import __version__
from mpd_agl.data.atomic import new_folder
from mpd_agl.data.types import check_labels
from mpd_agl.errors import InputError
from mpd_agl.records.files import write_synced
from mpd_agl.records.progress import progress

FORMAT = 1
BLOCK = 1024  # images read at a time


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """One split as a reader gives it: labels at once, images in parts, each with its file's name."""

    shape: tuple[int, ...]
    """Of the whole split: (N, H, W, C), or (N, T, H, W, C) for frames."""
    y_N: NDArray[np.int64]
    classes: tuple[str, ...]
    parts: Callable[[], Iterable[tuple[str, NDArray[np.uint8]]]]
    origin: str
    """Where the split was read, for errors and records."""
    encoded_sha256: Callable[[], str] | None = None
    """sha256 of the image files themselves, in order, where decoding is not exact (JPEG)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the provenance says about the split in addition."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "y_N", check_labels(self.y_N, self.shape[0], self.origin, len(self.classes)))


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What a pass over all images found."""

    count: int
    sha256: str
    labels_sha256: str
    per_class: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An opened split: memory-mapped images, labels, header."""

    folder: Path
    x_NHWC: NDArray[np.uint8]
    y_N: NDArray[np.int64]
    header: dict[str, Any] = field(repr=False)


def labels_digest(y_N: NDArray[np.int64]) -> str:
    """sha256 of the labels as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(y_N, dtype="<i8").tobytes()).hexdigest()


def blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Some samples at a time."""
    for start in range(0, len(x), BLOCK):
        yield x[start : start + BLOCK]


def digest(pixels: Pixels, sink: Callable[[memoryview], object] | None = None) -> Digest:
    """Read all images once: hash, counts per class, channel means and deviations. `sink` gets every byte."""
    n, channels = pixels.shape[0], pixels.shape[-1]
    whole, seen = hashlib.sha256(), 0
    total_C, squares_C = np.zeros(channels), np.zeros(channels)
    values = np.arange(256, dtype=np.float64)
    with progress(Path(pixels.origin).name, n) as report:
        for name, x_NHWC in pixels.parts():
            if x_NHWC.dtype != np.uint8 or x_NHWC.shape[1:] != pixels.shape[1:]:
                raise InputError(
                    f"{name} holds {x_NHWC.dtype} images of shape {x_NHWC.shape[1:]}, expected uint8 "
                    f"{pixels.shape[1:]}. Get the official file."
                )
            view = np.ascontiguousarray(x_NHWC).reshape(-1).data
            whole.update(view)
            if sink is not None:
                sink(view)
            seen += len(x_NHWC)
            report(seen, n)
            for c in range(channels):  # exact: integer histograms
                counts = np.bincount(x_NHWC[..., c].ravel(), minlength=256)
                total_C[c] += counts @ values
                squares_C[c] += counts @ values**2
    if seen != n:
        raise InputError(f"{pixels.origin} gave {seen:,} images for {n:,} labels. Get the official files.")
    per_pixel = max(1, math.prod(pixels.shape[:-1])) * 255.0
    mean_C = total_C / per_pixel
    std_C = np.sqrt(np.maximum(0.0, squares_C / (per_pixel * 255.0) - mean_C**2))
    return Digest(
        count=n,
        sha256=whole.hexdigest(),
        labels_sha256=labels_digest(pixels.y_N),
        per_class=tuple(np.bincount(pixels.y_N, minlength=len(pixels.classes)).tolist()),
        mean=tuple(mean_C.tolist()),
        std=tuple(std_C.tolist()),
    )


def write(
    root: Path, splits: dict[str, Pixels], check: Callable[[str, Pixels, Digest], None], extra: dict[str, Any]
) -> None:
    """Convert all splits into the new folder `root`. When `check` refuses a split by its digest, nothing is kept."""
    with new_folder(root) as scratch:
        for split, pixels in splits.items():
            folder = scratch / split
            folder.mkdir()
            with (folder / "pixels.u8").open("wb") as out:
                found = digest(pixels, out.write)
                out.flush()
                os.fsync(out.fileno())
            check(split, pixels, found)
            header = {
                "format": FORMAT,
                "split": split,
                "shape": list(pixels.shape),
                "dtype": "uint8",
                "sha256": found.sha256,
                "labels_sha256": found.labels_sha256,
                "classes": list(pixels.classes),
                "mean": list(found.mean),
                "std": list(found.std),
                "made_by": f"mpd-agl {__version__}",
                "facts": pixels.facts,
                **extra,
            }
            write_synced(folder / "labels.i64", np.ascontiguousarray(pixels.y_N, dtype="<i8").tobytes())
            write_synced(folder / "header.json", json.dumps(header, indent=1).encode())


def open_split(root: Path, split: str) -> Stored:
    """Open a converted split without reading its pixels: header, sizes and labels are checked, images mapped."""
    folder = root / split
    again = f"Remove {root} and it is converted again."
    try:
        header = json.loads((folder / "header.json").read_text(encoding="utf-8"))
        shape = tuple(int(n) for n in header["shape"])
        if header["format"] != FORMAT or header["dtype"] != "uint8" or len(shape) not in (4, 5) or min(shape) < 1:
            raise ValueError("another format")
        if any(len(header[key]) != shape[-1] for key in ("mean", "std")) or type(header.get("facts", {})) is not dict:
            raise ValueError("another format")
        classes = [str(c) for c in header["classes"]]
        size, labels = (folder / "pixels.u8").stat().st_size, (folder / "labels.i64").read_bytes()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder} is not a converted data set ({error}). {again}") from error
    if size != math.prod(shape):
        raise InputError(f"{folder / 'pixels.u8'} has {size:,} bytes, expected {math.prod(shape):,}. {again}")
    if hashlib.sha256(labels).hexdigest() != header.get("labels_sha256") or len(labels) != 8 * shape[0]:
        raise InputError(f"{folder / 'labels.i64'} is damaged: its content is not the one that was written. {again}")
    y_N = check_labels(np.frombuffer(labels, "<i8"), shape[0], str(folder), len(classes))
    x_NHWC = np.memmap(folder / "pixels.u8", np.uint8, "r", shape=shape)
    return Stored(folder=folder, x_NHWC=x_NHWC, y_N=y_N, header=header)


def in_memory(x: NDArray[Any], y: Any, classes: tuple[str, ...], origin: str) -> Pixels:
    """Images that are there already, to be read through in parts."""
    parts = [(origin, block) for block in blocks(x)]
    return Pixels(shape=x.shape, y_N=y, classes=classes, parts=parts.copy, origin=origin)


def as_pixels(stored: Stored) -> Pixels:
    """The stored images, to be read through once more."""
    return in_memory(stored.x_NHWC, stored.y_N, tuple(stored.header["classes"]), str(stored.folder))


def verify(stored: Stored) -> Digest:
    """Read every pixel and compare with the checksum of the header."""
    found, expected = digest(as_pixels(stored)), str(stored.header.get("sha256"))
    if found.sha256 != expected:
        raise InputError(
            f"{stored.folder / 'pixels.u8'} is damaged: its sha256 is {found.sha256[:16]}..., the header says "
            f"{expected[:16]}.... Remove {stored.folder.parent} and it is converted again."
        )
    return found
