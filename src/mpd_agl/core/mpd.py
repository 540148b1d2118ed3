"""Membrane potential dynamics: the moments of Theorems 1 and 2, and the widths made from them (Eq. 7)."""

import math
from typing import Literal

import torch
from torch import Tensor

from mpd_agl.core.surrogate import Surrogate
from mpd_agl.errors import InputError, unknown_name

Moments = Literal["paper", "exact"]
Leak = Literal["two", "full"]

KAPPA_MIN = 0.1
"""Smallest width, as a multiple of v_th: a gamma_bar of 0 gives the width 0, whose surrogate has no finite height."""


def input_moments(
    gamma_C: Tensor, beta_C: Tensor, *, v_th: float = 0.5, alpha: float = 1.0, moments: Moments = "paper"
) -> tuple[Tensor, Tensor]:
    """Theorem 1: mean and standard deviation of the pre-synaptic input after tdBN's affine transformation.

    `paper`: `N(beta_bar, (gamma_bar v_th)^2)`, bars being means over channels. `exact`: the mixture over channels has
    the variance `v_th^2 mean(gamma_c^2) + var_c(beta_c)`, which the paper's proof replaces by its lower bound. A
    standard deviation is not negative: with gamma_bar < 0 the paper's is `|gamma_bar| v_th` (the normal is the same).

    >>> gamma_C, beta_C = torch.tensor([0.5, 1.5]), torch.tensor([-0.2, 0.2])
    >>> input_moments(gamma_C, beta_C)
    (tensor(0.), tensor(0.5000))
    >>> input_moments(gamma_C, beta_C, moments="exact")
    (tensor(0.), tensor(0.5937))
    """
    beta_bar = beta_C.mean()
    if moments == "paper":
        gamma_bar = gamma_C.mean()
        return beta_bar, gamma_bar.abs() * (alpha * v_th)
    if moments == "exact":
        variance = (alpha * v_th) ** 2 * gamma_C.square().mean() + beta_C.var(correction=0)
        return beta_bar, variance.sqrt()
    raise unknown_name("moments", moments, ("paper", "exact"))


def potential_moments(
    mean: Tensor, std: Tensor, tau: Tensor | float, num_steps: int, *, leak: Leak = "two"
) -> tuple[Tensor, Tensor]:
    """Theorem 2: mean_T and std_T of the membrane potential, from those of the pre-synaptic input.

    `leak="two"` is the theorem as it stands, two terms of the leak sum: t = 1: the input's own moments; t > 1: `N((1 +
    tau) mean, (1 + tau^2) std^2)`. `leak="full"` keeps the whole geometric sum, `D(tau, t) mean` and `D(tau^2, t)
    std^2` with `D(a, t) = 1 + a + ... + a^(t-1)`: at tau = 0.9 and t = 10 the deviation is 2.15 std, not 1.35 std.
    Where `mean` and `std` hold one value per step, step t takes its own and what leaks from those before it.
    Neither knows the reset, and both take the inputs of different steps as independent: approximations.
    """
    tau = torch.as_tensor(tau, dtype=mean.dtype, device=mean.device)
    if leak not in ("two", "full"):
        raise unknown_name("leak", leak, ("two", "full"))
    if mean.dim():
        # t - j steps leak by tau^(t-j); the theorem keeps j = t and j = t - 1.
        steps_T = torch.arange(num_steps, dtype=mean.dtype, device=mean.device)
        ago_TT = steps_T[:, None] - steps_T
        kept_TT = tau.pow(ago_TT.clamp_min(0)) * ((ago_TT >= 0) & (ago_TT <= (1 if leak == "two" else num_steps)))
        return kept_TT @ mean, (kept_TT.square() @ std.square()).sqrt()
    if leak == "full":
        exponents_T = torch.arange(num_steps, dtype=mean.dtype, device=mean.device)
        return tau.pow(exponents_T).cumsum(0) * mean, (tau * tau).pow(exponents_T).cumsum(0).sqrt() * std
    later = num_steps - 1
    mean_T = torch.cat([mean.reshape(1), ((1 + tau) * mean).reshape(1).expand(later)])
    std_T = torch.cat([std.reshape(1), (torch.sqrt(1 + tau * tau) * std).reshape(1).expand(later)])
    return mean_T, std_T


