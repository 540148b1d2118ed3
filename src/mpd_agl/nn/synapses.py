"""Convolutions and linear layers that may skip zeros: the parameters of `nn.Conv2d` and `nn.Linear`, and a choice of how to compute.

`dense` is torch's own, `event` the event-driven one (`kernels.events`), `auto` measures on the input at hand what each of the three passes
can be computed by (`kernels.passes`: dense, event-driven, Winograd's form) and takes the fastest; then again after every `every` calls. All
compute the same function in another order of additions, so a choice by the clock is not reproducible: `choice` holds it, and a run keeps
it (`experiments.convs`).
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.kernels import events as by_events
from mpd_agl.kernels import native, passes
from mpd_agl.kernels.events import MOST_KERNEL
from mpd_agl.kernels.passes import DENSE, EVENT, PASSES, Ways
from mpd_agl.nn.handoff import events_of, handed_on

CONVS = ("dense", "event", "auto")
EVERY = 1000
TRIES = 3


@dataclass(frozen=True)
class Choice:
    """What `auto` took for a layer, and why. Of evaluation it holds the forward pass alone."""

    rate: float
    """Share of inputs that were not zero."""
    ms: dict[str, dict[str, float]]
    """Milliseconds of one call, of each pass in each way."""
    lists_ms: float
    """What an event-driven pass costs besides, once: the scan for the active lists; 0 where the neuron before hands them on."""
    taken: dict[str, str]
    """The way of each pass: together the least time."""

    def __post_init__(self) -> None:
        if set(self.taken) != set(self.ms) or any(self.taken[name] not in found for name, found in self.ms.items()):
            raise ValueError(f"a choice of {self.taken} among {self.ms}")
        Ways(**self.taken)

    @property
    def ways(self) -> Ways:
        """For `kernels.passes`."""
        return Ways(**self.taken)

    @property
    def training(self) -> bool:
        """Whether the gradients were measured too."""
        return "weight_grad" in self.ms

    def total_ms(self, taken: dict[str, str] | None = None) -> float:
        """Of all passes together; by default in the ways that were taken."""
        taken = self.taken if taken is None else taken
        lists = self.lists_ms if "event" in taken.values() else 0.0
        return sum(found[taken[name]] for name, found in self.ms.items()) + lists

    @property
    def dense_ms(self) -> float:
        """All passes dense."""
        return self.total_ms(dict.fromkeys(self.ms, "dense"))

    @property
    def speed_up(self) -> float:
        """All passes dense over what was taken."""
        return self.dense_ms / self.total_ms()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Synapses(nn.Module):
    """What both layers share; `conv` is one of CONVS."""

    weight: Tensor
    bias: Any
    events_stride = 1
    events_padding = 0
    repeating = False
    """True while a forward pass is computed a second time (see recompute)."""

    def choose(self, conv: str) -> None:
        """Set how to compute; what was measured before is forgotten."""
        if conv not in CONVS:
            raise unknown_name("conv", conv, CONVS)
        if conv == "event" and (why := native.load()[1]):
            raise InputError(f"conv 'event' cannot run: {why}, or use conv='dense'.")
        self.conv, self.choice, self.every, self.calls = conv, None, EVERY, 0
        self._packed: tuple[Any, Tensor, Tensor | None] | None = None

    conv: str
    choice: Choice | None
    every: int
    """Calls after which `auto` measures anew; 0: never."""
    calls: int

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        raise NotImplementedError

    def synapse(self, x: Tensor) -> Tensor:
        """The layer's output by what is chosen."""
        ways = DENSE if torch.compiler.is_exporting() else self._ways(x)
        if not (torch.is_grad_enabled() and self.weight.requires_grad):  # nothing for a weight gradient nobody asks for
            ways = Ways(ways.forward, input_grad=ways.input_grad)
        compiling = torch.compiler.is_compiling()
        if ways == DENSE or (compiling and ways.forward != "event"):
            return self.dense(x)
        return passes.conv(
            x,
            self.weight,
            self.bias,
            stride=self.events_stride,
            padding=self.events_padding,
            events=events_of(x) if ways.by_events and not compiling else None,
            packed=None if compiling else self._pack(ways.forward),
            ways=ways,
        )

    def _ways(self, x: Tensor) -> Ways:
        if self.conv == "dense" or _unable(x):
            return DENSE
        if self.conv == "event":
            return EVENT
        if torch.compiler.is_compiling():
            return DENSE if self.choice is None else self.choice.ways
        if self.repeating and self.choice is not None:  # the second time as the first
            return self.choice.ways
        training = torch.is_grad_enabled() and self.weight.requires_grad
        again = self.choice is None or (training and not self.choice.training)
        if training == (self.choice is not None and self.choice.training):
            self.calls += 1
            again = again or (self.every > 0 and self.calls >= self.every)
        if again:
            self.choice, self.calls = self.measure(x, training), 0
        assert self.choice is not None
        return self.choice.ways

    @torch.no_grad()
    def measure(self, x: Tensor, training: bool) -> Choice:
        """Time every way of every pass on this input, the least of a few tries, and take the fastest combination."""
        lists = events_of(x)
        scan = None if handed_on(x) is not None else lambda: by_events.scan(x)  # a neuron lists them in its own pass
        x, stride, padding = x.detach(), self.events_stride, self.events_padding
        g = self.dense(x)
        g = g.contiguous(memory_format=torch.channels_last) if g.dim() == 4 else g
        where = x.shape, self.weight, g, stride, padding

        def run(name: str, way: str) -> Callable[[], Any]:
            if name == "forward":
                packed = self._pack(way)
                return lambda: passes.forward(way, x, self.weight, self.bias, stride, padding, lists, packed)
            if name == "weight_grad":
                return lambda: passes.weight_grad(way, lists if way == "event" else x, *where)
            return lambda: passes.input_grad(way, *where)

        known = passes.ways_of(self.weight, stride, padding)
        measured = {name: known[name] for name in (PASSES if training else PASSES[:1])}
        runs = {(name, way): run(name, way) for name, ways in measured.items() for way in ways}
        tries = [{key: _ms(f) for key, f in runs.items()} for _ in range(TRIES)]
        ms = {name: {way: min(t[name, way] for t in tries) for way in ways} for name, ways in measured.items()}
        lists_ms = min(_ms(scan) for _ in range(TRIES)) if scan else 0.0
        rate = float(torch.count_nonzero(x)) / x.numel()
        choices = [
            Choice(rate, ms, lists_ms, dict(zip(measured, ways, strict=True))) for ways in product(*measured.values())
        ]
        return min(choices, key=Choice.total_ms)

    def _pack(self, way: str) -> Tensor | None:
        """Of a folded network the packed weights are kept; others may change at any time, those of inference mode unnoticed."""
        if self.weight.requires_grad or self.training or self.weight.is_inference():
            return None
        key = way, self.weight.data_ptr(), self.weight._version, native.level()
        if self._packed is None or self._packed[0] != key:
            weight = self.weight.detach()  # held, so that its address is not given to another
            self._packed = key, weight, passes.pack(way, weight)
        return self._packed[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}


