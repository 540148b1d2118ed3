"""Convolutions and linear layers that may skip zeros: the parameters of `nn.Conv2d` and `nn.Linear`, and a choice of how to compute.

`dense` is torch's own, `event` the event-driven one (`kernels.events`), `auto` measures both on the input at hand, with the weight gradient
in training, and takes the faster; then again after every `every` calls. Both compute the same function in another order of additions, so
a choice by the clock is not reproducible: `choice` holds it, and a run keeps it (`experiments.convs`).
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.kernels import events as kernel
from mpd_agl.kernels import native
from mpd_agl.kernels.events import MOST_KERNEL
from mpd_agl.nn.handoff import events_of, handed_on

CONVS = ("dense", "event", "auto")
EVERY = 1000
TRIES = 3


@dataclass(frozen=True)
class Choice:
    """What `auto` took for a layer, and why: milliseconds of one call, with the weight gradient where `training`."""

    taken: Literal["dense", "event"]
    rate: float
    """Share of inputs that were not zero."""
    dense_ms: float
    event_ms: float
    training: bool

    @property
    def speed_up(self) -> float:
        """Dense time over event-driven time."""
        return self.dense_ms / self.event_ms

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
        self._packed: tuple[Any, Tensor, Tensor] | None = None

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
        taken = "dense" if torch.compiler.is_exporting() else self._taken(x)
        if taken == "dense":
            return self.dense(x)
        compiling = torch.compiler.is_compiling()
        return kernel.conv(
            x,
            self.weight,
            self.bias,
            stride=self.events_stride,
            padding=self.events_padding,
            events=None if compiling else events_of(x),
            packed=None if compiling else self._pack(),
        )

    def _taken(self, x: Tensor) -> str:
        if self.conv == "dense" or _unable(x):
            return "dense"
        if self.conv == "event":
            return "event"
        if torch.compiler.is_compiling():
            return "dense" if self.choice is None else self.choice.taken
        if self.repeating and self.choice is not None:  # the second time as the first
            return self.choice.taken
        training = torch.is_grad_enabled() and self.weight.requires_grad
        again = self.choice is None or (training and not self.choice.training)
        if training == (self.choice is not None and self.choice.training):
            self.calls += 1
            again = again or (self.every > 0 and self.calls >= self.every)
        if again:
            self.choice, self.calls = self.measure(x, training), 0
        assert self.choice is not None
        return self.choice.taken

    @torch.no_grad()
    def measure(self, x: Tensor, training: bool) -> Choice:
        """Time both on this input: the least of a few tries."""
        at_hand = None if handed_on(x) is None else events_of(x)  # the neuron lists them in its own pass
        x = x.detach()
        stride, padding = self.events_stride, self.events_padding
        y = self.dense(x)
        g = y.contiguous(memory_format=torch.channels_last) if y.dim() == 4 else y

        def dense() -> None:
            self.dense(x)
            if training and g.dim() == 4:
                where = (stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), 1, (False, True, False)
                torch.ops.aten.convolution_backward(g, x, self.weight, None, *where)
            elif training:
                g.t() @ x

        def event() -> None:
            found = at_hand or kernel.scan(x)
            kernel.forward(found, x.shape, self.weight, self.bias, stride, padding, self._pack())
            if training:
                kernel.weight_grad(found, x.shape, self.weight, g, stride, padding)

        times = {dense: float("inf"), event: float("inf")}
        for _ in range(TRIES):
            for run in (dense, event):
                times[run] = min(times[run], _ms(run))
        taken: Literal["dense", "event"] = "event" if times[event] < times[dense] else "dense"
        rate = float(torch.count_nonzero(x)) / x.numel()
        return Choice(taken, rate, times[dense], times[event], training)

    def _pack(self) -> Tensor | None:
        """Of a folded network the packed weights are kept; others may change at any time, those of inference mode unnoticed."""
        if self.weight.requires_grad or self.training or self.weight.is_inference():
            return None
        key = self.weight.data_ptr(), self.weight._version, native.level()
        if self._packed is None or self._packed[0] != key:
            weight = self.weight.detach()  # held, so that its address is not given to another
            self._packed = key, weight, kernel.pack(weight)
        return self._packed[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}


def _unable(x: Tensor) -> bool:
    """Whether only the dense layer can take this input: another device or dtype, autocast, no native library, nothing in it."""
    return bool(kernel.why_not(x)) or torch.is_autocast_enabled("cpu") or x.numel() == 0


def _ms(run: Callable[[], None]) -> float:
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
