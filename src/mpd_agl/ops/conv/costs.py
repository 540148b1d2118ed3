"""What each way to compute a convolution costs on this machine: a small table, measured once and kept.

A layer's time in one pass and one way is predicted as

    call + each * weights + multiply-adds * (a + b * rate)

with `rate` the share of active inputs (b is 0 but for the event-driven way); where sums are looked up, the number of
bits of the largest input stands in its place. `each` is the time to lay out a weight (forward, where that is not kept)
or what a gradient costs for each weight, whatever the batch. For Winograd's form multiply-adds are those of whole
tiles. `a` and `b` are measured for a few kinds of layers at three numbers of channels; between them they are
interpolated. The table is measured in about two seconds, the first time that a layer has to choose, and kept in the
cache folder under a key of processor, SIMD level, threads and versions. So a choice depends on the machine and the
numbers at hand and not on the clock: the tenth run chooses as the first did, also on a busy machine. Where the table
cannot be kept, every layer is dense, and a warning says so.
"""

import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from mpd_agl import records
from mpd_agl.ops import library as native
from mpd_agl.ops.conv import active, convolution, lookup
from mpd_agl.ops.conv.convolution import PASSES

log = logging.getLogger("mpd_agl")
FORMAT = 6
KINDS = {"3x3": (3, 1), "3x3 stride 2": (3, 2), "1x1": (1, 2), "linear": (0, 1)}
"""Kernel and stride of what is measured; 0 is a linear layer."""
WIDTHS = {16: (32, 32), 64: (16, 16), 256: (8, 16)}
"""Channels, and the images and their size that are measured at this width."""
RATES = (0.05, 0.35)
TRIES, MOST_TRIES = 3, 10
"""Rounds of a measurement, at least two, and how many it may take on a busy machine."""
MARGIN = 0.95
"""Another way than dense is taken where it is predicted to need at most this share of dense's time."""

Table = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """What a prediction needs to know of a layer and its input."""

    kind: str
    width: float
    """Geometric mean of its input and output channels."""
    macs: int
    """Multiply-adds of one pass, zeros included."""
    weights: int
    inputs: int
    """Values of the input."""
    tile_ratio: float = 1.0
    """Pixels of the 4x4 tiles that cover the output, over the output's: more than 1 where tiles reach over its edge."""
    input_tile_ratio: float = 1.0
    """Pixels of the tiles that cover the input, over the output's: what an input gradient computes."""


def layer_of(shape: torch.Size, weight: Tensor, stride: int, padding: int) -> Layer:
    """The layer with that weight on an input of that shape."""
    inputs, pixels, ratio, input_ratio = shape.numel(), shape[0], 1.0, 1.0
    kernel = weight.shape[2] if weight.dim() == 4 else 0
    for size in shape[2:]:
        out = (size + 2 * padding - kernel) // stride + 1
        pixels *= out
        ratio *= math.ceil(out / 4) * 4 / max(out, 1)
        input_ratio *= math.ceil(size / 4) * 4 / max(out, 1)
    kind = "linear" if not kernel else "1x1" if kernel == 1 else "3x3" if stride == 1 else "3x3 stride 2"
    width = math.sqrt(weight.shape[0] * weight.shape[1])
    return Layer(kind, width, pixels * weight.numel(), weight.numel(), inputs, ratio, input_ratio)


