"""A thorough look at a data set: every sample is read, counted, hashed and compared with the registry."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpd_agl.data import load, registry, store
from mpd_agl.data.fileset import FileSet, Recordings
from mpd_agl.data.mnist5k import MNIST5K, MNIST5K_DVS
from mpd_agl.data.store import Pixels
from mpd_agl.data.types import SPLITS, DataSet, LoadOptions
from mpd_agl.records.progress import progress

NOT_COMPARED = "not compared: no official value is known here"


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What was found in one split."""

    count: int
    official: int
    per_class: tuple[int, ...]
    sha256: str
    checked: str
    """What the hash was compared with, in words."""
    means: dict[str, tuple[float, ...]]


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
    **options: Any,
) -> Report:
    """Read a data set through: from `data_dir` as it is, or else from the cache."""
    spec = registry.get(name)
    asked = spec.load_options(
        options, data_dir=data_dir, cache_dir=cache_dir, allow_partial=allow_partial, download=download
    )
    if not isinstance(spec, FileSet):
        return _loaded(spec, asked)
    if spec.kind == "images" and spec.published and asked.data_dir is not None:
        found = spec.required_in(asked.data_dir, asked)
        with load.ready(spec, found, asked) as files:  # read, and not converted
            splits: dict[str, Any] = files.read()
            labels = {split: pixels.y_N for split, pixels in splits.items()}
            load.check_counts(spec, labels, found.shown, allow_partial=allow_partial)
            reports = {split: _images(spec, split, pixels, store.digest(pixels)) for split, pixels in splits.items()}
        return Report(name=name, source=f"data-dir {data_dir}", splits=reports)
    opened = load.open_files(spec, asked)
    reports = {
        split: _recordings(spec, split, item)
        if isinstance(item, Recordings)
        else _images(spec, split, store.as_pixels(item), store.verify(item))
        for split, item in opened.splits.items()
    }
    return Report(name=name, source=opened.provenance["source"], splits=reports)


def _loaded(spec: DataSet, options: LoadOptions) -> Report:
    """A set with its own function has no files to compare; it is read, counted and hashed."""
    # The images can be verified, and the simulated camera is deterministic.
    read_as = MNIST5K if spec is MNIST5K_DVS else spec
    reports, source = {}, ""
    for split in SPLITS:
        data = read_as.load(split, options)
        source = str(data.provenance.get("source", "read by its own function"))
        pixels = store.in_memory(data.x, data.y, data.classes, spec.name)
        reports[split] = _images(read_as, split, pixels, store.digest(pixels))
    return Report(name=spec.name, source=source, splits=reports)


def _images(spec: DataSet, split: str, pixels: Pixels, digest: store.Digest) -> SplitReport:
    checked = "your own data: nothing to compare with"
    if isinstance(spec, FileSet) and spec.published:
        load.check_content(spec, split, pixels, digest)
        if digest.count != spec.counts[split]:
            checked = "a part of the set: nothing to compare with"
        elif split in spec.sha256:
            checked = "the official pixels"
        elif split in spec.encoded_sha256 and pixels.encoded_sha256 is not None:
            checked = "decoded from the official files"
        else:
            checked = NOT_COMPARED
    elif spec is MNIST5K:
        checked = "the official pixels"  # mnist5k.images compares them at each start
    return SplitReport(
        count=digest.count,
        official=spec.counts.get(split, digest.count),
        per_class=digest.per_class,
        sha256=digest.sha256,
        checked=checked,
        means={"mean": digest.mean, "std": digest.std},
    )


def _recordings(spec: FileSet, split: str, recordings: Recordings) -> SplitReport:
    whole, events, on = hashlib.sha256(), 0, 0
    count = len(recordings)
    with progress(Path(recordings.origin).name, count) as report:
        for i, path in enumerate(recordings.items):
            stream = recordings(i)
            whole.update(path.read_bytes())
            events += len(stream)
            on += int(stream.p_E.sum())
            report(i + 1, count)
    return SplitReport(
        count=count,
        official=spec.counts.get(split, count),
        per_class=tuple(np.bincount(recordings.y_N, minlength=len(recordings.classes)).tolist()),
        sha256=whole.hexdigest(),
        checked=f"over the files; {NOT_COMPARED if spec.published else 'your own data: nothing to compare with'}",
        means={"events per recording": (events / count,), "share of ON events": (on / events,)},
    )
