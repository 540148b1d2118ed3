"""Convolutions and linear layers of a fused network, each pass computed in the fastest way.

The modules and their parameters stay; their `forward` is replaced. Three things make them fast: channels_last memory,
which the fused neurons read and write; the forms of `ops.conv`; and an image that is the same at every timestep is
convolved once.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mpd_agl.adaptation.norms import folded_back
from mpd_agl.nn.synapse import is_plain, layer_output

_LIBRARIES = ("torch", "spikingjelly")


class FastSynapse:
    """What computes a synapse of the network in place of its own `forward`."""

    def __init__(self, module: nn.Conv2d | nn.Linear, conv_impl: str) -> None:
        self.module, self.conv_impl = module, conv_impl
        self.is_conv = isinstance(module, nn.Conv2d)
        self.serves: Any = None
        """The fused neuron that alone reads the output, through its norm: it can take one step for all."""

    def put_in(self) -> None:
        """Replace the module's `forward`."""
        if self.is_conv:
            self.module.weight.data = self.module.weight.data.contiguous(memory_format=torch.channels_last)
        self.module.forward = self.forward  # type: ignore[method-assign, assignment]

    def take_out(self) -> None:
        """Put the class's own back."""
        del self.module.forward

    def compute(self, x: Tensor) -> Tensor:
        """The layer's output for time folded into the batch."""
        m = self.module
        if isinstance(m, nn.Linear) or is_plain(m):
            return layer_output(m, x, self.conv_impl)
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


def agrees(synapse: FastSynapse, x: Tensor) -> bool:
    """Whether output and gradients are the dense layer's up to rounding, on up to four samples of its input."""
    x = synapse._laid_out((x if x.dim() == (4 if synapse.is_conv else 2) else x.flatten(0, 1))[:4])
    found: list[tuple[Tensor, ...]] = []
    with torch.enable_grad():
        for way in (synapse, FastSynapse(synapse.module, "dense")):
            leaf = x.detach().requires_grad_()
            y = way.compute(leaf)
            wanted = [leaf, *(p for p in synapse.module.parameters() if p.requires_grad)]
            found.append((y.detach(), *torch.autograd.grad(y, wanted, torch.ones_like(y))))
    return all(
        float((a - b).abs().max()) <= 1e-4 * float(b.abs().max().clamp_min(1e-12)) for a, b in zip(*found, strict=True)
    )
