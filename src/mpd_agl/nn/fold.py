"""Folding norms into the synapses for inference.

`gamma alpha v_th / sqrt(var + eps)` goes into the weights, the rest into the bias. What a norm on the potential becomes
its neuron says (`Neuron.for_inference`). A norm whose scale differs from step to step stays behind the synapse, as one
multiply-add per step (`StepAffine`): one set of weights cannot hold it.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.nn.ann import AnnBlock
from mpd_agl.nn.block import Current, SpikingBlock, checked_neuron
from mpd_agl.nn.called import described
from mpd_agl.nn.width import FixedWidth

Net = TypeVar("Net", bound=nn.Module)
LARGEST = 127


class StepAffine(nn.Module):
    """`i_t = x_t scale_t + shift_t`: in evaluation, a norm whose scale differs from step to step."""

    tied_to_steps = True
    multiplies_per_step = True
    scale_TC: Tensor
    shift_TC: Tensor

    def __init__(self, scale_TC: Tensor, shift_TC: Tensor) -> None:
        super().__init__()
        self.num_steps = scale_TC.shape[0]
        self.register_buffer("scale_TC", scale_TC.detach().clone())
        self.register_buffer("shift_TC", shift_TC.detach().clone())

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents of all T steps."""
        T = built_for_steps(self, x_SNC, num_steps)
        scale, shift = (a.view(T, 1, -1, *[1] * (x_SNC.dim() - 3)) for a in (self.scale_TC, self.shift_TC))
        return x_SNC * scale + shift

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """`scale_TC, shift_TC`."""
        return self.scale_TC, self.shift_TC


def built_for_steps(part: nn.Module, x_SNC: Tensor, num_steps: int | None) -> int:
    """T, or a sentence where it is another than the `num_steps` that this part was built for."""
    T, own = x_SNC.shape[0] if num_steps is None else num_steps, part.num_steps
    if own != T:
        raise InputError(
            f"{type(part).__name__} was built for {own} timesteps and has parameters for each, got {T}. "
            f"Create the model with num_steps={T}, or use norm='tdbn' or 'bn', which take any number."
        )
    return T


@torch.no_grad()
def scaled_synapse(synapse: nn.Module | None, scale_C: Tensor, shift_C: Tensor) -> nn.Module:
    """A copy of a synapse whose output channels are multiplied and shifted."""
    if not isinstance(synapse, nn.Conv2d | nn.Linear):
        raise InputError(f"can fold a norm into nn.Conv2d and nn.Linear, got {type(synapse).__name__}.")
    out = copy.deepcopy(synapse)
    shape = [-1] + [1] * (out.weight.dim() - 1)
    bias_C = shift_C if out.bias is None else out.bias * scale_C + shift_C
    out.weight = nn.Parameter(out.weight * scale_C.view(shape), requires_grad=False)
    out.bias = nn.Parameter(bias_C, requires_grad=False)
    return out


def affine_map(norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """`scale_C, shift_C` of a norm in evaluation; None for one whose output depends on the input's own statistics."""
    if (own := described(norm, "affine_map")) is not None:
        found: tuple[Tensor, Tensor] = own()
        return found
    if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d) or type(norm).forward is not nn.BatchNorm2d.forward:
        return None
    if norm.running_mean is None or norm.running_var is None:
        return None
    scale_C = torch.rsqrt(norm.running_var + norm.eps)
    shift_C = -norm.running_mean * scale_C
    return (scale_C, shift_C) if norm.weight is None else (norm.weight * scale_C, norm.bias + norm.weight * shift_C)


def _fold_norm(module: SpikingBlock | Current | AnnBlock) -> None:
    found = affine_map(module.norm)
    if found is None:
        return
    if found[0].dim() == 2:
        module.norm = StepAffine(*found)
    elif module.synapse is not None:
        module.synapse = scaled_synapse(module.synapse, *found)
        module.norm = nn.Identity() if isinstance(module, AnnBlock) else None


def _fold_neuron(block: SpikingBlock) -> None:
    neuron, sign_C = checked_neuron(block.neuron).for_inference()
    if sign_C is not None and bool((sign_C < 0).any()):
        if block.synapse is None or block.norm is not None or block.currents:
            return  # no weights of its own whose sign could be turned: the neuron keeps its norm
        block.synapse = scaled_synapse(block.synapse, sign_C, torch.zeros_like(sign_C))
    block.neuron = neuron.eval()


def fold(net: Net) -> Net:
    """A copy of the network for inference, each batch norm folded into its synapse: the same spikes with one pass less.

    The copy is in evaluation mode and stays there; the original is untouched.
    """
    if any(m.training for m in net.modules()):
        raise InputError("fold() takes a network in evaluation mode, got one that is training. Call net.eval() first.")
    out = copy.deepcopy(net)
    for module in out.modules():
        if isinstance(module, SpikingBlock | Current | AnnBlock):
            _fold_norm(module)
        if isinstance(module, SpikingBlock):
            _fold_neuron(module)
            module.width = FixedWidth()  # the rule's norm is gone
    for parameter in out.parameters():
        parameter.requires_grad_(False)
    return out


def is_folded(net: nn.Module) -> bool:
    """Whether no norm is left that folding would take in."""
    parts = [m for m in net.modules() if isinstance(m, SpikingBlock | Current) and m.synapse is not None]
    return all(m.norm is None or isinstance(m.norm, StepAffine) for m in parts)


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
