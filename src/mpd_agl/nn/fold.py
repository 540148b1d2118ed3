"""Folding tdBN into the synapses for inference.

`gamma alpha v_th / sqrt(var + eps)` goes into the weights, the rest into the bias.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.nn.block import AnnBlock, Current, SpikingBlock

Net = TypeVar("Net", bound=nn.Module)


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


def fold(net: Net) -> Net:
    """A copy of the network for inference, each tdBN folded into its synapses: the same spikes with one pass less.

    The copy is in evaluation mode and stays there; the original is untouched.
    """
    if any(m.training for m in net.modules()):
        raise InputError("fold() takes a network in evaluation mode, got one that is training. Call net.eval() first.")
    out = copy.deepcopy(net)
    for module in out.modules():
        if isinstance(module, SpikingBlock | Current) and module.norm is not None and module.synapse is not None:
            module.synapse = _folded(module.synapse, *module.norm.affine())
            module.norm = None
        elif isinstance(module, AnnBlock) and not isinstance(module.norm, nn.Identity):
            norm = module.norm
            assert norm.weight is not None
            assert norm.running_var is not None
            assert norm.running_mean is not None
            scale_C = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            module.synapse = _folded(module.synapse, scale_C, norm.bias - norm.running_mean * scale_C)
            module.norm = nn.Identity()
    for parameter in out.parameters():
        parameter.requires_grad_(False)
    return out
