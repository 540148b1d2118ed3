"""TensorBoard and W&B behind one small interface. A tracker that fails is dropped with a note, and the run goes on."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mpd_agl.train.config import TrackConfig


class Tracker(Protocol):
    """Takes the same lines that metrics.jsonl gets."""

    def log(self, line: dict[str, Any]) -> None:
        """One line."""

    def close(self) -> None:
        """The run has ended."""


class TensorBoard:
    """Scalars into `<run>/tensorboard`. Extra: `pip install mpd-agl[tensorboard]`."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, line: dict[str, Any]) -> None:
        """The numbers of a line under its kind."""
        for name, value in numbers(line).items():
            self.writer.add_scalar(f"{line['log']}/{name}", value, line["step"])

    def close(self) -> None:
        """Flush."""
        self.writer.close()


class WandB:
    """Scalars to Weights & Biases. Extra: `pip install mpd-agl[wandb]`."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore]

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "mpd-agl"),
            name=folder.name,
            id=folder.name,
            dir=str(folder),
            config=config,
            resume="allow",
        )

    def log(self, line: dict[str, Any]) -> None:
        """The numbers of a line under its kind."""
        self.run.log({f"{line['log']}/{n}": v for n, v in numbers(line).items()}, step=line["step"])

    def close(self) -> None:
        """Finish."""
        self.run.finish()


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
            self._guard(name, partial(tracker.log, line))

    def close(self) -> None:
        """Close each."""
        for name, tracker in list(self._all.items()):
            self._guard(name, tracker.close)

    def _guard(self, name: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:
            self._all.pop(name, None)
            self._note(f"{name} is dropped, the run goes on: {type(error).__name__}: {error}")


def build_trackers(
    config: TrackConfig, folder: Path, settings: dict[str, Any], step: int, note: Callable[[str], None]
) -> Trackers:
    """The trackers of a run."""
    made: dict[str, Callable[[], Tracker]] = {}
    if config.tensorboard:
        made["tensorboard"] = lambda: TensorBoard(folder, step)
    if config.wandb:
        made["wandb"] = lambda: WandB(folder, settings)
    return Trackers(made, note)
