"""Multiply-accumulates of each layer for one input at one timestep, counted from the shapes in a forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.models import Network


@dataclass(frozen=True)
class LayerOps:
    """A layer's name as a person says it (`stage2.block1.conv2`) and its MACs per image and timestep."""

    name: str
    macs: int
    kind: str
    """`stem` (real-valued input), `hidden` or `readout`."""


def synapses(net: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """Convolutions and linear layers in network order, each under the name of the block that it belongs to."""
    found: dict[str, nn.Conv2d | nn.Linear] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            found[path.removesuffix(".synapse").removesuffix(".linear")] = module
    return found


def macs_of(module: nn.Conv2d | nn.Linear, output: Tensor) -> int:
    """The MACs that one output of batch 1 takes."""
    if isinstance(module, nn.Linear):
        return output.numel() // output.shape[-1] * module.in_features * module.out_features
    kernel_h, kernel_w = module.kernel_size
    return output.numel() * (module.in_channels // module.groups) * kernel_h * kernel_w


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module has its own mode again."""
    modes = {m: m.training for m in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def count_operations(net: Network) -> list[LayerOps]:
    """Each layer's MACs for one image and one timestep.

    >>> from mpd_agl.models import create_model
    >>> sum(layer.macs for layer in count_operations(create_model("resnet19")))
    2285373952
    """
    o = net.options
    macs: dict[str, int] = {}
    layers = synapses(net)

    def hook(name: str) -> Any:
        def count(module: nn.Conv2d | nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
            macs[name] = macs_of(module, output)

        return count

    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    steps, net.num_steps = net.num_steps, 1
    device = next(net.parameters()).device
    try:
        with evaluating(net):
            net(torch.zeros(1, o.in_channels, o.image_size, o.image_size, device=device))
    finally:
        net.num_steps = steps
        for handle in handles:
            handle.remove()
    names = list(layers)
    kinds = {names[0]: "stem", names[-1]: "readout"}
    return [LayerOps(name, macs[name], kinds.get(name, "hidden")) for name in names]
