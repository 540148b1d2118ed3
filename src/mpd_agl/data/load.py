"""A data set by name, ready to train on: find, unpack, read, compare with the registry, convert once.

Sources are tried in order: `data_dir` as given, the cache, the official address, the mirror. The provenance names the
source that was used.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import registry, sources, store
from mpd_agl.data.archives import extract, is_archive
from mpd_agl.data.arrays import moments
from mpd_agl.data.atomic import new_folder, scratch_folder
from mpd_agl.data.fileset import FileSet, Found, Recordings
from mpd_agl.data.options import ImageOptions
from mpd_agl.data.sources import Fetched
from mpd_agl.data.splits import split_indices
from mpd_agl.data.store import Digest, Pixels
from mpd_agl.data.types import SPLITS, ArraySet, DataSet, FrameConfig, LoadOptions
from mpd_agl.errors import InputError, unknown_name


def load_dataset(
    name: str | DataSet,
    split: str,
    *,
    data_dir: Path | str | None = None,
    cache_dir: Path | str | None = None,
    allow_partial: bool = False,
    download: bool = True,
    num_steps: int = 10,
    frames: FrameConfig | None = None,
    **options: Any,
) -> ArraySet:
    """Load a split of a data set: `load_dataset("cifar10", "train")`, or of a `DataSet` object of your own.

    Files are taken from `data_dir` if given, else from the cache, the official address or a mirror, and converted
    once. Images are memory-mapped uint8 NHWC; recordings become `num_steps` frames NTHWC. `options` are the set's own
    (`data.options`): `image_size=14` shrinks published images, `split_rule` and `split_seed` choose where there is no
    official split. `frames` says all about frames at once, in place of `num_steps` and the set's frame options.
    """
    spec = registry.get(name) if isinstance(name, str) else name
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    asked = spec.load_options(
        options,
        num_steps=num_steps,
        frames=frames,
        data_dir=data_dir,
        cache_dir=cache_dir,
        allow_partial=allow_partial,
        download=download,
    )
    return spec.load(split, asked)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The splits of a set that is there, and what a run record says about their origin."""

    splits: dict[str, Any]
    """`Stored` images or `Recordings`."""
    key: str
    provenance: dict[str, Any]


def load_files(spec: FileSet, split: str, options: LoadOptions) -> ArraySet:
    """Load a split of a set that is read from files."""
    opened = open_files(spec, options)
    if spec.kind == "events":
        recordings, key = opened.splits.get(split), f"{opened.key}-{split}"
        if recordings is None:
            rule, seed, whole = options.table.split_rule, options.table.split_seed, opened.splits["all"]
            index_N, split_hash = split_indices(whole.y_N, rule, split=split, seed=seed)
            facts = {"split_rule": rule, "split_seed": seed, "split_hash": split_hash}
            # Frames are kept per split, so that each is one memory-mapped array.
            recordings, key = replace(whole.take(index_N), facts=facts), f"{key}-{split_hash[:16]}"
        return frames_set(spec, split, recordings, key, opened.provenance, options)
    stored, train = opened.splits[split], opened.splits["train"].header
    mean, std = (spec.mean, spec.std) if spec.mean else moments(train["mean"], train["std"], tuple(train["shape"]))
    hashes = {name: stored.header[name] for name in ("sha256", "labels_sha256")}
    provenance = {**opened.provenance, **hashes, **stored.header.get("facts", {})}
    known = replace(spec, classes=tuple(train["classes"]), mean=mean, std=std)
    return images_set(known, split, stored.x_NHWC, stored.y_N, provenance, options)


def images_set(
    spec: DataSet,
    split: str,
    x_NHWC: NDArray[np.uint8],
    y_N: NDArray[np.int64],
    provenance: dict[str, Any],
    options: LoadOptions,
) -> ArraySet:
    """Images of a split, shrunk where the options ask for it."""
    table = options.table
    if isinstance(table, ImageOptions) and table.image_size not in (0, spec.shape[0]):
        x_NHWC = shrink(x_NHWC, table.image_size, spec.name)
        provenance = provenance | {"image_size": table.image_size}
    return spec.array_set(split, x_NHWC, y_N, provenance)


