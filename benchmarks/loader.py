"""What the loader costs a training step, and how soon the first batch comes.

    python benchmarks/loader.py

The step is a stand-in: convolutions forward and backward on all cores, sized to take about `--step-ms`. It runs on
batches that are already there and on batches from the loader, in turns; the cost is the ratio of the median times of a
step (and of the lower quartiles, which neighbours on the machine disturb less). The target is less than 5 percent, and
a first batch within 1 s.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from mpd_agl.data.loader import Loader
from mpd_agl.data.types import ArraySet


def data_set(kind: str, folder: Path) -> ArraySet:
    """Noise in the shapes of CIFAR-10 or of CIFAR10-DVS, memory-mapped as a converted set is."""
    shape = (20_000, 32, 32, 3) if kind == "images" else (1000, 10, 48, 48, 2)
    rng = np.random.default_rng(0)
    path = folder / f"{kind}.npy"
    np.save(path, rng.integers(0, 256, shape, dtype=np.uint8))
    C = shape[-1]
    return ArraySet(
        name=kind,
        split="train",
        x=np.load(path, mmap_mode="r"),
        y=rng.integers(0, 10, shape[0]),
        classes=tuple("0123456789"),
        mean=(0.5,) * C,
        std=(0.25,) * C,
    )


class Step:
    """A training step of about the wished length: a small network, forward, backward, and an update."""

    def __init__(self, x: torch.Tensor, step_ms: float) -> None:
        C = x.shape[-3]
        torch.manual_seed(0)
        width = 32 if x.ndim == 4 else 8  # a frame batch is 10 batches of larger pictures
        self.first = torch.nn.Conv2d(C, width, 3, padding=1).to(memory_format=torch.channels_last)
        self.body = torch.nn.Conv2d(width, width, 3, padding=1).to(memory_format=torch.channels_last)
        self.depth = 4
        self(x)
        times = []
        for _ in range(4):
            start = time.perf_counter()
            self(x)
            times.append(time.perf_counter() - start)
        self.depth = max(1, round(4 * step_ms / 1000 / min(times)))
        self(x)

    def __call__(self, x: torch.Tensor) -> None:
        h = self.first(x.flatten(0, 1) if x.ndim == 5 else x)
        for _ in range(self.depth):
            h = torch.relu(self.body(h))
        h.mean().backward()
        with torch.no_grad():
            for p in (*self.first.parameters(), *self.body.parameters()):
                p -= 1e-6 * p.grad
                p.grad = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("images", "frames"), default="images")
    parser.add_argument("--step-ms", type=float, default=250)
    parser.add_argument("--steps", type=int, default=6, help="steps per round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    batch_size, recipe = (100, "cifar") if arguments.kind == "images" else (50, "dvs")
    with tempfile.TemporaryDirectory() as folder:
        data = data_set(arguments.kind, Path(folder))
        start = time.perf_counter()
        loader = Loader(data, batch_size=batch_size, seed=0, train=True, augment=recipe, num_workers=arguments.workers)
        with loader.epoch(0) as batches:
            x, _ = next(batches)
            first_batch = time.perf_counter() - start
        order, making = loader.order(0), []
        for number in range(10):
            start = time.perf_counter()
            loader.batch(order, 0, number)
            making.append(time.perf_counter() - start)
        make_ms = statistics.median(making) * 1000
        step = Step(x, arguments.step_ms)
        times: dict[str, list[float]] = {"without": [], "with": []}
        for round_number in range(arguments.rounds):
            for _ in range(arguments.steps):
                start = time.perf_counter()
                step(x)
                times["without"].append(time.perf_counter() - start)
            with loader.epoch(round_number) as batches:
                step(next(batches)[0])  # the pipe is full in the middle of an epoch
                for _ in range(arguments.steps):
                    start = time.perf_counter()
                    step(next(batches)[0])
                    times["with"].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) * 1000 for name, values in times.items()}
    best = {name: statistics.quantiles(values, n=4)[0] * 1000 for name, values in times.items()}
    record = {
        "kind": arguments.kind,
        "batch_size": batch_size,
        "workers": arguments.workers,
        "first_batch_s": round(first_batch, 3),
        "make_batch_ms": round(make_ms, 2),
        "step_ms": {name: round(value, 1) for name, value in medians.items()},
        "cost_percent": round(100 * (medians["with"] / medians["without"] - 1), 2),
        "cost_percent_of_the_faster_quarter": round(100 * (best["with"] / best["without"] - 1), 2),
        "target_percent": 5,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
