"""Optimizers, their state as named tensors, and the learning rate as a function of epoch and step."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.nn import TdBatchNorm
from mpd_agl.train.config import OptimConfig


def build_optimizer(net: nn.Module, config: OptimConfig, *, fused: bool = False) -> torch.optim.Optimizer:
    """The optimizer that a configuration names, over all parameters of the network.

    `fused`: torch's single kernel, which skips a step by a flag on the device; on a GPU nothing then waits for the
    step.
    """
    groups: list[dict[str, Any]]
    parameters = [p for p in net.parameters() if p.requires_grad]
    if config.decay_on == "all":
        groups = [{"params": parameters}]
    else:
        norms = {id(p) for m in net.modules() if isinstance(m, TdBatchNorm) for p in m.parameters()}  # TAB's are (T, C)
        weights = [p for p in parameters if p.dim() >= 2 and id(p) not in norms]
        chosen = set(map(id, weights))
        others = [p for p in parameters if id(p) not in chosen]
        groups = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,
            weight_decay=config.weight_decay,
            fused=fused or None,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused or None)


def learning_rate(config: OptimConfig, epoch: int, epochs: int, done: float = 0.0) -> float:
    """The rate of an epoch, 0 being the first: linear warm-up, then `lr/2 (1 + cos(pi e/E))`.

    `done` is the share of the epoch that is over; only `cosine-steps` looks at it.

    >>> [round(learning_rate(OptimConfig(lr=0.1), e, 4), 4) for e in range(4)]
    [0.1, 0.0854, 0.05, 0.0146]
    >>> by_steps = OptimConfig(lr=0.1, schedule="cosine-steps")
    >>> [round(learning_rate(by_steps, 3, 4, done), 4) for done in (0.0, 0.5, 1.0)]
    [0.0146, 0.0038, 0.0]
    """
    now = epoch + done if config.schedule == "cosine-steps" else epoch
    if epoch < config.warmup_epochs:
        return config.lr * (now + 1) / (config.warmup_epochs + 1)
    if config.schedule == "constant":
        return config.lr
    over = (now - config.warmup_epochs) / max(1, epochs - config.warmup_epochs)
    return 0.5 * config.lr * (1 + math.cos(math.pi * over))


def _named(net: nn.Module, objective: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a network, and those of its objective, which are trained with it."""
    own = {f"objective.{name}": p for name, p in objective.named_parameters()}
    return {**dict(net.named_parameters()), **own}


def pack_optimizer(optimizer: torch.optim.Optimizer, net: nn.Module, objective: nn.Module) -> dict[str, Tensor]:
    """Momenta and the like as tensors `<what>:<parameter>`, for safetensors.

    Learning rates follow from the configuration.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in _named(net, objective).items()}
    return {
        f"{what}:{names[parameter]}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimizer.state.items()
        for what, value in state.items()
        if value is not None
    }


@torch.no_grad()
def unpack_optimizer(
    optimizer: torch.optim.Optimizer, net: nn.Module, tensors: Mapping[str, Tensor], objective: nn.Module
) -> None:
    """Put the state back, each tensor in its parameter's memory layout."""
    parameters = _named(net, objective)
    optimizer.state.clear()
    for key, value in tensors.items():
        what, _, name = key.partition(":")
        parameter = parameters[name]
        if value.shape == parameter.shape and value.dim():
            placed = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            on_host = what == "step" and not optimizer.defaults.get("fused")
            placed = value.clone() if on_host else value.to(parameter.device, copy=True)
        optimizer.state[parameter][what] = placed
