"""Tiny-ImageNet-200 in its official folder: 64x64 JPEG files, some of them greyscale.

Classes are the 200 WordNet ids in sorted order. Images are ordered by class and number (training) and by number
(validation, which serves as test set: the official test images have no public labels).
"""

import hashlib
import re
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.fileset import FileSet, Found, RemoteFile, first_folder
from mpd_agl.data.images import file_parts, opened
from mpd_agl.data.options import ImageOptions
from mpd_agl.data.store import Pixels
from mpd_agl.data.types import LoadOptions
from mpd_agl.errors import InputError

SIDE = 64
FOLDER = "tiny-imagenet-200"
_WNID = re.compile(r"n\d{8}")


def find(spec: FileSet, folder: Path, options: LoadOptions) -> Found | None:
    """The set in `folder` or the official subfolder, whichever holds wnids.txt."""
    place = first_folder(folder, (FOLDER,), lambda p: (p / "wnids.txt").is_file())
    if place is None:
        return None
    # These are 203 entries instead of 110,000 files; a folder's time changes with the files in it.
    val = place / "val"
    markers = [place / "wnids.txt", val / "val_annotations.txt", val / "images", *sorted(place.glob("train/*/images"))]
    return Found(place=place, markers=markers, read=partial(read, spec, place))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not text'}). Get the official archive again."
        ) from error


def read(spec: FileSet, place: Path) -> dict[str, Pixels]:
    """Open both splits: files are listed and checked at once, images decoded when they are asked for."""
    wnids = sorted({line.strip() for line in _lines(place / "wnids.txt") if line.strip()})
    if len(wnids) != spec.num_classes or not all(_WNID.fullmatch(w) for w in wnids):
        raise InputError(
            f"{place / 'wnids.txt'} lists {len(wnids)} classes, expected {spec.num_classes} WordNet ids. Get the "
            "official archive."
        )
    words = {}
    if (place / "words.txt").is_file():
        words = dict(line.split("\t", 1) for line in _lines(place / "words.txt") if "\t" in line)
    classes = tuple(words.get(w, w).split(",")[0].strip() for w in wnids)
    return {"train": _train(place, wnids, classes), "test": _validation(place, wnids, classes)}


def _train(place: Path, wnids: list[str], classes: tuple[str, ...]) -> Pixels:
    paths, labels = [], []
    for label, wnid in enumerate(wnids):
        folder = place / "train" / wnid / "images"
        pattern = re.compile(rf"{wnid}_(\d+)\.JPEG")
        found = [(int(m[1]), path) for path in folder.glob("*.JPEG") if (m := pattern.fullmatch(path.name))]
        if not found:
            raise InputError(
                f"{folder} is missing or holds no image of class {wnid} ({classes[label]}). Get the official archive "
                "again."
            )
        paths += [path for _, path in sorted(found)]
        labels += [label] * len(found)
    return _pixels(paths, labels, classes, str(place / "train"))


def _validation(place: Path, wnids: list[str], classes: tuple[str, ...]) -> Pixels:
    path = place / "val" / "val_annotations.txt"
    index, rows = {wnid: i for i, wnid in enumerate(wnids)}, []
    for line in _lines(path):
        name, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0].strip()
        number = re.fullmatch(r"val_(\d+)\.JPEG", name)
        if number is None or wnid not in index:
            raise InputError(
                f"{path} holds the line {line[:60]!r}, no image of a known class. Get the official archive again."
            )
        rows.append((int(number[1]), place / "val" / "images" / name, index[wnid]))
    if not rows:
        raise InputError(f"{path} lists no image. Get the official archive again.")
    rows.sort()
    present = {p.name for p in (place / "val" / "images").glob("*.JPEG")}
    for _, image, _ in rows:
        if image.name not in present:
            raise InputError(f"{image} is missing, but {path.name} lists it. Get the official archive again.")
    return _pixels([p for _, p, _ in rows], [y for _, _, y in rows], classes, str(place / "val"))


def _pixels(paths: list[Path], labels: list[int], classes: tuple[str, ...], origin: str) -> Pixels:
    def encoded_sha256() -> str:
        # Two JPEG decoders may differ by one grey level, so the hash is over the files and not over the pixels.
        whole = hashlib.sha256()
        for path in paths:
            whole.update(path.read_bytes())
        return whole.hexdigest()

    return Pixels(
        shape=(len(paths), SIDE, SIDE, 3),
        y_N=np.array(labels, np.int64),
        classes=classes,
        parts=file_parts(paths, read_jpeg),
        origin=origin,
        encoded_sha256=encoded_sha256,
    )


def read_jpeg(path: Path, side: int = SIDE) -> NDArray[np.uint8]:
    """Decode one image to RGB; greyscale becomes three equal channels, another size or mode is an error."""
    with opened(path, formats=("JPEG",)) as image:
        if image.size != (side, side) or image.mode not in ("RGB", "L"):
            raise InputError(
                f"{path} is a {image.mode} image of {image.width}x{image.height} pixels, expected RGB or "
                f"greyscale {side}x{side}. Get the official archive again."
            )
        return np.asarray(image.convert("RGB"))


TINYIMAGENET = FileSet(
    name="tinyimagenet",
    title="Tiny-ImageNet-200",
    find=find,
    options=ImageOptions,
    shape=(64, 64, 3),
    num_classes=200,
    counts={"train": 100_000, "test": 10_000},
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2770, 0.2691, 0.2821),
    licence="ImageNet terms: research and teaching only",
    # The complete training set was never available here: 500 labels per class are known, and its archive's sha256.
    labels_sha256={
        "train": "d6886bd1c321bc71b683b826c731e8294880c39ea912eec43b4690767dfa943a",
        "test": "c684494eb1a012a8cd5637b2b72da242a4ed54893a963177de3c729b4a6f3f12",
    },
    encoded_sha256={"test": "f570b36ec9a80c4ab370b26a500b0d41588132602edfbbf4121fa50afc3bd70e"},
    archives=(("tiny-imagenet-200.zip",),),
    folder="the folder tiny-imagenet-200",
    remote=(
        RemoteFile(
            name="tiny-imagenet-200.zip",
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            size=248_100_043,
            digest="sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        ),
    ),
)
