"""The leaky integrate-and-fire sequence (Eq. 2-3), written as the equations stand. T is the first axis."""

from collections.abc import Callable

import torch
from torch import Tensor

from mpd_agl.core.surrogate import Surrogate, spike
from mpd_agl.errors import InputError, unknown_name

Fire = Callable[[Tensor, Tensor, int], Tensor]
RESETS = ("hard", "soft")


def along_channels(name: str, value: Tensor | float, shape: torch.Size, channel_dim: int) -> Tensor | float:
    """One value for all neurons, or one per channel, shaped to multiply one timestep of a sequence of that shape."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    axis = channel_dim % len(shape) if -len(shape) <= channel_dim < len(shape) else 0
    if axis < 1 or value.shape != shape[axis : axis + 1]:
        wanted = f"({shape[axis]},)" if axis else "no channel axis"
        raise InputError(
            f"{name} must be one value, or one per channel of a sequence {tuple(shape)} with channel_dim={channel_dim} "
            f"({wanted}), got {tuple(value.shape)}."
        )
    return value.view([-1 if a == axis else 1 for a in range(1, len(shape))])


def lif(
    i_T: Tensor,
    tau: Tensor | float,
    kappa_T: Tensor,
    *,
    v_th: Tensor | float = 0.5,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    reset: str = "hard",
    decay_input: bool = False,
    state: Tensor | None = None,
    gain_T: Tensor | None = None,
    channel_dim: int = 2,
    fire: Fire | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run neurons over T steps; returns spikes s_T, potentials v_T (before reset) and the state after the last step.

    `v_t = tau * kept_{t-1} + i_t` and `s_t = (v_t >= v_th)`; `tau` in (0, 1] is the share that is kept (1: no leak).
    With `decay_input` the current is `(1 - tau) * i_t`. A hard reset keeps `v_t * (1 - s_t)`, a soft one `v_t - v_th *
    s_t`. Neurons start at rest, or from `state`, what an earlier call kept. The gradient flows through the reset (Eq.
    13) unless `detach_reset`. `tau` and `v_th` are one value each or one per channel, on axis `channel_dim` of i_T.
    `gain_T` multiplies the surrogate's height at each step. `fire(u, kappa_t, t)` replaces the spike function.

    >>> s_T, v_T, state = lif(torch.tensor([[0.4], [0.45], [0.1]]), tau=0.2, kappa_T=torch.ones(3))
    >>> v_T.squeeze(1), s_T.squeeze(1), state
    (tensor([0.4000, 0.5300, 0.1000]), tensor([0., 1., 0.]), tensor([0.1000]))
    """
    shape = i_T.shape
    if kappa_T.shape != shape[:1]:
        raise InputError(f"kappa_T must hold one width per timestep, ({shape[0]},), got {tuple(kappa_T.shape)}.")
    if gain_T is not None and gain_T.shape != shape[:1]:
        raise InputError(f"gain_T must hold one factor per timestep, ({shape[0]},), got {tuple(gain_T.shape)}.")
    if gain_T is not None and fire is not None:
        raise InputError("gain_T multiplies the surrogate's height, got fire= as well, which has its own. Use one.")
    if state is not None and state.shape != shape[1:]:
        raise InputError(f"state must have the shape of one timestep, {tuple(shape[1:])}, got {tuple(state.shape)}.")
    if reset not in RESETS:
        raise unknown_name("reset", reset, RESETS)
    tau = along_channels("tau", tau, shape, channel_dim)
    v_th = along_channels("v_th", v_th, shape, channel_dim)
    kept = torch.zeros_like(i_T[0]) if state is None else state
    spikes, potentials = [], []
    for t in range(shape[0]):
        v = tau * kept + (1 - tau if decay_input else 1) * i_T[t]  # Eq. 2
        u = v - v_th
        gain = 1.0 if gain_T is None else gain_T[t]
        s = spike(u, kappa_T[t], surrogate, gain) if fire is None else fire(u, kappa_T[t], t)  # Eq. 3
        reset_by = s.detach() if detach_reset else s
        kept = v * (1 - reset_by) if reset == "hard" else v - v_th * reset_by
        spikes.append(s)
        potentials.append(v)
    return torch.stack(spikes), torch.stack(potentials), kept
