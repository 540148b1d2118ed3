"""A moving average of the weights, kept as a second network that is evaluated in the first one's place."""

import copy

import torch
from torch import nn


class Ema:
    """`average <- decay * average + (1 - decay) * weights` after each step; integer buffers are copied."""

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.net = copy.deepcopy(net).eval()
        for parameter in self.net.parameters():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        """Take the network's present state into the average."""
        for mine, theirs in zip(self.net.state_dict().values(), net.state_dict().values(), strict=True):
            if mine.is_floating_point():
                mine.lerp_(theirs, 1 - self.decay)
            else:
                mine.copy_(theirs)
