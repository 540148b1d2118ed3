"""The spike (Eq. 3) and the surrogates that stand in for its derivative (Eq. 6).

A surrogate is a value: a bump `h(u; kappa)` around u = v - v_th = 0, the derivative of a soft step H.
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
from mpd_agl.plugins import load_plugins


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


@dataclass(frozen=True)
class Triangular(Surrogate):
    """`h(u) = max(0, 1 - |u|/kappa) / kappa` (Bellec et al. 2018)."""

    name: ClassVar[str] = "triangular"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """The triangle of half-width kappa."""
        return (1 - u.abs() / kappa).clamp_min(0) / kappa


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """`h(u) = a p (1-p)` with `p = sigmoid(a u)`, `a = 4/kappa` (Zenke and Vogels 2021)."""

    name: ClassVar[str] = "sigmoid"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """The product of two sigmoids, finite however large u is."""
        r = u * 4 / kappa
        return torch.sigmoid(r) * torch.sigmoid(-r) * 4 / kappa


@dataclass(frozen=True)
class Arctan(Surrogate):
    """`h(u) = 1 / (kappa (1 + (pi u/kappa)^2))` (Fang et al. 2021)."""

    name: ClassVar[str] = "arctan"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """A Cauchy bump; where the square overflows, 1/inf is the right 0."""
        r = u * math.pi / kappa
        return 1 / (1 + r * r) / kappa


SURROGATES: dict[str, Surrogate] = {s.name: s for s in (Rectangular(), Triangular(), Sigmoid(), Arctan())}


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
        load_plugins()
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
