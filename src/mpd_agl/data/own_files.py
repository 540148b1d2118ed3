"""A user's own files: images in class folders, arrays in an .npz file, event recordings in class folders.

    folder         DIR/train/CLASS/*, DIR/test/CLASS/*; or DIR/CLASS/*, split by a named rule
    npz            one file with x_train, y_train, x_test, y_test, and `classes` (names) if wanted
    event-folder   folders as above; .npz or .npy with t, x, y, p, AEDAT 2.0 of a DVS128, or N-MNIST's .bin

They are kept in the cache under a key of the files' names, sizes and times. Mean and std are measured on the training
split. The split and the hash of the pixels are in the provenance.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import images, sources
from mpd_agl.data.arrays import as_bytes, channels_last, class_names
from mpd_agl.data.atomic import disk_errors, whole_file
from mpd_agl.data.fileset import COUNTS, NO_MEAN, FileSet, Found, Recordings, unreadable
from mpd_agl.data.options import FolderOptions, SplitFrameOptions, SplitOptions
from mpd_agl.data.recordings import by_number, load_arrays, read_aedat, read_bin, read_numpy
from mpd_agl.data.splits import split_indices
from mpd_agl.data.store import Pixels, blocks
from mpd_agl.data.types import SPLITS, EventStream, LoadOptions, check_labels
from mpd_agl.errors import InputError
from mpd_agl.records.progress import progress

VERSION = 2
"""Number of the rules that turn files into arrays; part of every key, so no converted set outlives its rules."""
USUAL_SIZE, LARGEST_KEPT = 32, 64


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """The files of each split with their labels, ordered by class, then by number and name."""

    classes: tuple[str, ...]
    paths: dict[str, list[Path]]
    labels: dict[str, NDArray[np.int64]]
    facts: dict[str, dict[str, Any]]
    """What the provenance says of each split: its rule and hash, and how many files of other kinds were left out."""

    @property
    def every(self) -> list[Path]:
        """The files of both splits."""
        return [path for split in SPLITS for path in self.paths[split]]


def list_classes(folder: Path, suffixes: Sequence[str], options: SplitOptions) -> ClassFolders:
    """List the files of each class; a folder without `train` and `test` is split by `options.split_rule`."""
    halves = [split for split in SPLITS if (folder / split).is_dir()]
    if len(halves) == 1:
        (other,) = set(SPLITS) - set(halves)
        raise InputError(
            f"{folder} has a folder {halves[0]!r} and no folder {other!r}. Add it, or put the class folders into "
            f"{folder} itself to have them split."
        )
    tops = {split: folder / split for split in halves} or {"all": folder}
    first = next(iter(tops.values()))
    classes = _subfolders(first)
    if len(classes) < 2:
        raise InputError(
            f"{first} holds {len(classes)} class folder(s), and a classifier needs two. Put the files of each class "
            "into a folder of its own."
        )
    paths: dict[str, list[Path]] = {}
    labels: dict[str, NDArray[np.int64]] = {}
    ignored = 0
    for split, top in tops.items():
        if strange := set(_subfolders(top)) - set(classes):
            raise InputError(
                f"{top} has the class folder {min(strange)!r}, and {first} has not. Both need the same classes."
            )
        found: list[list[Path]] = []
        for name in classes:
            files = [p for p in (top / name).rglob("*") if p.is_file() and not p.name.startswith(".")]
            found.append(sorted((p for p in files if p.suffix.lower() in suffixes), key=by_number))
            ignored += len(files) - len(found[-1])
        empty = [top / name for name, right in zip(classes, found, strict=True) if not right]
        if empty and (split != "test" or len(empty) == len(classes)):
            raise InputError(f"{empty[0]} holds no file of a known kind ({', '.join(suffixes)}). Put some there.")
        paths[split] = [path for right in found for path in right]
        labels[split] = np.repeat(np.arange(len(classes)), [len(right) for right in found])
    facts: dict[str, dict[str, Any]] = {s: {"split_rule": "official", "ignored_files": ignored} for s in SPLITS}
    if "all" in tops:
        rule, seed, whole, y_N = options.split_rule, options.split_seed, paths.pop("all"), labels.pop("all")
        for split in SPLITS:
            index, digest = split_indices(y_N, rule, split=split, seed=seed)
            paths[split], labels[split] = [whole[i] for i in index], y_N[index]
            facts[split] |= {"split_rule": rule, "split_seed": seed, "split_hash": digest}
    return ClassFolders(classes=classes, paths=paths, labels=labels, facts=facts)


def _subfolders(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")))
    except OSError as error:
        raise unreadable(folder, error) from error


def find_images(spec: FileSet, folder: Path, options: LoadOptions) -> Found | None:
    """Images in class folders, of any size and format, as squares of `image_size`."""
    if not folder.is_dir():
        return None
    table: FolderOptions = options.table
    listed = list_classes(folder, images.SUFFIXES, table)

    def read() -> dict[str, Pixels]:
        size, channels = _image_shape(listed.every, table)
        read_one = partial(images.read_square, size=size, channels=channels)
        facts = {"image_size": size, "colour": "grey" if channels == 1 else "rgb"}
        return {
            split: Pixels(
                shape=(len(paths), size, size, channels),
                y_N=listed.labels[split],
                classes=listed.classes,
                parts=images.file_parts(paths, read_one),
                origin=str(paths[0].parent.parent),
                facts=listed.facts[split] | facts,
            )
            for split, paths in listed.paths.items()
        }

    return Found(
        place=folder,
        markers=listed.every,
        read=read,
        depends=(VERSION, table.image_size, table.colour, listed.facts),
    )


def _image_shape(paths: Sequence[Path], table: FolderOptions) -> tuple[int, int]:
    """Side and channels of the squares: as asked for, or as the headers of all images suggest."""

    def look(path: Path) -> tuple[tuple[int, int], bool]:
        with images.opened(path) as image:
            return image.size, images.is_grey(image)

    size, channels = table.image_size, {"grey": 1, "rgb": 3}.get(table.colour, 0)
    if not (size and channels):
        with ThreadPoolExecutor() as pool:
            seen = Counter(pool.map(look, paths))
        (width, height), _ = next(iter(seen))
        own = width == height <= LARGEST_KEPT and len({shape for shape, _ in seen}) == 1
        size = size or (width if own else USUAL_SIZE)
        channels = channels or (1 if all(grey for _, grey in seen) else 3)
    return size, channels


def find_npz(spec: FileSet, path: Path, options: LoadOptions) -> Found | None:
    """One .npz file."""
    if not path.is_file() or path.suffix.lower() != ".npz":
        return None
    return Found(place=path, markers=[path], read=partial(_read_npz, path), depends=(VERSION,))


def _read_npz(path: Path) -> dict[str, Pixels]:
    """Images (N, H, W[, C]) or (N, C, H, W), or frames (N, T, H, W, C) or (N, T, C, H, W)."""
    arrays = load_arrays(path)
    wanted = [f"{which}_{s}" for s in SPLITS for which in "xy"]
    if missing := [name for name in wanted if name not in arrays]:
        raise InputError(
            f"{path} has no array {missing[0]!r} but {', '.join(sorted(arrays)) or 'nothing'}. "
            f"Save {', '.join(wanted)}."
        )
    x = {s: channels_last(arrays[f"x_{s}"], f"x_{s} in {path}") for s in SPLITS}
    if x["train"].shape[1:] != x["test"].shape[1:] or not all(map(len, x.values())):
        raise InputError(
            f"{path} holds x_train of shape {x['train'].shape} and x_test of shape {x['test'].shape}. Save at least "
            "one sample of each, in one shape."
        )
    y_N = check_labels(arrays["y_train"], len(x["train"]), f"y_train in {path}")
    classes = class_names(arrays["classes"].tolist() if "classes" in arrays else None, y_N, f"y_train in {path}")
    return {
        s: Pixels(
            shape=x[s].shape,
            y_N=arrays[f"y_{s}"],
            classes=classes,
            parts=partial(_byte_parts, x[s], f"x_{s} in {path}"),
            origin=f"{s} in {path}",
        )
        for s in SPLITS
    }


def _byte_parts(x: NDArray[Any], name: str) -> list[tuple[str, NDArray[np.uint8]]]:
    return [(name, as_bytes(block, name)) for block in blocks(x)]


EVENT_READERS: dict[str, Callable[..., EventStream]] = {
    ".npz": read_numpy,
    ".npy": read_numpy,
    ".aedat": read_aedat,
    ".bin": read_bin,
}


def find_recordings(spec: FileSet, folder: Path, options: LoadOptions) -> Found | None:
    """Event recordings in class folders."""
    if not folder.is_dir():
        return None
    listed = list_classes(folder, tuple(EVENT_READERS), options.table)
    kinds = sorted({path.suffix.lower() for path in listed.every})
    if len(kinds) > 1:
        raise InputError(f"{folder} mixes recordings of the kinds {', '.join(kinds)}. Keep one kind in it.")
    found = Found(place=folder, markers=listed.every, depends=(VERSION, listed.facts))

    def read() -> dict[str, Recordings]:
        read_one, facts = EVENT_READERS[kinds[0]], {}
        if read_one is read_numpy:
            kept = sources.cache_root(options.cache_dir) / "frames" / f"sensor-{found.key}.json"
            facts = {"sensor": _sensor(listed.every, kept)}
            read_one = partial(read_numpy, sensor=facts["sensor"])
        return {
            split: Recordings(
                items=paths,
                y_N=listed.labels[split],
                classes=listed.classes,
                read_one=read_one,
                origin=str(folder),
                facts=listed.facts[split] | facts,
            )
            for split, paths in listed.paths.items()
        }

    return replace(found, read=read)


def _sensor(paths: Sequence[Path], kept: Path) -> list[int]:
    """Width and height of the sensor: the largest that any recording says or needs. The result is kept in `kept`."""
    try:
        width, height = map(int, json.loads(kept.read_text(encoding="utf-8")))
        return [width, height]
    except (OSError, ValueError, TypeError):
        width = height = 1
    with progress("size of the sensor", len(paths)) as report:
        for done, path in enumerate(paths, 1):
            events = read_numpy(path)
            width, height = max(width, events.width), max(height, events.height)
            report(done, len(paths))
    with disk_errors(kept), whole_file(kept) as file:
        file.write(json.dumps([width, height]).encode())
    return [width, height]


FOLDER = FileSet(
    name="folder",
    title="your images in class folders: DIR/train/CLASS/*, DIR/test/CLASS/*, or DIR/CLASS/*",
    find=find_images,
    options=FolderOptions,
    folder="a folder of class folders",
)
NPZ = FileSet(
    name="npz",
    title="your arrays x_train, y_train, x_test, y_test in one .npz file",
    find=find_npz,
    folder="an .npz file",
)
EVENT_FOLDER = FileSet(
    name="event-folder",
    title="your event recordings in class folders: .npz, .npy, .aedat or .bin",
    kind="events",
    find=find_recordings,
    options=SplitFrameOptions,
    mean=NO_MEAN,
    std=COUNTS,
    folder="a folder of class folders with recordings",
)
