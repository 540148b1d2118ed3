"""Batches for training. Their order and augmentation depend on (seed, epoch) alone.

Threads make the next batches while the model works on the present one; one thread is usually enough. They are threads
and not processes because numpy releases the interpreter lock in its long loops, nothing needs to be copied or sent, all
threads share a memory-mapped set, and no process can be left behind.

Shapes: N batch, T frames, C channels, H height, W width.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import islice
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from mpd_agl.data.augment import Augmentation, normalise
from mpd_agl.data.counter import permutation
from mpd_agl.data.share import share
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]

_STREAM = 0x0DE7
_AHEAD = 2
"""How many batches per worker are made or wait."""
MOST_WORKERS = 16


@dataclass(eq=False, repr=False)
class Loader:
    """Yields `(x, y)`: x is float32 (N, C, H, W), or (T, N, C, H, W) for frames, in channels-last memory; y is int64.

    `epoch(e)` gives the batches of epoch e; `epoch(e, start_step=s)` the same ones from the s-th on, so a run stopped
    after s batches continues as if it had not been. With `train` the samples come shuffled and augmented, else in
    order and as they are. With `world_size` processes, each of the `parts` of batch b of the whole run is cut into as
    many slices and `rank` gets its own: `batch_size` counts the samples of all ranks together.

        loader = Loader(dataset, batch_size=100, seed=0, train=True, augment="cifar")
        for x, y in loader.epoch(0):
            ...
    """

    dataset: ArraySet
    _: KW_ONLY
    batch_size: int
    seed: int
    train: bool
    augment: Sequence[str] | str = ()
    num_workers: int = 1
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        dataset, batch_size = self.dataset, self.batch_size
        if batch_size < 1:
            raise InputError(f"the batch size must be at least 1, got {batch_size}; use 100, as the paper does.")
        if not 0 <= self.num_workers <= MOST_WORKERS:
            raise InputError(
                f"the loader has 0 to {MOST_WORKERS} workers, got {self.num_workers}; use 1, which usually keeps up "
                "with training."
            )
        if batch_size < self.world_size:
            raise InputError(
                f"a batch of {batch_size} cannot be shared by {self.world_size} processes; use at most {batch_size}."
            )
        if dataset.sample_shape is not None and self.train and self.augment:
            raise InputError(
                f"augmentation takes images or frames, got samples of shape {dataset.sample_shape} from "
                f"{dataset.name!r}. Leave it out."
            )
        self._augmentation = Augmentation(self.augment if self.train else (), dataset.mean)
        if len(self) == 0:
            raise InputError(
                f"data set {dataset.name!r} has {len(dataset)} samples, fewer than a batch of {batch_size}; "
                "use a smaller batch."
            )
        # Send one sample through the whole pipeline: a step that does not fit the data is then refused here and not
        # in a worker.
        self.make(np.arange(1), 0)

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Give the order of all samples in an epoch: a function of (seed, epoch) alone."""
        if not self.train:
            return np.arange(len(self.dataset))
        return permutation(self.seed, epoch, len(self.dataset), _STREAM)

    def epoch(self, epoch: int, start_step: int = 0) -> "Epoch":
        """Give the batches of an epoch from `start_step` on."""
        if not 0 <= start_step <= len(self):
            raise InputError(
                f"start_step must be from 0 to {len(self)}, got {start_step}; the run to continue is of another set."
            )
        return Epoch(self, epoch, start_step)

    def batch(self, order: NDArray[np.int64], epoch: int, step: int) -> Batch:
        """Make batch `step` of an epoch whose order is given: this rank's share of it."""
        whole = order[step * self.batch_size : (step + 1) * self.batch_size]
        return self.make(share(whole, self.parts, self.rank, self.world_size), epoch)

    def make(self, index_N: NDArray[np.int64], epoch: int) -> Batch:
        """Make the batch of the given samples: read, augment, normalise, and lay out as the model wants it."""
        mean, std = self.dataset.mean, self.dataset.std
        x = self._augmentation(self.dataset.x[index_N], seed=self.seed, epoch=epoch, index_N=index_N)
        y = torch.from_numpy(self.dataset.y[index_N])
        if self.dataset.sample_shape is not None:
            return torch.from_numpy(x).permute(0, 3, 1, 2), y
        if x.ndim == 4:
            return torch.from_numpy(normalise(x, mean, std)).permute(0, 3, 1, 2), y
        x_TNHWC = np.ascontiguousarray(x.swapaxes(0, 1))
        return torch.from_numpy(normalise(x_TNHWC, mean, std)).permute(0, 1, 4, 2, 3), y


class Epoch(Iterator[Batch]):
    """The batches of one epoch: an iterator, and a context manager. Leaving or dropping it early stops the workers."""

    def __init__(self, loader: Loader, epoch: int, start_step: int) -> None:
        self._ready: deque[Future[Batch]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._steps, self._left = iter(range(start_step, len(loader))), len(loader) - start_step
        self._make = partial(loader.batch, loader.order(epoch), epoch)
        if loader.num_workers:
            self._threads = ThreadPoolExecutor(loader.num_workers, thread_name_prefix="mpd-agl-loader")
            for step in islice(self._steps, _AHEAD * loader.num_workers):
                self._ready.append(self._threads.submit(self._make, step))

    def __iter__(self) -> "Epoch":
        return self

    def __len__(self) -> int:
        """Count the batches that are left."""
        return self._left

    def __next__(self) -> Batch:
        if self._left == 0:
            self.close()
            raise StopIteration
        self._left -= 1
        if self._threads is None:
            return self._make(next(self._steps))
        try:
            batch = self._ready.popleft().result()
        except BaseException:
            self.close()
            raise
        for step in islice(self._steps, 1):
            self._ready.append(self._threads.submit(self._make, step))
        return batch

    def close(self) -> None:
        """Stop the workers and wait for them; safe to call again."""
        self._left = 0
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> "Epoch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
