"""DS-ATGO (Jiang et al., AAAI 2026, arXiv 2511.13050): threshold and width from the potentials of the batch at hand."""

from typing import NamedTuple

import torch
from torch import Tensor

from mpd_agl.core.lif import lif
from mpd_agl.core.mpd import WidthForm, atgo_width
from mpd_agl.core.surrogate import Surrogate, spike


class AtgoSequence(NamedTuple):
    """What `atgo` gives: spikes, potentials before reset, what the last step keeps, and per step what was measured."""

    s_T: Tensor
    v_T: Tensor
    kept: Tensor
    theta_T: Tensor
    std_T: Tensor
    kappa_T: Tensor


def mean_and_std(v: Tensor) -> tuple[Tensor, Tensor]:
    """Of all potentials of a layer at one timestep; the deviation divides by n - 1, as the published code does."""
    std, mean = torch.std_mean(v)
    return mean, std


def atgo(
    i_T: Tensor,
    tau: Tensor | float,
    *,
    v_th: float = 0.5,
    width: float = 1.0,
    form: WidthForm = "threshold",
    theta_T: Tensor | None = None,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    kept_0: Tensor | None = None,
) -> AtgoSequence:
    """A sequence of neurons that fire at `theta_t = mean(v_t) + std(v_t)`, a constant of the backward pass.

    `v_t = tau kept_{t-1} + i_t`, hard reset, width kappa_t by `atgo_width`. `theta_T` are thresholds that are given,
    as in inference, and not measured. `v_th` is V_th, what the width compares with.

    >>> found = atgo(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), 0.2, v_th=1.0)
    >>> found.theta_T, found.s_T
    (tensor([2.7910]), tensor([[0., 0., 0., 1.]]))
    """
    thetas: list[Tensor] = []
    stds: list[Tensor] = []
    kappas: list[Tensor] = []

    def fire(v: Tensor, _: Tensor, t: int) -> Tensor:
        mean, std = mean_and_std(v.detach())
        theta = mean + std if theta_T is None else theta_T[t].to(v.dtype)
        kappa = atgo_width(theta, std, v_th=v_th, width=width, form=form)
        thetas.append(theta)
        stds.append(std)
        kappas.append(kappa)
        return spike(v - theta, kappa, surrogate)

    ones_T = i_T.new_ones(i_T.shape[0])
    s_T, v_T, kept = lif(
        i_T, tau, ones_T, v_th=0.0, fire=fire, detach_reset=detach_reset, kept_0=kept_0, return_state=True
    )
    return AtgoSequence(s_T, v_T, kept, torch.stack(thetas), torch.stack(stds), torch.stack(kappas))
