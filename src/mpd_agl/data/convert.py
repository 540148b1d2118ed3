"""From files to a checked, converted set: find, unpack, read, compare with the registry, store.

Sources are tried in order: `data_dir` as given, the cache, the official address, the mirror. The header names the
source that was used.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data import readers, sources, store
from mpd_agl.data.archives import extract, is_archive, new_folder, scratch_folder
from mpd_agl.data.readers import FoundFiles
from mpd_agl.data.recordings import Recordings
from mpd_agl.data.registry import OfficialSet
from mpd_agl.data.sources import Fetched
from mpd_agl.data.store import Digest, Pixels
from mpd_agl.data.types import LoadOptions
from mpd_agl.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Obtained:
    """A data set that is there: its place, its source, and which part of it there is."""

    place: Path
    key: str
    source: str
    partial: dict[str, list[int]] = field(default_factory=dict)
    """For each split that is not complete: how many there are, and of how many."""

    def provenance(self) -> dict[str, Any]:
        """What a run record says about the origin of the data."""
        return {
            "source": self.source,
            "partial": bool(self.partial),
            **({"counts": self.partial} if self.partial else {}),
        }


def check_counts(
    spec: OfficialSet, labels: dict[str, NDArray[np.int64]], where: str, *, allow_partial: bool
) -> dict[str, list[int]]:
    """Compare the numbers of samples with the official ones; refuse a partial set unless it is allowed."""
    partial = {}
    for split, y_N in labels.items():
        official = spec.counts[split]
        if len(y_N) > official:
            raise InputError(
                f"{where} holds {len(y_N):,} {split} samples, {spec.title} has {official:,}. Remove what does not "
                "belong."
            )
        if len(y_N) < official:
            partial[split] = [len(y_N), official]
        missing = np.flatnonzero(np.bincount(y_N, minlength=spec.num_classes) == 0)
        if len(missing):
            raise InputError(f"{where} holds no {split} sample of class {int(missing[0])}. Get the official files.")
    if partial and not allow_partial:
        have = ", ".join(f"{n:,} of {total:,} {split} samples" for split, (n, total) in partial.items())
        raise InputError(
            f"{where} is a part of {spec.title}: {have}. Pass --allow-partial to use it, or get the complete set."
        )
    return partial


def check_content(spec: OfficialSet, split: str, pixels: Pixels, found: Digest) -> None:
    """Compare the hashes of a complete split with the registry's, and name the file that differs."""
    if found.count != spec.counts[split]:
        return  # a part of the set, which the user allowed; only whole splits have a known hash
    expected = spec.sha256.get(split)
    if expected is not None and found.sha256 != expected:
        raise InputError(f"{_blame(spec, split, found, pixels.origin)}. Get the official file again.")
    check_labels(spec, split, found.labels_sha256, pixels.origin)
    encoded = spec.encoded_sha256.get(split)
    if encoded is not None and pixels.encoded_sha256 is not None and (got := pixels.encoded_sha256()) != encoded:
        raise InputError(
            f"the image files in {pixels.origin} are not the official ones (sha256 {got[:16]}...). Get the official "
            "archive again."
        )


def check_labels(spec: OfficialSet, split: str, got: str, origin: str) -> None:
    """Compare the hash of a complete split's labels with the registry's."""
    if got != spec.labels_sha256.get(split, got):
        raise InputError(
            f"{origin} holds other labels than {spec.title}'s {split} split. Get the official files again."
        )


def _blame(spec: OfficialSet, split: str, found: Digest, origin: str) -> str:
    """Name the file whose content is wrong."""
    known = {digest: (s, i) for s, parts in spec.part_sha256.items() for i, digest in enumerate(parts)}
    for i, ((name, digest), right) in enumerate(zip(found.parts, spec.part_sha256.get(split, ()), strict=False)):
        if digest != right:
            if digest in known and known[digest] != (split, i):
                other, j = known[digest]
                return f"{name} holds the content of {other} file {j + 1}: files were swapped"
            return _differs(name, digest, right)
    files = sorted({name for name, _ in found.parts})
    name = files[0] if len(files) == 1 else origin
    return _differs(name, found.sha256, spec.sha256[split])


def _differs(name: str, got: str, right: str) -> str:
    return f"{name} is damaged or not the official one: its pixels' sha256 is {got[:16]}..., expected {right[:16]}..."


@contextmanager
def opened(found: FoundFiles, cache: Path) -> Iterator[Path]:
    """Give the folder of the files; archives are unpacked into a scratch folder, which is removed afterwards."""
    if not found.archives:
        yield found.place
        return
    with scratch_folder(cache) as scratch, _named(scratch, found):
        for archive in found.archives:
            extract(archive, scratch)
        yield scratch


