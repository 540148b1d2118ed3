"""Optimizers and the learning rate as a function of the epoch: nothing to save but the epoch itself."""

import math
from typing import Any

import torch
from torch import nn

from mpd_agl.train.config import OptimConfig


def build_optimizer(net: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that a configuration names, over all parameters of the network."""
    groups: list[dict[str, Any]]
    parameters = [p for p in net.parameters() if p.requires_grad]
    if config.decay_on == "all":
        groups = [{"params": parameters}]
    else:
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2]},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, weight_decay=config.weight_decay)


def learning_rate(config: OptimConfig, epoch: int, epochs: int) -> float:
    """The rate of an epoch (0 is the first): linear warm-up, then `lr/2 (1 + cos(pi e/E))`, which would be 0 at epoch E.

    >>> [round(learning_rate(OptimConfig(lr=0.1), e, 4), 4) for e in range(4)]
    [0.1, 0.0854, 0.05, 0.0146]
    """
    if epoch < config.warmup_epochs:
        return config.lr * (epoch + 1) / (config.warmup_epochs + 1)
    if config.schedule == "constant":
        return config.lr
    done = (epoch - config.warmup_epochs) / max(1, epochs - config.warmup_epochs)
    return 0.5 * config.lr * (1 + math.cos(math.pi * done))
