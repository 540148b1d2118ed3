"""Multiply-accumulates of each layer for one input at one timestep, counted from the shapes in a forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.models import Network
from mpd_agl.nn import TAB, TCJA, TEBN, SpikeAttention, StepAffine


@dataclass(frozen=True)
class LayerOps:
    """A layer's name as a person says it (`stage2.block1.conv2`) and its MACs per image and timestep."""

    name: str
    macs: int
    kind: str
    """`stem` (real-valued input), `hidden`, `readout`, `attention` (products of spikes) or `gate` (of real values)."""
    scales: int = 0
    """Neurons of the layer whose norm has another factor at every timestep (TEBN, TAB): no weight can hold it."""


def synapses(net: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """Convolutions and linear layers in network order, each under the name of the block that it belongs to."""
    found: dict[str, nn.Conv2d | nn.Linear] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            found[path.removesuffix(".synapse").removesuffix(".linear")] = module
    return found


def attentions(net: nn.Module) -> dict[str, TCJA | SpikeAttention]:
    """Gates and products of spikes, by name."""
    return {path: m for path, m in net.named_modules() if isinstance(m, TCJA | SpikeAttention)}


def macs_of(module: nn.Conv2d | nn.Linear, output: Tensor) -> int:
    """The MACs of one sample at one timestep, of an output whose first axis (first two of (T, N, F)) counts both."""
    if isinstance(module, nn.Linear):
        return output.flatten(0, -2)[0].numel() * module.in_features
    kernel_h, kernel_w = module.kernel_size
    return output[0].numel() * (module.in_channels // module.groups) * kernel_h * kernel_w


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
    scales: dict[str, int] = {}
    layers, gates = synapses(net), attentions(net)

    def hook(name: str) -> Any:
        def count(module: nn.Conv2d | nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
            macs[name] = macs_of(module, output)

        return count

    def hook_gate(name: str) -> Any:
        def count(module: TCJA | SpikeAttention, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            macs[name] = module.macs_per_step(inputs[0])

        return count

    def hook_norm(name: str) -> Any:
        def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            scales[name] = output[0, 0].numel()

        return count

    handles = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    handles += [module.register_forward_hook(hook_gate(name)) for name, module in gates.items()]
    norms = {p.removesuffix(".norm"): m for p, m in net.named_modules() if isinstance(m, TEBN | TAB | StepAffine)}
    handles += [module.register_forward_hook(hook_norm(name)) for name, module in norms.items()]
    steps = net.num_steps
    if not net.is_tied_to_steps:
        net.num_steps = 1
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
    kinds |= {n: "gate" if isinstance(m, TCJA) else "attention" for n, m in gates.items()}
    order = dict.fromkeys(p.removesuffix(".synapse").removesuffix(".linear") for p, _ in net.named_modules())
    return [LayerOps(n, macs[n], kinds.get(n, "hidden"), scales.get(n, 0)) for n in order if n in macs]