@dataclass(frozen=True)
class Costs:
    """The machine's table; times in nanoseconds."""

    table: Table
    """`cells`: by kind, width, pass and way [a, b]; `call` and `pack` by way; `weight`: by kind, gradient and way what
    each weight costs; `scan`, `bits` [per call, per value]."""

    def __post_init__(self) -> None:
        for kind in KINDS:
            for width in WIDTHS:
                cell = self.table["cells"][kind][str(width)]
                if not all(len(found) == 2 for name in PASSES for found in cell[name].values()):
                    raise ValueError(f"a cell of {kind}, {width} channels without its two numbers")
                if unknown := {way for name in PASSES for way in cell[name]} - set(self.table["call"]):
                    raise ValueError(f"no cost of a call by {', '.join(sorted(unknown))}")
        parts = [self.table[name] for name in ("cells", "call", "pack", "weight", "scan", "bits")]
        if not all(math.isfinite(number) and number >= 0 for number in _numbers(parts)):
            raise ValueError("a cost that is not a number from 0 on")
        if [len(self.table[name]) for name in ("scan", "bits")] != [2, 2]:
            raise ValueError("a scan without its two numbers")

    @property
    def fingerprint(self) -> str:
        """Twelve digits that name this table."""
        return hashlib.sha256(records.canonical(self.table)).hexdigest()[:12]

    def ms(self, layer: Layer, name: str, way: str, rate: float, *, packs: bool, planes: int = 1) -> float:
        """The predicted time of one pass; `packs`: the forward pass lays its weight out anew in every call."""
        rate = planes if way == "lookup" else rate
        widths = list(WIDTHS)
        place = min(max(layer.width, widths[0]), widths[-1])
        upper = next(i for i, width in enumerate(widths) if place <= width)
        low, high = widths[max(0, upper - 1)], widths[upper]
        share = 0.0 if low == high else math.log(place / low) / math.log(high / low)
        cells = [self.table["cells"][layer.kind][str(width)][name] for width in (low, high)]
        # A way that a narrow layer does not have is predicted by the width that has it.
        found = [cell.get(way) or cells[1 - i].get(way) for i, cell in enumerate(cells)]
        if not all(found):
            return math.inf
        a, b = ((1 - share) * found[0][k] + share * found[1][k] for k in (0, 1))
        if name == "forward":
            each = self.table["pack"].get(way, 0.0) if packs else 0.0
        else:
            each = self.table["weight"].get(layer.kind, {}).get(name, {}).get(way, 0.0)
        macs = _macs(layer, name, way)
        return float(1e-6 * (self.table["call"][way] + each * layer.weights + macs * max(0.0, a + b * rate)))

    def lists_ms(self, layer: Layer) -> float:
        """The predicted time of the scan for active lists."""
        call, each = self.table["scan"]
        return float(1e-6 * (call + each * layer.inputs))

    def bits_ms(self, layer: Layer) -> float:
        """The predicted time of the scan for bits."""
        call, each = self.table["bits"]
        return float(1e-6 * (call + each * layer.inputs))


def _numbers(part: Any) -> Iterator[float]:
    """All numbers of a part of the table."""
    if isinstance(part, dict | list):
        for each in part.values() if isinstance(part, dict) else part:
            yield from _numbers(each)
    else:
        yield float(part)


def _macs(layer: Layer, name: str, way: str) -> float:
    """Multiply-adds of a pass; in Winograd's form those of whole tiles."""
    if way != "winograd":
        return layer.macs
    return layer.macs * (layer.input_tile_ratio if name == "input_grad" else layer.tile_ratio)


def _ns(run: Callable[[], Any]) -> float:
    """Nanoseconds of a call in processor time, in which pauses for other programs hardly count.

    With several threads it is the time of the thread that calls, or the share of one thread in that of all, whichever
    is more: the first knows what no other thread helped with, the second what others did while the caller was held up.
    With one thread it is the caller's alone: other threads of the process (a loader's) do something else. Windows
    counts processor time in steps of 16 ms, so there it is the wall clock's.
    """
    if sys.platform == "win32":
        start = time.perf_counter_ns()
        run()
        return float(time.perf_counter_ns() - start)
    own, all_, threads = time.thread_time_ns(), time.process_time_ns(), torch.get_num_threads()
    run()
    caller = time.thread_time_ns() - own
    return float(caller if threads == 1 else max(caller, (time.process_time_ns() - all_) / threads))


def _best_ns(runs: dict[Any, Callable[[], Any]]) -> dict[Any, float]:
    """The least time of each run over rounds in which they take turns; the first round warms up.

    A run takes part until its least time has come twice: once may be luck, and on a busy machine a few tries may all be
    disturbed.
    """
    found: dict[Any, list[float]] = {key: [] for key in runs}
    for tries in range(MOST_TRIES + 1):
        for key, run in runs.items():
            if tries > TRIES and _settled(found[key]):
                continue
            taken = _ns(run)
            if tries:
                found[key].append(taken)
    return {key: min(times) for key, times in found.items()}


