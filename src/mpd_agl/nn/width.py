"""Width rules: small modules with one method that gives kappa_T, the surrogate's width at each timestep.

`width(norms, neuron, num_steps)`: the tdBN layers whose currents the neuron receives (one; two where a residual block adds currents before
the neuron), the neuron, and T. kappa_T carries no gradient, except where the rule's own parameter is the width.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.core.mpd import Moments
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.neuron import Neuron
from mpd_agl.nn.norm import TdBatchNorm


class Width(nn.Module):
    """Base of the rules."""

    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """kappa_T on the neuron's device."""
        raise InputError(f"{type(self).__name__} gives no width from parameters.")


class FixedWidth(Width):
    """kappa = 1 at every step: STBP-tdBN, and everyone's default."""

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        if kappa <= 0:
            raise InputError(f"kappa must be positive, got {kappa}. The usual width is 1.")
        self.kappa = kappa

    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """The constant."""
        return torch.full((num_steps,), self.kappa, device=neuron.tau.device)


class LSGWidth(Width):
    """LSG (Lian et al. 2023): `2 v_th sqrt(1 + tau^2)`, the same at every step."""

    @torch.no_grad()
    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """From the neuron's decay alone."""
        return core.lsg_width(neuron.tau, num_steps, v_th=neuron.v_th)


def predicted_moments(
    norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int, moments: Moments
) -> tuple[Tensor, Tensor]:
    """Theorems 1 and 2 for a neuron behind these tdBN layers: mean_T and std_T of its potential.

    Currents that are added before the neuron add their means and, taken as independent, their variances.
    """
    parts = [core.input_moments(n.weight, n.bias, v_th=n.v_th, alpha=n.alpha, moments=moments) for n in norms]
    if len(parts) == 1:
        mean, std = parts[0]
    else:
        mean = torch.stack([m for m, _ in parts]).sum()
        std = torch.stack([s * s for _, s in parts]).sum().sqrt()
    return core.potential_moments(mean, std, neuron.tau, num_steps)


class MPDWidth(Width):
    """The adaptive gradient rule (Eq. 7): `kappa_t = 2 std_t` of the predicted potential.

    `moments="paper"` takes gamma_bar as Eq. 7 stands, `"exact"` the mixture's own variance. Where gamma_bar <= 0 the paper's rule has no
    meaning; |gamma_bar| is used, kappa is kept from zero (`core.mpd_width`), and a warning says so once per layer (on a CPU;
    on a GPU the monitors show gamma_bar).
    """

    def __init__(self, moments: Moments = "paper") -> None:
        super().__init__()
        if moments not in ("paper", "exact"):
            raise unknown_name("moments", moments, ("paper", "exact"))
        self.moments: Moments = moments
        self._warned = False

    @torch.no_grad()
    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """From gamma, beta and tau, as they are now."""
        if self.moments == "paper" and not self._warned and not torch.compiler.is_compiling():
            self._warn(norms)
        _, std_T = predicted_moments(norms, neuron, num_steps, self.moments)
        return core.mpd_width(std_T, v_th=neuron.v_th)

    def _warn(self, norms: Sequence[TdBatchNorm]) -> None:
        for norm in norms:
            if norm.weight.device.type == "cpu" and (gamma_bar := float(norm.weight.mean())) <= 0:
                self._warned = True
                warnings.warn(
                    f"gamma_bar of a tdBN layer is {gamma_bar:.4g}, where Eq. 7 needs a positive one: |gamma_bar| is used, and kappa is "
                    f"at least {core.KAPPA_MIN:g} v_th; moments='exact' (method mpd-agl-exact) is defined for any gamma.",
                    stacklevel=4,
                )

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"moments={self.moments}"


class QuantileWidth(Width):
    """Ours: kappa_t such that the predicted share of gradient-available neurons is `share`, the mean included; exact moments."""

    def __init__(self, share: float = 0.4772) -> None:
        super().__init__()
        if not 0 < share < 1:
            raise InputError(
                f"share must lie between 0 and 1, got {share}. The default 0.4772 gives kappa = 1 at the start."
            )
        self.share = share

    @torch.no_grad()
    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """Solved anew from gamma, beta and tau; t > 1 share one value."""
        distinct = min(num_steps, 2)
        mean_T, std_T = predicted_moments(norms, neuron, distinct, "exact")
        kappa = core.quantile_width(mean_T, std_T, v_th=neuron.v_th, share=self.share)
        return torch.cat([kappa[:1], kappa[1:].expand(num_steps - 1)])


def _within(parameter: Tensor, low: float, high: float) -> Tensor:
    """The parameter's value kept in [low, high], its gradient passed on unchanged: it can come back from outside."""
    return parameter + (parameter.clamp(low, high) - parameter).detach()


class LearnableWidth(Width):
    """PSG (Wang et al. 2025): the layer's width is itself a parameter, learned through dH/dkappa of the soft step."""

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        if kappa <= 0:
            raise InputError(f"kappa must be positive, got {kappa}. The usual width is 1.")
        self.kappa = nn.Parameter(torch.tensor(float(kappa)))

    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """The parameter, kept from zero."""
        return _within(self.kappa, core.KAPPA_MIN * neuron.v_th, math.inf).reshape(1).expand(num_steps)


class SlopeWidth(Width):
    """ASGL (Wang et al. 2023): a learnable slope `a` of the soft step `clamp(a u + 1/2, 0, 1)`; kappa = 1/a."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        if slope <= 0:
            raise InputError(f"slope must be positive, got {slope}. ASGL starts at 1.")
        self.slope = nn.Parameter(torch.tensor(float(slope)))

    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """1/a, with a kept within what keeps kappa between `KAPPA_MIN v_th` and its inverse."""
        low = core.KAPPA_MIN * neuron.v_th
        return (1 / _within(self.slope, low, 1 / low)).reshape(1).expand(num_steps)


class DeepTAGEWidth(Width):
    """DeepTAGE (Liu et al. 2025): `delta_t = w sigma_t/sigma_1 + 1 - w`, from the norms of the potentials themselves."""

    def __init__(self, weight: float = 0.25) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, norms: Sequence[TdBatchNorm], neuron: Neuron, num_steps: int) -> Tensor:
        """Without potentials (evaluation, plots): 1, the width at t = 1."""
        return torch.ones(num_steps, device=neuron.tau.device)

    @torch.no_grad()
    def from_potential(self, squares_T: Tensor, sums_T: Tensor, count: int, v_th: float) -> Tensor:
        """From sum v and sum v^2 over the layer at each step: `sigma_t^2 = sum v^2 - 2 v_th sum v + n v_th^2`."""
        sigma_T = (squares_T - 2 * v_th * sums_T + count * v_th * v_th).clamp_min(0).sqrt()
        return core.deeptage_width(sigma_T, weight=self.weight)
