"""Convolutions and linear layers of a fused network, each pass computed in the fastest way.

The modules and their parameters stay; their `forward` is replaced. Three things make them fast: channels_last memory,
which the fused neurons read and write; zeros that are skipped where that pays (`nn.event_conv`); and an image that is
the same at every timestep is convolved once.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from mpd_agl.adaptation.norms import folded_back
from mpd_agl.nn.event_conv import EventLayer
from mpd_agl.ops.conv import active, convolution
from mpd_agl.ops.conv.active import MOST_KERNEL

_LIBRARIES = ("torch", "spikingjelly")


class FastSynapse(EventLayer):
    """What computes a synapse of the network in place of its own `forward`."""

    def __init__(self, module: nn.Conv2d | nn.Linear, conv_impl: str) -> None:
        super().__init__()
        self.module = module
        self.is_conv = isinstance(module, nn.Conv2d)
        self.serves: Any = None
        """The fused neuron that alone reads the output, through its norm: it can take one step for all."""
        if self.is_conv:
            self.stride_1d, self.padding_1d = int(module.stride[0]), _padding(module)  # type: ignore[arg-type, index]
        self.choose(conv_impl if _is_plain(module) else "dense")

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The module's."""
        return self.module.weight

    @property
    def bias(self) -> Tensor | None:
        """The module's."""
        return self.module.bias

    def put_in(self) -> None:
        """Replace the module's `forward`."""
        if self.is_conv:
            self.weight.data = self.weight.data.contiguous(memory_format=torch.channels_last)
        self.module.forward = self.forward  # type: ignore[method-assign, assignment]

    def take_out(self) -> None:
        """Put the class's own back."""
        del self.module.forward

    def dense(self, x: Tensor) -> Tensor:
        """torch's own."""
        m = self.module
        if not isinstance(m, nn.Conv2d):
            return F.linear(x, m.weight, m.bias)
        if (
            m.kernel_size == (1, 1)
            and self.stride_1d > 1
            and m.in_channels < 8
            and _is_plain(m)
            and not self.padding_1d
        ):
            # torch 2.13 writes outside its buffers here: see models.base.SubsampledConv.
            picked = x[:, :, :: self.stride_1d, :: self.stride_1d].contiguous(memory_format=torch.channels_last)
            return F.conv2d(picked, m.weight, m.bias)
        y: Tensor = m._conv_forward(x, m.weight, m.bias)
        return y

    def forward(self, x: Tensor) -> Tensor:
        """As the module's own, for time first or folded into the batch."""
        own = 3 if self.is_conv else 1
        lead = x.shape[:-own]
        if len(lead) == 1:
            return self.compute(self._laid_out(x))
        if len(lead) != 2 or (self.is_conv and getattr(self.module, "step_mode", "s") != "m"):
            kind: Any = type(self.module)
            found: Tensor = kind.forward(self.module, x)  # its own words for what it does not take
            return found
        still = self.serves is not None and lead[0] > 1 and not torch.compiler.is_compiling() and _is_still(x)
        x_MC = x[0] if still else x.flatten(0, 1)
        y_MC = self.compute(self._laid_out(x_MC))
        if still:
            y_1NC = y_MC.unsqueeze(0)
            y_TNC = y_1NC.expand(lead[0], *y_MC.shape)
            self.serves.still = (y_TNC, y_1NC)
            return y_TNC
        return folded_back(y_MC, lead)

    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if self.is_conv else x


@torch.no_grad()
def _is_still(x_TNC: Tensor) -> bool:
    """Whether all timesteps are the same; nothing flows back to such an input."""
    if x_TNC.requires_grad:
        return False
    if x_TNC.stride(0) == 0:
        return True
    first = x_TNC[0]
    return all(torch.equal(first, later) for later in x_TNC[1:])


def _padding(conv: nn.Conv2d) -> int:
    return int(conv.padding[0]) if isinstance(conv.padding, tuple) else -1


def _is_plain(module: nn.Module) -> bool:
    """Whether the kernels have this layer's form."""
    if isinstance(module, nn.Linear):
        return True
    assert isinstance(module, nn.Conv2d)
    square = all(isinstance(a, tuple) and a[0] == a[1] for a in (module.kernel_size, module.stride, module.padding))
    simple = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
    return square and simple and module.kernel_size[0] <= MOST_KERNEL


def replaceable(net: nn.Module) -> dict[str, nn.Module]:
    """The network's convolutions and linear layers whose `forward` and parameters are their class's own."""
    found: dict[str, nn.Module] = {}
    for name, module in net.named_modules():
        kind = type(module)
        known = isinstance(module, (nn.Conv2d, nn.Linear)) and kind.__module__.split(".")[0] in _LIBRARIES
        named = kind.__name__ in ("Conv2d", "Linear")
        if known and named and "forward" not in module.__dict__ and not parametrize.is_parametrized(module):
            found[name] = module
    return found


def fast_synapses(net: nn.Module) -> dict[str, FastSynapse]:
    """What was put into a network, by the module's name."""
    found = {}
    for name, module in net.named_modules():
        owner = getattr(module.__dict__.get("forward"), "__self__", None)
        if isinstance(owner, FastSynapse):
            found[name] = owner
    return found


def difference(synapse: FastSynapse, x: Tensor) -> str | None:
    """Where a way that `auto` may take differs from the module's own by more than rounding, as a clause."""
    x = (x if x.dim() == (4 if synapse.is_conv else 2) else x.flatten(0, 1))[:4]
    if synapse.conv_impl == "dense" or active.why_not(x):
        return None
    x = synapse._laid_out(x)
    stride, padding = synapse.stride_1d, synapse.padding_1d
    lists, weight, g = active.scan(x), synapse.weight.detach(), torch.ones(1)
    found: dict[str, dict[str, Tensor]] = {}
    with torch.no_grad():
        for name, ways in convolution.ways_of(weight, stride, padding).items():
            found[name] = {}
            for way in ways:
                if name == "forward":
                    found[name][way] = convolution.forward(way, x, weight, synapse.bias, stride, padding, lists)
                    g = synapse._laid_out(found[name]["dense"])
                elif name == "weight_grad":
                    source: Any = lists if way == "event" else x
                    found[name][way] = convolution.weight_grad(way, source, x.shape, weight, g, stride, padding)
                else:
                    found[name][way] = convolution.input_grad(way, x.shape, weight, g, stride, padding)
    for name, by_way in found.items():
        for way, value in by_way.items():
            error = float((value - by_way["dense"]).abs().max() / by_way["dense"].abs().max().clamp_min(1e-12))
            if error > 1e-4:
                return f"its {name} pass differs by {error:.1e} of its size when it is computed {way}"
    return None
