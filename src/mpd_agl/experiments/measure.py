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
from mpd_agl.experiments import build
from mpd_agl.experiments.config import RunConfig
from mpd_agl.experiments.watch import build_watch
from mpd_agl.kernels import reuse_pages
from mpd_agl.train.batches import Batches
from mpd_agl.train.config import CheckpointConfig
from mpd_agl.train.console import Quiet
from mpd_agl.train.evaluate import evaluate
from mpd_agl.train.loop import Job, Trainer
from mpd_agl.train.progress import Progress
from mpd_agl.train.runfolder import RunFolder
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

    def __init__(self) -> None:
        self.times: list[float] = []

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

    def bare() -> float:
        began = time.perf_counter()
        stepper(x, y)
        _wait(device)
        return time.perf_counter() - began

    warm = min(bare(), bare())
    count = max(LEAST_STEPS, min(MOST_STEPS, int(BUDGET_S / 3 / warm), len(batches)))
    display = Clocked()
    plain: list[float] = []
    watched = build_watch(net, config.monitor, spiking=not config.model.ann)
    with tempfile.TemporaryDirectory() as scratch, RunFolder.create(Path(scratch) / "run") as folder:
        job = Job(
            title="",
            stepper=stepper,
            train=First(batches, count),
            test=First(test_batches, 1),
            observer=build_watch(net, config.monitor.model_copy(update={"every": 0}), spiking=False),
            display=display,
            trackers=Trackers({}, lambda text: None),
            folder=folder,
            loop=config.train.model_copy(update={"epochs": 1}),
            optim=config.optim,
            saving=CheckpointConfig(every_minutes=0),
        )
        folder.start_metrics(0)
        plain += [bare() for _ in range(count // 2)]
        Trainer(job).fit()
        plain += [bare() for _ in range(count - count // 2)]
    loop_step = statistics.median(np.diff(display.times).tolist())
    step = statistics.median(plain)
    began = time.perf_counter()
    watched.before(0)
    stepper(x, y)
    watched.after(0)
    looked = max(0.0, time.perf_counter() - began - step) if config.monitor.every else 0.0
    began = time.perf_counter()
    evaluate(net, First(test_batches, 2), device)
    test_samples = min(2 * test_batches.batch_size, len(test))
    test_s = (time.perf_counter() - began) / test_samples * counts["test"]
    steps = -(-counts["train"] // config.train.batch_size)
    monitor_s = looked / max(1, config.monitor.every)
    epoch_s = steps * (loop_step + monitor_s) + test_s
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


def _data(config: RunConfig) -> tuple[str, ArraySet, ArraySet, dict[str, int]]:
    """The data set, or random values of its shape where it is not at hand."""
    try:
        train, test = (build.build_data(config, split, download=False) for split in ("train", "test"))
        return train.name, train, test, {"train": len(train), "test": len(test)}
    except InputError:
        spec = get(config.data.name)
    d, all_ = config.data, spec.counts.get("all", 0)
    counts = {
        "train": d.train_samples or spec.counts.get("train", all_ * 9 // 10),
        "test": d.test_samples or spec.counts.get("test", all_ // 10),
    }
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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def to_dict(estimate: Estimate) -> dict[str, Any]:
    """For JSON."""
    return {**vars(estimate), "overhead": estimate.overhead}
