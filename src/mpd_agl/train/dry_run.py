"""`--dry-run`: what a run would cost, from a few real steps of the real loop and the same steps without it."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpd_agl.data.options import FrameOptions, ImageOptions
from mpd_agl.data.types import ArraySet
from mpd_agl.errors import InputError
from mpd_agl.options import part
from mpd_agl.records import peak_memory_mb
from mpd_agl.train import build
from mpd_agl.train.build import BuiltRun
from mpd_agl.train.config import CheckpointConfig, RunConfig
from mpd_agl.train.evaluate import Batches, evaluate
from mpd_agl.train.loop import Trainer
from mpd_agl.train.monitoring import Watch, can_watch
from mpd_agl.train.observe import Display, Progress
from mpd_agl.train.resolve import data_set
from mpd_agl.train.runfolder import RunFolder
from mpd_agl.train.step import NotFinite, Stepper

BUDGET_S = 30.0
MOST_STEPS, LEAST_STEPS = 40, 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Measured here and now; seconds unless said otherwise."""

    data: str
    """Which data the steps ran on."""
    parameters: int
    macs_per_step: int | None
    """Multiply-accumulates of one input at one timestep; None for an own network."""
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
    peak_mb: float | None
    """Of the process; None where the system does not tell."""

    @property
    def overhead(self) -> float:
        """Share of the loop's time, monitor included, that is not the model's step."""
        return (self.loop_step_s + self.monitor_s) / self.step_s - 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "overhead": self.overhead}


class Clocked(Display):
    """A display that only looks at the clock."""

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
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
    """Build the run, do some steps with and without the loop, and scale up. Nothing is downloaded or kept."""
    source, sets, counts = _data(config)
    run = build.build_run(config, sets=sets)
    stepper = run.stepper
    with run.train.epoch(0) as epoch:
        x, y = (part.to(stepper.device) for part in next(iter(epoch)))
    run.net.train()
    warm = min(_timed(stepper, x, y), _timed(stepper, x, y))
    count = min(len(run.train), max(LEAST_STEPS, min(MOST_STEPS, int(BUDGET_S / 3 / warm))))
    half = -(-count // 2)
    before = [_timed(stepper, x, y) for _ in range(half)]
    loop_step = statistics.median(_loop_steps(run, count))
    step = statistics.median([*before, *(_timed(stepper, x, y) for _ in range(half))])
    monitor_s = 0.0
    if config.monitor.every and can_watch(run.net):
        watch = Watch(run.net, config.monitor.every)
        looked = statistics.median(_timed(stepper, x, y, watch) for _ in range(3))
        monitor_s = max(0.0, looked - step) / config.monitor.every
    test_s = _test_s(run) * counts["test"]
    epoch_s = -(-counts["train"] // config.train.batch_size) * (loop_step + monitor_s) + test_s
    on_gpu = stepper.device.type == "cuda"
    return Estimate(
        data=source,
        parameters=run.parameters,
        macs_per_step=run.network.get("macs_per_step"),
        backend=run.backend,
        steps_measured=count,
        step_s=step,
        loop_step_s=loop_step,
        monitor_s=monitor_s,
        test_s=test_s,
        epoch_s=epoch_s,
        run_s=epoch_s * config.train.epochs,
        peak_mb=torch.cuda.max_memory_allocated(stepper.device) / 2**20 if on_gpu else peak_memory_mb(),
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


def _loop_steps(run: BuiltRun, count: int) -> list[float]:
    """Seconds of each step of the real loop, in a temporary folder, without the first, which starts the loader."""
    display, c = Clocked(), run.config
    update = {"train": c.train.model_copy(update={"epochs": 1}), "checkpoint": CheckpointConfig(every_minutes=0)}
    short = replace(run, config=c.model_copy(update=update), train=First(run.train, count), test=First(run.test, 1))
    with tempfile.TemporaryDirectory() as scratch, RunFolder.create(Path(scratch) / "run") as folder:
        folder.start_metrics(0)
        Trainer(short, folder, display).fit()
    taken: list[float] = np.diff(display.times).tolist()
    return taken[1:] or taken


def _test_s(run: BuiltRun) -> float:
    """Seconds of testing a sample."""
    began = time.perf_counter()
    tested = evaluate(run.net, First(run.test, 2), run.stepper.device)
    return (time.perf_counter() - began) / tested.count


def _data(config: RunConfig) -> tuple[str, build.Sets, dict[str, int]]:
    """The data set, or random values of its shape where it is not at hand; and how many samples a run has."""
    scored = build.scored_split(config)
    try:
        found = {split: build.load_data(config, split, download=False) for split in ("train", scored)}
    except InputError:
        if not data_set(config).counts:  # only the files tell the images' shape and number
            raise
        counts, name = build.sample_counts(config), config.data.name
        sets = random_set(config, "train", counts["train"]), random_set(config, "test", counts["test"])
        return f"random values ({name} is not at hand)", sets, counts
    train, test = (build.chosen(config, whole, split) for split, whole in found.items())
    return train.name, (train, test), {"train": len(train), "test": len(test)}


def random_set(config: RunConfig, split: str, count: int) -> ArraySet:
    """Random values in the place of a data set's samples, at most as many as are measured."""
    spec = data_set(config)
    height, width, channels = spec.shape
    side, frame = part(ImageOptions, config.data).image_size, part(FrameOptions, config.data).frame_size
    shape: tuple[int, ...] = (side or height, side or width, channels)
    if spec.kind == "events":
        shape = (config.model.num_steps, frame, frame, channels)
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
