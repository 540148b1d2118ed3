"""Multiply-accumulates of each layer for one input at one timestep, counted from the shapes in a forward pass.

Modules that are no convolution or linear layer say themselves what they take:

- `operations = "gate"` (products of real values) or `"attention"` (products of spikes), with `macs_per_step(*inputs)`
  of the call's tensors, and for attention `active_share(*inputs)`, the share of those products that are not 0;
- a norm with `multiplies_per_step = True`, whose factor differs from timestep to timestep, so that no weight holds it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.adaptation.find import removed
from mpd_agl.models import Network
from mpd_agl.nn.modes import evaluation_mode


@dataclass(frozen=True)
class LayerOps:
    """A layer's name as a person says it (`stage2.block1.conv2`) and its MACs per image and timestep."""

    name: str
    macs: int
    kind: str
    """`stem` (real-valued input), `hidden`, `readout`, `attention` (products of spikes) or `gate` (of real values)."""
    scales: int = 0
    """Neurons of the layer whose norm has another factor at every timestep: no weight can hold it."""


def synapses(net: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """Convolutions and linear layers in network order, each under the name of the block that it belongs to."""
    found: dict[str, nn.Conv2d | nn.Linear] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            found[path.removesuffix(".synapse").removesuffix(".linear")] = module
    return found


def attentions(net: nn.Module) -> dict[str, nn.Module]:
    """Gates and products of spikes, by name."""
    return {path: m for path, m in net.named_modules() if hasattr(m, "operations")}


def tensors(inputs: tuple[Any, ...]) -> list[Tensor]:
    """Those among the arguments of a call."""
    return [a for a in inputs if isinstance(a, Tensor)]


def macs_of(module: nn.Conv2d | nn.Linear, output: Tensor) -> int:
    """The MACs of one sample at one timestep, of an output whose first axis (first two of (T, N, F)) counts both."""
    if isinstance(module, nn.Linear):
        return output.flatten(0, -2)[0].numel() * module.in_features
    kernel_h, kernel_w = module.kernel_size
    return output[0].numel() * (module.in_channels // module.groups) * kernel_h * kernel_w


def count_operations(net: Network) -> list[LayerOps]:
    """Each layer's MACs for one image and one timestep.

    >>> from mpd_agl.models import create_model
    >>> sum(layer.macs for layer in count_operations(create_model("resnet19")))
    2285373952
    """
    o = net.options
    macs: dict[str, int] = {}
    scales: dict[str, int] = {}
    layers: Mapping[str, nn.Module] = synapses(net)
    others = attentions(net)
    norms = {p.removesuffix(".norm"): m for p, m in net.named_modules() if getattr(m, "multiplies_per_step", False)}

    def of_synapse(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: macs.update({name: macs_of(module, output)})

    def of_other(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: macs.update({name: module.macs_per_step(*tensors(inputs))})

    def of_norm(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: scales.update({name: output[0, 0].numel()})

    counted = [(layers, of_synapse), (others, of_other), (norms, of_norm)]
    hooks = [m.register_forward_hook(of(n)) for modules, of in counted for n, m in modules.items()]
    steps = net.num_steps
    if not net.is_tied_to_steps:
        net.num_steps = 1
    device = next(net.parameters()).device
    try:
        with removed(hooks), evaluation_mode(net), torch.no_grad():
            net(torch.zeros(1, o.in_channels, o.image_size, o.image_size, device=device))
    finally:
        net.num_steps = steps
    names = list(layers)
    kinds: dict[str, Any] = {names[0]: "stem", names[-1]: "readout"} | {n: m.operations for n, m in others.items()}
    order = dict.fromkeys(p.removesuffix(".synapse").removesuffix(".linear") for p, _ in net.named_modules())
    return [LayerOps(n, macs[n], kinds.get(n, "hidden"), scales.get(n, 0)) for n in order if n in macs]
