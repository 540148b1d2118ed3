"""Convolutions and linear layers that may skip zeros.

They have the parameters of `nn.Conv2d` and `nn.Linear`, and a choice of how to compute.

`dense` is torch's own layer, `event` the event-driven one (`kernels.active`). `auto` predicts what every way costs in
each of the three passes (`kernels.convolution`: dense, event-driven, sums looked up, Winograd's form) and takes the
quickest. It predicts from the machine's costs (`kernels.costs`), the layer's sizes and the share of active inputs, and
looks at that share again after every `every` calls. All ways compute the same function with another order of
additions. `choice` holds what was taken and why, and a run keeps it (`runs.conv_choices`).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops import native
from mpd_agl.ops.conv import active, convolution, costs, lookup
from mpd_agl.ops.conv.active import MOST_KERNEL
from mpd_agl.ops.conv.convolution import DENSE, EVENT, PASSES, Ways

CONV_IMPLS = ("dense", "event", "auto")
EVERY = 1000


@dataclass(frozen=True)
class Choice:
    """What `auto` took for a layer, and why. Of evaluation it holds the forward pass alone."""

    rate: float
    """Share of inputs that were not zero."""
    ms: dict[str, dict[str, float]]
    """Predicted milliseconds of one call, of each pass in each way."""
    lists_ms: float
    """Those of the scan for the active lists, which the event-driven passes share."""
    taken: dict[str, str]
    """The way of each pass: together the least time, or dense where that is hardly more."""
    bits_ms: float = 0.0
    """Predicted milliseconds of the scan for the input's bits, which the passes that look sums up share."""

    def __post_init__(self) -> None:
        if set(self.taken) != set(self.ms) or any(self.taken[name] not in found for name, found in self.ms.items()):
            raise ValueError(f"a choice of {self.taken} among {self.ms}")
        Ways(**self.taken)

    @property
    def ways(self) -> Ways:
        """For `convolution.conv`."""
        return Ways(**self.taken)

    @property
    def training(self) -> bool:
        """Whether it holds the gradients too."""
        return "weight_grad" in self.ms

    def total_ms(self, taken: dict[str, str] | None = None) -> float:
        """Of all passes together; by default in the ways that were taken."""
        taken = self.taken if taken is None else taken
        lists = self.lists_ms if "event" in taken.values() else 0.0
        bits = self.bits_ms if "lookup" in taken.values() else 0.0
        return sum(found[taken[name]] for name, found in self.ms.items()) + lists + bits

    @property
    def dense_ms(self) -> float:
        """All passes dense."""
        return self.total_ms(dict.fromkeys(self.ms, "dense"))

    @property
    def speed_up(self) -> float:
        """All passes dense over what was taken."""
        return self.dense_ms / self.total_ms() if self.total_ms() else 1.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class EventLayer(nn.Module):
    """What both layers share; `conv_impl` is one of CONV_IMPLS."""

    weight: Tensor
    bias: Any
    stride_1d = 1
    padding_1d = 0
    repeating = False
    """True while a forward pass is computed a second time (see recompute)."""

    def choose(self, conv_impl: str) -> None:
        """Set how to compute; what was chosen before is forgotten."""
        if conv_impl not in CONV_IMPLS:
            raise unknown_name("conv_impl", conv_impl, CONV_IMPLS)
        if conv_impl == "event" and (why := native.load()[1]):
            raise InputError(f"conv_impl 'event' cannot run: {why}, or use conv_impl='dense'.")
        self.conv_impl, self.choice, self.every, self.calls = conv_impl, None, EVERY, 0
        self._packed: tuple[Any, Tensor, Tensor | None] | None = None

    conv_impl: str
    choice: Choice | None
    every: int
    """Calls after which `auto` chooses anew; 0: never."""
    calls: int
    agree: Callable[[Choice], Choice] | None = None
    """Where several processes train: gives the first one's choice to all. Every process calls it at the same time."""

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        raise NotImplementedError

    def compute(self, x: Tensor) -> Tensor:
        """The layer's output by what is chosen."""
        ways = DENSE if torch.compiler.is_exporting() else self._ways(x)
        # Skip the lists that only the weight gradient needs when no weight gradient is asked for.
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            ways = Ways(ways.forward, input_grad=ways.input_grad)
        compiling = torch.compiler.is_compiling()
        if ways == DENSE or (compiling and ways.forward != "event"):
            return self.dense(x)
        return convolution.conv(
            x,
            self.weight,
            self.bias,
            stride=self.stride_1d,
            padding=self.padding_1d,
            packed=None if compiling else self._pack(ways.forward),
            ways=ways,
        )

    def _ways(self, x: Tensor) -> Ways:
        if self.conv_impl == "dense" or _unable(x):
            return DENSE
        if self.conv_impl == "event":
            return EVENT if x.numel() else DENSE
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
            found = self.predict(x, training)
            self.choice, self.calls = found if self.agree is None else self.agree(found), 0
        assert self.choice is not None
        return self.choice.ways if x.numel() else DENSE  # one process's part of a batch may be empty

    @torch.no_grad()
    def predict(self, x: Tensor, training: bool) -> Choice:
        """What every way of every pass costs on this input, and the quickest combination."""
        stride, padding = self.stride_1d, self.padding_1d
        rate = float(torch.count_nonzero(x)) / max(1, x.numel())
        known = convolution.ways_of(self.weight, stride, padding)
        known = {name: known[name] for name in (PASSES if training else PASSES[:1])}
        layer, planes = costs.layer_of(x.shape, self.weight, stride, padding), 1
        if "lookup" in known["forward"]:
            bits = lookup.scan(x, self.weight, stride, padding)
            if bits is None:
                known = {name: tuple(way for way in ways if way != "lookup") for name, ways in known.items()}
            else:
                planes = bits.planes.shape[0]
        ms = costs.predict(layer, rate, known, packs=not self._keeps_packed(), planes=planes)
        scans = costs.predict_lists(layer), costs.predict_bits(layer)
        combinations = (dict(zip(ms, ways, strict=True)) for ways in product(*ms.values()))
        choices = [Choice(rate, ms, scans[0], taken, scans[1]) for taken in combinations]
        dense, best = choices[0], min(choices, key=Choice.total_ms)
        return best if best.total_ms() <= costs.MARGIN * dense.total_ms() else dense

    def _keeps_packed(self) -> bool:
        """Whether the packed weight is kept: in a folded network.

        Other weights may change at any time, and those made in inference mode change without a trace.
        """
        return not (self.weight.requires_grad or self.training or self.weight.is_inference())

    def _pack(self, way: str) -> Tensor | None:
        """The packed weight, where it is kept."""
        if not self._keeps_packed():
            return None
        key = way, self.weight.data_ptr(), self.weight._version, native.level()
        if self._packed is None or self._packed[0] != key:
            weight = self.weight.detach()  # held, so that its address is not given to another
            self._packed = key, weight, convolution.pack(way, weight)
        return self._packed[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None, "agree": None}


