"""The data sets by name.

To add one: describe it in a file of its own (`cifar.py` and `event_sets.py` are examples, `types.DataSet` says what a
description holds) and name it in `DATASETS`. From outside the package: `register_dataset`.
"""

import re

from mpd_agl.data.cifar import CIFAR10, CIFAR100
from mpd_agl.data.event_sets import CIFAR10DVS, NMNIST
from mpd_agl.data.fileset import FileSet
from mpd_agl.data.idx import FASHION_MNIST, MNIST
from mpd_agl.data.mnist5k import MNIST5K, MNIST5K_DVS
from mpd_agl.data.own_files import EVENT_FOLDER, FOLDER, NPZ
from mpd_agl.data.tinyimagenet import TINYIMAGENET
from mpd_agl.data.types import DataSet
from mpd_agl.errors import InputError, unknown_name

DATASETS: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        *(MNIST5K, MNIST5K_DVS, CIFAR10, CIFAR100, TINYIMAGENET, CIFAR10DVS, NMNIST, MNIST, FASHION_MNIST),
        *(FOLDER, NPZ, EVENT_FOLDER),
    )
}


def register_dataset(spec: DataSet) -> None:
    """Make a data set known by its name, so that every command takes `--data.name NAME`."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", spec.name):
        raise InputError(f"a data set's name is letters, digits, '.', '_' and '-', got {spec.name!r}. Rename it.")
    if spec.kind not in ("images", "events"):
        raise unknown_name("kind of data", spec.kind, ("images", "events"))
    if DATASETS.get(spec.name, spec) is not spec:
        raise InputError(f"there is a data set {spec.name!r} already. Register yours under another name.")
    DATASETS[spec.name] = spec


def get(name: str) -> DataSet:
    """Look a data set up by name; installed plugins are asked before an unknown name is refused.

    >>> get("cifar10").counts["train"]
    50000
    """
    if name not in DATASETS:
        from mpd_agl.plugins import load_plugins

        load_plugins()
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]


def published(name: str) -> FileSet:
    """Look up a published data set, the only kind that can be fetched."""
    spec = get(name)
    if not isinstance(spec, FileSet) or not spec.published:
        raise InputError(f"{name!r} is {spec.title}: there is nothing to fetch. Pass --data-dir to train or verify.")
    return spec