def _unable(x: Tensor) -> bool:
    """Whether only the dense layer can take this input: another device or dtype, autocast, no native library, nothing in it."""
    return bool(by_events.why_not(x)) or torch.is_autocast_enabled("cpu") or x.numel() == 0


def _ms(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


class SparseConv2d(nn.Conv2d, Synapses):
    """`nn.Conv2d` with square kernel, stride and padding that can skip zeros.

    >>> layer = SparseConv2d(16, 8, 3, padding=1, bias=False, conv="event")
    >>> layer((torch.rand(2, 16, 8, 8) < 0.1).float()).shape
    torch.Size([2, 8, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        *,
        padding: int = 0,
        bias: bool = True,
        conv: str,
    ) -> None:
        if kernel > MOST_KERNEL:
            raise InputError(f"SparseConv2d takes kernels up to {MOST_KERNEL}, got {kernel}. Use nn.Conv2d.")
        super().__init__(in_channels, out_channels, kernel, stride, padding, bias=bias)
        self.events_stride, self.events_padding = stride, padding
        self.choose(conv)

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        return F.conv2d(x, self.weight, self.bias, self.events_stride, self.events_padding)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution."""
        return self.synapse(input)


class SparseLinear(nn.Linear, Synapses):
    """`nn.Linear` on (N, F) that can skip zeros."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, conv: str) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.choose(conv)

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The linear layer."""
        return self.synapse(input)


def sparse_layers(net: nn.Module) -> dict[str, Synapses]:
    """The layers of a network that can skip zeros, by the name of their block, in network order."""
    return {n.removesuffix(".conv"): m for n, m in net.named_modules() if isinstance(m, Synapses)}
