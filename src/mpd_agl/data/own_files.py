"""A user's own files: images in class folders, arrays in an .npz file, event recordings in class folders.

    folder         DIR/train/CLASS/*, DIR/test/CLASS/*; or DIR/CLASS/*, split by a named rule
    npz            one file with x_train, y_train, x_test, y_test, and `classes` (names) if wanted
    event-folder   folders as above; .npz or .npy with t, x, y, p, AEDAT 2.0 of a DVS128, or N-MNIST's .bin

Images and arrays are converted once into the cache, under a key of the files' names, sizes and times; recordings become
frames there. Mean and std are measured on the training split. They, the split and the hash of the pixels are in the
provenance.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import images, sources, store
from mpd_agl.data.arrays import as_bytes, as_labels, blocks, channels_last, class_names, moments
from mpd_agl.data.readers import state_key
from mpd_agl.data.recordings import Recordings, by_number, load_arrays, read_aedat, read_bin, read_numpy
from mpd_agl.data.splits import split_indices
from mpd_agl.data.types import SPLITS, ArraySet, EventStream, LoadOptions
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.records.progress import progress

VERSION = 1
"""Number of the rules that turn files into arrays; part of every key, so no converted set outlives its rules."""
COLOURS = ("auto", "rgb", "grey")
LARGEST_SIZE, USUAL_SIZE, LARGEST_KEPT = 1024, 32, 64


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """The files of each split with their labels, ordered by class, then by number and name."""

    classes: tuple[str, ...]
    paths: dict[str, tuple[Path, ...]]
    labels: dict[str, NDArray[np.int64]]
    facts: dict[str, Any]
    """What the provenance says: the split's rule and hashes, and how many files of other kinds were left out."""


def list_classes(folder: Path, suffixes: Sequence[str], options: LoadOptions) -> ClassFolders:
    """List the files of each class; a folder without `train` and `test` is split by `options.split_rule`."""
    halves = [split for split in SPLITS if (folder / split).is_dir()]
    if len(halves) == 1:
        (other,) = set(SPLITS) - set(halves)
        raise InputError(
            f"{folder} has a folder {halves[0]!r} and no folder {other!r}. Add it, or put the class folders into "
            f"{folder} itself to have them split."
        )
    tops = {split: folder / split for split in halves} or {"all": folder}
    classes = _subfolders(next(iter(tops.values())))
    if len(classes) < 2:
        raise InputError(
            f"{next(iter(tops.values()))} holds {len(classes)} class folder(s), and a classifier needs two. Put the "
            "files of each class into a folder of its own."
        )
    paths: dict[str, tuple[Path, ...]] = {}
    labels: dict[str, NDArray[np.int64]] = {}
    ignored = 0
    for split, top in tops.items():
        if strange := set(_subfolders(top)) - set(classes):
            raise InputError(
                f"{top} has the class folder {min(strange)!r}, and {tops['train']} has not. Both need the same classes."
            )
        found: list[Path] = []
        counts = []
        for name in classes:
            files = [p for p in (top / name).rglob("*") if p.is_file() and not p.name.startswith(".")]
            right = sorted((p for p in files if p.suffix.lower() in suffixes), key=by_number)
            if not right and split != "test":
                raise InputError(f"{top / name} holds no file of a known kind ({', '.join(suffixes)}). Put some there.")
            found += right
            counts.append(len(right))
            ignored += len(files) - len(right)
        if not found:
            raise InputError(f"{top} holds no file of a known kind ({', '.join(suffixes)}). Put some there.")
        paths[split], labels[split] = tuple(found), np.repeat(np.arange(len(classes)), counts)
    facts: dict[str, Any] = {"split_rule": "official", "ignored_files": ignored}
    if "all" in tops:
        rule, seed, hashes = options.split_rule, options.split_seed, {}
        whole, y_N = paths.pop("all"), labels.pop("all")
        for split in SPLITS:
            index, hashes[split] = split_indices(y_N, rule, split=split, seed=seed)
            paths[split], labels[split] = tuple(whole[i] for i in index), y_N[index]
        facts |= {"split_rule": rule, "split_seed": seed, "split_hash": hashes}
    return ClassFolders(classes=classes, paths=paths, labels=labels, facts=facts)


def _subfolders(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}). Check data_dir (--data.data-dir).") from error


def _given(name: str, options: LoadOptions, *, suffix: str = "") -> Path:
    """The folder, or with `suffix` the file, that the user must name."""
    what = f"{suffix} file" if suffix else "folder"
    place = options.data_dir
    if place is None:
        raise InputError(f"the data set {name!r} needs to know the {what} to read. Pass --data-dir.")
    right = place.is_file() and place.suffix.lower() == suffix if suffix else place.is_dir()
    if not right:
        raise InputError(f"there is no {what} {place}. Check data_dir (--data.data-dir).")
    return place