def _settled(times: list[float]) -> bool:
    """Whether the least time has come twice, within 5 %.

    >>> _settled([9.0, 5.0, 5.2]), _settled([9.0, 5.0, 6.0])
    (True, False)
    """
    least, second = sorted(times)[:2]
    return second <= 1.05 * least


def _runs(x: Tensor, weight: Tensor, g: Tensor, stride: int, padding: int) -> dict[tuple[str, str], Callable[[], Any]]:
    """Every way of every pass on one input; event-driven ones get their lists and packed weights."""
    where, lists = (x.shape, weight, g, stride, padding), active.scan(x)
    looked_up = not lookup.why_not(weight, stride)
    bits = lookup.scan(x, weight, stride, padding) if looked_up else None
    inputs: dict[str, Any] = {"event": lists, "lookup": bits}

    def run(name: str, way: str) -> Callable[[], Any]:
        if name == "forward":
            packed = convolution.pack(way, weight)
            return lambda: convolution.forward(way, x, weight, None, stride, padding, lists, packed, bits)
        if name == "weight_grad":
            return lambda: convolution.weight_grad(way, inputs.get(way, x), *where)
        return lambda: convolution.input_grad(way, *where)

    known = convolution.ways_of(weight, stride, padding)
    return {(name, way): run(name, way) for name, ways in known.items() for way in ways}


def _case(kind: str, channels: int, rate: float, batch: int, size: int) -> tuple[Any, ...]:
    """Input, weight, gradient, stride and padding of a measured layer."""
    kernel, stride = KINDS[kind]
    batch *= 4 if kernel == 1 else 1  # so that it takes longer than a call
    g, last = torch.Generator().manual_seed(0), torch.channels_last

    def spikes(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=g, dtype=torch.float32, device="cpu") < rate).float()

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float32, device="cpu")

    if not kernel:
        rows, features = 64, 8 * channels
        return spikes(rows, features), noise(features, features), noise(rows, features), 1, 0
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    tensors = spikes(batch, channels, size, size), noise(channels, channels, kernel, kernel)
    x, weight, grad = (t.contiguous(memory_format=last) for t in (*tensors, noise(batch, channels, out, out)))
    return x, weight, grad, stride, kernel // 2


@torch.no_grad()
def measure() -> Costs:
    """Measure the table, in about two seconds."""
    tiny = _case("3x3", 16, 0.2, 1, 4)
    calls = _best_ns({way: run for (name, way), run in _runs(*tiny).items() if name == "forward"})
    x, weight = _case("3x3", 256, 0.2, 4, 16)[:2]
    packs = _best_ns({way: partial(convolution.pack, way, weight) for way in ("event", "winograd", "lookup")})
    packed = {way: ns / weight.numel() for way, ns in packs.items()}
    weight_ns = {kind: _of_weights(kind, calls) for kind in KINDS if KINDS[kind][0] == 3}
    cells: Table = {
        kind: {
            str(width): _cell(*_best_at_rates(kind, width, *WIDTHS[width]), calls, weight_ns.get(kind, {}))
            for width in WIDTHS
        }
        for kind in KINDS
    }
    scans = _best_ns(
        {
            ("scan", "tiny"): lambda: active.scan(tiny[0]),
            ("scan", "large"): lambda: active.scan(x),
            ("bits", "tiny"): lambda: lookup.scan(tiny[0], tiny[1], 1, 1),
            ("bits", "large"): lambda: lookup.scan(x, weight, 1, 1),
        }
    )
    found = {
        name: [scans[name, "tiny"], max(0.0, scans[name, "large"] - scans[name, "tiny"]) / x.numel()]
        for name in ("scan", "bits")
    }
    return Costs({"cells": cells, "call": calls, "pack": packed, "weight": weight_ns, **found})


def _of_weights(kind: str, calls: dict[Any, float]) -> Table:
    """By gradient and way what each weight costs: nearly all of the time of a single small image."""
    case = _case(kind, 256, 0.2, 1, 4)
    found: Table = {name: {} for name in PASSES if name != "forward"}
    for (name, way), ns in _best_ns({key: run for key, run in _runs(*case).items() if key[0] in found}).items():
        found[name][way] = max(0.0, ns - calls[way]) / case[1].numel()
    return found


