"""`--dry-run`: what a run would cost, from a few real steps of the real loop and the same steps without it."""

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpd_agl.analysis import count_operations
from mpd_agl.data.registry import get
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError
from mpd_agl.runs import build
from mpd_agl.runs.config import RunConfig
from mpd_agl.runs.monitoring import NoWatch, Watch
from mpd_agl.kernels import reuse_pages
from mpd_agl.train.batches import Batches
from mpd_agl.train.config import CheckpointConfig
from mpd_agl.train.console import Quiet
from mpd_agl.train.evaluate import evaluate
from mpd_agl.train.loop import Job, Trainer
from mpd_agl.train.progress import Progress
from mpd_agl.train.runfolder import RunFolder
from mpd_agl.train.step import NotFinite, Stepper
from mpd_agl.train.trackers import Trackers

BUDGET_S = 30.0
MOST_STEPS, LEAST_STEPS = 40, 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Measured here and now; seconds unless said otherwise."""

    data: str
    """Which data the steps ran on."""
    parameters: int
    macs_per_step: int
    """Multiply-accumulates of one input at one timestep."""
    backend: str
    steps_measured: int
    step_s: float
    """The model's own step on a batch at hand: forward, loss, backward, update."""
    loop_step_s: float
    """A step of the loop, data and bookkeeping included, monitor apart."""
    monitor_s: float
    """The monitor's share of a step at its interval."""
    test_s: float
    epoch_s: float
    run_s: float
    peak_mb: float
    """Of the process."""

    @property
    def overhead(self) -> float:
        """Share of the loop's time, monitor included, that is not the model's step."""
        return (self.loop_step_s + self.monitor_s) / self.step_s - 1


class Clocked(Quiet):
    """A display that only looks at the clock."""

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress) -> None:
        """Note the time."""
        self.times = [time.perf_counter()]

    def step(self, progress: Progress) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


class First:
    """The first few batches of each epoch."""

    def __init__(self, batches: Batches, count: int) -> None:
        self.batches, self.count = batches, min(count, len(batches))

    def __len__(self) -> int:
        return self.count

    def epoch(self, epoch: int, start_step: int = 0) -> AbstractContextManager[Iterator[tuple[Tensor, Tensor]]]:
        """As the whole epoch's beginning."""

        @contextmanager
        def limited() -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
            with self.batches.epoch(epoch, start_step) as batches:
                yield (batch for _, batch in zip(range(self.count - start_step), batches, strict=False))

        return limited()


