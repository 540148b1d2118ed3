"""MPBN (Guo et al., ICCV 2023): a second batch norm, on the membrane potential, right before it meets the threshold.

`s_t = (BN(v_t) >= v_th)` with `v_t = tau v_{t-1} (1 - s_{t-1}) + i_t`: the reset is v_t's own, and hard. In training
BN takes the statistics of each step of the batch; evaluation takes running ones, the same for all steps.

What the width rule needs: BN(v_t) is N(beta, gamma^2) at every step, whatever leaks, so Eq. 7 has `kappa = 2 gamma_bar`
at every step. In evaluation BN is an affine map, so `fold` makes it a threshold per channel.
"""

from typing import Any

import torch
from torch import Tensor

from mpd_agl import ops
from mpd_agl.core import along_channels, lif, noisy_spike, spike
from mpd_agl.errors import InputError
from mpd_agl.nn.neuron import LIF, NOT_ASKED, PLIF, Neuron, Pass
from mpd_agl.nn.norm import BatchNorm


class NormedPotential(Neuron):
    """What MPBN changes of a neuron. A step's statistics need the spikes of the step before, so no kernel fuses it: it
    runs by the written equations.
    """

    potential_norm: BatchNorm

    def forward(
        self,
        i_SNC: Tensor,
        kappa_T: Tensor | None = None,
        *,
        num_steps: int | None = None,
        gain_T: Tensor | None = None,
        residual: Tensor | None = None,
        state: Tensor | None = NOT_ASKED,
    ) -> Any:
        """As `Neuron.forward`."""
        T = self._num_steps(i_SNC, kappa_T, num_steps)
        kept_0 = None if state is NOT_ASKED else state
        if kappa_T is None:
            kappa_T, gain_T = self.kappa_and_gain(i_SNC, T, kept_0)
        # Under autocast, too, the membrane is float32.
        dtype = torch.promote_types(i_SNC.dtype, torch.float32)
        i_TNC = i_SNC.expand(T, *i_SNC.shape[1:]).to(dtype)
        place = self.replicas.place(i_SNC.shape[1]) if self.is_noisy and self.replicas is not None else None
        v_th = along_channels("v_th", self.v_th, i_TNC.shape, self.channel_dim)
        normed_T: list[Tensor] = []

        def fire(v_NC: Tensor, kappa: Tensor, t: int) -> Tensor:
            normed_T.append(self.potential_norm(v_NC.unsqueeze(0))[0])
            u_NC = normed_T[-1] - v_th
            if not self.is_noisy:
                return spike(u_NC, kappa, self.surrogate, 1.0 if gain_T is None else gain_T[t])
            draw = torch.rand_like(u_NC) if place is None else ops.rand_like(u_NC, place)
            return noisy_spike(u_NC, kappa, (draw >= self.noise).to(u_NC.dtype), self.surrogate)

        # The threshold stands behind the norm, in `fire`.
        dynamics = {**self.dynamics(), "v_th": 0.0}
        s_TNC, _, kept_NC = lif(i_TNC, self.tau, kappa_T, fire=fire, kept_0=kept_0, return_state=True, **dynamics)
        if self.watchers:
            v_TNC = torch.stack(normed_T).detach()
            self.show(Pass(i_SNC, None, kappa_T, torch.is_grad_enabled(), v_TNC, kept_0))
        s_TNC = s_TNC.to(i_SNC.dtype) if residual is None else s_TNC.to(i_SNC.dtype) + residual
        return s_TNC if state is NOT_ASKED else (s_TNC, kept_NC)


class MPBNLIF(NormedPotential, LIF):
    """LIF that fires on its normalised potential."""


class MPBNPLIF(NormedPotential, PLIF):
    """PLIF that fires on its normalised potential."""


class FoldedLIF(LIF):
    """LIF with thresholds of any sign, one per channel: what folding makes of MPBN."""

    @torch.no_grad()
    def __init__(self, neuron: NormedPotential) -> None:
        super().__init__(tau=neuron.tau, decay_input=neuron.decay_input, backend=neuron.backend)
        scale_C, shift_C = neuron.potential_norm.affine()
        v_th = torch.as_tensor(neuron.v_th, dtype=scale_C.dtype, device=scale_C.device)
        most = torch.finfo(torch.float32).max
        constant_C = torch.where(shift_C >= v_th, -most, most)  # at gamma = 0 a channel always fires, or never
        del self.v_th
        self.register_buffer("v_th", torch.where(scale_C == 0, constant_C, (v_th - shift_C) / scale_C.abs()))
        self.to(scale_C.device)

    def check_threshold(self, *, wait: bool = False) -> None:
        """Any threshold is right here."""


def with_normed_potential(make: object, channels: int | None, **options: Any) -> NormedPotential:
    """The neuron that a method names (LIF or PLIF), with MPBN's norm on its potential."""
    kinds: dict[object, type[NormedPotential]] = {LIF: MPBNLIF, PLIF: MPBNPLIF}
    if make not in kinds:
        raise InputError(
            "norm 'mpbn' fires on a normalised potential and knows the neurons LIF and PLIF, and this method has "
            "another. Use norm='bn', or a method with one of them, such as mpd-agl."
        )
    if channels is None:
        raise InputError("norm 'mpbn' of a block without a synapse needs channels=C, got none.")
    if options.pop("start", "rest") != "rest":
        raise InputError("start='mp-init' is a potential before MPBN's norm. Use norm='bn' with it, or start='rest'.")
    neuron = kinds[make](**options)
    neuron.potential_norm = BatchNorm(channels)
    return neuron
