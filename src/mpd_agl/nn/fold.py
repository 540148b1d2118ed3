"""Folding norms into the synapses for inference.

`gamma alpha v_th / sqrt(var + eps)` goes into the weights, the rest into the bias. MPBN's norm on the potential goes
into the threshold. TEBN and TAB scale every timestep otherwise, so a `StepAffine` stays behind the synapse.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.nn.block import AnnBlock, Current, SpikingBlock
from mpd_agl.nn.mpbn import FoldedLIF, NormedPotential
from mpd_agl.nn.norm import TdBatchNorm
from mpd_agl.nn.step_norm import StepAffine

Net = TypeVar("Net", bound=nn.Module)
LARGEST = 127


@torch.no_grad()
def _folded(synapse: nn.Module, scale_C: Tensor, shift_C: Tensor) -> nn.Module:
    if not isinstance(synapse, nn.Conv2d | nn.Linear):
        raise InputError(f"can fold tdBN into nn.Conv2d and nn.Linear, got {type(synapse).__name__}.")
    out = copy.deepcopy(synapse)
    shape = [-1] + [1] * (out.weight.dim() - 1)
    bias_C = shift_C if out.bias is None else out.bias * scale_C + shift_C
    out.weight = nn.Parameter(out.weight * scale_C.view(shape), requires_grad=False)
    out.bias = nn.Parameter(bias_C, requires_grad=False)
    return out


def _affine(norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """`scale_C, shift_C` of a norm in evaluation; None for one whose output depends on the input's own statistics."""
    if isinstance(norm, TdBatchNorm):
        return norm.affine()
    if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
        return None
    scale_C = torch.rsqrt(norm.running_var + norm.eps)
    shift_C = -norm.running_mean * scale_C
    return (scale_C, shift_C) if norm.weight is None else (norm.weight * scale_C, norm.bias + norm.weight * shift_C)


def _fold_potential_norm(block: SpikingBlock) -> None:
    """MPBN: `scale v + shift >= v_th` as a threshold of v, one per channel.

    Where scale is negative the neuron fires below a value. With the synapse's sign turned, so is v's, and it fires
    above: the reset to 0 has no sign. Without a synapse of its own such a neuron keeps its norm.
    """
    neuron = block.neuron
    if not isinstance(neuron, NormedPotential):
        return
    scale_C, _ = neuron.potential_norm.affine()
    if bool((scale_C < 0).any()):
        if block.synapse is None or block.norm is not None or block.currents:
            return
        sign_C = torch.where(scale_C < 0, -1.0, 1.0).to(scale_C)
        block.synapse = _folded(block.synapse, sign_C, torch.zeros_like(scale_C))
    block.neuron = FoldedLIF(neuron).eval()


def fold(net: Net) -> Net:
    """A copy of the network for inference, each batch norm folded into its synapse: the same spikes with one pass less.

    MPBN's second norm becomes a threshold per channel; TEBN and TAB stay as one multiply-add per step.

    The copy is in evaluation mode and stays there; the original is untouched.
    """
    if any(m.training for m in net.modules()):
        raise InputError("fold() takes a network in evaluation mode, got one that is training. Call net.eval() first.")
    out = copy.deepcopy(net)
    for module in out.modules():
        if not isinstance(module, SpikingBlock | Current | AnnBlock):
            continue
        if (affine := _affine(module.norm)) is not None:
            if affine[0].dim() == 2:
                module.norm = StepAffine(*affine)  # type: ignore[assignment]
            elif module.synapse is not None:
                module.synapse = _folded(module.synapse, *affine)
                module.norm = nn.Identity() if isinstance(module, AnnBlock) else None
        if isinstance(module, SpikingBlock):
            module.is_folded = True
            _fold_potential_norm(module)
    for parameter in out.parameters():
        parameter.requires_grad_(False)
    return out


def whole(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as int8 and the scale of each output channel: `weight ~ int8 * scale`.

    >>> q, scale_C = whole(torch.tensor([[0.5, -1.27], [0.0, 0.0]]))
    >>> q.tolist(), [round(v, 4) for v in scale_C.tolist()]
    ([[50, -127], [0, 0]], [0.01, 1.0])
    """
    most_C = weight.flatten(1).abs().amax(1)
    scale_C = torch.where(most_C > 0, most_C / LARGEST, 1.0)
    shape = [-1] + [1] * (weight.dim() - 1)
    return torch.round(weight / scale_C.view(shape)).to(torch.int8), scale_C
