"""Single convolutions of random spikes: oneDNN's dense one in channels_last beside the event-driven one."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.compare import Note
from benchmarks.timing import alternate, over
from mpd_agl.ops.conv import active, convolution

Shape = tuple[int, int, int]
SHAPES: tuple[Shape, ...] = ((128, 32, 32), (256, 16, 64), (512, 8, 128))
"""Channels, size, batch."""
RATES = (0.05, 0.10, 0.14, 0.20, 0.30, 0.40, 0.50, 0.60)
"""Shares of active inputs; those of SEW-ADD networks reach 51 %."""
MOST_OFF = 2e-6
"""How far the event-driven result may be from the dense one in float64, relative to the largest value."""
SPEED_UPS = {
    "speed_up": "forward, lists already made",
    "speed_up_alone": "forward, with the scan and the packing of weights",
    "speed_up_weight_gradient": "weight gradient",
}


def relative(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest value that is wanted.

    >>> relative(torch.tensor([1.0, 4.5]), torch.tensor([1.0, 4.0]))
    0.125
    """
    return float((got.double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1e-30))


def one_convolution(shape: Shape, rate: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of a 3x3 convolution both ways, and the speed-ups, which are None where the outputs differ."""
    channels, size, batch = shape
    g, last = torch.Generator().manual_seed(0), torch.channels_last
    x = (torch.rand(batch, channels, size, size, generator=g) < rate).float().contiguous(memory_format=last)
    w = (torch.randn(channels, channels, 3, 3, generator=g) / channels).contiguous(memory_format=last)
    gy = torch.randn(batch, channels, size, size, generator=g).contiguous(memory_format=last)
    found, packed = active.scan(x), active.pack(w)

    def dense_grad(dtype: torch.dtype = torch.float32) -> Tensor:
        where = (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (False, True, False)
        given = gy.to(dtype), x.to(dtype), w.to(dtype)
        grads: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(*given, None, *where)
        return grads[1]

    works = {
        "dense": lambda: torch.conv2d(x, w, None, 1, 1),
        "event": lambda: convolution.conv(x, w, padding=1),
        "event, lists and weights at hand": lambda: convolution.conv(x, w, padding=1, lists=found, packed=packed),
        "scan": lambda: active.scan(x),
        "pack": lambda: active.pack(w),
        "dense weight gradient": dense_grad,
        "event weight gradient": lambda: active.weight_grad(found, x.shape, w, gy, 1, 1),
    }
    with torch.no_grad():
        want, want_grad = torch.conv2d(x.double(), w.double(), None, 1, 1), dense_grad(torch.float64)
        dense_off = relative(torch.conv2d(x, w, None, 1, 1), want), relative(dense_grad(), want_grad)
        off = max(
            relative(convolution.conv(x, w, padding=1), want),
            relative(convolution.conv(x, w, padding=1, lists=found, packed=packed), want),
        )
        off_grad = relative(active.weight_grad(found, x.shape, w, gy, 1, 1), want_grad)
        times = alternate(works, rounds)
    ratios = {
        "speed_up": over(times["dense"], times["event, lists and weights at hand"])["time"],
        "speed_up_alone": over(times["dense"], times["event"])["time"],
        "speed_up_weight_gradient": over(times["dense weight gradient"], times["event weight gradient"])["time"],
    }
    agrees = max(off, off_grad) <= MOST_OFF
    median = {name: statistics.median(t) for name, t in times.items()}
    return {
        "channels": channels,
        "size": size,
        "batch": batch,
        "rate": float(x.mean()),
        "asked_rate": rate,
        "ms": median,
        "spread_ms": {name: [min(t), max(t)] for name, t in times.items()},
        "difference": off,
        "weight_gradient_difference": off_grad,
        "dense_difference": dense_off[0],
        "dense_weight_gradient_difference": dense_off[1],
        "dense_gflops": 2 * 9 * channels**2 * size**2 * batch / median["dense"] / 1e6,
        **(ratios if agrees else dict.fromkeys(ratios)),
    }


def measure(
    shapes: Sequence[Shape], at: Sequence[float], rounds: int, pause: Callable[[], None], note: Note
) -> list[dict[str, Any]]:
    """Every shape at every rate, with a pause before each."""
    cells = []
    for channels, size, batch in shapes:
        note(f"table: {channels} channels, {size}x{size}, batch {batch}")
        for rate in at:
            pause()
            cells.append(one_convolution((channels, size, batch), rate, rounds))
    return cells


def rows(cells: list[dict[str, Any]], key: str) -> tuple[list[float], list[tuple[str, list[str]]]]:
    """The rates, and for each shape its name and one speed-up per rate as text."""
    at = sorted({c["asked_rate"] for c in cells})
    found = []
    for shape in dict.fromkeys((c["channels"], c["size"], c["batch"]) for c in cells):
        here = {c["asked_rate"]: c[key] for c in cells if (c["channels"], c["size"], c["batch"]) == shape}
        shown = ["" if r not in here else "differs" if here[r] is None else f"{here[r]:.2f}x" for r in at]
        found.append((f"{shape[0]}, {shape[1]}x{shape[1]}, {shape[2]}", shown))
    return at, found


def text(cells: list[dict[str, Any]]) -> str:
    """Dense time over event-driven time, a table for each kind of work."""
    lines = ["3x3, stride 1, float32: dense time / event-driven time, medians; channels, size, batch"]
    for key, title in SPEED_UPS.items():
        at, found = rows(cells, key)
        lines.append(f"{title:52}" + "".join(f"{f'{100 * r:g} %':>9}" for r in at))
        lines += [f"  {name:50}" + "".join(f"{s:>9}" for s in shown) for name, shown in found]
    if any(c["speed_up"] is None for c in cells):
        lines.append("differs: no ratio, because the event-driven outputs are not the dense ones.")
    return "\n".join(lines)
