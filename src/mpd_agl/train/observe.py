"""How the loop lets others look on: an observer sees chosen steps, a display sees all.

Neither can change a run; all a display can do is end it, by raising `Stopped`.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from mpd_agl.train.progress import Progress


@dataclass(frozen=True)
class Observation:
    """What an observer saw at a step: an event for metrics.jsonl, a few figures for the display, warnings."""

    event: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    """Each with a `text` for people."""


class Observer(Protocol):
    """Looks at the network while it trains."""

    def before(self, step: int) -> None:
        """Called before the forward pass of a step (0 is the run's first)."""

    def after(self, step: int) -> Observation | None:
        """Called when that step is done."""

    def state(self) -> dict[str, Any]:
        """What must survive a restart, for JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Back to a saved state."""


class Display(Protocol):
    """What a person sees of a run."""

    scored: str
    """The samples that epochs are scored on: `test` or `validation`."""

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress) -> None:
        """The loop begins or goes on."""

    def step(self, progress: Progress) -> None:
        """A step is done."""

    def figures(self, figures: dict[str, float]) -> None:
        """An observer has new figures."""

    def event(self, event: dict[str, Any]) -> None:
        """An event went into metrics.jsonl."""

    def note(self, text: str) -> None:
        """A word to the person: a warning, a damaged checkpoint."""

    def close(self) -> None:
        """The loop has ended, however."""
