"""Accuracy, loss and the confusion matrix over a data set. Shapes: K classes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.nn.modes import evaluation_mode
from mpd_agl.train.distributed import ALONE, Ranks
from mpd_agl.train.losses import mean_output


class Batches(Protocol):
    """What training and evaluation need of data: epochs of batches that can be entered at any step.

    `epoch(e, start_step=s)` gives the same batches from the s-th on as an epoch that was never left.
    """

    def __len__(self) -> int:
        """Batches of an epoch."""
        ...

    def epoch(self, epoch: int, start_step: int = 0) -> AbstractContextManager[Iterator[tuple[Tensor, Tensor]]]:
        """The batches (x, y) of an epoch, entered as a context so that workers end with it."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """`confusion_KK[true, predicted]` counts. The loss is the mean output's cross-entropy, whatever is minimised."""

    loss: float
    confusion_KK: Tensor

    @property
    def count(self) -> int:
        """Samples."""
        return int(self.confusion_KK.sum())

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return int(self.confusion_KK.diagonal().sum()) / self.count

    @property
    def per_class_K(self) -> list[float | None]:
        """Share of right predictions of each class; None where the set has none of it."""
        right, all_ = self.confusion_KK.diagonal().tolist(), self.confusion_KK.sum(1).tolist()
        return [r / a if a else None for r, a in zip(right, all_, strict=True)]


@torch.no_grad()
def evaluate(
    net: nn.Module,
    batches: Batches,
    device: torch.device,
    *,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    between: Callable[[], None] = lambda: None,
    ranks: Ranks = ALONE,
    attack: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
) -> Evaluation:
    """Run the network over all batches, in evaluation mode for that time; `between` is called after each and may raise.

    An `attack` changes each batch first (`attacks.build_attack`).

    Several ranks each bring their shares of the batches: every sample counts once, and all ranks get the whole set's
    figures.
    """
    total, confusion = 0.0, torch.zeros(0, dtype=torch.int64)
    with evaluation_mode(net), batches.epoch(0) as epoch:
        for x, y in epoch:
            if len(y):  # a rank's share of a small batch can be empty
                x = x.to(device)
                with autocast():
                    output = net(x if attack is None else attack(net, x, y.to(device)))
                logits_NK = mean_output(output).cpu()
                K = logits_NK.shape[1]
                if not confusion.numel():
                    confusion = torch.zeros(K * K, dtype=torch.int64)
                confusion += torch.bincount(y * K + logits_NK.argmax(1), minlength=K * K)
                total += float(F.cross_entropy(logits_NK, y, reduction="sum"))
            between()
    size = ranks.most(confusion.numel())
    counts = confusion.tolist() or [0] * size
    total, *counts = ranks.sum([total, *counts])
    K = int(size**0.5)
    return Evaluation(total / sum(counts), torch.tensor(counts, dtype=torch.int64).view(K, K))
