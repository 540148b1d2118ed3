"""What the loop needs of data: epochs of batches that can be entered at any step."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor


class Batches(Protocol):
    """`epoch(e, start_step=s)` gives the same batches from the s-th on as an epoch that was never left."""

    def __len__(self) -> int:
        """Batches of an epoch."""
        ...

    def epoch(self, epoch: int, start_step: int = 0) -> AbstractContextManager[Iterator[tuple[Tensor, Tensor]]]:
        """The batches (x, y) of an epoch, entered as a context so that workers end with it."""
        ...
