"""A folded network in the plainest operators, as other programs read them: convolve, add, multiply, compare, select.

With `int8`, hidden layers have weights of 8 bits and one scale per output channel. Their inputs are spikes, sums of
spikes, or (behind average pooling) quarters of them, which a factor of 4 makes whole. Products of whole numbers this
small are exact in float32, so float arithmetic on whole weights gives what integer arithmetic gives.
"""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.nn import AnnBlock, Current, Neuron, SpikingBlock, fold, is_folded
from mpd_agl.nn.fold import whole

Net = TypeVar("Net", bound=nn.Module)


class WholeSynapse(nn.Module):
    """A convolution or linear layer with int8 weights, a scale per channel, and its bias in float."""

    def __init__(self, synapse: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        q, scale_C = whole(synapse.weight.detach())
        self.register_buffer("weight", q)
        shape = (-1, 1, 1) if isinstance(synapse, nn.Conv2d) else (-1,)
        self.register_buffer("scale", scale_C.view(shape))
        bias = torch.zeros_like(scale_C) if synapse.bias is None else synapse.bias.detach()
        self.register_buffer("bias", bias.view(shape).clone())
        self.geometry: tuple[Any, ...] | None = None
        if isinstance(synapse, nn.Conv2d):
            self.geometry = synapse.stride, synapse.padding, synapse.dilation, synapse.groups

    def forward(self, s_NC: Tensor) -> Tensor:
        """The current."""
        weight = self.get_buffer("weight").to(s_NC.dtype)
        if self.geometry is None:
            y = nn.functional.linear(s_NC, weight)
        else:
            y = nn.functional.conv2d(s_NC, weight, None, *self.geometry)
        return y * self.get_buffer("scale") + self.get_buffer("bias")


class PlainNeuron(nn.Module):
    """LIF or PLIF as Eq. 2-3 are written, step by step: decay, threshold and reset of the neuron, and no surrogate."""

    def __init__(self, neuron: nn.Module) -> None:
        super().__init__()
        if not isinstance(neuron, Neuron):
            raise InputError(f"export knows the equations of LIF and PLIF, got the neuron {type(neuron).__name__}.")
        constants = neuron.portable()
        for name in ("tau", "v_th"):
            value = torch.as_tensor(getattr(constants, name)).detach()
            if value.numel() == 1:
                setattr(self, name, float(value))
            else:
                self.register_buffer(name, value.clone())
        self.soft_reset, self.decay_input = constants.reset == "soft", constants.decay_input
        self.channel_dim = constants.channel_dim

    def shaped(self, name: str, dim: int) -> Any:
        """A number, or one value per channel in the shape of one timestep with `dim` axes."""
        value = getattr(self, name)
        if isinstance(value, float):
            return value
        shape = [1] * dim
        shape[self.channel_dim - 1] = -1
        return value.view(shape)

    def forward(self, i_SNC: Tensor, *, num_steps: int | None = None, residual: Tensor | None = None) -> Tensor:
        """Spikes of T steps, plus `residual`."""
        S = i_SNC.shape[0]
        T = num_steps or S
        tau, v_th = (self.shaped(name, i_SNC.dim() - 1) for name in ("tau", "v_th"))
        if self.decay_input:
            i_SNC = (1 - tau) * i_SNC
        v = i_SNC[0]
        spikes = [v >= v_th]
        for t in range(1, T):
            kept = torch.where(spikes[-1], v - v_th if self.soft_reset else 0.0, v)
            v = tau * kept + i_SNC[t if S > 1 else 0]
            spikes.append(v >= v_th)
        s_TNC = torch.stack(spikes).to(i_SNC.dtype)
        return s_TNC if residual is None else s_TNC + residual


class PlainBlock(nn.Module):
    """A folded block: the current of all T steps at once, then the neuron step by step."""

    def __init__(self, block: SpikingBlock, int8: bool) -> None:
        super().__init__()
        synapse = block.synapse
        self.synapse: nn.Module = nn.Identity() if synapse is None else synapse
        if int8 and isinstance(synapse, nn.Conv2d | nn.Linear):
            self.synapse = WholeSynapse(synapse)
        self.norm: nn.Module | None = block.norm
        self.neuron = PlainNeuron(block.neuron)
        self.currents = block.currents

    def forward(
        self,
        s_SNC: Tensor,
        num_steps: int | None = None,
        *,
        residual: Tensor | None = None,
        current_inputs: Sequence[Tensor] = (),
    ) -> Tensor:
        """Spikes of T steps, plus `residual`; the block's `currents` of these inputs are added before the neuron."""
        S = s_SNC.shape[0]
        y = self.synapse(s_SNC.flatten(0, 1))
        i_SNC = y.view(S, -1, *y.shape[1:])
        if self.norm is not None:  # what folding left of TEBN or TAB
            i_SNC = self.norm(i_SNC, num_steps)
        for current, s_TNC in zip(self.currents, current_inputs, strict=True):
            i_SNC = i_SNC + current(s_TNC)
        spikes: Tensor = self.neuron(i_SNC, num_steps=num_steps, residual=residual)
        return spikes


def folded(net: Net) -> Net:
    """A copy whose tdBN layers are in the synapses; the copy of a network that is folded already."""
    if any(isinstance(m, AnnBlock) for m in net.modules()):
        raise InputError("export takes spiking networks, got an ANN.")
    if not any(isinstance(m, SpikingBlock | Neuron) for m in net.modules()):
        raise InputError(
            f"export takes networks made of mpd_agl.nn.SpikingBlock, and {type(net).__name__} has none. "
            "Build its spiking layers from SpikingBlock."
        )
    return copy.deepcopy(net) if is_folded(net) else fold(net)


def plain_network(net: Net, *, int8: bool = False) -> Net:
    """A folded copy in plain operators.

    `int8` is for all synapses but the first, whose input is real, those of membrane shortcuts, and the readout's.
    """
    out = folded(net)
    synapses = (m for m in out.modules() if isinstance(m, SpikingBlock | Current) and m.synapse is not None)
    first = next(synapses, None)
    for name, block in [(n, m) for n, m in out.named_modules() if isinstance(m, SpikingBlock)]:
        _replace(out, name, PlainBlock(block, int8 and block is not first))
    for name, neuron in [(n, m) for n, m in out.named_modules() if isinstance(m, Neuron)]:
        _replace(out, name, PlainNeuron(neuron))
    for module in out.modules():
        whole_input = isinstance(module, Current) and module is not first and module.takes_spikes
        if int8 and whole_input and isinstance(module.synapse, nn.Conv2d | nn.Linear):
            module.synapse = WholeSynapse(module.synapse)
    return out.eval()


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(parent), leaf, module)
