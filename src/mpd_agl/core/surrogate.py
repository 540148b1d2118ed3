"""The spike (Eq. 3) and the surrogates that stand in for its derivative (Eq. 6).

A surrogate is a value: a bump `h(u; kappa)` around u = v - v_th = 0, and the soft step H that it is the derivative of.
All shapes are written as `h(u; kappa) = phi(u / kappa) / kappa`: unit area and peak `1/kappa`, so that one kappa means
the same for each of them.

Your own surrogate is a frozen dataclass with a `name` and `grad`. Pass the object wherever a surrogate's name is taken,
or give it a name by `register_surrogate`. Every backend takes it; beside native kernels its backward pass runs in plain
PyTorch.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mpd_agl.errors import InputError, unknown_name


@dataclass(frozen=True)
class Surrogate(ABC):
    """A surrogate derivative of the step function at width kappa. Only `grad` must be written.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Flat(Surrogate):
    ...     name: ClassVar[str] = "flat"
    ...     def grad(self, u, kappa):
    ...         return torch.ones_like(u) / kappa
    >>> u = torch.tensor([-3.0, 3.0], requires_grad=True)
    >>> torch.autograd.grad(spike(u, 2.0, Flat()).sum(), u)
    (tensor([0.5000, 0.5000]),)
    """

    name: ClassVar[str]

    @abstractmethod
    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """h(u; kappa), the stand-in for ds/dv; u = v - v_th."""

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """H(u; kappa), the smooth step whose derivative by u is `grad`. Only noisy spikes (ASGL) ask for it."""
        raise InputError(
            f"surrogate {self.name!r} has no soft_step, which ASGL's noisy spikes need. "
            "Write it (the integral of grad over u), or use another surrogate."
        )

    def grad_kappa(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """dH/dkappa, for learnable widths: `-(u/kappa) h(u; kappa)` if H depends on u/kappa alone; else override it."""
        h = self.grad(u, kappa)
        return torch.where(h == 0, 0.0, -(u / kappa) * h)  # far out u/kappa may overflow where h is 0

    def is_available(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """Where the gradient-available interval `|u| < kappa/2` holds (Eq. 6); the same interval for every shape."""
        return u.abs() < kappa / 2


@dataclass(frozen=True)
class Rectangular(Surrogate):
    """Eq. 6: `h(u) = 1/kappa where |u| < kappa/2` (strict), else 0.

    >>> Rectangular().grad(torch.tensor([-0.5, 0.0, 0.4]), 1.0)
    tensor([0., 1., 1.])
    """

    name: ClassVar[str] = "rectangular"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """Eq. 6."""
        return (u.abs() < kappa / 2).to(u.dtype) / kappa

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """clamp(u/kappa + 1/2, 0, 1)."""
        return (u / kappa + 0.5).clamp(0, 1)


@dataclass(frozen=True)
class Triangular(Surrogate):
    """`h(u) = max(0, 1 - |u|/kappa) / kappa` (Bellec et al. 2018)."""

    name: ClassVar[str] = "triangular"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """The triangle of half-width kappa."""
        return (1 - u.abs() / kappa).clamp_min(0) / kappa

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """1/2 + r - r|r|/2 with r = u/kappa kept within [-1, 1]."""
        r = (u / kappa).clamp(-1, 1)
        return 0.5 + r - 0.5 * r * r.abs()


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """`h(u) = a p (1-p)` with `p = sigmoid(a u)`, `a = 4/kappa` (Zenke and Vogels 2021)."""

    name: ClassVar[str] = "sigmoid"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """The product of two sigmoids, finite however large u is."""
        r = u * 4 / kappa
        return torch.sigmoid(r) * torch.sigmoid(-r) * 4 / kappa

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """sigmoid(4u/kappa)."""
        return torch.sigmoid(u * 4 / kappa)


@dataclass(frozen=True)
class Arctan(Surrogate):
    """`h(u) = 1 / (kappa (1 + (pi u/kappa)^2))` (Fang et al. 2021)."""

    name: ClassVar[str] = "arctan"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """A Cauchy bump; where the square overflows, 1/inf is the right 0."""
        r = u * math.pi / kappa
        return 1 / (1 + r * r) / kappa

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """1/2 + arctan(pi u/kappa)/pi."""
        return 0.5 + torch.atan(u * math.pi / kappa) / math.pi


@dataclass(frozen=True)
class ArctanPeak(Surrogate):
    """DeepTAGE's shape (Liu et al. 2025), the arctan bump with peak 1 and area delta: `1 / (1 + pi^2 (u/delta)^2)`."""

    name: ClassVar[str] = "arctan-peak"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """As `Arctan`, not divided by the width."""
        r = u * math.pi / kappa
        return 1 / (1 + r * r)

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """delta * (1/2 + arctan(pi u/delta)/pi): not a step from 0 to 1, since the area is delta."""
        return kappa * (0.5 + torch.atan(u * math.pi / kappa) / math.pi)

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

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """kappa (1/2 + r/(1 + 2|r|)) with r = u/kappa: a step from 0 to kappa, since the area is kappa."""
        r = u / kappa
        return kappa * (0.5 + r / (1 + 2 * r.abs()))

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

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """sigmoid(4r) below the threshold, 1/2 + log(1 + r) from it on."""
        r = u / kappa
        return torch.where(u < 0, torch.sigmoid(4 * r), 0.5 + torch.log1p(r.clamp_min(0)))


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

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """clamp(psi(u)/kappa + 1/2, 0, 1)."""
        return (self.rectified(u) / kappa + 0.5).clamp(0, 1)

    def grad_kappa(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """-psi(u)/kappa^2 inside the window."""
        psi = self.rectified(u)
        return torch.where(psi.abs() < kappa / 2, -psi / kappa / kappa, 0.0)


SURROGATES: dict[str, Surrogate] = {
    s.name: s for s in (Rectangular(), Triangular(), Sigmoid(), Arctan(), ArctanPeak(), FastSigmoid(), S2NN(), MPR())
}


def register_surrogate(surrogate: Surrogate) -> Surrogate:
    """Make a surrogate known by its name, everywhere a name is taken. A name that another surrogate has is refused."""
    if not isinstance(surrogate, Surrogate) or not isinstance(getattr(surrogate, "name", None), str):
        raise InputError(
            f"register_surrogate takes an object of a Surrogate class with a name, got {surrogate!r}. "
            "Derive a frozen dataclass from Surrogate and pass an instance."
        )
    if SURROGATES.get(surrogate.name, surrogate) != surrogate:
        raise InputError(f"the name {surrogate.name!r} belongs to {SURROGATES[surrogate.name]!r}. Choose another name.")
    SURROGATES[surrogate.name] = surrogate
    return surrogate


def get_surrogate(name: str | Surrogate) -> Surrogate:
    """The surrogate of that name; a `Surrogate` comes back as it is."""
    if isinstance(name, Surrogate):
        return name
    if name not in SURROGATES:
        raise unknown_name("surrogate", name, SURROGATES)
    return SURROGATES[name]


class _Spike(torch.autograd.Function):
    """Forward: the step. Backward: h for u, and dH/dkappa for a kappa that asks for a gradient, both times the gain."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, kappa: Tensor, surrogate: Surrogate, gain: Tensor | float) -> Tensor:
        ctx.save_for_backward(u, kappa)
        ctx.surrogate, ctx.gain = surrogate, gain
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        g = grads[0] * ctx.gain
        u, kappa = ctx.saved_tensors
        g_kappa = (g * ctx.surrogate.grad_kappa(u, kappa)).sum_to_size(kappa.shape) if ctx.needs_input_grad[1] else None
        return g * ctx.surrogate.grad(u, kappa), g_kappa, None, None


def spike(
    u: Tensor, kappa: Tensor | float, surrogate: str | Surrogate = "rectangular", gain: Tensor | float = 1.0
) -> Tensor:
    """Eq. 3 with Eq. 6 as its derivative: 1 where `u = v - v_th >= 0`, else 0. `gain` multiplies the derivative's
    height.

    >>> u = torch.tensor([-0.2, 0.0, 0.7], requires_grad=True)
    >>> s = spike(u, kappa=1.0)
    >>> s.sum().backward()
    >>> s.detach(), u.grad
    (tensor([0., 1., 1.]), tensor([1., 1., 0.]))
    """
    kappa = torch.as_tensor(kappa, dtype=u.dtype, device=u.device)
    out: Tensor = _Spike.apply(u, kappa, get_surrogate(surrogate), gain)  # type: ignore[no-untyped-call]
    return out


def noisy_spike(u: Tensor, kappa: Tensor | float, keep: Tensor, surrogate: str | Surrogate = "rectangular") -> Tensor:
    """ASGL's training output (Wang et al. 2023): `H(u) + ((step(u) - H(u)) * keep).detach()`.

    `keep` is 1 where the hard spike is passed on and 0 where its soft step is; it is drawn anew at each step, P(keep =
    1) = 1 - p. The gradient is that of the soft step H everywhere, and reaches kappa.
    """
    soft = get_surrogate(surrogate).soft_step(u, kappa)
    hard = (u >= 0).to(u.dtype)
    return soft + ((hard - soft) * keep).detach()