def shrink(x_NHWC: NDArray[np.uint8], size: int, name: str) -> NDArray[np.uint8]:
    """Images of size x size: the mean of each block of pixels, halves rounded up. Mean and std stay the set's own.

    >>> shrink(np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1), 2, "tiny")[0, :, :, 0]
    array([[ 3,  5],
           [11, 13]], dtype=uint8)
    """
    N, H, W, C = x_NHWC.shape
    if size > H or H % size or H != W:
        fits = [str(n) for n in range(4, H) if H % n == 0]
        raise InputError(
            f"data.image_size shrinks images by whole blocks of pixels, got {size} for {name}'s {H} x {W}. "
            f"Use {', '.join(fits)}, or 0 for the images unchanged."
        )
    b = H // size
    out_NHWC = np.empty((N, size, size, C), np.uint8)
    for i in range(0, N, 1000):  # a part at a time: large sets are memory-mapped
        part = x_NHWC[i : i + 1000]
        sums = part.reshape(len(part), size, b, size, b, C).sum((2, 4), dtype=np.uint32)
        out_NHWC[i : i + 1000] = (sums + b * b // 2) // (b * b)
    return out_NHWC


def frames_set(
    spec: DataSet, split: str, recordings: Recordings, key: str, provenance: dict[str, Any], options: LoadOptions
) -> ArraySet:
    """Recordings of a split as frames, which are kept in the cache under `key`."""
    from mpd_agl.data.framing import build_frames, frames_sha256

    folder = sources.cache_root(options.cache_dir) / "frames"
    x_NTHWC = build_frames(recordings, len(recordings), options.frames, folder, key=key)
    facts = {
        "split_rule": "official",
        **recordings.facts,
        "labels_sha256": store.labels_digest(recordings.y_N),
        "frames": asdict(options.frames),
        "frames_sha256": frames_sha256(x_NTHWC),
    }
    return replace(spec, classes=recordings.classes).array_set(split, x_NTHWC, recordings.y_N, provenance | facts)


def open_files(spec: FileSet, options: LoadOptions) -> Opened:
    """Find the set's converted images or unpacked recordings, or make them; open and check all splits."""
    place, source = _prepared(spec, options)
    if spec.kind == "images":
        splits: dict[str, Any] = {split: store.open_split(place, split) for split in SPLITS}
        key, source = place.name, str(splits["train"].header.get("source", "cache"))
    else:
        found = spec.required_in(place, options)
        splits, key = found.read(), f"{spec.name}-{found.key}"
    labels = {split: item.y_N for split, item in splits.items()}
    counts = check_counts(spec, labels, str(place), allow_partial=options.allow_partial)
    for split, item in splits.items():
        if isinstance(item, Recordings):
            check_hashes(spec, split, len(item), {"labels": store.labels_digest(item.y_N)}, str(place))
        elif spec.published:
            header = item.header
            hashes = {"pixels": header["sha256"], "labels": header["labels_sha256"]}
            check_hashes(spec, split, len(item.y_N), hashes, f"{place} (remove it to have it converted again)")
            if item.x_NHWC.shape[1:] != spec.shape or len(header["classes"]) != spec.num_classes:
                raise InputError(f"{place} was converted from other files than {spec.title}'s. Remove it.")
    provenance = {"source": source, "partial": bool(counts), **({"counts": counts} if counts else {})}
    return Opened(splits=splits, key=key, provenance=provenance)


def check_counts(
    spec: FileSet, labels: dict[str, NDArray[np.int64]], where: str, *, allow_partial: bool
) -> dict[str, list[int]]:
    """Compare the numbers of samples with the official ones; refuse a partial set unless it is allowed.

    Gives for each split that is not complete how many samples there are, and of how many.
    """
    counts = {}
    for split, y_N in labels.items() if spec.published else ():
        official = spec.counts[split]
        if len(y_N) > official:
            raise InputError(
                f"{where} holds {len(y_N):,} {split} samples, {spec.title} has {official:,}. Remove what does not "
                "belong."
            )
        if len(y_N) < official:
            counts[split] = [len(y_N), official]
        missing = np.flatnonzero(np.bincount(y_N, minlength=spec.num_classes) == 0)
        if len(missing):
            raise InputError(f"{where} holds no {split} sample of class {missing[0]}. Get the official files.")
    if counts and not allow_partial:
        have = ", ".join(f"{n:,} of {total:,} {split} samples" for split, (n, total) in counts.items())
        raise InputError(
            f"{where} is a part of {spec.title}: {have}. Pass --allow-partial to use it, or get the complete set."
        )
    return counts


def check_content(spec: FileSet, split: str, pixels: Pixels, found: Digest) -> None:
    """Compare the hashes of a split with the registry's."""
    hashes = {"pixels": found.sha256, "labels": found.labels_sha256}
    if split in spec.encoded_sha256 and pixels.encoded_sha256 is not None:
        hashes["image files"] = pixels.encoded_sha256()
    check_hashes(spec, split, found.count, hashes, pixels.origin)


def check_hashes(spec: FileSet, split: str, count: int, hashes: dict[str, str], origin: str) -> None:
    """Refuse a complete split with other hashes than the registry's; of a part of a set no hash is known."""
    known = {"pixels": spec.sha256, "labels": spec.labels_sha256, "image files": spec.encoded_sha256}
    for what, got in hashes.items():
        expected = known[what].get(split, got)
        if got != expected and count == spec.counts.get(split):
            raise InputError(
                f"{origin} is damaged or not the official {spec.title}: the sha256 of its {split} {what} is "
                f"{got[:16]}..., expected {expected[:16]}.... Get the official files again."
            )


def _prepared(spec: FileSet, options: LoadOptions) -> tuple[Path, str]:
    """The folder of the converted images or of the recordings, and where they came from."""
    cache, data_dir = sources.cache_root(options.cache_dir), options.data_dir
    folder = cache / ("converted" if spec.kind == "images" else "unpacked")
    if data_dir is not None:
        found, source = spec.required_in(data_dir, options), f"data-dir {data_dir}"
        return _made(spec, found, folder / f"{spec.name}-{found.key}", source, options), source
    if not spec.published:
        raise InputError(f"the data set {spec.name!r} needs {spec.folder}. Pass --data-dir.")
    root = folder / spec.name
    with nullcontext() if root.is_dir() or not options.download else sources.locked(spec, cache):
        if root.is_dir():  # perhaps made by another process while this one waited for the lock
            return root, f"cache {root}"
        found, source, fetched = _find_or_fetch(spec, cache, options)
        place = _made(spec, found, root, source, options)
        if fetched is not None:  # the converted set replaces the download
            fetched.clear()
        return place, source


def _find_or_fetch(spec: FileSet, cache: Path, options: LoadOptions) -> tuple[Found, str, Fetched | None]:
    """Files that someone put into the cache's download folder, or else the first source that works."""
    folder = sources.downloads(cache, spec)
    try:
        found = spec.found_in(folder, options)
    except InputError:
        if not options.download:
            raise
        found = None  # some files are missing; the download brings them
    if found is not None:
        return found, f"cache {folder}", None
    if not options.download:
        fetch = f"Run `mpd-agl data fetch {spec.name}`. " if spec.remote or spec.mirror else ""
        raise InputError(f"{spec.title} is not in the cache {cache}. {fetch}{sources.how_to_place(spec, cache)}")
    fetched = sources.fetch(spec, cache)
    if all(is_archive(path) for path in fetched.paths):
        found = Found(place=folder, markers=fetched.paths, archives=fetched.paths)
    return found or spec.required_in(folder, options), fetched.source, fetched


def _made(spec: FileSet, found: Found, root: Path, source: str, options: LoadOptions) -> Path:
    """Convert images into `root`; unpack archives of recordings there. Folders of recordings are read in place."""
    if spec.kind == "events" and not found.archives:
        return found.place
    if root.is_dir():
        return root
    if spec.kind == "events":
        with new_folder(root) as scratch, _unpacked_into(scratch, spec, found, options) as unpacked:
            unpacked.read()
            if hasattr(os, "sync"):
                os.sync()  # the folder is kept, so its files must reach the disk before it gets its name
        return root
    with ready(spec, found, options) as unpacked:
        splits: Any = unpacked.read()
        labels = {split: pixels.y_N for split, pixels in splits.items()}
        counts = check_counts(spec, labels, found.shown, allow_partial=options.allow_partial)
        extra = {"name": spec.name, "source": source, "partial": counts}
        store.write(root, splits, partial(check_content, spec), extra)
    return root


@contextmanager
def ready(spec: FileSet, found: Found, options: LoadOptions) -> Iterator[Found]:
    """Files that can be read; archives are unpacked into a scratch folder, which is removed afterwards."""
    if not found.archives:
        yield found
        return
    cache = sources.cache_root(options.cache_dir)
    with scratch_folder(cache) as scratch, _unpacked_into(scratch, spec, found, options) as unpacked:
        yield unpacked


@contextmanager
def _unpacked_into(scratch: Path, spec: FileSet, found: Found, options: LoadOptions) -> Iterator[Found]:
    """Unpack archives; errors name the archive in place of the scratch folder."""
    try:
        for archive in found.archives:
            extract(archive, scratch)
        yield spec.required_in(scratch, options)
    except InputError as error:
        error.args = (str(error).replace(str(scratch), found.shown), *error.args[1:])
        raise