@contextmanager
def _named(scratch: Path, found: FoundFiles) -> Iterator[None]:
    """Let errors name the archive in place of the scratch folder."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(scratch), found.shown)) from error


def obtain_images(spec: OfficialSet, options: LoadOptions) -> Obtained:
    """Find the converted form of an image set, or make it."""
    cache, data_dir, download = sources.cache_root(options.cache_dir), options.data_dir, options.download
    if data_dir is not None:
        found = readers.require(spec, data_dir)
        root = cache / "converted" / f"{spec.name}-{found.key()}"
        if root.is_dir():
            return _opened(spec, root, options.allow_partial)
        return _convert(spec, found, root, f"data-dir {data_dir}", cache, options.allow_partial)
    root = cache / "converted" / spec.name
    if root.is_dir():
        return _opened(spec, root, options.allow_partial)
    with sources.locked(spec, cache) if download else nullcontext():
        if root.is_dir():  # another process converted it while this one waited for the lock
            return _opened(spec, root, options.allow_partial)
        found, source, fetched = find_or_fetch(spec, cache, download=download)
        obtained = _convert(spec, found, root, source, cache, options.allow_partial)
        if fetched is not None:  # the converted set replaces the download
            fetched.clear()
        return obtained


def _convert(
    spec: OfficialSet, found: FoundFiles, root: Path, source: str, cache: Path, allow_partial: bool
) -> Obtained:
    with opened(found, cache) as place:
        splits = readers.read_images(spec, place)
        labels = {split: pixels.y_N for split, pixels in splits.items()}
        partial = check_counts(spec, labels, found.shown, allow_partial=allow_partial)
        store.write(
            root,
            splits,
            lambda split, pixels, digest: check_content(spec, split, pixels, digest),
            {"name": spec.name, "source": source, "partial": partial},
        )
    return Obtained(place=root, key=root.name, source=source, partial=partial)


def _opened(spec: OfficialSet, root: Path, allow_partial: bool) -> Obtained:
    """Open a set that was converted before, and check that it is this one."""
    stored = {split: store.open_split(root, split) for split in spec.counts}
    header = stored["train"].header
    partial = check_counts(spec, {s: v.y_N for s, v in stored.items()}, str(root), allow_partial=allow_partial)
    for split, item in stored.items():
        expected = spec.sha256.get(split)
        other = split not in partial and expected is not None and item.header.get("sha256") != expected
        if other or item.x_NHWC.shape[1:] != spec.shape or len(item.header["classes"]) != spec.num_classes:
            raise InputError(
                f"{root} was converted from other files than {spec.title}'s. Remove {root} and it is converted again."
            )
    return Obtained(place=root, key=root.name, source=str(header.get("source", "cache")), partial=partial)


def find_or_fetch(spec: OfficialSet, cache: Path, *, download: bool) -> tuple[FoundFiles, str, Fetched | None]:
    """Files that someone put into the cache's download folder, or else the first source that works."""
    folder = sources.downloads(cache, spec)
    try:
        found = readers.find(spec, folder)
    except InputError:
        if not download:
            raise
        found = None  # some files are missing; the download brings them
    if found is not None:
        return found, f"cache {folder}", None
    if not download:
        fetch = f"Run `mpd-agl data fetch {spec.name}`. " if spec.remote or spec.mirror else ""
        raise InputError(f"{spec.title} is not in the cache {cache}. {fetch}{sources.how_to_place(spec, cache)}")
    fetched = sources.fetch(spec, cache)
    if all(is_archive(path) for path in fetched.paths):
        return FoundFiles(place=folder, markers=fetched.paths, archives=fetched.paths), fetched.source, fetched
    return readers.require(spec, folder), fetched.source, fetched


def obtain_recordings(spec: OfficialSet, options: LoadOptions) -> tuple[Obtained, dict[str, Recordings]]:
    """Find the recordings of an event set; zips are unpacked once, into the cache."""
    cache, data_dir, download = sources.cache_root(options.cache_dir), options.data_dir, options.download
    kept = cache / "unpacked" / spec.name
    if data_dir is not None:
        found, source = readers.require(spec, data_dir), f"data-dir {data_dir}"
        found = _unpacked(spec, found, cache / "unpacked" / f"{spec.name}-{found.key()}")
    else:
        with sources.locked(spec, cache) if download and not kept.is_dir() else nullcontext():
            if kept.is_dir():
                found, source = readers.require(spec, kept), f"cache {kept}"
            else:
                found, source, fetched = find_or_fetch(spec, cache, download=download)
                found = _unpacked(spec, found, kept)
                if fetched is not None:
                    fetched.clear()
    splits = readers.read_recordings(spec, found.place)
    labels = {split: recordings.y_N for split, recordings in splits.items()}
    partial = check_counts(spec, labels, str(found.place), allow_partial=options.allow_partial)
    for split in labels.keys() - partial.keys():
        check_labels(spec, split, store.labels_digest(labels[split]), str(found.place))
    return Obtained(place=found.place, key=f"{spec.name}-{found.key()}", source=source, partial=partial), splits


def _unpacked(spec: OfficialSet, found: FoundFiles, kept: Path) -> FoundFiles:
    """The recordings as folders; archives are unpacked into `kept`, unless they were before."""
    if not found.archives:
        return found
    if not kept.is_dir():
        with new_folder(kept) as scratch, _named(scratch, found):
            for archive in found.archives:
                extract(archive, scratch)
            if readers.find_folder(spec, scratch) is None:
                raise InputError(f"{scratch} holds no {spec.title}. Put {spec.folder} there.")
            readers.read_recordings(spec, scratch)
            if hasattr(os, "sync"):
                os.sync()  # the folder is kept, so its files must reach the disk before it gets its name
    return readers.require(spec, kept)
