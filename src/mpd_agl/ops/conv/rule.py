"""Which way each pass of a convolution takes: dense (torch's own), in Winograd's form, or event-driven.

A written rule, not a measurement on the user's machine: it depends on the layer's sizes and the SIMD level alone, so
runs repeat. With gradients, wide layers also count their active inputs and skip zeros where few are active. Without
gradients they always do, so that a sample's output does not depend on the others in its batch.

| limit | where it comes from |
|---|---|
| `WINOGRAD_GAIN` | multiplications: 36 for a tile of 4x4 outputs against 9 for an output; transforms cost the rest |
| `WINOGRAD_PAIRS` | memory: the weight gradient keeps sums for all 36 points, 9 MB at 256 x 256 channels |
| `EVENT_CHANNELS`, `EVENT_RATE` | a training step of ResNet-19, T=2: limits of 64, 128 and 256 channels, and never |
| `EVENT_PIXELS` | weights are laid out at each call: with one pixel that costs more than multiplying by them |

`python -m benchmarks conv_limits` measures them. Change `VERSION` with any of them: run records hold it.
"""

from typing import NamedTuple

import torch

from mpd_agl.ops.conv import event, winograd

VERSION = 1
WINOGRAD_GAIN = 2.0
"""Winograd's form must save at least this factor of multiplications: small outputs fill no tile."""
WINOGRAD_PAIRS = 256 * 256
"""Most pairs of an input and an output channel for Winograd's weight gradient."""
EVENT_CHANNELS = 256
"""Least input channels where zeros are skipped: shorter lists cost more than they save."""
EVENT_RATE = 0.3
"""Largest share of active inputs at which zeros are skipped, with gradients."""
EVENT_PIXELS = 4
"""Least output pixels of a sample where zeros are skipped."""


class Sizes(NamedTuple):
    """What the rule reads of a layer; a linear layer is a 1x1 convolution of one pixel."""

    kernel: int
    stride: int
    padding: int
    c_in: int
    c_out: int
    height: int
    """Of the output, like `width`."""
    width: int


class Ways(NamedTuple):
    """`dense`, `winograd` or `event` for each pass; the input gradient is never event-driven."""

    forward: str = "dense"
    input_grad: str = "dense"
    weight_grad: str = "dense"
    event_below: float = 0.0
    """Forward pass and weight gradient are event-driven instead at up to this share of active inputs; 0: never."""


DENSE = Ways()


def choose(sizes: Sizes, *, simd: str, dtype: torch.dtype, grad: bool) -> Ways:
    """The ways of a layer; `grad`: its backward pass may follow.

    >>> choose(Sizes(3, 1, 1, 64, 64, 16, 16), simd="avx2", dtype=torch.float32, grad=True)
    Ways(forward='winograd', input_grad='winograd', weight_grad='winograd', event_below=0.0)
    """
    kernel, stride, padding, c_in, c_out, height, width = sizes
    if dtype != torch.float32 or simd == "base":  # at level `base` torch's own are faster
        return DENSE
    pixels, tiles = height * width, -(-height // 4) * -(-width // 4)
    wide = kernel <= event.LARGEST_KERNEL and c_in >= EVENT_CHANNELS and pixels >= EVENT_PIXELS
    if wide and not grad:
        return Ways("event")
    form = winograd.knows((c_out, c_in, kernel, kernel), stride, padding) and 9 * pixels >= WINOGRAD_GAIN * 36 * tiles
    way = "winograd" if form else "dense"
    small = c_in * c_out <= WINOGRAD_PAIRS
    return Ways(way, way, way if small else "dense", EVENT_RATE if wide else 0.0)


def event_everywhere(sizes: Sizes) -> Ways:
    """Event-driven where the kernels can, whatever it costs."""
    return Ways("event", "dense", "event") if sizes.kernel <= event.LARGEST_KERNEL else DENSE