def _converted(
    name: str, key: str, split: str, options: LoadOptions, make: Callable[[], tuple[dict[str, store.Pixels], Any]]
) -> ArraySet:
    """Open a split of a converted set; `make` gives what to convert and its facts where it is not there yet."""
    root = sources.cache_root(options.cache_dir) / "converted" / f"{name}-{key}"
    if not root.is_dir():
        splits, facts = make()
        extra = {"name": name, "source": f"data-dir {options.data_dir}", "partial": {}, "facts": facts}
        store.write(root, splits, lambda *_: None, extra)
    stored = {s: store.open_split(root, s) for s in SPLITS}
    header, shape = stored["train"].header, stored["train"].x_NHWC.shape
    try:
        mean, std = moments(header["mean"], header["std"], shape)
        facts = {k: v[split] if k == "split_hash" else v for k, v in header["facts"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{root} is not a converted data set ({error}). Remove {root} and it is converted again."
        ) from error
    provenance = {
        "source": header["source"],
        "partial": False,
        "sha256": stored[split].header["sha256"],
        "labels_sha256": stored[split].header["labels_sha256"],
        "mean": list(mean),
        "std": list(std),
        **facts,
    }
    return ArraySet(
        name=name,
        split=split,
        x=stored[split].x_NHWC,
        y=stored[split].y_N,
        classes=tuple(header["classes"]),
        mean=mean,
        std=std,
        provenance=provenance,
    )


def load_folder(split: str, options: LoadOptions) -> ArraySet:
    """Images in class folders, of any size and format, as squares of `options.image_size`."""
    folder = _given("folder", options)
    if options.colour not in COLOURS:
        raise unknown_name("colour", options.colour, COLOURS)
    if not 0 <= options.image_size <= LARGEST_SIZE:
        raise InputError(f"the image size must be from 1 to {LARGEST_SIZE}, or 0, got {options.image_size}. Use 32.")
    listed = list_classes(folder, images.SUFFIXES, options)
    every = [path for s in SPLITS for path in listed.paths[s]]

    def make() -> tuple[dict[str, store.Pixels], Any]:
        size, channels = _image_shape(every, options)
        read = partial(images.read_square, size=size, channels=channels)
        splits = {
            s: store.Pixels(
                shape=(len(paths), size, size, channels),
                y_N=listed.labels[s],
                classes=listed.classes,
                parts=images.file_parts(paths, read),
                origin=str(paths[0].parent.parent),
            )
            for s, paths in listed.paths.items()
        }
        return splits, {**listed.facts, "image_size": size, "colour": "grey" if channels == 1 else "rgb"}

    key = state_key(every, VERSION, options.image_size, options.colour, listed.facts)
    return _converted("folder", key, split, options, make)


def _image_shape(paths: Sequence[Path], options: LoadOptions) -> tuple[int, int]:
    """Side and channels of the squares: as asked for, or as the headers of all images suggest."""

    def look(path: Path) -> tuple[tuple[int, int], bool]:
        with images.opened(path) as image:
            return image.size, images.is_grey(image)

    size, channels = options.image_size, {"grey": 1, "rgb": 3}.get(options.colour, 0)
    if not (size and channels):
        with ThreadPoolExecutor() as pool:
            seen = Counter(pool.map(look, paths))
        (width, height), _ = next(iter(seen))
        own = width == height <= LARGEST_KEPT and len({shape for shape, _ in seen}) == 1
        size = size or (width if own else USUAL_SIZE)
        channels = channels or (1 if all(grey for _, grey in seen) else 3)
    return size, channels


def load_npz(split: str, options: LoadOptions) -> ArraySet:
    """Arrays in one .npz file: images (N, H, W[, C]) or (N, C, H, W), or frames (N, T, H, W, C) or (N, T, C, H, W)."""
    path = _given("npz", options, suffix=".npz")

    def make() -> tuple[dict[str, store.Pixels], Any]:
        arrays = load_arrays(path)
        wanted = [f"{which}_{s}" for s in SPLITS for which in "xy"]
        if missing := [name for name in wanted if name not in arrays]:
            raise InputError(
                f"{path} has no array {missing[0]!r} but {', '.join(sorted(arrays)) or 'nothing'}. "
                f"Save {', '.join(wanted)}."
            )
        x = {s: channels_last(arrays[f"x_{s}"], f"x_{s} in {path}") for s in SPLITS}
        y = {s: as_labels(arrays[f"y_{s}"], len(x[s]), f"y_{s} in {path}") for s in SPLITS}
        if x["train"].shape[1:] != x["test"].shape[1:]:
            raise InputError(
                f"x_train in {path} holds images of shape {x['train'].shape[1:]}, x_test {x['test'].shape[1:]}. "
                "Save both with one shape."
            )
        names = arrays["classes"].tolist() if "classes" in arrays else None
        classes = class_names(names, y["train"], f"y_train in {path}")
        for s in SPLITS:
            if not len(y[s]):
                raise InputError(f"x_{s} in {path} holds no sample. Save at least one.")
            if y[s].min() < 0 or y[s].max() >= len(classes):
                raise InputError(
                    f"y_{s} in {path} holds labels from {y[s].min()} to {y[s].max()}, and there are {len(classes)} "
                    f"classes. Use 0 to {len(classes) - 1}."
                )
        return {s: _array_pixels(x[s], y[s], classes, f"x_{s} in {path}") for s in SPLITS}, {}

    return _converted("npz", state_key([path], VERSION), split, options, make)


def _array_pixels(x: NDArray[Any], y_N: NDArray[np.int64], classes: tuple[str, ...], name: str) -> store.Pixels:
    return store.Pixels(
        shape=x.shape,
        y_N=y_N,
        classes=classes,
        parts=lambda: ((name, as_bytes(block, name)) for block in blocks(x)),
        origin=name,
    )


EVENT_READERS: dict[str, Callable[..., EventStream]] = {
    ".npz": read_numpy,
    ".npy": read_numpy,
    ".aedat": read_aedat,
    ".bin": read_bin,
}


def load_event_folder(split: str, options: LoadOptions) -> ArraySet:
    """Event recordings in class folders as frames."""
    from mpd_agl.data.framing import build_frames, frames_sha256

    folder = _given("event-folder", options)
    listed = list_classes(folder, tuple(EVENT_READERS), options)
    every = [path for s in SPLITS for path in listed.paths[s]]
    kinds = sorted({path.suffix.lower() for path in every})
    if len(kinds) > 1:
        raise InputError(f"{folder} mixes recordings of the kinds {', '.join(kinds)}. Keep one kind in it.")
    cache, key = sources.cache_root(options.cache_dir) / "frames", state_key(every, VERSION, listed.facts)
    read: Callable[[Path], EventStream] = EVENT_READERS[kinds[0]]
    sensor = None
    if read is read_numpy:
        sensor = _sensor(every, cache / f"sensor-{key}.json")
        read = partial(read_numpy, sensor=sensor)
    recordings = Recordings(paths=listed.paths[split], y_N=listed.labels[split], read_file=read, origin=str(folder))
    x_NTHWC = build_frames(recordings, len(recordings), options.frames, cache, key=f"event-folder-{key}-{split}")
    facts = {k: v[split] if k == "split_hash" else v for k, v in listed.facts.items()}
    provenance = {
        "source": f"data-dir {folder}",
        "partial": False,
        "frames": asdict(options.frames),
        "frames_sha256": frames_sha256(x_NTHWC),
        "labels_sha256": store.labels_digest(listed.labels[split]),
        **({"sensor": list(sensor)} if sensor else {}),
        **facts,
    }
    return ArraySet(
        name="event-folder",
        split=split,
        x=x_NTHWC,
        y=listed.labels[split],
        classes=listed.classes,
        mean=(0.0, 0.0),
        std=(1 / 255, 1 / 255),
        provenance=provenance,
    )


def _sensor(paths: Sequence[Path], kept: Path) -> tuple[int, int]:
    """Width and height of the sensor: the largest that any recording tells or needs. One look is kept in `kept`."""
    try:
        width, height = json.loads(kept.read_text(encoding="utf-8"))
        return int(width), int(height)
    except (OSError, ValueError, TypeError):
        pass
    width = height = 1
    with progress("size of the sensor", len(paths)) as report:
        for done, path in enumerate(paths, 1):
            events = read_numpy(path)
            width, height = max(width, events.width), max(height, events.height)
            report(done, len(paths))
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        scratch = kept.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text(json.dumps([width, height]), encoding="utf-8")
        os.replace(scratch, kept)
    except OSError as error:
        raise InputError(f"cannot write {kept}: {error.strerror}. Choose another --cache-dir.") from error
    return width, height


READERS: dict[str, Callable[[str, LoadOptions], ArraySet]] = {
    "folder": load_folder,
    "npz": load_npz,
    "event-folder": load_event_folder,
}
