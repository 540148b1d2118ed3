"""MPBN (Guo et al., ICCV 2023): a second batch norm, on the membrane potential, right before it meets the threshold.

`s_t = (BN(v_t) >= v_th)` with `v_t = tau v_{t-1} (1 - s_{t-1}) + i_t`: the reset is v_t's own, and hard. In training
BN takes the statistics of each step of the batch; evaluation takes running ones, the same for all steps.

What the width rule needs: BN(v_t) is N(beta, gamma^2) at every step, whatever leaks, so Eq. 7 has `kappa = 2 gamma_bar`
at every step. In evaluation BN is an affine map, so `fold` makes it a threshold per channel.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.core import along_channels, lif, spike
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, PLIF, Affine, BatchNorm, Neuron
from mpd_agl.ops import StepDetails, StepInput, StepOutput


class NormedPotential(Neuron):
    """What MPBN changes of a neuron. A step's statistics need the spikes of the step before, so no kernel fuses it."""

    potential_norm: BatchNorm

    def __init__(self, channels: int, **options: Any) -> None:
        super().__init__(**options)
        if self.reset != "hard":
            raise InputError(f"norm 'mpbn' has a hard reset, got reset={self.reset!r}. Leave it out.")
        self.potential_norm = BatchNorm(channels)

    def run(self, step: StepInput) -> StepOutput:
        """By the written equations; the threshold is applied behind the norm."""
        c, i_TNC = self.constants(), step.currents()
        kappa_T = torch.ones(step.num_steps, device=step.x.device)
        kappa_T, gain_T = (kappa_T, None) if step.widths is None else step.widths
        v_th = along_channels("v_th", c.v_th, i_TNC.shape, c.channel_dim)
        normed_T: list[Tensor] = []

        def fire(v_NC: Tensor, kappa: Tensor, t: int) -> Tensor:
            normed_T.append(self.potential_norm(v_NC.unsqueeze(0))[0])
            return spike(normed_T[-1] - v_th, kappa, c.surrogate, 1.0 if gain_T is None else gain_T[t])

        s_TNC, _, state = lif(
            i_TNC,
            c.tau,
            kappa_T,
            v_th=0.0,
            decay_input=c.decay_input,
            detach_reset=c.detach_reset,
            channel_dim=c.channel_dim,
            state=step.state,
            fire=fire,
        )
        return step.output(s_TNC, state, StepDetails(torch.stack(normed_T).detach()))

    def affines(self) -> list[Affine]:
        """Of the norm on the potential."""
        return [affine._replace(of_potential=True) for affine in self.potential_norm.affines()]

    def potentials(self, step: StepInput) -> Tensor:
        """A rule that measures would need a second pass of the norm, which counts its statistics."""
        raise InputError(
            "this width rule measures potentials, and norm 'mpbn' fires on normalised ones. "
            "Use norm='bn', or another method."
        )

    @torch.no_grad()
    def for_inference(self) -> tuple[Neuron, Tensor]:
        """`scale v + shift >= v_th` as a threshold of v, one per channel.

        Where scale is negative the neuron fires below a value. With the synapse's sign turned, so is v's, and it fires
        above: the reset to 0 has no sign.
        """
        scale_C, _ = self.potential_norm.affine_map()
        return FoldedLIF(self), torch.where(scale_C < 0, -1.0, 1.0).to(scale_C)


class MPBNLIF(NormedPotential, LIF):
    """LIF that fires on its normalised potential."""


class MPBNPLIF(NormedPotential, PLIF):
    """PLIF that fires on its normalised potential."""


class FoldedLIF(LIF):
    """LIF with thresholds of any sign, one per channel: what folding makes of MPBN."""

    @torch.no_grad()
    def __init__(self, neuron: NormedPotential) -> None:
        super().__init__(tau=neuron.tau, decay_input=neuron.decay_input, backend=neuron.backend)
        scale_C, shift_C = neuron.potential_norm.affine_map()
        v_th = torch.as_tensor(neuron.v_th, dtype=scale_C.dtype, device=scale_C.device)
        most = torch.finfo(torch.float32).max
        constant_C = torch.where(shift_C >= v_th, -most, most)  # at gamma = 0 a channel always fires, or never
        del self.v_th
        self.register_buffer("v_th", torch.where(scale_C == 0, constant_C, (v_th - shift_C) / scale_C.abs()))
        self.to(scale_C.device)

    def check_threshold(self, *, wait: bool = False) -> None:
        """Any threshold is right here."""


def mpbn_norm(channels: int, **_: Any) -> BatchNorm:
    """The norm behind the synapse is a plain one."""
    return BatchNorm(channels)


def mpbn_neuron(make: Callable[..., nn.Module], channels: int | None, **options: Any) -> NormedPotential:
    """The neuron that a method names (LIF or PLIF), with MPBN's norm on its potential."""
    kinds: dict[object, type[NormedPotential]] = {LIF: MPBNLIF, PLIF: MPBNPLIF}
    if make not in kinds:
        raise InputError(
            "norm 'mpbn' fires on a normalised potential and knows the neurons LIF and PLIF, and this method has "
            "another. Use norm='bn', or a method with one of them, such as mpd-agl."
        )
    if channels is None:
        raise InputError("norm 'mpbn' of a block without a synapse needs channels=C, got none.")
    return kinds[make](channels=channels, **options)
