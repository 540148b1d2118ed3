"""What runs cost here, from a few measured steps; a file keeps the times, so that each network is measured once."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from mpd_agl import records
from mpd_agl.diagnosis import count_operations
from mpd_agl.ops import reuse_pages
from mpd_agl.train import build
from mpd_agl.train.config import RunConfig
from mpd_agl.train.dry_run import random_set

STEP_MACS = 4e10
"""A measured step is limited to about this many multiply-accumulates of its forward pass: seconds, not minutes."""


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
        shape = random_set(config, "train", 1).x.shape[1:]
        name = f"{m.name}{m.model_dump().get('depth', '')}"
        return f"{name} x{m.width_mult:g} T={m.num_steps} {shape} batch {config.train.batch_size}: {place}"


def measure(config: RunConfig) -> dict[str, float]:
    """Seconds per sample of a training step and of a forward pass, on random values: the median of three."""
    reuse_pages()
    device = build.choose_device(config.train.device)
    net = build.network_for(config, random_set(config, "train", 1)).to(device)
    macs = config.model.num_steps * sum(layer.macs for layer in count_operations(net))
    N = max(2, min(config.train.batch_size, int(STEP_MACS / macs)))
    with build.build_test_loader(config, random_set(config, "train", N)).epoch(0) as batches:
        x, y = (torch.cat(parts, dim) for parts, dim in zip(zip(*batches, strict=True), (-4, 0), strict=True))
    x, y = x.to(device), y.to(device)
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