def mpd_width(std_T: Tensor, *, v_th: Tensor | float = 0.5) -> Tensor:
    """The paper's width, `kappa_t = 2 * std_t` (Eq. 7), and never under `KAPPA_MIN * v_th`.

    This is the one place where kappa is kept from zero.

    >>> mean_T, std_T = potential_moments(*input_moments(torch.ones(8), torch.zeros(8)), tau=0.2, num_steps=3)
    >>> mpd_width(std_T)
    tensor([1.0000, 1.0198, 1.0198])
    """
    return torch.clamp(2 * std_T, min=KAPPA_MIN * v_th)


def lsg_width(tau: Tensor, num_steps: int, *, v_th: Tensor | float = 0.5) -> Tensor:
    """LSG (Lian et al. 2023): `kappa = 2 v_th sqrt(1 + tau^2)`, the same at every step."""
    return (2 * v_th * torch.sqrt(1 + tau * tau)).reshape(1).expand(num_steps)


def quantile_width(
    mean_T: Tensor,
    std_T: Tensor,
    *,
    v_th: Tensor | float = 0.5,
    share: float = 0.4772,
) -> Tensor:
    """The width that holds the gradient-available share: `P(|V_t - v_th| < kappa_t/2) = share` under Theorem 2's
    normal.

    Solved by search within the bounds that kappa is kept in: [0.4, 8] times v_th ([0.2, 4] at v_th = 0.5). At
    gamma = 1, beta = 0 and v_th = 0.5 the default share gives kappa_1 = 1.
    """
    low, high = torch.zeros_like(std_T) + 0.4 * v_th, torch.zeros_like(std_T) + 8 * v_th
    scale = 1 / (std_T.clamp_min(1e-12) * math.sqrt(2))
    offset = v_th - mean_T
    parts = torch.linspace(0, 1, 65, dtype=std_T.dtype, device=std_T.device)
    for _ in range(4):  # four times a 64th: 2e-7 of the bounds' distance, in a sixth of the calls of halving
        kappa_TP = low[:, None] + (high - low)[:, None] * parts
        upper, lower = ((offset[:, None] + side * kappa_TP / 2) * scale[:, None] for side in (1, -1))
        inside_TP = (torch.erf(upper) - torch.erf(lower)) / 2
        first_T1 = (inside_TP < share).sum(1, keepdim=True).clamp(1, 64)
        low, high = kappa_TP.gather(1, first_T1 - 1)[:, 0], kappa_TP.gather(1, first_T1)[:, 0]
    return (low + high) / 2


EQ7_SHARE = 0.4772
"""The share of the neurons that Eq. 7's window holds at the start: P(-2 < z < 0) of a standard normal z."""
END_SHARE = 0.005
"""What is left of the gradient's signal behind the longest chain: chosen on held-out samples (docs/gain.md)."""


def chain_share(layers: float) -> float:
    """The signal share that each of `layers` spiking layers must keep, where no shortcut leads around them.

    `0.005^(1/L)`, so that a two-hundredth of the energy is left behind L of them, and never less than Eq. 7's 0.4772.

    >>> [round(chain_share(layers), 3) for layers in (2, 7, 15, 31)]
    [0.477, 0.477, 0.702, 0.843]
    """
    if not layers >= 1:
        raise InputError(f"a chain has at least 1 layer, got {layers}. A residual branch of two layers has 2.")
    return float(max(EQ7_SHARE, END_SHARE ** (1 / layers)))


