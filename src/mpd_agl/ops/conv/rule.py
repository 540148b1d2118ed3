"""Which way each pass of a convolution takes: dense (torch's own), in Winograd's form, or event-driven.

A written rule, not a measurement on the user's machine: it depends on the layer's sizes and the SIMD level alone, so
runs repeat. With gradients, wide layers also count their active inputs and skip zeros where few are active. Without
gradients they always do, so that a sample's output does not depend on the others in its batch.

| limit | where it comes from |
|---|---|
| `WINOGRAD_GAIN` | 3x3 layers of 64 to 512 channels: as fast as dense where it saves a factor of 1.6, 1.4x at 2.25 |
| `WINOGRAD_PAIRS` | memory: the weight gradient keeps sums for all 36 points, 38 MB at 512 x 512 channels |
| `EVENT_OVER_WINOGRAD` | 3x3 layers: equal at 12 % with 128 input channels, at 15 % with 256, at 20 % with 512 |
| `EVENT_OVER_DENSE` | 3x3 of stride 2, 1x1, 128 input channels: equal at 20 to 30 % where no value is 1, over 40 % if all are |
| `EVENT_PIXELS` | weights are laid out at each call: with one pixel that costs more than multiplying by them |

Processor time of one thread, least of 5 to 9 rounds, AMD EPYC with AVX-512, torch 2.13.
`python -m benchmarks conv_limits` measures them. Change `VERSION` with any of them: run records hold it.
"""

from typing import NamedTuple

import torch

from mpd_agl.ops.conv import event, winograd

VERSION = 1
WINOGRAD_GAIN = 2.0
"""Winograd's form must save at least this factor of multiplications: small outputs fill no tile."""
WINOGRAD_PAIRS = 512 * 512
"""Most pairs of an input and an output channel for Winograd's weight gradient."""
EVENT_OVER_WINOGRAD = 256, 0.15
"""Least input channels, and with gradients the largest share of active inputs, at which zeros are skipped."""
EVENT_OVER_DENSE = 128, 0.3
"""The same for layers that do not have Winograd's form."""
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
    form = winograd.knows((c_out, c_in, kernel, kernel), stride, padding) and 9 * pixels >= WINOGRAD_GAIN * 36 * tiles
    channels, rate = EVENT_OVER_WINOGRAD if form else EVENT_OVER_DENSE
    skips = kernel <= event.LARGEST_KERNEL and c_in >= channels and pixels >= EVENT_PIXELS
    if skips and not grad:
        return Ways("event")
    way = "winograd" if form else "dense"
    return Ways(way, way, way if c_in * c_out <= WINOGRAD_PAIRS else "dense", rate if skips else 0.0)


def event_everywhere(sizes: Sizes) -> Ways:
    """Event-driven where the kernels can, whatever it costs."""
    return Ways("event", "dense", "event") if sizes.kernel <= event.LARGEST_KERNEL else DENSE
