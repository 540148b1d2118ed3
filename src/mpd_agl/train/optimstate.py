"""An optimizer's state as named tensors, `<what>:<parameter>`, for safetensors. Learning rates follow from the configuration."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def pack_optimizer(optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[str, Tensor]:
    """Momenta and the like, by parameter name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    return {
        f"{what}:{names[parameter]}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
        if value is not None
    }


@torch.no_grad()
def unpack_optimizer(optimizer: torch.optim.Optimizer, net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the state back, each tensor in its parameter's memory layout."""
    parameters = dict(net.named_parameters())
    optimizer.state.clear()
    for key, value in tensors.items():
        what, _, name = key.partition(":")
        parameter = parameters[name]
        if value.shape == parameter.shape and value.dim():
            placed = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            placed = value.clone() if what == "step" else value.to(parameter.device, copy=True)
        optimizer.state[parameter][what] = placed