def _over_normal(mean_T: Tensor, std_T: Tensor) -> tuple[Tensor, Tensor]:
    """Points of each normal within 8 deviations, and their weights, in float64."""
    z_P = torch.linspace(-8, 8, 2049, dtype=torch.float64, device=std_T.device)
    weight_P = torch.exp(-0.5 * z_P.square())
    spread_T = std_T.double().clamp_min(1e-6)
    return mean_T.double()[:, None] + spread_T[:, None] * z_P, weight_P / weight_P.sum()


def signal_share(
    mean_T: Tensor, std_T: Tensor, kappa_T: Tensor, surrogate: Surrogate, *, v_th: Tensor | float = 0.5
) -> Tensor:
    """`E[h]^2 / E[h^2]` over the potential's normal: the share of a gradient's energy that a surrogate passes on as
    signal.

    A gradient behind a surrogate is `h(v) g`. Its part `E[h] g` does not depend on where this sample's potentials
    happen to lie; the rest is noise. For the rectangular surrogate it is the share of the neurons in the window.

    >>> from mpd_agl.core import get_surrogate
    >>> at_start = (torch.zeros(1), torch.full((1,), 0.5), torch.ones(1))
    >>> [round(float(signal_share(*at_start, get_surrogate(name))), 2) for name in ("rectangular", "triangular")]
    [0.48, 0.67]
    """
    v_TP, weight_P = _over_normal(mean_T, std_T)
    h_TP = surrogate.grad(v_TP - v_th, kappa_T.double()[:, None])
    energy_T = (weight_P * h_TP.square()).sum(1)
    share_T: Tensor = (weight_P * h_TP).sum(1).square() / energy_T.clamp_min(1e-300)
    return share_T.to(std_T.dtype)


def chain_width(
    mean_T: Tensor, std_T: Tensor, layers: float, surrogate: Surrogate, *, v_th: Tensor | float = 0.5
) -> Tensor:
    """The width at which a surrogate keeps `chain_share(layers)` of the signal.

    Never under `KAPPA_MIN * v_th`, and never under what it would be with the mean at the threshold.

    >>> from mpd_agl.core import get_surrogate
    >>> mean_T, std_T, shape = torch.zeros(1), torch.full((1,), 0.5), get_surrogate("rectangular")
    >>> [round(float(chain_width(mean_T, std_T, layers, shape) / std_T), 1) for layers in (2, 7, 23)]
    [2.0, 2.0, 3.7]
    """
    wanted, T = chain_share(layers), len(mean_T)
    # Also where the mean is the threshold: no distance from it asks for less. Far out a shape with tails, as arctan's,
    # keeps any share at a width near 0 too, where all neurons lie in the tail.
    std_U, which_T = torch.unique(std_T, return_inverse=True)
    mean_S = torch.cat([mean_T, torch.zeros_like(std_U) + v_th])
    spread_S = torch.cat([std_T, std_U]).clamp_min(1e-6)
    low_S, high_S = 1e-2 * spread_S, 64 * (spread_S + (v_th - mean_S).abs())
    for _ in range(18):  # each halves the distance of the logarithms: 5e-5 of the width in the end
        kappa_S = (low_S * high_S).sqrt()
        narrow_S = signal_share(mean_S, spread_S, kappa_S, surrogate, v_th=v_th) < wanted
        low_S, high_S = torch.where(narrow_S, kappa_S, low_S), torch.where(narrow_S, high_S, kappa_S)
    kappa_S = (low_S * high_S).sqrt()
    kappa_T = torch.maximum(kappa_S[:T], kappa_S[T:][which_T])
    return torch.maximum(kappa_T, torch.zeros_like(std_T) + KAPPA_MIN * v_th)


GAIN_RANGE = (0.1, 10.0)
"""Bounds of `matched_gain`: a window that holds almost nothing would ask for any height."""
FAR_OUT = 2.0
"""Deviations between mean and threshold beyond which `matched_gain` does not follow the spikes' variance any more:
chosen on held-out samples (docs/gain.md)."""


