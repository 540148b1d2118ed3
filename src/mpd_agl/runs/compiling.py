"""Backend `compiled` compiles at its first step; a person is told that it does, and how long it took."""

import copy
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl.train.batches import Batches
from mpd_agl.train.losses import mean_output


def compile_first(
    net: nn.Module, batches: Batches, device: torch.device, accumulate: int, note: Callable[[str], None]
) -> float:
    """One step on a copy of the network, so that the run's own steps find everything compiled; returns the seconds.

    Neither the network nor the random numbers of the run are touched. torch keeps what it compiled on disk: a second start is quick.
    """
    note("backend compiled: compiling for this network and batch size, which takes minutes where torch's cache is cold")
    began = time.perf_counter()
    with batches.epoch(0) as epoch:
        x, y = (part.to(device) for part in next(iter(epoch)))
    parts = min(accumulate, len(y) // 2) or 1
    twin = copy.deepcopy(net).train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        output = twin(x.tensor_split(parts, -4)[0])
        torch.autograd.backward(F.cross_entropy(mean_output(output), y.tensor_split(parts)[0]))
    seconds = time.perf_counter() - began
    note(f"backend compiled: ready after {seconds:.1f} s")
    return seconds
