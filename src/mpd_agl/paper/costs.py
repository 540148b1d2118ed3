"""What runs cost here: seconds per sample from a few measured steps, kept in a file so that each network is measured once."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpd_agl import records
from mpd_agl.analysis import count_operations
from mpd_agl.data.registry import get
from mpd_agl.data.types import ArraySet
from mpd_agl.kernels import reuse_pages
from mpd_agl.runs import build
from mpd_agl.runs.config import RunConfig

STEP_MACS = 4e10
"""A measured step is cut to about so many multiply-accumulates of its forward pass: seconds, not minutes."""


class Costs:
    """Measured seconds per training and per test sample, by network, size, T and machine."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}  # a lost file costs a few measured steps
        self.known: dict[str, dict[str, float]] = known if isinstance(known, dict) else {}

    def run_s(self, config: RunConfig) -> float:
        """Seconds of a whole run."""
        key = self._key(config)
        found = self.known.get(key)
        if not isinstance(found, dict) or not {"train", "test"} <= found.keys():
            found = self.known[key] = measure(config)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            records.write_atomic(self.file, records.canonical(self.known))
        counts = build.sample_counts(config)
        epoch = counts["train"] * found["train"] + counts["test"] * found["test"]
        return config.train.epochs * epoch

    @staticmethod
    def _key(config: RunConfig) -> str:
        m, machine = config.model, records.hardware()
        place = f"{machine['cpu']}, {torch.get_num_threads()} threads, {build.choose_device(config.train.device)}"
        return f"{m.name} x{m.width_mult:g} T={m.num_steps} {sample_shape(config)} batch {config.train.batch_size}: {place}"


def sample_shape(config: RunConfig) -> tuple[int, ...]:
    """One sample: (T,) height, width, channels."""
    spec = get(config.data.name)
    if spec.kind == "events":
        return (config.model.num_steps, config.data.frame_size, config.data.frame_size, spec.shape[2])
    return tuple(spec.shape)


def measure(config: RunConfig) -> dict[str, float]:
    """Seconds per sample of a training step and of a forward pass, on random values: the median of three."""
    reuse_pages()
    device = build.choose_device(config.train.device)
    spec, shape = get(config.data.name), sample_shape(config)
    rng = np.random.default_rng(0)
    made = ArraySet(
        name=spec.name,
        split="train",
        x=rng.integers(0, 3, (1, *shape), dtype=np.uint8),
        y=np.zeros(1, np.int64),
        classes=spec.classes or tuple(map(str, range(spec.num_classes))),
        mean=spec.mean,
        std=spec.std,
    )
    net = build.network_for(config, made).to(device)
    macs = config.model.num_steps * sum(layer.macs for layer in count_operations(net))
    N = max(2, min(config.train.batch_size, int(STEP_MACS / macs)))
    *steps, height, width, channels = shape
    x = torch.randn(*steps, N, channels, height, width, device=device)
    y = torch.zeros(N, dtype=torch.long, device=device)
    stepper = build.build_stepper(config, net, device)
    net.train()
    train = _median(lambda: stepper(x, y), device)
    net.eval()
    with torch.no_grad():
        test = _median(lambda: net(x), device)
    return {"train": train / N, "test": test / N}


def _median(call: Any, device: torch.device) -> float:
    taken = []
    for _ in range(4):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[1]
