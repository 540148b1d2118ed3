"""Where a NaN or Inf began: in the weights, in the input, in which layer, in which gradient."""

from typing import Any

import torch
from torch import Tensor, nn


def bad(tensor: Tensor) -> bool:
    """Whether a tensor holds a NaN or Inf."""
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())


def bad_state(net: nn.Module) -> str | None:
    """The first parameter or buffer with a NaN or Inf."""
    return next((name for name, tensor in net.state_dict().items() if bad(tensor)), None)


@torch.no_grad()
def first_bad_layer(net: nn.Module, x: Tensor) -> str:
    """Run the batch again and name the first layer whose output is not finite."""
    if bad(x):
        return "the input"
    if name := bad_state(net):
        return f"parameter {name}"
    found: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and bad(output):
                found.append(name)

        return look

    handles = [m.register_forward_hook(hook(n)) for n, m in net.named_modules() if n]
    try:
        net(x)
    finally:
        for handle in handles:
            handle.remove()
    return f"layer {found[0]}" if found else "the loss itself"


def first_bad_gradient(net: nn.Module) -> str:
    """The parameter whose gradient went bad first: backward runs from the output, so the last in network order."""
    names = [name for name, p in net.named_parameters() if p.grad is not None and bad(p.grad)]
    return f"the gradient of {names[-1]}" if names else "the gradient's norm, which overflows"
