"""What each way to compute a convolution takes, at the layers of ResNet-19 and VGGSNN: the limits of `ops.conv.rule`.

    python -m benchmarks.conv_limits -o conv-limits.json [--layers 3x3] [--widths 8 1] [--rounds 7]

Ways take turns in rounds; the table holds medians of the ratio to the dense way in the same round. A record that is
there is continued. A cell in whose rounds the machine was busy is marked: do not set a limit by it.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.timing import BUSY, FixedLoop, alternate
from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.ops import library as native
from mpd_agl.ops import reuse_pages
from mpd_agl.ops.conv import conv, event, rule, winograd
from mpd_agl.ops.conv.rule import Sizes, Ways

WHAT = "python -m benchmarks conv_limits"
RATES = (0.05, 0.1, 0.2, 0.3, 0.4)
"""Shares of active inputs."""
SAMPLES = {8: 200, 4: 100, 1: 32}
"""Timesteps times batch, by the divisor of the channels."""


class Layer(NamedTuple):
    """A convolution at all channels; `size` is its input's."""

    c_in: int
    c_out: int
    size: int
    kernel: int = 3
    stride: int = 1

    def at(self, divisor: int) -> "Layer":
        """With a part of the channels."""
        return self._replace(c_in=self.c_in // divisor, c_out=self.c_out // divisor)

    @property
    def name(self) -> str:
        """Of a cell, and what --layers looks for."""
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        return f"{self.kernel}x{self.kernel}{stride}, {self.c_in} to {self.c_out}, {self.size}x{self.size}"

    @property
    def padding(self) -> int:
        """Half the kernel."""
        return self.kernel // 2


RESNET19 = (
    *(Layer(128, 128, 32), Layer(128, 256, 32, stride=2), Layer(128, 256, 32, kernel=1, stride=2)),
    *(Layer(256, 256, 16), Layer(256, 512, 16, stride=2), Layer(256, 512, 16, kernel=1, stride=2), Layer(512, 512, 8)),
)
VGGSNN = (
    *(Layer(64, 128, 48), Layer(128, 256, 24), Layer(256, 256, 24)),
    *(Layer(256, 512, 12), Layer(512, 512, 12), Layer(512, 512, 6)),
)


def works(layer: Layer, rate: float, samples: int) -> tuple[Ways, dict[str, Callable[[], Any]]]:
    """What the rule says, and each way of each pass as a function, by "pass/way"."""
    g, last = torch.Generator().manual_seed(0), torch.channels_last
    shape = samples, layer.c_in, layer.size, layer.size
    x = (torch.rand(shape, generator=g) < rate).float().contiguous(memory_format=last)
    weight = torch.randn(layer.c_out, layer.c_in, layer.kernel, layer.kernel, generator=g)
    weight, stride, padding = weight.contiguous(memory_format=last), layer.stride, layer.padding
    if layer.kernel == 1 and stride > 1:  # as `convolve` does it, for all ways
        x, stride = conv.subsampled(x, stride, padding), 1
    y = conv.dense(x, weight, None, stride, padding)
    grad = torch.randn(y.shape, generator=g).contiguous(memory_format=last)
    lists = event.scan(x)
    assert lists is not None

    def dense_grad(wanted: tuple[bool, bool, bool]) -> Callable[[], Any]:
        return lambda: conv.dense_grads(x, weight, grad, stride, padding, wanted)

    def event_forward() -> Tensor:
        found = event.scan(x)
        assert found is not None
        return event.forward(found, x.shape, weight, None, stride, padding)

    made: dict[str, Callable[[], Any]] = {
        "forward/dense": lambda: conv.dense(x, weight, None, stride, padding),
        "forward/event": event_forward,
        "input_grad/dense": dense_grad((True, False, False)),
        "weight_grad/dense": dense_grad((False, True, False)),
        "weight_grad/event": lambda: event.weight_grad(lists, x.shape, weight, grad, stride, padding),
        "scan": lambda: event.scan(x),
    }
    if winograd.knows(tuple(weight.shape), stride, padding):
        made["forward/winograd"] = lambda: winograd.forward(x, weight, None, padding)
        made["input_grad/winograd"] = lambda: winograd.input_grad(weight, grad, padding)
        made["weight_grad/winograd"] = lambda: winograd.weight_grad(x, weight, grad, padding)
    sizes = Sizes(layer.kernel, stride, padding, layer.c_in, layer.c_out, *y.shape[2:])
    return rule.choose(sizes, simd=native.level(), dtype=x.dtype, grad=True), made


def measure(layer: Layer, rate: float, samples: int, rounds: int, loop: FixedLoop) -> dict[str, Any]:
    """One cell: medians, ratios to dense, what the rule takes."""
    ways, made = works(layer, rate, samples)
    before = len(loop.seconds)
    with torch.no_grad():
        times = alternate(made, rounds, loop)
    ratios = {}
    for name, found in times.items():
        dense = times.get(f"{name.partition('/')[0]}/dense")
        if dense is not None and not name.endswith("/dense"):
            each = [a / b for a, b in zip(found, dense, strict=True)]
            best = min(found) / min(dense)
            ratios[name] = {"time": statistics.median(each), "range": [min(each), max(each)], "best": best}
    return {
        "layer": f"{layer.name}, {samples} samples",
        "rate": rate,
        "rule": ways._asdict(),
        "ms": {name: statistics.median(found) for name, found in times.items()},
        "over_dense": ratios,
        "slowdown": max(loop.slowdowns()[before:], default=1.0),
    }


def taken(cell: dict[str, Any], name: str) -> bool:
    """Whether the rule takes this way at this rate; `name` is "pass/way"."""
    which, _, way = name.partition("/")
    skips = which != "input_grad" and 0 < cell["rate"] <= cell["rule"]["event_below"]
    return bool(way == ("event" if skips else cell["rule"][which]))


def text(record: dict[str, Any]) -> str:
    """A line per layer, way and pass: time over dense, by rate. Brackets: what the rule takes; ~: a busy machine."""
    cells, lines = record["cells"], [f"time over dense; rule {record['rule']}, {record['simd']}"]
    for title in dict.fromkeys(c["layer"] for c in cells):
        here = sorted((c for c in cells if c["layer"] == title), key=lambda c: float(c["rate"]))
        lines.append(f"{title:60}" + "".join(f"{100 * c['rate']:>8.0f} %" for c in here))
        for name in here[0]["over_dense"]:
            shown = []
            for c in here:
                ratio = f"{c['over_dense'][name]['time']:.2f}" + ("~" if c["slowdown"] > BUSY else "")
                shown.append(f"[{ratio}]" if taken(c, name) else ratio)
            lines.append(f"  {name:58}" + "".join(f"{s:>10}" for s in shown))
    return "\n".join(lines)


def _started(path: Path | None, facts: dict[str, Any]) -> dict[str, Any]:
    """The record so far: an empty one, or that of the file, which must be of this machine and rule."""
    record = {"what": WHAT, **facts, "code": records.code(), "versions": records.versions(), "cells": []}
    if path is None or not path.is_file():
        return record
    found: Any = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name in ("what", *facts) if not isinstance(found, dict) or found.get(name) != record[name]]
    if changed:
        raise InputError(f"{path} was measured with another {', '.join(changed)}. Give another file with -o.")
    return dict(found)


