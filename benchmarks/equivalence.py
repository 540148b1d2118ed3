"""Do the contenders compute the same function? This is checked before a ratio is printed.

Every block of a contender gets the inputs that the reference, plain PyTorch in float64, has at that place. It must fire
where the reference does. Rounding to float32 can only flip a neuron whose potential is next to the threshold, so at the
first step at which a neuron differs the reference's potential must be within `NEAR` of it. A peer's whole network must
moreover give the same logits in float64.
"""

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.core import batch_moments, lif, tdbn
from mpd_agl.models import Network
from mpd_agl.nn import SpikingBlock

NEAR = 1e-4
"""Distance of a potential from v_th = 0.5; float32 rounding of the largest layers stays under a tenth of it."""


@dataclass(frozen=True)
class Agreement:
    """What was compared, and what came out."""

    agrees: bool
    how: str
    differ: float | None = None
    """Share of spikes that differ, or the largest relative difference of outputs where those were compared."""
    worst: float | None = None
    """The largest distance to the threshold among neurons that differ."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Call:
    """What a block of the reference was called with, and its spikes and potentials."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    spikes: Tensor
    potentials: Tensor


def reference(net: Network) -> Network:
    """The network in float64 and plain PyTorch."""
    out = copy.deepcopy(net).double()
    for module in out.modules():
        if isinstance(module, SpikingBlock):
            module.neuron.backend = "eager"
    return out


@torch.no_grad()
def calls(net: Network, x: Tensor) -> dict[str, Call]:
    """Run the reference and keep what went through each block."""
    found: dict[str, Call] = {}

    def look(name: str) -> Any:
        def hook(block: SpikingBlock, args: tuple[Any, ...], options: dict[str, Any], output: Tensor) -> None:
            found[name] = Call(args, options, output, potentials(block, args[0], output.shape[0]))

        return hook

    handles = [
        m.register_forward_hook(look(n), with_kwargs=True)
        for n, m in net.named_modules()
        if isinstance(m, SpikingBlock)
    ]
    net(x.double())
    for handle in handles:
        handle.remove()
    return found


def potentials(block: SpikingBlock, s_SNC: Tensor, num_steps: int) -> Tensor:
    """v_TNC of a block by the written equations."""
    assert block.synapse is not None
    y = block.synapse(s_SNC.flatten(0, 1))
    x_SNC = y.view(*s_SNC.shape[:2], *y.shape[1:]).expand(num_steps, -1, *y.shape[1:])
    norm, neuron = block.norm, block.neuron
    assert norm is not None
    moments = batch_moments(x_SNC) if block.training else (norm.running_mean, norm.running_var)
    i_TNC = tdbn(x_SNC, norm.weight, norm.bias, *moments, v_th=norm.v_th, alpha=norm.alpha, eps=norm.eps)
    return lif(i_TNC, neuron.tau, torch.ones(num_steps, dtype=i_TNC.dtype), v_th=neuron.v_th)[1]


def floats(value: Any) -> Any:
    """A tensor in float32, in channels_last memory where it has space; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() != 5:
        return value.float()
    flat = value.float().flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return flat.view(value.shape)


@torch.no_grad()
def blocks_agree(found: dict[str, Call], contender: nn.Module, v_th: float) -> Agreement:
    """Every block on the reference's inputs, spike by spike."""
    differ, count, worst, where = 0, 0, 0.0, ""
    for name, call in found.items():
        options = {k: floats(v) for k, v in call.options.items()}
        out = contender.get_submodule(name)(*(floats(a) for a in call.args), **options)
        wrong_TNC = out.double() != call.spikes
        first_TNC = wrong_TNC & (wrong_TNC.cumsum(0) == 1)
        differ, count = differ + int(wrong_TNC.sum()), count + out.numel()
        if first_TNC.any():
            distance = float((call.potentials[first_TNC] - v_th).abs().max())
            if distance > worst:
                worst, where = distance, name
    agrees = worst < NEAR
    how = f"{len(found)} layers on equal inputs, float32 as timed, against float64"
    return Agreement(agrees, how if agrees else f"{how}: {where} differs", differ / max(1, count), worst)


@torch.no_grad()
def logits_agree(reference: nn.Module, theirs: nn.Module, x: Tensor, *, rtol: float, how: str) -> Agreement:
    """Whole networks on one input: the largest difference against the largest logit."""
    a, b = reference(x).double(), theirs(x).double()
    difference = float((a - b).abs().max() / a.abs().max())
    return Agreement(difference < rtol, how, difference)
