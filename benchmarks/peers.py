"""Our network rebuilt from another library's parts: the same topology, the same weights, that library's neuron, norm and time loop."""

import copy

import torch
from torch import Tensor, nn

from mpd_agl.models import Network
from mpd_agl.nn import SpikingBlock


class SpikingJellyBlock(nn.Module):
    """conv - tdBN - PLIF in SpikingJelly's multi-step mode. Its `tau` is 1/(1 - ours); its tdBN folds v_th into the weight."""

    def __init__(self, block: SpikingBlock) -> None:
        super().__init__()
        from spikingjelly.activation_based import layer, neuron, surrogate

        norm, own = block.norm, block.neuron
        self.conv = copy.deepcopy(block.conv)
        flat = isinstance(block.conv, nn.Linear)
        kind = layer.ThresholdDependentBatchNorm1d if flat else layer.ThresholdDependentBatchNorm2d
        self.norm = kind(norm.alpha, own.v_th, norm.num_features)
        with torch.no_grad():
            self.norm.weight.copy_(norm.weight * norm.alpha * own.v_th)
            self.norm.bias.copy_(norm.bias)
        self.neuron = neuron.ParametricLIFNode(
            init_tau=1 / (1 - float(own.tau.detach())),
            decay_input=False,
            v_threshold=own.v_th,
            v_reset=0.0,
            surrogate_function=surrogate.Rect(alpha=1.0),
            step_mode="m",
        )

    def forward(self, x_SNC: Tensor, num_steps: int | None = None, *, plus: Tensor | None = None) -> Tensor:
        from spikingjelly.activation_based import functional

        if num_steps and x_SNC.shape[0] == 1:
            x_SNC = x_SNC.repeat(num_steps, *[1] * (x_SNC.dim() - 1))
        s_TNC = self.neuron(self.norm(functional.seq_to_ann_forward(x_SNC, self.conv)))
        return s_TNC if plus is None else s_TNC + plus


def spikingjelly(net: Network) -> Network:
    out = copy.deepcopy(net)
    for name, module in list(out.named_modules()):
        if isinstance(module, SpikingBlock):
            parent, _, leaf = name.rpartition(".")
            setattr(out.get_submodule(parent), leaf, SpikingJellyBlock(module))
    return out


@torch.no_grad()
def agree(net: Network, x: Tensor) -> bool:
    """Whether the rebuilt network gives our logits in float64, where no potential is within rounding of the threshold."""
    ours, theirs = copy.deepcopy(net).double(), spikingjelly(net).double()
    return torch.allclose(ours(x.double()), theirs(x.double()), rtol=1e-6, atol=1e-9)


def reset(net: nn.Module) -> None:
    from spikingjelly.activation_based import functional

    functional.reset_net(net)
