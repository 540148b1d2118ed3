"""A folded network in the plainest operators, for a graph that another program reads: convolution, add, multiply, compare, select.

With `int8`, hidden layers have whole weights of 8 bits and one scale per output channel. Their inputs are spikes, spike counts, or (behind
average pooling) quarters of them: whole numbers after a factor of 4. Products of whole numbers this small are exact in float32 too, so
float arithmetic on whole weights gives what integer arithmetic gives.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import Current, SpikingBlock, fold

LARGEST = 127


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


class WholeSynapses(nn.Module):
    """A convolution or linear layer with int8 weights, a scale per channel, and its bias in float."""

    def __init__(self, synapses: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        q, scale_C = whole(synapses.weight.detach())
        self.register_buffer("weight", q)
        shape = (-1, 1, 1) if isinstance(synapses, nn.Conv2d) else (-1,)
        self.register_buffer("scale", scale_C.view(shape))
        bias = torch.zeros_like(scale_C) if synapses.bias is None else synapses.bias.detach()
        self.register_buffer("bias", bias.view(shape).clone())
        self.geometry: tuple[Any, Any] | None = None
        if isinstance(synapses, nn.Conv2d):
            self.geometry = synapses.stride, synapses.padding

    def forward(self, s_NC: Tensor) -> Tensor:
        """The current."""
        weight = self.get_buffer("weight").to(s_NC.dtype)
        if self.geometry is None:
            y = nn.functional.linear(s_NC, weight)
        else:
            y = nn.functional.conv2d(s_NC, weight, None, *self.geometry)
        return y * self.get_buffer("scale") + self.get_buffer("bias")


class PlainBlock(nn.Module):
    """A folded block: the current of T steps at once, then Eq. 2-3 step by step."""

    def __init__(self, block: SpikingBlock, int8: bool) -> None:
        super().__init__()
        synapses = block.synapse
        assert isinstance(synapses, nn.Conv2d | nn.Linear)
        self.synapse: nn.Module = WholeSynapses(synapses) if int8 else synapses
        self.tau, self.v_th = float(block.neuron.tau.detach()), block.neuron.v_th

    def forward(
        self,
        s_SNC: Tensor,
        num_steps: int | None = None,
        *,
        residual: Tensor | None = None,
        add: Current | None = None,
        add_from: Tensor | None = None,
    ) -> Tensor:
        """Spikes of T steps, with what is to be added to them."""
        S, T = s_SNC.shape[0], s_SNC.shape[0] if num_steps is None else num_steps
        y = self.synapse(s_SNC.flatten(0, 1))
        i_SNC = y.view(S, -1, *y.shape[1:])
        if add is not None and add_from is not None:
            i_SNC = i_SNC + add(add_from)
        v = i_SNC[0]
        spikes = [v >= self.v_th]
        for t in range(1, T):
            v = self.tau * torch.where(spikes[-1], 0.0, v) + i_SNC[t if S > 1 else 0]
            spikes.append(v >= self.v_th)
        s_TNC = torch.stack(spikes).to(s_SNC.dtype)
        return s_TNC if residual is None else s_TNC + residual


def plain_network(net: Network, *, int8: bool = False) -> Network:
    """A copy for export, folded, of plain operators; `int8` for all synapses but the stem (its input is real) and the readout."""
    if net.options.ann:
        raise InputError("export takes spiking networks, got an ANN.")
    folded = net if not any(isinstance(m, SpikingBlock) and m.norm is not None for m in net.modules()) else fold(net)
    out = copy.deepcopy(folded)
    blocks = [(n, m) for n, m in out.named_modules() if isinstance(m, SpikingBlock)]
    for number, (name, block) in enumerate(blocks):
        parent, _, leaf = name.rpartition(".")
        setattr(out.get_submodule(parent), leaf, PlainBlock(block, int8 and number > 0))
    for module in out.modules():
        if int8 and isinstance(module, Current) and isinstance(module.synapse, nn.Conv2d | nn.Linear):
            module.synapse = WholeSynapses(module.synapse)
    return out.eval()
