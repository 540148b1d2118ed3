"""TensorBoard and W&B behind one small interface. A tracker that fails is dropped; the run continues."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mpd_agl.train.config import TrackConfig

Tracker = tuple[Callable[[dict[str, Any]], Any], Callable[[], Any]]
"""What takes the lines that metrics.jsonl gets, and what ends it."""


def tensorboard(folder: Path, step: int) -> Tracker:
    """Scalars into `<run>/tensorboard`. Extra: `pip install mpd-agl[tensorboard]`."""
    from torch.utils.tensorboard import SummaryWriter  # an optional dependency

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(line: dict[str, Any]) -> None:
        for name, value in numbers(line).items():
            writer.add_scalar(f"{line['log']}/{name}", value, line["step"])

    return log, writer.close


def wandb_run(folder: Path, config: dict[str, Any]) -> Tracker:
    """Scalars to Weights & Biases. Extra: `pip install mpd-agl[wandb]`."""
    import wandb  # type: ignore[import-not-found,unused-ignore]  # an optional dependency

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "mpd-agl"),
        name=folder.name,
        id=folder.name,
        dir=str(folder),
        config=config,
        resume="allow",
    )

    def log(line: dict[str, Any]) -> None:
        run.log({f"{line['log']}/{n}": v for n, v in numbers(line).items()}, step=line["step"])

    return log, run.finish


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """The plain numbers of a line."""
    return {n: float(v) for n, v in line.items() if isinstance(v, int | float) and n != "step"}


class Trackers:
    """All trackers that a configuration asks for and that can be made."""

    def __init__(self, made: dict[str, Callable[[], Tracker]], note: Callable[[str], None]) -> None:
        self._note = note
        self._all: dict[str, Tracker] = {}
        for name, make in made.items():
            self._guard(name, partial(self._make, name, make))

    def _make(self, name: str, make: Callable[[], Tracker]) -> None:
        self._all[name] = make()

    def log(self, line: dict[str, Any]) -> None:
        """Hand a line to each."""
        for name, tracker in list(self._all.items()):
            self._guard(name, partial(tracker[0], line))

    def close(self) -> None:
        """Close each."""
        for name, tracker in list(self._all.items()):
            self._guard(name, tracker[1])

    def _guard(self, name: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self._all.pop(name, None)
            self._note(f"{name} is dropped, the run continues: {type(error).__name__}: {error}")


def build_trackers(
    config: TrackConfig, folder: Path, settings: dict[str, Any], step: int, note: Callable[[str], None]
) -> Trackers:
    """The trackers of a run."""
    made: dict[str, Callable[[], Tracker]] = {}
    if config.tensorboard:
        made["tensorboard"] = lambda: tensorboard(folder, step)
    if config.wandb:
        made["wandb"] = lambda: wandb_run(folder, settings)
    return Trackers(made, note)