def main(argv: list[str] | None = None) -> int:
    """Measure, write the record after each cell, print the table."""
    p = argparse.ArgumentParser(prog=WHAT, description="Time over dense of each way of a convolution, by layer.")
    p.add_argument("--layers", default="", metavar="TEXT", help="only layers whose name holds this, such as '3x3, 256'")
    p.add_argument("--widths", type=int, nargs="+", default=[8, 4, 1], choices=SAMPLES, help="divisors of the channels")
    p.add_argument("--samples", type=int, help="timesteps times batch (default: 200, 100 and 32 by width)")
    p.add_argument("--rounds", type=int, default=7, help="alternating rounds (default 7)")
    p.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    p.add_argument("-o", "--out", type=Path, metavar="FILE", help="the record; a file that is there is continued")
    a = p.parse_args(argv)
    if why := native.load()[1]:
        raise InputError(f"conv_limits cannot run: {why}.")
    torch.set_num_threads(a.threads)
    reuse_pages()
    facts = {"rule": rule.VERSION, "simd": native.level(), "threads": a.threads, "hardware": records.hardware()}
    record, loop = _started(a.out, facts), FixedLoop(a.threads)
    layers = [(layer.at(divisor), a.samples or SAMPLES[divisor]) for divisor in a.widths for layer in RESNET19 + VGGSNN]
    for layer, samples in layers:
        for rate in RATES if a.layers in layer.name else ():
            done = {(c["layer"], c["rate"]) for c in record["cells"]}
            if (f"{layer.name}, {samples} samples", rate) not in done:
                record["cells"].append(measure(layer, rate, samples, a.rounds, loop))
                if a.out is not None:
                    records.write_atomic(a.out, records.canonical(record))
                print(f"{layer.name}, {rate:g}: {record['cells'][-1]['ms']}", file=sys.stderr)
    print(text(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
