"""A thorough look at a data set: every sample is read, counted, hashed and compared with the registry."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import convert, mnist5k, readers, registry, sources, store
from mpd_agl.data.arrays import blocks, check_array_set
from mpd_agl.data.recordings import Recordings
from mpd_agl.data.registry import OfficialSet
from mpd_agl.data.store import Pixels
from mpd_agl.data.types import SPLITS, ArraySet, DataSet, LoadOptions
from mpd_agl.records.progress import progress


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What was found in one split."""

    count: int
    official: int
    per_class: tuple[int, ...]
    sha256: str
    checked: str
    """What the hash was compared with, in words."""
    means: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `verify` found; it raises instead when something is wrong."""

    name: str
    source: str
    splits: dict[str, SplitReport]

    @property
    def partial(self) -> bool:
        """Whether a split has less than the official number of samples."""
        return any(s.count < s.official for s in self.splits.values())


def verify(
    name: str,
    *,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    allow_partial: bool = False,
    download: bool = False,
    image_size: int = 0,
    colour: str = "auto",
) -> Report:
    """Read a data set through: from `data_dir` as it is, or else from the cache."""
    spec = registry.get(name)
    options = LoadOptions(
        data_dir=data_dir,
        cache_dir=cache_dir,
        allow_partial=allow_partial,
        download=download,
        image_size=image_size,
        colour=colour,
    )
    if not isinstance(spec, OfficialSet):
        return _own(spec, options)
    if spec.reader == "mnist5k":
        return _images(spec, mnist5k.read(spec.classes), "embedded")
    if spec.reader == "mnist5k-dvs":  # the images can be verified; the camera is deterministic
        base = _images(registry.official("mnist5k"), mnist5k.read(spec.classes), "embedded, simulated camera")
        return Report(name=spec.name, source=base.source, splits=base.splits)
    if spec.kind == "events":
        found, recordings = convert.obtain_recordings(spec, options)
        splits = {split: _recordings(spec, split, item) for split, item in recordings.items()}
        return Report(name=spec.name, source=found.source, splits=splits)
    if data_dir is not None:
        files = readers.require(spec, data_dir)
        with convert.opened(files, sources.cache_root(cache_dir)) as place:
            pixels = readers.read_images(spec, place)
            labels = {split: p.y_N for split, p in pixels.items()}
            convert.check_counts(spec, labels, files.shown, allow_partial=allow_partial)
            return _images(spec, pixels, f"data-dir {data_dir}")
    found = convert.obtain_images(spec, options)
    stored = {split: store.open_split(found.place, split) for split in spec.counts}
    return _images(spec, {split: store.as_pixels(item) for split, item in stored.items()}, found.source, stored)


def _own(spec: DataSet, options: LoadOptions) -> Report:
    """A set of the user's own has nothing to be compared with; it is read, counted and hashed."""
    reports, source = {}, ""
    for split in SPLITS:
        data = check_array_set(spec.load(split, options))
        source = str(data.provenance.get("source", "read by its own function"))
        pixels = store.Pixels(
            shape=data.x.shape,
            y_N=data.y.astype(np.int64),
            classes=data.classes,
            parts=partial(_parts, data),
            origin=spec.name,
        )
        found = store.digest(pixels)
        reports[split] = SplitReport(
            count=found.count,
            official=found.count,
            per_class=found.per_class,
            sha256=found.sha256,
            checked="your own data: nothing to compare with",
            means={"mean": found.mean, "std": found.std},
        )
    return Report(name=spec.name, source=source, splits=reports)


def _parts(data: ArraySet) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    return ((data.name, block) for block in blocks(data.x))


def _images(
    spec: OfficialSet, splits: dict[str, Pixels], source: str, stored: dict[str, store.Stored] | None = None
) -> Report:
    reports = {}
    for split, pixels in splits.items():
        digest = store.digest(pixels) if stored is None else store.verify(stored[split])
        convert.check_content(spec, split, pixels, digest)
        if digest.count != spec.counts[split]:
            checked = "a part of the set: nothing to compare with"
        elif split in spec.sha256:
            checked = "the official pixels"
        elif split in spec.encoded_sha256 and pixels.encoded_sha256 is not None:
            checked = "decoded from the official files"
        else:
            checked = "not compared: no official value is known here"
        reports[split] = SplitReport(
            count=digest.count,
            official=spec.counts[split],
            per_class=digest.per_class,
            sha256=digest.sha256,
            checked=checked,
            means={"mean": digest.mean, "std": digest.std},
        )
    return Report(name=spec.name, source=source, splits=reports)


def _recordings(spec: OfficialSet, split: str, recordings: Recordings) -> SplitReport:
    whole, events, on = hashlib.sha256(), 0, 0
    count = len(recordings)
    with progress(Path(recordings.origin).name, count) as report:
        for i, path in enumerate(recordings.paths):
            stream = recordings(i)
            whole.update(path.read_bytes())
            events += len(stream)
            on += int(stream.p_E.sum())
            report(i + 1, count)
    return SplitReport(
        count=count,
        official=spec.counts[split],
        per_class=tuple(np.bincount(recordings.y_N, minlength=spec.num_classes).tolist()),
        sha256=whole.hexdigest(),
        checked="over the files; not compared: no official value is known here",
        means={"events per recording": (events / count,), "share of ON events": (on / events,)},
    )
