"""Batches for training. Their order and augmentation depend on (seed, epoch) alone.

Threads make the next batches while the model works on the present one; one thread is usually enough. They are threads
and not processes because numpy releases the interpreter lock in its long loops, nothing needs to be copied or sent, all
threads share a memory-mapped set, and no process can be left behind.

Shapes: N batch, T frames, C channels, H height, W width.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
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
"""How many finished batches a worker may have waiting."""
MOST_WORKERS = 16


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

    def __init__(
        self,
        dataset: ArraySet,
        *,
        batch_size: int,
        seed: int,
        train: bool,
        augment: Sequence[str] | str = (),
        num_workers: int = 1,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        parts: int = 1,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"the batch size must be at least 1, got {batch_size}; use 100, as the paper does.")
        if not 0 <= num_workers <= MOST_WORKERS:
            raise InputError(
                f"the loader has 0 to {MOST_WORKERS} workers, got {num_workers}; use 1, which usually keeps up with "
                "training."
            )
        if not 0 <= rank < world_size:
            raise InputError(f"rank must be from 0 to {world_size - 1}, got {rank}; set it by the launcher.")
        if batch_size < world_size:
            raise InputError(
                f"a batch of {batch_size} cannot be shared by {world_size} processes; use at most {batch_size}."
            )
        if dataset.sample_shape is not None and train and augment:
            raise InputError(
                f"augmentation takes images or frames, got samples of shape {dataset.sample_shape} from "
                f"{dataset.name!r}. Leave it out."
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.train = train
        self.num_workers = num_workers
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.parts = parts
        self.augmentation = Augmentation(augment if train else (), dataset.mean)
        # Send one sample through the whole pipeline: a step that does not fit the data is then refused here and not
        # in a worker.
        self.make(np.arange(min(1, len(dataset))), 0)
        if len(self) == 0:
            raise InputError(
                f"data set {dataset.name!r} has {len(dataset)} samples, fewer than a batch of {batch_size}; "
                "use a smaller batch."
            )

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
        x = self.augmentation(self.dataset.x[index_N], seed=self.seed, epoch=epoch, index_N=index_N)
        y = torch.from_numpy(self.dataset.y[index_N])
        if self.dataset.sample_shape is not None:
            return torch.from_numpy(x).permute(0, 3, 1, 2), y
        if x.ndim == 4:
            return torch.from_numpy(normalise(x, mean, std)).permute(0, 3, 1, 2), y
        x_TNHWC = np.ascontiguousarray(x.swapaxes(0, 1))
        return torch.from_numpy(normalise(x_TNHWC, mean, std)).permute(0, 1, 4, 2, 3), y


class Epoch(Iterator[Batch]):
    """The batches of one epoch: an iterator, and a context manager. Leaving or dropping it early stops the worker."""

    def __init__(self, loader: Loader, epoch: int, start_step: int) -> None:
        self._ready: list[queue.Queue[Batch | BaseException]] = []
        self._stop = threading.Event()
        self._loader = loader
        self._epoch = epoch
        self._first = self._step = start_step
        self._order = loader.order(epoch)
        self._threads: list[threading.Thread] = []
        for steps in _dealt(start_step, len(loader), loader.num_workers):
            # A thread gets the parts it needs and not this object, so that dropping the iterator is enough to end it.
            self._ready.append(queue.Queue(maxsize=_AHEAD))
            parts = (loader, epoch, self._order, steps, self._ready[-1], self._stop)
            self._threads.append(threading.Thread(target=_work, args=parts, name="mpd-agl-loader", daemon=True))
            self._threads[-1].start()

    def __iter__(self) -> "Epoch":
        return self

    def __len__(self) -> int:
        """Count the batches that are left."""
        return len(self._loader) - self._step

    def __next__(self) -> Batch:
        if self._step >= len(self._loader) or self._stop.is_set():
            self.close()
            raise StopIteration
        if not self._threads:
            item: Batch | BaseException = self._loader.batch(self._order, self._epoch, self._step)
        else:
            item = self._take((self._step - self._first) % len(self._threads))
        if isinstance(item, BaseException):
            self.close()
            raise item
        self._step += 1
        return item

    def close(self) -> None:
        """Stop the workers and wait for them; safe to call again."""
        self._stop.set()
        threads, self._threads = self._threads, []
        while any(thread.is_alive() for thread in threads):
            for ready, thread in zip(self._ready, threads, strict=True):
                _drain(ready)
                thread.join(timeout=0.05)

    def __enter__(self) -> "Epoch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._stop.set()
        for ready in self._ready:
            _drain(ready)

    def _take(self, worker: int) -> Batch | BaseException:
        """Wait for the next batch; give an error if the worker has ended without sending one."""
        ready, thread = self._ready[worker], self._threads[worker]
        while True:
            try:
                return ready.get(timeout=0.5)
            except queue.Empty:
                if not thread.is_alive() and ready.empty():
                    return RuntimeError(
                        f"the loader's worker ended before batch {self._step}; use num_workers=0 to see why."
                    )


def _dealt(start: int, end: int, workers: int) -> list[range]:
    """Deal the steps out to the workers: each gets every n-th."""
    return [range(start + k, end, workers) for k in range(min(workers, end - start))]


def _work(
    loader: Loader,
    epoch: int,
    order: NDArray[np.int64],
    steps: range,
    ready: "queue.Queue[Batch | BaseException]",
    stop: threading.Event,
) -> None:
    """Make a worker's batches until the epoch ends or `stop` is set. An error is sent in place of the batch it hit."""
    for step in steps:
        if stop.is_set():
            return
        try:
            item: Batch | BaseException = loader.batch(order, epoch, step)
        except BaseException as error:
            item = error
        ready.put(item)  # waits for room; a consumer that leaves sets `stop` first and then empties the queue
        if isinstance(item, BaseException):
            return


def _drain(ready: "queue.Queue[Batch | BaseException]") -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            ready.get_nowait()
