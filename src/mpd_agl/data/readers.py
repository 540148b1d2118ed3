"""Which reader reads which data set, and what a folder must hold for it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpd_agl.data import aedat, cifar, idx, nmnist, tinyimagenet
from mpd_agl.data.archives import is_archive
from mpd_agl.data.recordings import Recordings, list_recordings
from mpd_agl.data.registry import DataSet
from mpd_agl.data.store import Pixels
from mpd_agl.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Found:
    """Files of a data set, found but not read: a folder (`archives` empty), or archives to be unpacked first."""

    place: Path
    markers: tuple[Path, ...]
    """Files and folders whose size or time changes when the content does."""
    archives: tuple[Path, ...] = ()

    def key(self) -> str:
        """A short name for exactly these files in their present state."""
        state = hashlib.sha256()
        for path in self.markers:
            try:
                info = path.stat()
            except OSError as error:
                raise InputError(f"{path} cannot be read ({error.strerror}). Check --data-dir.") from error
            state.update(f"{path.resolve()}|{info.st_size}|{info.st_mtime_ns}\n".encode())
        return state.hexdigest()[:12]


_LAYOUTS = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}


def find_folder(spec: DataSet, folder: Path) -> Found | None:
    """Look for the unpacked files in `folder` and in the subfolder that the official archive makes."""
    if spec.reader in _LAYOUTS:
        found = cifar.find(folder, _LAYOUTS[spec.reader])
        if found is not None:
            form, place = found
            return Found(place=place, markers=tuple(cifar.files(form, place, _LAYOUTS[spec.reader])))
    elif spec.reader == "tinyimagenet":
        if (place_or_none := tinyimagenet.find(folder)) is not None:
            return Found(place=place_or_none, markers=tuple(tinyimagenet.markers(place_or_none)))
    elif spec.reader == "idx":
        if (place_or_none := idx.find(folder)) is not None:
            return Found(place=place_or_none, markers=tuple(idx.files(place_or_none)))
    elif spec.reader == "nmnist":
        for place in (folder, folder / "N-MNIST", folder / "NMNIST", folder / "N-MNIST-subset"):
            if any((place / name).is_dir() for name in nmnist.FOLDERS.values()):
                return Found(place=place, markers=tuple(_class_folders(spec, place, tuple(nmnist.FOLDERS.values()))))
    elif spec.reader == "cifar10dvs":
        for place in (folder, folder / "CIFAR10DVS", folder / "CIFAR10-DVS"):
            if any((place / name).is_dir() for name in spec.classes):
                return Found(place=place, markers=tuple(_class_folders(spec, place, (".",))))
    return None


def _class_folders(spec: DataSet, place: Path, tops: tuple[str, ...]) -> list[Path]:
    folders = [place / top / name for top in tops for name in spec.classes]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(
                f"{spec.title} in {place} is incomplete: there is no class folder {folder}. Get the official archive "
                "again."
            )
    return folders


def find(spec: DataSet, folder: Path) -> Found | None:
    """Look for a data set in `folder`: unpacked, or as one of its archives. `folder` may be the archive itself."""
    if folder.is_file() and is_archive(folder):
        return Found(place=folder, markers=(folder,), archives=(folder,))
    if not folder.is_dir():
        return None
    found = find_folder(spec, folder)
    if found is not None:
        return found
    for names in spec.archives:
        paths = tuple(folder / name for name in names)
        present = [p for p in paths if p.is_file()]
        if len(present) == len(paths):
            return Found(place=folder, markers=paths, archives=paths)
        if present:
            missing = next(p for p in paths if not p.is_file())
            raise InputError(
                f"{spec.title} in {folder} is incomplete: there is no {missing.name}. Put it beside {present[0].name}."
            )
    return None


def require(spec: DataSet, folder: Path) -> Found:
    """The same, with an error where nothing is found."""
    if not folder.exists():
        raise InputError(f"there is no folder {folder}. Check --data-dir.")
    found = find(spec, folder)
    if found is None:
        archives = " or ".join(
            " + ".join(names if len(names) < 4 else (names[0], "...", names[-1])) for names in spec.archives
        )
        wanted = " or ".join(filter(None, (spec.folder, archives)))
        raise InputError(f"found no {spec.title} in {folder}. Put {wanted} there.")
    return found


def read_images(spec: DataSet, folder: Path) -> dict[str, Pixels]:
    """Open both splits of an image set in an unpacked folder."""
    if spec.reader in _LAYOUTS:
        layout = _LAYOUTS[spec.reader]
        found = cifar.find(folder, layout)
        if found is not None:
            return cifar.read(*found, layout, spec.classes)
    elif spec.reader == "tinyimagenet":
        place = tinyimagenet.find(folder)
        if place is not None:
            return tinyimagenet.read(place, spec.num_classes)
    else:
        place = idx.find(folder)
        if place is not None:
            return idx.read(place, spec.classes)
    raise InputError(f"found no {spec.title} in {folder}. Put {spec.folder} there.")


def read_recordings(spec: DataSet, folder: Path) -> dict[str, Recordings]:
    """List the recordings of an event set in an unpacked folder."""
    found = require(spec, folder)
    if spec.reader == "nmnist":
        reader: Callable[..., Recordings] = list_recordings
        return {
            split: reader(found.place / name, spec.classes, ".bin", nmnist.read_bin)
            for split, name in nmnist.FOLDERS.items()
        }
    return {"all": list_recordings(found.place, spec.classes, ".aedat", aedat.read_cifar10dvs)}
