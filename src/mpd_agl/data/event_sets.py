"""CIFAR10-DVS and N-MNIST: one file per recording, one folder per class."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from mpd_agl.data.cifar import CIFAR10_CLASSES
from mpd_agl.data.fileset import COUNTS, NO_MEAN, FileSet, Found, Recordings, RemoteFile, first_folder, refuse_missing
from mpd_agl.data.options import FrameOptions, SplitFrameOptions
from mpd_agl.data.recordings import by_number, read_bin, read_cifar10dvs
from mpd_agl.data.types import EventStream, LoadOptions
from mpd_agl.errors import InputError


def find(
    spec: FileSet,
    folder: Path,
    options: LoadOptions,
    *,
    subfolders: tuple[str, ...],
    tops: dict[str, str],
    suffix: str,
    read_one: Callable[[Path], EventStream],
) -> Found | None:
    """Class folders under `tops`, one for each split, in `folder` or in a subfolder."""
    names = [Path(top, name) for top in tops.values() for name in spec.classes]
    place = first_folder(folder, subfolders, lambda p: any((p / name.parts[0]).is_dir() for name in names))
    if place is None:
        return None
    markers = [place / name for name in names]
    refuse_missing(spec.title, markers)
    read = partial(list_recordings, classes=spec.classes, suffix=suffix, read_one=read_one)
    return Found(place=place, markers=markers, read=lambda: {split: read(place / top) for split, top in tops.items()})


def list_recordings(
    folder: Path, *, classes: tuple[str, ...], suffix: str, read_one: Callable[[Path], EventStream]
) -> Recordings:
    """List `folder/CLASS/*SUFFIX` for every class, by number; a class without a file is an error."""
    paths: list[Path] = []
    counts = []
    for name in classes:
        found = [p for p in (folder / name).glob(f"*{suffix}") if not p.name.startswith(".")]
        if not found:
            raise InputError(f"{folder / name} holds no {suffix} file. Put the recordings of class {name!r} there.")
        paths += sorted(found, key=by_number)
        counts.append(len(found))
    y_N = np.repeat(np.arange(len(classes)), counts)
    return Recordings(items=paths, y_N=y_N, classes=classes, read_one=read_one, origin=str(folder))


def _figshare(name: str, number: int, md5: str) -> RemoteFile:
    return RemoteFile(name=f"{name}.zip", url=f"https://ndownloader.figshare.com/files/{number}", digest=f"md5:{md5}")


CIFAR10DVS = FileSet(
    name="cifar10dvs",
    title="CIFAR10-DVS",
    kind="events",
    find=partial(
        find, subfolders=("CIFAR10DVS", "CIFAR10-DVS"), tops={"all": ""}, suffix=".aedat", read_one=read_cifar10dvs
    ),
    options=SplitFrameOptions,
    shape=(128, 128, 2),
    classes=CIFAR10_CLASSES,
    counts={"all": 10_000},
    mean=NO_MEAN,
    std=COUNTS,
    licence="CC BY 4.0 (Li et al. 2017)",
    labels_sha256={"all": "c5575395e636cadcdfe5764ffc8d56f56d234a4dc687096f8fc2d975dd6a5597"},
    archives=(tuple(f"{name}.zip" for name in CIFAR10_CLASSES),),
    folder="ten folders airplane ... truck of .aedat files",
    remote=(
        _figshare("airplane", 7712788, "0afd5c4bf9ae06af762a77b180354fdd"),
        _figshare("automobile", 7712791, "8438dfeba3bc970c94962d995b1b9bdd"),
        _figshare("bird", 7712794, "a9c207c91c55b9dc2002dc21c684d785"),
        _figshare("cat", 7712812, "52c63c677c2b15fa5146a8daf4d56687"),
        _figshare("deer", 7712815, "b6bf21f6c04d21ba4e23fc3e36c8a4a3"),
        _figshare("dog", 7712818, "f379ebdf6703d16e0a690782e62639c3"),
        _figshare("frog", 7712842, "cad6ed91214b1c7388a5f6ee56d08803"),
        _figshare("horse", 7712851, "e7cbbf77bec584ffbf913f00e682782a"),
        _figshare("ship", 7712836, "41c7bd7d6b251be82557c6cce9a7d5c9"),
        _figshare("truck", 7712839, "89f3922fd147d9aeff89e76a2b0b70a7"),
    ),
)

NMNIST = FileSet(
    name="nmnist",
    title="N-MNIST",
    kind="events",
    find=partial(
        find,
        subfolders=("N-MNIST", "NMNIST", "N-MNIST-subset"),
        tops={"train": "Train", "test": "Test"},
        suffix=".bin",
        read_one=read_bin,
    ),
    options=FrameOptions,
    shape=(34, 34, 2),
    classes=tuple("0123456789"),
    counts={"train": 60_000, "test": 10_000},
    mean=NO_MEAN,
    std=COUNTS,
    licence="CC BY-SA 4.0 (Orchard et al. 2015)",
    # MNIST's labels, sorted by class as the folders are.
    labels_sha256={
        "train": "1db339601670c60153b53c572d6a412dd48ea4d5464bac7902bba1588f3bc842",
        "test": "6bdaca00a7256d3fc6cc95ebbb9be39bf3fb0a8ea5cbac69caf970877a479ea5",
    },
    archives=(("Train.zip", "Test.zip"),),
    folder="the folders Train and Test of .bin files",
)
