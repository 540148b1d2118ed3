"""A network rebuilt from another library's parts: the same topology and weights, its neuron, norm and time loop.

Each peer runs in its best setting on a CPU: T folded into the batch for the synapses, channels_last memory, a static
image convolved once. Their surrogates have a fixed width of 1, because neither has one that follows the potentials.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import PLIF, SpikingBlock, TdBatchNorm


class PeerBlock(nn.Module):
    """The block's own synapse, the peer's norm and neuron; called as `SpikingBlock` is."""

    def __init__(self, block: SpikingBlock) -> None:
        super().__init__()
        if block.synapse is None or type(block.norm) is not TdBatchNorm:
            raise InputError(
                "the peers' networks are rebuilt from synapse, tdBN and neuron, and this network has other blocks. "
                "Compare another network, such as resnet19."
            )
        self.synapse = copy.deepcopy(block.synapse)

    def synapses(self, x_SNC: Tensor, num_steps: int | None) -> Tensor:
        """The convolution's output of T steps, with T folded into the batch, in channels_last memory."""
        y: Tensor = self.synapse(x_SNC.flatten(0, 1))
        if num_steps is not None and x_SNC.shape[0] == 1 < num_steps:
            y = torch.cat([y] * num_steps)  # `repeat` would leave channels_last
        return y

    def reset(self) -> None:
        """Back to rest, between two batches."""
        raise NotImplementedError


def scaled_weight(block: SpikingBlock) -> Tensor:
    """tdBN's gamma with `alpha v_th` in it, as a plain batch norm takes it."""
    assert isinstance(block.norm, TdBatchNorm)
    return block.norm.weight.detach() * block.norm.alpha * block.neuron.v_th


def copy_norm(norm: Any, block: SpikingBlock) -> None:
    """tdBN's parameters and statistics, as they are now."""
    assert block.norm is not None
    with torch.no_grad():
        norm.weight.copy_(scaled_weight(block))
        norm.bias.copy_(block.norm.bias)
        norm.running_mean.copy_(block.norm.running_mean)
        norm.running_var.copy_(block.norm.running_var)
    norm.eps, norm.momentum = block.norm.eps, block.norm.momentum


class SpikingJellyBlock(PeerBlock):
    """conv - tdBN - PLIF in SpikingJelly's multi-step mode. Its `tau` is 1/(1 - tau) here; its gamma includes v_th."""

    def __init__(self, block: SpikingBlock) -> None:
        super().__init__(block)
        from spikingjelly.activation_based import layer, neuron, surrogate

        assert isinstance(block.norm, TdBatchNorm)
        flat = isinstance(block.synapse, nn.Linear)
        kind = layer.ThresholdDependentBatchNorm1d if flat else layer.ThresholdDependentBatchNorm2d
        self.norm = kind(block.norm.alpha, block.neuron.v_th, block.norm.num_features)
        copy_norm(self.norm, block)
        tau = 1 / (1 - float(block.neuron.tau.detach()))
        self.neuron = (neuron.ParametricLIFNode if isinstance(block.neuron, PLIF) else neuron.LIFNode)(
            tau,
            decay_input=False,
            v_threshold=block.neuron.v_th,
            v_reset=0.0,
            surrogate_function=surrogate.Rect(alpha=1.0),
            step_mode="m",
        )

    def forward(self, x_SNC: Tensor, num_steps: int | None = None, *, residual: Tensor | None = None) -> Tensor:
        """Spikes."""
        y = self.synapses(x_SNC, num_steps)
        s_TNC: Tensor = self.neuron(self.norm(y.view(-1, x_SNC.shape[1], *y.shape[1:])))
        return s_TNC if residual is None else s_TNC + residual

    def reset(self) -> None:
        """SpikingJelly's own reset."""
        self.neuron.reset()


def rectangle(u: Tensor, grad: Tensor, spikes: Tensor) -> Tensor:
    """Eq. 6 with kappa = 1, in the form that snnTorch takes."""
    return grad * (u.abs() < 0.5)


class SnnTorchBlock(PeerBlock):
    """conv - batch norm - `Leaky` with reset to zero, a call per timestep, as snnTorch's neurons work.

    `Leaky` with `reset_mechanism="zero"` and its delayed reset is Eq. 2: the reset of step t - 1 is applied in step t.
    It fires at `>`, not `>=`, and its reset has no gradient. snnTorch has no tdBN, so a plain batch norm over T and
    N with v_th in its weight takes its place: it is the same function.
    """

    def __init__(self, block: SpikingBlock) -> None:
        super().__init__(block)
        import snntorch
        from snntorch import surrogate

        assert isinstance(block.norm, TdBatchNorm)
        flat = isinstance(block.synapse, nn.Linear)
        self.norm = (nn.BatchNorm1d if flat else nn.BatchNorm2d)(block.norm.num_features)
        copy_norm(self.norm, block)
        self.neuron = snntorch.Leaky(
            beta=block.neuron.tau.detach().clone(),
            threshold=block.neuron.v_th,
            spike_grad=surrogate.custom_surrogate(rectangle),
            learn_beta=isinstance(block.neuron, PLIF),
            reset_mechanism="zero",
        )

    def forward(self, x_SNC: Tensor, num_steps: int | None = None, *, residual: Tensor | None = None) -> Tensor:
        """Spikes."""
        y = self.norm(self.synapses(x_SNC, num_steps))
        i_TNC = y.view(-1, x_SNC.shape[1], *y.shape[1:])
        potential = torch.zeros_like(i_TNC[0])
        spikes = []
        for i_NC in i_TNC:
            s_NC, potential = self.neuron(i_NC, potential)
            spikes.append(s_NC)
        s_TNC = torch.stack(spikes).to(i_TNC.dtype)
        return s_TNC if residual is None else s_TNC + residual

    def reset(self) -> None:
        """Release the graph of the last step."""
        self.neuron.mem = torch.zeros(0)


PEERS: dict[str, Callable[[SpikingBlock], PeerBlock]] = {"spikingjelly": SpikingJellyBlock, "snntorch": SnnTorchBlock}


def rebuild(net: Network, peer: str) -> Network:
    """The network with every block made of the peer's parts."""
    out = copy.deepcopy(net)
    for name, module in list(out.named_modules()):
        if isinstance(module, SpikingBlock):
            parent, _, leaf = name.rpartition(".")
            setattr(out.get_submodule(parent), leaf, PEERS[peer](module))
    return out.train(net.training)


def reset(net: nn.Module) -> None:
    """Every neuron back to rest."""
    for module in net.modules():
        if isinstance(module, PeerBlock):
            module.reset()
