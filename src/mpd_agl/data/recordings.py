"""Event recordings on disk: one file per recording, a class per folder. CIFAR10-DVS and N-MNIST are both kept this way.

A folder may come as a zip of the same name; it is then unpacked once (see `sources`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.types import EventStream
from mpd_agl.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """The files of one split, ordered by class and number, and how to read one. It can be sent to a worker."""

    paths: tuple[Path, ...]
    y_N: NDArray[np.int64]
    read_file: Callable[[Path], EventStream]
    origin: str

    def __len__(self) -> int:
        return len(self.paths)

    def __call__(self, index: int) -> EventStream:
        """Read one recording."""
        return self.read_file(self.paths[index])

    def take(self, indices: NDArray[np.int64]) -> "Recordings":
        """Some of the recordings, in the order given."""
        return Recordings(
            paths=tuple(self.paths[i] for i in indices),
            y_N=self.y_N[indices],
            read_file=self.read_file,
            origin=self.origin,
        )


def list_recordings(
    folder: Path, classes: tuple[str, ...], suffix: str, read_file: Callable[[Path], EventStream]
) -> Recordings:
    """List `folder/CLASS/*SUFFIX` for every class. A class without a folder or without a file is an error."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        place = folder / name
        try:
            found = [p for p in place.iterdir() if p.suffix == suffix and not p.name.startswith(".")]
        except OSError:
            found = []
        if not found:
            raise InputError(
                f"{place} is missing or holds no {suffix} file. Put the recordings of class {name!r} there."
            )
        paths += sorted(found, key=_number)
        labels += [label] * len(found)
    return Recordings(paths=tuple(paths), y_N=np.array(labels, np.int64), read_file=read_file, origin=str(folder))


def _number(path: Path) -> tuple[int, str]:
    """Order by the last number in the name: 2 before 10."""
    numbers = re.findall(r"\d+", path.stem)
    return (int(numbers[-1][:18]) if numbers else -1, path.name)


def check_events(path: Path, t_E: NDArray[np.int64]) -> None:
    """Refuse a recording without events or with time running backwards."""
    if not len(t_E):
        raise InputError(f"{path} holds no event. Get the recording again.")
    backwards = np.flatnonzero(np.diff(t_E) < 0)
    if len(backwards):
        i = int(backwards[0])
        raise InputError(
            f"{path} is out of order: event {i + 1:,} is at {t_E[i + 1]} us, the one before at {t_E[i]} us. Get the "
            "recording again."
        )
