"""`--dry-run`: what a run would cost, from a few steps of the real loop."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

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
from mpd_agl.train.config import RunConfig
from mpd_agl.train.evaluate import Batches, evaluate
from mpd_agl.train.loop import Trainer
from mpd_agl.train.observe import Display, Progress
from mpd_agl.train.resolve import data_set, merge, resolve
from mpd_agl.train.runfolder import RunFolder
from mpd_agl.train.signals import Stopped

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
    """A step of the loop, its data included, between two looks of the monitor."""
    test_s: float
    epoch_s: float
    run_s: float
    peak_mb: float | None
    """Of the process; None where the system does not report it."""


class Clocked(Display):
    """A display that only looks at the clock, and ends the run when enough steps were seen."""

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
        """Note the time."""
        self.times = [time.perf_counter()]

    def step(self, progress: Progress) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())
        over = self.times[-1] - self.times[0] > BUDGET_S and len(self.times) > LEAST_STEPS
        if over or len(self.times) > MOST_STEPS:
            raise Stopped("the clock", progress.step)


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
    """Build the run, do some steps of the real loop in a temporary folder, and scale up. Nothing is downloaded."""
    source, sets, counts = _data(config)
    run = build.build_run(config, sets=sets)
    changes = {"train": {"epochs": 1}, "checkpoint": {"every_minutes": 0}, "optim": {"warmup_epochs": 0}}
    short = replace(run, config=resolve(merge(config.model_dump(), changes)), test=First(run.test, 1))
    display = Clocked()
    with tempfile.TemporaryDirectory() as scratch, RunFolder.create(Path(scratch) / "run") as folder:
        folder.start_metrics(0)
        with suppress(Stopped):
            Trainer(short, folder, display).fit()
    taken = np.diff(display.times)
    step_s = float(np.median(taken[1:] if len(taken) > 1 else taken))  # the first step starts the loader
    test_s = _test_s(run) * counts["test"]
    epoch_s = -(-counts["train"] // config.train.batch_size) * step_s + test_s
    device = run.stepper.device
    return Estimate(
        data=source,
        parameters=run.parameters,
        macs_per_step=run.network.get("macs_per_step"),
        backend=run.backend,
        steps_measured=len(taken),
        step_s=step_s,
        test_s=test_s,
        epoch_s=epoch_s,
        run_s=epoch_s * config.train.epochs,
        peak_mb=torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else peak_memory_mb(),
    )


def _test_s(run: BuiltRun) -> float:
    """Seconds of testing a sample."""
    began = time.perf_counter()
    tested = evaluate(run.net, First(run.test, 2), run.stepper.device)
    return (time.perf_counter() - began) / tested.count


def _data(config: RunConfig) -> tuple[str, build.Sets, dict[str, int]]:
    """The data set, or random values of its shape where it is not available; and how many samples a run has."""
    scored = build.scored_split(config)
    try:
        found = {split: build.load_data(config, split, download=False) for split in ("train", scored)}
    except InputError:
        if not data_set(config).counts:  # only the files tell the images' shape and number
            raise
        counts, name = build.sample_counts(config), config.data.name
        sets = random_set(config, "train", counts["train"]), random_set(config, "test", counts["test"])
        return f"random values ({name} is not here)", sets, counts
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