def _unable(x: Tensor) -> bool:
    """Whether only the dense layer can take this input.

    So it is on another device, in another dtype, under autocast, and without the native library.
    """
    return bool(active.why_not(x)) or torch.is_autocast_enabled("cpu")


class EventConv2d(nn.Conv2d, EventLayer):
    """`nn.Conv2d` with square kernel, stride and padding that can skip zeros.

    >>> layer = EventConv2d(16, 8, 3, padding=1, bias=False, conv_impl="event")
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
        conv_impl: str,
    ) -> None:
        if kernel > MOST_KERNEL:
            raise InputError(f"EventConv2d takes kernels up to {MOST_KERNEL}, got {kernel}. Use nn.Conv2d.")
        super().__init__(in_channels, out_channels, kernel, stride, padding, bias=bias)
        self.stride_1d, self.padding_1d = stride, padding
        self.choose(conv_impl)

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        return F.conv2d(x, self.weight, self.bias, self.stride_1d, self.padding_1d)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution."""
        return self.compute(input)


def adopt(synapse: nn.Module, conv_impl: str) -> None:
    """Let a plain `nn.Conv2d` or `nn.Linear` choose how it computes; its parameters, hooks and identity stay.

    A layer that the kernels do not know (groups, dilation, other padding, kernels over 5), and one of a class of your
    own, stays as it is.
    """
    if conv_impl not in CONV_IMPLS:
        raise unknown_name("conv_impl", conv_impl, CONV_IMPLS)
    if conv_impl == "dense":
        return
    made: Any = synapse
    if type(synapse) is nn.Linear:
        made.__class__ = EventLinear
    elif type(synapse) is nn.Conv2d and _is_plain(synapse):
        made.__class__ = EventConv2d
        made.stride_1d, made.padding_1d = synapse.stride[0], synapse.padding[0]
    else:
        return
    made.choose(conv_impl)


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether the kernels know this convolution."""
    if isinstance(conv.padding, str) or conv.groups != 1 or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        return False
    square = all(len(set(pair)) == 1 for pair in (conv.kernel_size, conv.stride, conv.padding))
    return square and conv.kernel_size[0] <= MOST_KERNEL


class EventLinear(nn.Linear, EventLayer):
    """`nn.Linear` on (N, F) that can skip zeros."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, conv_impl: str) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.choose(conv_impl)

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The linear layer."""
        return self.compute(input)


def event_layers(net: nn.Module) -> dict[str, EventLayer]:
    """The layers of a network that can skip zeros, by the name of their block, in network order."""
    return {n.removesuffix(".synapse"): m for n, m in net.named_modules() if isinstance(m, EventLayer)}