def matched_gain(
    mean_T: Tensor, std_T: Tensor, kappa_T: Tensor, surrogate: Surrogate, *, v_th: Tensor | float = 0.5
) -> Tensor:
    """The factor on the surrogate's height that lets a layer pass gradients down as it passes signals up.

    A neuron turns potentials of variance std^2 into spikes of variance `r (1 - r)`, with `r = P(v >= v_th)`. A
    surrogate of height G multiplies a gradient's energy by `G^2 E[h(v)^2]`. The two agree where
    `G^2 E[h^2] std^2 = r (1 - r)`: then the gradients of a layer's input and output are to each other as the variances
    of its spikes and of those before it, whatever the width and the shape. A threshold more than `FAR_OUT` deviations
    away counts as one that is `FAR_OUT` away: a layer that is nearly silent must still learn to fire.

    >>> from mpd_agl.core import get_surrogate
    >>> mean_T, std_T = torch.zeros(1), torch.full((1,), 0.5)
    >>> [round(float(matched_gain(mean_T, std_T, c * std_T, get_surrogate("rectangular"))), 2) for c in (1, 2, 4)]
    [0.75, 1.06, 1.6]
    """
    v_TP, weight_P = _over_normal(mean_T, std_T)
    spread_T = std_T.double().clamp_min(1e-6)
    rate_T = torch.special.ndtr(((mean_T.double() - v_th) / spread_T).clamp(-FAR_OUT, FAR_OUT))
    energy_T = (weight_P * surrogate.grad(v_TP - v_th, kappa_T.double()[:, None]).square()).sum(1)
    gain_T: Tensor = (rate_T * (1 - rate_T) / (spread_T.square() * energy_T).clamp_min(1e-300)).sqrt()
    return gain_T.clamp(*GAIN_RANGE).to(std_T.dtype)


CHAIN_GROWTH = 30.0
"""How much a gradient may grow on its way down a chain: chosen on held-out digits (docs/gain.md)."""


def bounded_size(g_in: Tensor, g_out: Tensor, s_in: Tensor, s_out: Tensor, layers: float) -> Tensor:
    """A gradient that one of `layers` layers passes down, where `||g|| std(s)` may grow by `30^(1/L)` and no more.

    The product does not depend on the scale of the spikes. `matched_gain` keeps it where layers are independent, as
    they are at the start; training makes them depend on each other, and over a long chain the gradient then explodes.
    So it is measured, and made smaller where it grows by more than thirty times over the chain.

    >>> s_in, s_out = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])
    >>> bounded_size(torch.tensor([90.0, 120.0]), torch.tensor([0.0, 1.0]), s_in, s_out, layers=1)
    tensor([36., 48.])
    >>> bounded_size(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 1.0]), s_in, s_out, layers=1)
    tensor([3., 4.])
    """
    bounded: Tensor = g_in * bound_factor(
        g_in.norm(), g_out.norm(), s_in.std(), s_out.std(), CHAIN_GROWTH ** (1 / layers)
    )
    return bounded


def bound_factor(norm_in: Tensor, norm_out: Tensor, std_in: Tensor, std_out: Tensor, max_growth: float) -> Tensor:
    """What `bounded_size` multiplies by, from the norms of both gradients and the deviations of both signals.

    A layer that is silent, or fires always, has no deviation to measure by and passes its gradient on as it is.
    """
    most = max_growth * norm_out * std_out / std_in.clamp_min(1e-6)
    return torch.where((norm_in > most) & (std_out > 0), most / norm_in, 1.0)


def gain_constants() -> dict[str, float]:
    """The numbers of `mpd-gain` that held-out samples chose; a run follows from them as from its configuration.

    >>> gain_constants()
    {'end_share': 0.005, 'far_out': 2.0, 'chain_growth': 30.0}
    """
    return {"end_share": END_SHARE, "far_out": FAR_OUT, "chain_growth": CHAIN_GROWTH}
