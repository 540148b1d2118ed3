"""A surrogate function of another library as we see it: the natural width of its bump, and the same bump at another
width.

A surrogate is called on `u = v - v_th` and gives the step; its derivative is a bump g'(u). Called on `u r` with r > 0
the step is the same and the derivative is `r g'(r u)`: the area of the bump is kept, its height is multiplied by r,
its width divided by r. So the width of any surrogate can be set from outside, without knowing its formula, once its
own width is known.
"""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mpd_agl.core import Surrogate

SpikeFunction = Callable[[Tensor], Tensor]

_PEAK_AT_ALPHA_1 = {
    "ATan": 1 / 2,
    "Erf": 1 / math.sqrt(math.pi),
    "PiecewiseExp": 1 / 2,
    "PiecewiseQuadratic": 1.0,
    "Rect": 1.0,
    "Sigmoid": 1 / 4,
    "SoftSign": 1 / 2,
}
"""SpikingJelly's surrogates of unit area `alpha G(alpha u)`: the peak at alpha = 1. The width is `1 / (alpha peak)`."""


@dataclass(frozen=True)
class Shape:
    """What was measured of a surrogate function."""

    width: float
    """Area over peak of its derivative: kappa, as the surrogates of `core` count it."""
    fires_at_zero: bool
    """Whether it gives 1 at u = 0 (SpikingJelly) or only above (snnTorch, Norse)."""


def _derivative(function: SpikeFunction, u: Tensor) -> tuple[Tensor, Tensor]:
    """Output and derivative at each u."""
    with torch.enable_grad():
        u = u.clone().requires_grad_()
        s = function(u)
        if not s.requires_grad:
            return s.detach(), torch.zeros_like(u)
        (g,) = torch.autograd.grad(s.sum(), u, allow_unused=True)
    return s.detach(), torch.zeros_like(u) if g is None else g.detach()


def measure(function: SpikeFunction, dtype: torch.dtype = torch.float32) -> Shape | str:
    """The natural width of a surrogate function, or a sentence that says why it has none.

    The width is the area of g' over its peak: 1/alpha of a rectangle of height alpha. Where the area is infinite (a
    tail like 1/u) it is the full width at half the peak.

    >>> from mpd_agl.core import spike
    >>> round(measure(lambda u: spike(u, 0.5, "sigmoid")).width, 3)
    0.5
    """
    coarse = torch.logspace(-4, 4, 4001, dtype=torch.float64).to(dtype)
    grid = torch.cat([-coarse.flip(0), coarse])
    s, g = _derivative(function, grid)
    if not torch.equal(s.double(), (grid > 0).double()):
        return "its surrogate function does not give 0 below and 1 above the threshold"
    if not torch.equal(g, _derivative(function, grid)[1]):
        return "the gradient of its surrogate function is random"
    peak = float(g.max())
    if not math.isfinite(peak) or peak <= 0 or not bool(torch.isfinite(g).all()):
        return "its surrogate function has no finite gradient"
    centre = float(g[4000:4002].double().mean())
    if centre < 0.75 * peak or float(g.min()) < -1e-3 * peak:
        return "the gradient of its surrogate function has no single peak at the threshold"
    if max(float(g[0]), float(g[-1])) > 0.4 * peak:
        return "the gradient of its surrogate function is the same far from the threshold, so it has no width"
    above = grid[g > peak / 2]
    half_width = max(float(above.max() - above.min()), 1e-6)
    fires_at_zero = bool(function(torch.zeros(1, dtype=dtype)).item())
    known = _known_width(function)
    if known is not None:
        return Shape(known, fires_at_zero)
    # A grid in units of the bump: fine inside, and far out for tails like 1/u^2.
    x = half_width * torch.sinh(torch.linspace(-11, 11, 200_001, dtype=torch.float64))
    g = _derivative(function, x.to(dtype))[1].double()
    peak = float(g.max())
    area, inner = (float(torch.trapezoid(g[m], x[m])) for m in (x == x, x.abs() < 300 * half_width))
    return Shape(area / peak if area < 1.05 * inner else half_width, fires_at_zero)


def _known_width(function: SpikeFunction) -> float | None:
    """The exact width of SpikingJelly's surrogates with one parameter."""
    kind = type(function)
    if kind.__module__.split(".")[0] != "spikingjelly" or kind.__name__ not in _PEAK_AT_ALPHA_1:
        return None
    alpha = getattr(function, "alpha", None)
    return None if isinstance(alpha, Tensor) or alpha is None else 1 / (float(alpha) * _PEAK_AT_ALPHA_1[kind.__name__])


def with_width(function: SpikeFunction, factor: float) -> SpikeFunction | None:
    """The same surrogate of another library with its width multiplied by `factor`; None where it has no parameter for
    it.

    SpikingJelly's surrogates keep theirs in `alpha`. snnTorch's `atan` and `sigmoid` are closures, which are made
    again. Most others of snnTorch, and all of Norse, have a fixed peak: another parameter would change the area too.
    """
    if _known_width(function) is not None:
        copied = copy.deepcopy(function)
        copied.alpha = float(function.alpha) / factor  # type: ignore[attr-defined]
        return copied
    where, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    parameter = {"atan.<locals>.inner": "alpha", "sigmoid.<locals>.inner": "slope"}.get(name)
    closure = getattr(function, "__closure__", None)
    if where != "snntorch.surrogate" or parameter is None or not closure:
        return None
    made: SpikeFunction = getattr(sys.modules[where], name.split(".")[0])(
        **{parameter: float(closure[0].cell_contents) / factor}
    )
    return made


class _ShapedSpike(torch.autograd.Function):
    """The neuron's own step, with a surrogate of `core` as its derivative."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, kappa: Tensor, surrogate: Surrogate, fires_at_zero: bool) -> Tensor:
        ctx.save_for_backward(u, kappa)
        ctx.surrogate = surrogate
        return ((u >= 0) if fires_at_zero else (u > 0)).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (g,) = grads
        u, kappa = ctx.saved_tensors
        g_kappa = (g * ctx.surrogate.grad_kappa(u, kappa)).sum_to_size(kappa.shape) if ctx.needs_input_grad[1] else None
        return g * ctx.surrogate.grad(u, kappa), g_kappa, None, None


def shaped_spike(u: Tensor, kappa: Tensor, surrogate: Surrogate, *, fires_at_zero: bool) -> Tensor:
    """`core.spike` for neurons that fire only above their threshold, too."""
    s: Tensor = _ShapedSpike.apply(u, kappa.to(u.dtype), surrogate, fires_at_zero)  # type: ignore[no-untyped-call]
    return s


@dataclass(frozen=True)
class AsSurrogate(Surrogate):
    """The neuron's own function, stretched to a width, as a surrogate of `core`: for rules that read its shape."""

    name: ClassVar[str] = "own"
    function: SpikeFunction
    shape: Shape

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        """`r g'(r u)` with r the natural width over kappa."""
        ratio = self.shape.width / kappa
        return ratio * _derivative(self.function, u * ratio)[1]


class _ScaleGradient(torch.autograd.Function):
    """Forward: nothing. Backward: the gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return u.view_as(u)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return grads[0] * factor.to(grads[0].dtype), None


def scale_gradient(u: Tensor, factor: Tensor) -> Tensor:
    """u, with its gradient multiplied on the way back."""
    out: Tensor = _ScaleGradient.apply(u, factor)  # type: ignore[no-untyped-call]
    return out
