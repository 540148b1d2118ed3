"""Adversarial inputs: FGSM and PGD, for a network that takes normalised images.

Sizes are in pixels from 0 to 1. The gradient of a spiking network is its surrogate's. The network is attacked in
evaluation mode, and neither its modes nor its gradients change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.modes import evaluation_mode
from mpd_agl.train.losses import mean_output

ATTACKS = ("fgsm", "pgd")
Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pixels:
    """What pixels from 0 to 1 are behind `(x - mean)/std`, channels first."""

    mean: Sequence[float]
    std: Sequence[float]

    def _channels(self, values: Sequence[float], x: Tensor) -> Tensor:
        return torch.tensor(list(values), dtype=x.dtype, device=x.device).view(-1, 1, 1)

    def steps(self, size: float, x: Tensor) -> Tensor:
        """A size in pixels as one per channel of x."""
        return size / self._channels(self.std, x)

    def within(self, x: Tensor, around: Tensor, eps: float) -> Tensor:
        """x kept within eps of `around`, and within pixels from 0 to 1."""
        mean, std, reach = self._channels(self.mean, x), self._channels(self.std, x), self.steps(eps, x)
        x = torch.minimum(torch.maximum(x, around - reach), around + reach)
        return torch.minimum(torch.maximum(x, -mean / std), (1 - mean) / std)


def input_gradient(net: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of a loss of the mean output with respect to the input."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(mean_output(net(x))), x)[0]


def pgd(
    net: nn.Module, x: Tensor, y: Tensor, pixels: Pixels, *, eps: float, steps: int = 10, step: float = 0.0
) -> Tensor:
    """Projected gradient ascent on the cross-entropy (Madry et al. 2018); `step` 0 is `2.5 eps/steps`.

    One step of eps without a random start is FGSM (Goodfellow et al. 2015): `x + eps sign(dL/dx)`.
    """
    with evaluation_mode(net):
        found = x.detach()
        if steps > 1:
            found = pixels.within(found + pixels.steps(eps, x) * (2 * torch.rand_like(x) - 1), x, eps)
        size = pixels.steps(eps if steps == 1 else step or 2.5 * eps / steps, x)
        for _ in range(steps):
            g = input_gradient(net, found, lambda o: F.cross_entropy(o, y))
            found = pixels.within(found + size * g.sign(), x, eps)
        return found


def build_attack(name: str, pixels: Pixels, *, eps: float, steps: int = 10) -> Attack:
    """The attack of that name as a function of network, batch and labels."""
    if name not in ATTACKS:
        raise unknown_name("attack", name, ATTACKS)
    if not 0 < eps <= 1:
        raise InputError(f"an attack needs 0 < eps <= 1, got eps={eps}. Use 8/255.", "bad-attack")
    if name == "pgd" and steps < 2:
        raise InputError(f"pgd takes at least 2 steps, got {steps}. One step is fgsm.", "bad-attack")
    options: dict[str, Any] = {"eps": eps, "steps": 1 if name == "fgsm" else steps}
    return lambda net, x, y: pgd(net, x, y, pixels, **options)