def _best_at_rates(kind: str, channels: int, batch: int, size: int) -> tuple[Layer, list[dict[tuple[str, str], float]]]:
    """A measured layer, and at each rate the nanoseconds of every pass and way."""
    found: list[dict[tuple[str, str], float]] = []
    for rate in RATES:
        case = _case(kind, channels, rate, batch, size)
        if found:  # only the event-driven way follows the rate, and looking sums up the number of bits
            event = {key: run for key, run in _runs(*case).items() if key[1] == "event"}
            twice = _runs(case[0] * 2 + (case[0].flip(0) > 0), *case[1:])
            runs = event | {key: run for key, run in twice.items() if key[1] == "lookup"}
        else:
            runs = _runs(*case)
        found.append(_best_ns(runs))
    return layer_of(case[0].shape, case[1], *case[3:]), found


def _cell(layer: Layer, found: list[dict[tuple[str, str], float]], calls: dict[Any, float], weight_ns: Table) -> Table:
    """By pass and way [a, b]: what a multiply-add costs beyond the call and the weights."""
    low, high = found
    cell: Table = {name: {} for name in PASSES}
    for (name, way), ns in low.items():
        first, second = (1, 2) if way == "lookup" else RATES
        slope = max(0.0, high.get((name, way), ns) - ns) / (second - first)
        fixed = calls[way] + weight_ns.get(name, {}).get(way, 0.0) * layer.weights
        macs = _macs(layer, name, way)
        cell[name][way] = [max(0.0, ns - fixed - slope * first) / macs, slope / macs]
    return cell


def key() -> dict[str, Any]:
    """What the table depends on."""
    made = records.versions()
    return {
        "format": FORMAT,
        "abi": native.ABI_VERSION,
        "cpu": records.hardware()["cpu"],
        "simd": native.level(),
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": made["torch"],
        "mpd-agl": made["mpd-agl"],
    }


@cache
def _of_key(text: str) -> Costs | None:
    wanted = json.loads(text)
    folder = records.cache_folder() / "costs"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Processes that start together wait for the first one's table: they all choose alike, and measure undisturbed.
        with (folder / "lock").open("a") as lock:
            records.lock_file(lock, wait=True)
            if path.is_file():
                try:
                    kept = json.loads(path.read_text(encoding="utf-8"))
                    if kept["key"] == wanted:
                        return Costs(kept["table"])
                except (ValueError, KeyError, TypeError, AttributeError):
                    log.warning("%s is damaged and is measured again.", path)
            log.info("measuring what each way to convolve costs here; about two seconds, once")
            costs = measure()
            records.write_atomic(path, records.canonical({"key": wanted, "table": costs.table}))
            return costs
    except OSError as error:
        log.warning("conv_impl auto is dense: the machine's costs cannot be kept in %s (%s).", folder, error.strerror)
        return None


_given: list[Costs | None] = []


def costs() -> Costs | None:
    """The table of this machine, measured and kept where it was not yet; None where it cannot be kept."""
    if _given:
        return _given[-1]
    if native.load()[1]:
        return None
    return _of_key(records.canonical(key()).decode())


@contextmanager
def using(table: Costs | None) -> Iterator[None]:
    """Choose by this table for a while: another process's, or a test's."""
    _given.append(table)
    try:
        yield
    finally:
        _given.pop()


def predict(
    layer: Layer, rate: float, known: dict[str, tuple[str, ...]], *, packs: bool, planes: int = 1
) -> dict[str, dict[str, float]]:
    """Milliseconds of each pass in each way that the layer has; dense alone where there is no table."""
    table = costs()
    if table is None:
        return {name: {"dense": 0.0} for name in known}
    found = {
        name: {way: table.ms(layer, name, way, rate, packs=packs, planes=planes) for way in ways}
        for name, ways in known.items()
    }
    return {name: {way: ms for way, ms in ways.items() if math.isfinite(ms)} for name, ways in found.items()}


def predict_lists(layer: Layer) -> float:
    """Milliseconds of the scan for active lists."""
    table = costs()
    return 0.0 if table is None else table.lists_ms(layer)


def predict_bits(layer: Layer) -> float:
    """Milliseconds of the scan for bits."""
    table = costs()
    return 0.0 if table is None else table.bits_ms(layer)
