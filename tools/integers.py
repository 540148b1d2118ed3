"""Measures a forward pass of spikes as two integer convolutions, beside the ways that `auto` has.

    python -m tools.integers [-o docs/results/integers.json]

A float32 weight is a sum of two int8 parts with a scale for each output channel (15 bits). torch's oneDNN operators
convolve uint8 spikes with each part into float32. Splitting and packing the weight and turning the spikes into bytes
belong to the time: in training both change in every step. Ways take turns; least times, one thread.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpd_agl.ops.conv import active, convolution, lookup
from mpd_agl.ops.step.memory import reuse_pages
from mpd_agl.records import canonical, code, hardware, versions, write_atomic

OUTPUT = Path("docs/results/integers.json")
LAYERS = ((16, 32, 200), (32, 16, 200), (64, 8, 200), (128, 32, 32), (256, 16, 32), (512, 8, 32))
"""Channels, size and images of ResNet-19's layers, with 1/8 of the channels and with all."""
RATE, ROUNDS = 0.16, 8


def parts(weight: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Two int8 tensors with their scales per output channel, whose sum is the weight to 15 bits."""
    found, rest = [], weight
    for _ in range(2):
        scale = rest.flatten(1).abs().amax(1).clamp_min(1e-30) / 127
        whole = (rest / scale[:, None, None, None]).round()
        found.append((whole.to(torch.int8), scale))
        rest = rest - whole * scale[:, None, None, None]
    return found


def on_integers(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution with padding 1 as two integer ones."""
    spikes = x.to(torch.uint8)
    total = None
    for whole, scale in parts(weight):
        zeros = torch.zeros_like(scale, dtype=torch.int64)
        packed = torch.ops.onednn.qconv_prepack(whole, scale, 1.0, 0, [1, 1], [1, 1], [1, 1], 1, list(x.shape))
        y = torch.ops.onednn.qconv2d_pointwise(
            spikes, 1.0, 0, packed, scale, zeros, None, [1, 1], [1, 1], [1, 1], 1, 1.0, 0, torch.float32, "none", [], ""
        )
        total = y if total is None else total.add_(y)
    assert total is not None
    return total


def measure(channels: int, size: int, images: int) -> dict[str, Any]:
    """Milliseconds of each way, and how far the integers' output is from float64's."""
    g = torch.Generator().manual_seed(0)
    last = {"memory_format": torch.channels_last}
    x = (torch.rand(images, channels, size, size, generator=g) < RATE).float().contiguous(**last)
    weight = torch.randn(channels, channels, 3, 3, generator=g).contiguous(**last)
    ways: dict[str, Callable[[], Tensor]] = {
        "dense": lambda: torch.conv2d(x, weight, padding=1),
        "event": lambda: convolution.forward("event", x, weight, None, 1, 1, active.scan(x)),
        "winograd": lambda: convolution.forward("winograd", x, weight, None, 1, 1),
        "two integers": lambda: on_integers(x, weight),
    }
    if not lookup.why_not(weight, 1):
        ways["lookup"] = lambda: convolution.forward("lookup", x, weight, None, 1, 1)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            start = time.thread_time()
            run()
            found[name].append(1000 * (time.thread_time() - start))
    want = torch.conv2d(x[:4].double(), weight.double(), padding=1)
    error = float((on_integers(x, weight)[:4] - want).abs().max() / want.abs().max())
    return {
        "layer": [channels, size, images],
        "ms": {name: min(times) for name, times in found.items()},
        "error of two integers": error,
    }


@torch.no_grad()
def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FILE", help=f"default {OUTPUT}")
    a = p.parse_args(argv)
    reuse_pages()
    torch.set_num_threads(1)
    rows = [measure(*layer) for layer in LAYERS]
    record = {"what": "python -m tools.integers", "rate": RATE, "threads": 1, "rows": rows}
    record |= {"code": code(), "hardware": hardware(), "versions": versions()}
    write_atomic(a.output, canonical(record))
    for row in rows:
        times = {name: round(ms, 1) for name, ms in row["ms"].items()}
        print(row["layer"], times, f"{row['error of two integers']:.1e}")
    print(f"record: {a.output}")


if __name__ == "__main__":
    main()
