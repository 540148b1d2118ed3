"""Surrogate shapes of published rivals. Their backward pass runs in plain PyTorch."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mpd_agl.core import Surrogate


@dataclass(frozen=True)
class ArctanPeak(Surrogate):
    """DeepTAGE's shape (Liu et al. 2025), the arctan bump with peak 1 and area delta: `1 / (1 + pi^2 (u/delta)^2)`."""

    name: ClassVar[str] = "arctan-peak"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """As `Arctan`, not divided by the width."""
        r = u * math.pi / kappa
        return 1 / (1 + r * r)

    def grad_kappa(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """dH/dkappa of that soft step."""
        r = u * math.pi / kappa
        h = self.grad(u, kappa)
        return 0.5 + torch.atan(r) / math.pi - torch.where(h == 0, 0.0, (u / kappa) * h)


@dataclass(frozen=True)
class FastSigmoid(Surrogate):
    """`h(u) = 1 / (1 + k |u|)^2` with slope `k = 2/kappa` (Zenke and Ganguli 2018): peak 1, area kappa.

    >>> FastSigmoid().grad(torch.tensor([0.0, 0.01]), 2 / 100)
    tensor([1.0000, 0.2500])
    """

    name: ClassVar[str] = "fast-sigmoid"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """Not divided by the width: a steeper slope makes the bump narrower, not higher."""
        return (1 / (1 + 2 * (u / kappa).abs())).square()

    def grad_kappa(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """dH/dkappa of that soft step."""
        below = 1 / (1 + 2 * (u / kappa).abs())
        r_below = 0.5 * torch.sign(u) * (1 - below)  # r/(1 + 2|r|), finite however large r is
        return 0.5 + r_below - r_below * below


@dataclass(frozen=True)
class S2NN(Surrogate):
    """The surrogate of single-step networks (Suetake et al. 2023), written at its a = 4, b = 1, with r = u/kappa.

    `h(u) = 4 p (1 - p)/kappa` with `p = sigmoid(4 r)` below the threshold, `1/(kappa (r + 1))` from it on. The upper
    part falls so slowly that the area has no bound.

    >>> S2NN().grad(torch.tensor([-0.5, 0.0, 1.0]), 1.0)
    tensor([0.4200, 1.0000, 0.5000])
    """

    name: ClassVar[str] = "s2nn"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """Steep below the threshold, a long tail above it."""
        r = u / kappa
        below = torch.sigmoid(4 * r) * torch.sigmoid(-4 * r) * 4
        return torch.where(u < 0, below, 1 / (r.clamp_min(0) + 1)) / kappa


@dataclass(frozen=True)
class MPR(Surrogate):
    """The membrane potential rectificator (Guo et al. 2022) before a rectangle, at v_th = 1/2: `h(psi(u)) psi'(u)`.

    The rectified potential is `phi(v) = v^(1/3)` over 1, `1 - (1 - v)^(1/3)` under 0, and `1/2 + tanh(3 (v - 1/2))/(2
    tanh 1.5)` between. It rises and has phi(1/2) = 1/2, so a neuron with v_th = 1/2 fires at the same potentials with
    and without it: only the gradient knows it. `psi(u) = phi(u + 1/2) - 1/2` is odd.

    >>> MPR().grad(torch.tensor([-0.6, 0.0, 0.4]), 1.0)
    tensor([0.0000, 1.6572, 0.5055])
    """

    name: ClassVar[str] = "mpr"

    @staticmethod
    def rectified(u: Tensor) -> Tensor:
        """psi(u)."""
        size = u.abs()
        inner = torch.tanh(3 * u) / (2 * math.tanh(1.5))
        return torch.where(size <= 0.5, inner, torch.sign(u) * ((size + 0.5) ** (1 / 3) - 0.5))

    @staticmethod
    def slope(u: Tensor) -> Tensor:
        """psi'(u)."""
        size = u.abs()
        inner = 3 * (1 - torch.tanh(3 * u).square()) / (2 * math.tanh(1.5))
        return torch.where(size <= 0.5, inner, (size + 0.5) ** (-2 / 3) / 3)

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """The rectangle of the rectified potential, by the chain rule."""
        return (self.rectified(u).abs() < kappa / 2).to(u.dtype) * self.slope(u) / kappa

    def grad_kappa(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """-psi(u)/kappa^2 inside the window."""
        psi = self.rectified(u)
        return torch.where(psi.abs() < kappa / 2, -psi / kappa / kappa, 0.0)
