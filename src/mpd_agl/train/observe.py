"""How far a run is, and how the loop lets others watch it: an observer sees chosen steps, a display sees all.

Neither can change a run; all that a display can do is end it, by raising `Stopped`.
"""

import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass
class Progress:
    """All of the loop's own state: plain numbers, as JSON in every checkpoint.

    Fields that hold clock times end in `_s`.
    """

    epoch: int = 0
    """Epochs that are complete, evaluation included."""
    epoch_step: int = 0
    """Steps of the present epoch that are done."""
    step: int = 0
    """Steps of the run that are done."""
    loss_sum: float = 0.0
    """Of the present epoch, over samples."""
    correct: int = 0
    seen: int = 0
    epoch_s: float = 0.0
    """Seconds spent in the present epoch's steps."""
    elapsed_s: float = 0.0
    """Seconds of the whole run, over all its processes."""
    last: dict[str, Any] | None = None
    """Scores of the last complete epoch."""
    best: dict[str, Any] | None = None
    """Scores of the best epoch so far, by test accuracy."""

    def begin_epoch(self) -> None:
        """Forget the last epoch's sums."""
        self.epoch_step, self.loss_sum, self.correct, self.seen, self.epoch_s = 0, 0.0, 0, 0, 0.0

    @property
    def loss(self) -> float:
        """Mean training loss of the present epoch so far."""
        return self.loss_sum / max(1, self.seen)

    @property
    def accuracy(self) -> float:
        """Training accuracy of the present epoch so far."""
        return self.correct / max(1, self.seen)

    @property
    def images_per_s(self) -> float:
        """Training speed of the present epoch so far."""
        return self.seen / self.epoch_s if self.epoch_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Observation:
    """What an observer saw at a step: a log line for metrics.jsonl, a few figures for the display, warnings."""

    line: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    """Each with a `text` for people."""


class Observer(Protocol):
    """Looks at the network while it trains."""

    def before(self, step: int) -> bool:
        """Called before the forward pass of a step (0 is the run's first); whether the observer looks at this step."""
        ...

    def after(self, step: int) -> Observation | None:
        """Called when that step is done."""

    def state(self) -> dict[str, Any]:
        """What must survive a restart, for JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Back to a saved state."""


class Display:
    """What a person sees of a run. This one prints notes to stderr and nothing else."""

    epochs, per_epoch, scored = 0, 0, "test"

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
        """The loop begins or continues; `scored` names the samples that score it, `test` or `validation`."""
        self.epochs, self.per_epoch, self.scored = epochs, steps_per_epoch, scored
        self._first, self._began = progress.step, time.perf_counter()

    def step(self, progress: Progress) -> None:
        """A step is done."""

    def figures(self, figures: dict[str, float]) -> None:
        """An observer has new figures."""

    def logged(self, line: dict[str, Any]) -> None:
        """A line went into metrics.jsonl."""

    def note(self, text: str) -> None:
        """Tell the person something: a warning, a damaged checkpoint."""
        print(f"mpd-agl: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """The loop has ended, however."""

    def left_s(self, progress: Progress) -> float | None:
        """Seconds to the end at the speed of this process so far, evaluation included."""
        done = progress.step - self._first
        if not done:
            return None
        return (self.epochs * self.per_epoch - progress.step) * (time.perf_counter() - self._began) / done