def measure(config: RunConfig) -> Estimate:
    """Build everything, run some steps with and without the loop, and scale up. Nothing is downloaded or kept."""
    reuse_pages()
    device = build.choose_device(config.train.device)
    build.set_up_torch(config, device, config.train.threads)
    backend = build.backend_that_runs(config, device)
    source, train, test, counts = _data(config)
    batches, test_batches = build.build_loaders(config, train, test)
    net = build.network_for(config, train).to(device)
    stepper = build.build_stepper(config, net, device)
    with batches.epoch(0) as epoch:
        x, y = (part.to(device) for part in next(iter(epoch)))
    net.train()
    warm = min(_timed(stepper, x, y), _timed(stepper, x, y))
    count = min(len(batches), max(LEAST_STEPS, min(MOST_STEPS, int(BUDGET_S / 3 / warm))))
    before = [_timed(stepper, x, y) for _ in range(-(-count // 2))]
    in_loop = _loop_steps(config, stepper, First(batches, count), First(test_batches, 1))
    after = [_timed(stepper, x, y) for _ in range(-(-count // 2))]
    step, loop_step = statistics.median(before + after), statistics.median(in_loop)
    monitor_s = 0.0
    if config.monitor.every and not config.model.ann:
        watch = Watch(net, config.monitor)
        looked = statistics.median(_timed(stepper, x, y, watch) for _ in range(3))
        monitor_s = max(0.0, looked - step) / config.monitor.every
    began = time.perf_counter()
    evaluate(net, First(test_batches, 2), device)
    test_s = (time.perf_counter() - began) / min(2 * test_batches.batch_size, len(test)) * counts["test"]
    epoch_s = -(-counts["train"] // config.train.batch_size) * (loop_step + monitor_s) + test_s
    return Estimate(
        data=source,
        parameters=sum(p.numel() for p in net.parameters()),
        macs_per_step=sum(layer.macs for layer in count_operations(net)),
        backend=backend,
        steps_measured=count,
        step_s=step,
        loop_step_s=loop_step,
        monitor_s=monitor_s,
        test_s=test_s,
        epoch_s=epoch_s,
        run_s=epoch_s * config.train.epochs,
        peak_mb=_peak_mb(device),
    )


def _timed(stepper: Stepper, x: Tensor, y: Tensor, watch: Watch | None = None) -> float:
    """Seconds of one step on a batch at hand, looked at or not."""
    began = time.perf_counter()
    try:
        if watch is not None:
            watch.before(0)
        stepper(x, y)
        if watch is not None:
            watch.after(0)
    except NotFinite as error:
        raise InputError(f"a measured step ended with {error}. Try a smaller --optim.lr.") from error
    if stepper.device.type == "cuda":
        torch.cuda.synchronize(stepper.device)
    return time.perf_counter() - began


def _loop_steps(config: RunConfig, stepper: Stepper, train: Batches, test: Batches) -> list[float]:
    """Seconds of each step of the real loop, in a folder that is gone afterwards; the first, which starts the loader, is left out."""
    display = Clocked()
    with tempfile.TemporaryDirectory() as scratch, RunFolder.create(Path(scratch) / "run") as folder:
        folder.start_metrics(0)
        Trainer(
            Job(
                title="",
                stepper=stepper,
                train=train,
                test=test,
                observer=NoWatch(),
                display=display,
                trackers=Trackers({}, display.note),
                folder=folder,
                loop=config.train.model_copy(update={"epochs": 1}),
                optim=config.optim,
                saving=CheckpointConfig(every_minutes=0),
            )
        ).fit()
    taken: list[float] = np.diff(display.times).tolist()
    return taken[1:] or taken


def _data(config: RunConfig) -> tuple[str, ArraySet, ArraySet, dict[str, int]]:
    """The data set, or random values of its shape where it is not at hand."""
    scored = build.scored_split(config)
    try:
        found = {split: build.load_data(config, split, download=False) for split in ("train", scored)}
    except InputError:
        return _stand_in(config)
    train, test = (build.chosen(config, whole, split) for split, whole in found.items())
    return train.name, train, test, {"train": len(train), "test": len(test)}


def _stand_in(config: RunConfig) -> tuple[str, ArraySet, ArraySet, dict[str, int]]:
    """Random values in the data set's place."""
    d, spec = config.data, get(config.data.name)
    whole = spec.counts.get("all", 0)
    most = {"train": spec.counts.get("train", whole * 9 // 10), "test": spec.counts.get("test", whole // 10)}
    if d.holdout >= most["train"]:
        raise build.too_large("holdout", d.holdout, d.name, most["train"] - 1)
    most["train"] -= d.holdout
    asked = {"train": d.train_samples, "test": d.test_samples}
    for split, count in asked.items():
        if count > (whole or most[split]):
            raise build.too_large(f"{split}_samples", count, d.name, most[split])
    counts = {split: count or most[split] for split, count in asked.items()}
    if d.holdout:
        counts["test"] = d.holdout
    height, width, channels = spec.shape
    shape: tuple[int, ...] = (height, width, channels)
    if spec.kind == "events":
        shape = (config.model.num_steps, d.frame_size, d.frame_size, channels)
    made = {split: _random(config, split, shape, count) for split, count in counts.items()}
    return f"random values ({spec.name} is not at hand)", made["train"], made["test"], counts


def _random(config: RunConfig, split: str, shape: tuple[int, ...], count: int) -> ArraySet:
    spec = get(config.data.name)
    count = min(count, MOST_STEPS * config.train.batch_size)
    rng = np.random.default_rng(0)
    return ArraySet(
        name=spec.name,
        split=split,
        x=rng.integers(0, 256 if spec.kind == "images" else 3, (count, *shape), dtype=np.uint8),
        y=rng.integers(0, spec.num_classes, count),
        classes=spec.classes or tuple(map(str, range(spec.num_classes))),
        mean=spec.mean,
        std=spec.std,
    )


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def to_dict(estimate: Estimate) -> dict[str, Any]:
    """For JSON."""
    return {**vars(estimate), "overhead": estimate.overhead}
