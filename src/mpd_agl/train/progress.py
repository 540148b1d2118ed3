"""Where a run stands: all of the loop's own state, plain numbers, as JSON in every checkpoint."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """Counters and running sums. Fields that hold clock times end in `_s`."""

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
