"""Which reader reads which data set, and what a folder must hold for it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mpd_agl.data import cifar, idx, tinyimagenet
from mpd_agl.data.archives import is_archive
from mpd_agl.data.recordings import NMNIST_FOLDERS, Recordings, list_recordings, read_bin, read_cifar10dvs
from mpd_agl.data.registry import OfficialSet
from mpd_agl.data.store import Pixels
from mpd_agl.errors import InputError


@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """Files of a data set, found but not read: a folder (`archives` empty), or archives to be unpacked first."""

    place: Path
    markers: tuple[Path, ...]
    """Files and folders whose size or time changes when the content does."""
    archives: tuple[Path, ...] = ()

    def key(self) -> str:
        """A short name for exactly these files in their present state."""
        return state_key(self.markers)

    @property
    def shown(self) -> str:
        """What a sentence calls the files: the folder, or the one archive."""
        return str(self.archives[0] if len(self.archives) == 1 else self.place)


def state_key(paths: Iterable[Path], *further: object) -> str:
    """A short hash over the names, sizes and times of files, and over whatever else the result depends on."""
    state = hashlib.sha256(repr(further).encode() if further else b"")
    for path in paths:
        try:
            info = path.stat()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}). Check data_dir (--data.data-dir).") from error
        state.update(f"{path.resolve()}|{info.st_size}|{info.st_mtime_ns}\n".encode())
    return state.hexdigest()[:12]


_LAYOUTS = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}


def find_folder(spec: OfficialSet, folder: Path) -> FoundFiles | None:
    """Look for the unpacked files in `folder` and in the subfolder that the official archive makes."""
    place: Path | None
    if spec.reader in _LAYOUTS:
        if (found := cifar.find(folder, _LAYOUTS[spec.reader])) is not None:
            return FoundFiles(place=found[1], markers=tuple(cifar.files(*found, _LAYOUTS[spec.reader])))
    elif spec.reader == "tinyimagenet":
        if (place := tinyimagenet.find(folder)) is not None:
            return FoundFiles(place=place, markers=tuple(tinyimagenet.markers(place)))
    elif spec.reader == "idx":
        if (place := idx.find(folder)) is not None:
            return FoundFiles(place=place, markers=tuple(idx.files(place)))
    else:
        subfolders, tops = _RECORDINGS[spec.reader]
        for place in (folder, *(folder / name for name in subfolders)):
            if any((place / name).is_dir() for name in tops or spec.classes):
                return FoundFiles(place=place, markers=tuple(_class_folders(spec, place, tops or (".",))))
    return None


_RECORDINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nmnist": (("N-MNIST", "NMNIST", "N-MNIST-subset"), tuple(NMNIST_FOLDERS.values())),
    "cifar10dvs": (("CIFAR10DVS", "CIFAR10-DVS"), ()),
}
"""Subfolders in which a set of recordings may lie, and its folders above those of the classes."""


def _class_folders(spec: OfficialSet, place: Path, tops: tuple[str, ...]) -> list[Path]:
    folders = [place / top / name for top in tops for name in spec.classes]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(
                f"{spec.title} in {place} is incomplete: there is no class folder {folder}. Get the official archive "
                "again."
            )
    return folders


def find(spec: OfficialSet, folder: Path) -> FoundFiles | None:
    """Look for a data set in `folder`: unpacked, or as one of its archives. `folder` may be the archive itself."""
    if folder.is_file() and is_archive(folder):
        return FoundFiles(place=folder, markers=(folder,), archives=(folder,))
    if not folder.is_dir():
        return None
    found = find_folder(spec, folder)
    if found is not None:
        return found
    for names in spec.archives:
        paths = tuple(folder / name for name in names)
        present = [p for p in paths if p.is_file()]
        if len(present) == len(paths):
            return FoundFiles(place=folder, markers=paths, archives=paths)
        if present:
            missing = next(p for p in paths if not p.is_file())
            raise InputError(
                f"{spec.title} in {folder} is incomplete: there is no {missing.name}. Put it beside {present[0].name}."
            )
    return None


def require(spec: OfficialSet, folder: Path) -> FoundFiles:
    """Look for a data set in `folder`, and refuse if it is not there."""
    if not folder.exists():
        raise InputError(f"there is no folder {folder}. Check data_dir (--data.data-dir).")
    found = find(spec, folder)
    if found is None:
        archives = " or ".join(
            " + ".join(names if len(names) < 4 else (names[0], "...", names[-1])) for names in spec.archives
        )
        wanted = " or ".join(filter(None, (spec.folder, archives)))
        raise InputError(f"found no {spec.title} in {folder}. Put {wanted} there.")
    return found


def read_images(spec: OfficialSet, folder: Path) -> dict[str, Pixels]:
    """Open both splits of an image set in an unpacked folder."""
    if spec.reader in _LAYOUTS:
        if (found := cifar.find(folder, _LAYOUTS[spec.reader])) is not None:
            return cifar.read(*found, _LAYOUTS[spec.reader], spec.classes)
    elif spec.reader == "tinyimagenet":
        if (place := tinyimagenet.find(folder)) is not None:
            return tinyimagenet.read(place, spec.num_classes)
    elif (place := idx.find(folder)) is not None:
        return idx.read(place, spec.classes)
    raise InputError(f"found no {spec.title} in {folder}. Put {spec.folder} there.")


def read_recordings(spec: OfficialSet, folder: Path) -> dict[str, Recordings]:
    """List the recordings of an event set in an unpacked folder."""
    place = require(spec, folder).place
    if spec.reader == "cifar10dvs":
        return {"all": list_recordings(place, spec.classes, ".aedat", read_cifar10dvs)}
    return {
        split: list_recordings(place / name, spec.classes, ".bin", read_bin) for split, name in NMNIST_FOLDERS.items()
    }
