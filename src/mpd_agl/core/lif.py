"""The leaky integrate-and-fire sequence (Eq. 2-3), written as the equations stand. T is the first axis of every sequence."""

from collections.abc import Callable

import torch
from torch import Tensor

from mpd_agl.core.surrogate import Surrogate, spike
from mpd_agl.errors import InputError

Fire = Callable[[Tensor, Tensor, int], Tensor]


def lif(
    i_T: Tensor,
    tau: Tensor | float,
    kappa_T: Tensor,
    *,
    v_th: float = 0.5,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    fire: Fire | None = None,
) -> tuple[Tensor, Tensor]:
    """Run neurons from rest over T steps; returns spikes s_T and potentials v_T (before reset).

    `v_t = tau * v_{t-1} * (1 - s_{t-1}) + i_t` and `s_t = (v_t >= v_th)`: hard reset, `tau` is the share that is kept. The gradient flows
    through the reset (Eq. 13) unless `detach_reset`. `fire(u, kappa_t, t)` replaces the spike function.

    >>> s_T, v_T = lif(torch.tensor([[0.4], [0.45], [0.1]]), tau=0.2, kappa_T=torch.ones(3))
    >>> v_T.squeeze(1), s_T.squeeze(1)
    (tensor([0.4000, 0.5300, 0.1000]), tensor([0., 1., 0.]))
    """
    if kappa_T.shape != i_T.shape[:1]:
        raise InputError(f"kappa_T must hold one width per timestep, ({i_T.shape[0]},), got {tuple(kappa_T.shape)}.")
    v = torch.zeros_like(i_T[0])
    s = torch.zeros_like(i_T[0])
    spikes, potentials = [], []
    for t in range(i_T.shape[0]):
        reset = s.detach() if detach_reset else s
        v = tau * v * (1 - reset) + i_T[t]  # Eq. 2
        u = v - v_th
        s = spike(u, kappa_T[t], surrogate) if fire is None else fire(u, kappa_T[t], t)  # Eq. 3
        spikes.append(s)
        potentials.append(v)
    return torch.stack(spikes), torch.stack(potentials)
