"""How good a width's gradient is at one moment of training: how far the loss falls along it, and each layer's gain.

The weights are the same for every rule and factor; only the surrogate's width differs, so every gradient starts from
the same loss. A step has a length relative to the weights, along the whole gradient (as SGD goes) or along each
parameter's own gradient with a length of its own (as Adam goes: the direction without the layers' gains).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.core import matched_gain
from mpd_agl.models import Network
from mpd_agl.nn import SpikingBlock
from mpd_agl.nn.moments import Potential
from mpd_agl.nn.width import Width
from mpd_agl.train import build
from mpd_agl.train.config import RunConfig
from mpd_agl.train.losses import cross_entropy

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of a rule's own width."""
STEPS = (0.001, 0.003, 0.01, 0.03, 0.1)
"""Lengths of a step, as shares of the weights' norm."""
Batch = tuple[Tensor, Tensor]


def with_rule(trained: Network, config: RunConfig, method: str, factor: float, image: Tensor) -> Network:
    """The trained network with another method's width times a factor, and the same forward pass."""
    o = trained.options
    other = build.build_network(
        config.model_copy(update={"method": method}),
        in_channels=image.shape[-3],
        image_size=image.shape[-1],
        num_classes=o.num_classes,
    )
    found = other.load_state_dict(trained.state_dict(), strict=False)
    assert not [name for name in found.missing_keys if ".width." not in name and ".neuron." not in name]
    blocks = {name: m for name, m in trained.named_modules() if isinstance(m, SpikingBlock)}
    for name, block in other.named_modules():
        if not isinstance(block, SpikingBlock):
            continue
        if "rho" not in dict(block.neuron.named_parameters()):  # a neuron with a fixed decay takes the learnt one
            block.neuron.tau = blocks[name].neuron.tau.detach().clone()
        if factor != 1:
            block.width = _Scaled(block.width, factor)
    return other.train()


class _Scaled(Width):
    """A rule's width times a factor. Where the rule sets the height too, it is matched to the new width."""

    def __init__(self, rule: Width, factor: float) -> None:
        super().__init__()
        self.rule, self.factor = rule, factor
        self.needs_batch, self.chain = rule.needs_batch, rule.chain

    def forward(self, potential: Potential) -> Tensor:
        """kappa_T."""
        return self.with_gain(potential)[0]

    def with_gain(self, potential: Potential) -> tuple[Tensor, Tensor | None]:
        """kappa_T and gain_T."""
        kappa_T, gain_T = self.rule.with_gain(potential)
        kappa_T = self.factor * kappa_T
        if gain_T is not None:
            mean_T, std_T = potential.moments("exact")
            gain_T = matched_gain(mean_T, std_T, kappa_T, potential.surrogate, v_th=potential.threshold)
        return kappa_T, gain_T


def loss_of(net: nn.Module, batch: Batch) -> float:
    """The loss on a batch with the batch's own statistics; no running statistic is kept."""
    with torch.no_grad():
        return float(cross_entropy(net(batch[0]), batch[1]))


def _note(rms: dict[str, float], name: str, g: Tensor) -> None:
    rms[name] = float(g.square().mean().sqrt())


def gradient(net: Network, batch: Batch) -> tuple[list[Tensor], dict[str, float]]:
    """The surrogate gradient of every parameter that all rules share, and the rms of dL/ds at each layer's output."""
    rms: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            output.register_hook(partial(_note, rms, name))  # type: ignore[no-untyped-call]

        return hook

    blocks = _blocks(net)
    handles = [m.register_forward_hook(watch(n)) for n, m in blocks]
    try:
        net.zero_grad(set_to_none=True)
        torch.autograd.backward(cross_entropy(net(batch[0]), batch[1]))
    finally:
        for handle in handles:
            handle.remove()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in weights(net)]
    return grads, {name: rms[name] for name, _ in blocks if name in rms}


def weights(net: nn.Module) -> list[nn.Parameter]:
    """The parameters of synapses and norms; a rule's own parameter or a decay is none of them."""
    return [p for name, p in net.named_parameters() if ".width." not in name and ".neuron." not in name]


def falls(net: nn.Module, grads: Sequence[Tensor], same: Batch, fresh: Batch, *, layerwise: bool) -> dict[str, Any]:
    """How far the loss falls at each length of a step against the gradient, on its own batch and on a fresh one."""
    parameters = weights(net)
    start = [p.detach().clone() for p in parameters]
    if layerwise:
        scale = [float(w.norm() / g.norm()) if float(g.norm()) > 0 else 0.0 for w, g in zip(start, grads, strict=True)]
    else:
        total = [float(torch.stack([t.norm() for t in all_]).norm()) for all_ in (start, grads)]
        scale = [total[0] / total[1] if total[1] > 0 else 0.0] * len(start)
    before = loss_of(net, same), loss_of(net, fresh)
    out: dict[str, list[float]] = {"same": [], "fresh": []}
    with torch.no_grad():
        for length in STEPS:
            for p, w, g, s in zip(parameters, start, grads, scale, strict=True):
                p.copy_(w - length * s * g)
            out["same"].append(before[0] - loss_of(net, same))
            out["fresh"].append(before[1] - loss_of(net, fresh))
        for p, w in zip(parameters, start, strict=True):
            p.copy_(w)
    return out


def measure(
    trained: Network, config: RunConfig, method: str, factors: Sequence[float], batches: Sequence[tuple[Batch, Batch]]
) -> dict[str, Any]:
    """Per factor: falls of the loss, means over the batches, and the gradient's rms by layer."""
    found: dict[str, Any] = {}
    for factor in factors:
        net = with_rule(trained, config, method, factor, batches[0][0][0])
        each, gains = [], []
        for same, fresh in batches:
            grads, rms = gradient(net, same)
            gains.append(rms)
            each.append({kind: falls(net, grads, same, fresh, layerwise=kind == "layerwise") for kind in KINDS})
        found[f"{factor:g}"] = {
            **{kind: {on: _mean([e[kind][on] for e in each]) for on in ("same", "fresh")} for kind in KINDS},
            "layers": list(gains[0]),  # lists, because JSON's names are sorted and layers have an order
            "gradient_rms": [sum(g[name] for g in gains) / len(gains) for name in gains[0]],
            "kappa": [float(m.kappa(net.num_steps).mean()) for _, m in _blocks(net)],
        }
    return found


KINDS = ("whole", "layerwise")


def _blocks(net: nn.Module) -> list[tuple[str, SpikingBlock]]:
    return [(n, m) for n, m in net.named_modules() if isinstance(m, SpikingBlock)]


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
