"""Firing rates given to a network with random weights.

In one pass over a batch each layer's tdBN takes the batch's statistics and the one beta, the same for all channels, with which the share of
spikes over all timesteps is the given one. So a layer's rate is a trained network's; its spread over channels and space is not.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mpd_agl import kernels
from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn import SpikingBlock

HALVINGS = 24


@torch.no_grad()
def impose(net: Network, x: Tensor, wanted: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Set every layer's rate; returns for each what it became, its beta and the share of its inputs that are active."""
    blocks = {name: m for name, m in net.named_modules() if isinstance(m, SpikingBlock)}
    for name in blocks:
        if name not in wanted:
            raise InputError(
                f"the rates are of another network: {net.name} has a layer {name}, which they do not name. Give a run of {net.name}."
            )
    N = x.shape[0] if x.dim() == 4 else x.shape[1]
    seen: dict[str, dict[str, float]] = {}

    def hook(name: str, block: SpikingBlock) -> Any:
        def set_beta(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            x_SNC = output.view(-1, N, *output.shape[1:])
            seen[name] = {
                "asked": wanted[name],
                **_set_beta(block, x_SNC, net.num_steps, wanted[name]),
                "rate_in": float(torch.count_nonzero(inputs[0])) / inputs[0].numel(),
            }

        return set_beta

    handles = [block.synapse.register_forward_hook(hook(name, block)) for name, block in blocks.items()]
    try:
        net.eval()(x)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _set_beta(block: SpikingBlock, x_SNC: Tensor, T: int, wanted: float) -> dict[str, float]:
    norm = block.norm
    assert norm is not None
    mean_C, var_C = kernels.moments(x_SNC)
    norm.running_mean.copy_(mean_C)
    norm.running_var.copy_(var_C)
    scale_C = norm.weight * (norm.alpha * norm.v_th) * torch.rsqrt(var_C + norm.eps)
    low, high, one_T, beta, rate = -5.0, 5.0, torch.ones(T), 0.0, 0.0
    for _ in range(HALVINGS):
        beta = (low + high) / 2
        beta_C = torch.full_like(mean_C, beta)
        sums_T6 = kernels.probe(x_SNC, mean_C, scale_C, beta_C, block.neuron.tau, one_T, v_th=block.neuron.v_th)
        rate = float(sums_T6[:, 0].sum()) / (T * x_SNC[0].numel())
        low, high = (beta, high) if rate < wanted else (low, beta)
    norm.bias.fill_(beta)
    return {"rate": rate, "beta": beta}
