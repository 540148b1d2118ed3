"""Neurons of rivals that differ from LIF and PLIF by a reset or by options alone."""

from typing import Any

import torch
from torch import Tensor

from mpd_agl.core import spike
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, PLIF
from mpd_agl.ops import StepDetails, StepInput, StepOutput
from mpd_agl.rivals.widths import RelativeWidth


def diet_neuron(**options: Any) -> PLIF:
    """Diet-SNN (Rathi and Roy 2020): leak and threshold learnt per layer, surrogate `0.3 max(0, 1 - |v/theta - 1|)`.

    The surrogate is of v/theta, so its derivative by v is `0.3/theta` at the threshold: a triangle of width theta with
    gain 0.3 (`RelativeWidth(gain=0.3)`). Soft reset, no gradient through its spike. The published code learns the leak
    as it is; here it is `sigmoid(rho)`, which stays between 0 and 1.
    """
    fixed = {"surrogate": "triangular", "reset": "soft", "learn_v_th": True, "detach_reset": True}
    return PLIF(**{"width": RelativeWidth(gain=0.3), **options, **fixed})


class MPRNeuron(LIF):
    """MPR (Guo et al. 2022): the potential is rectified before it fires; a soft reset takes 1 off the one that is not.

    The rectified potential crosses 1/2 where the potential does, so only the surrogate knows of it
    (`surrogates.MPR`). It is defined for v_th = 1/2.
    """

    def __init__(self, **options: Any) -> None:
        if (v_th := options.get("v_th", 0.5)) != 0.5:
            raise InputError(f"method mpr rectifies around the threshold 0.5, got v_th={v_th}. Use v_th=0.5.")
        super().__init__(**{**options, "surrogate": "mpr", "reset": "soft"})

    def run(self, step: StepInput) -> StepOutput:
        """`v_t = tau kept + i_t`, `kept = v_t - s_t`."""
        c, i_TNC = self.constants(), step.currents()
        kappa_T = torch.ones(step.num_steps) if step.widths is None else step.widths.kappa_T
        kept = torch.zeros_like(i_TNC[0]) if step.state is None else step.state
        spikes, potentials = [], []
        for t in range(step.num_steps):
            v = c.tau * kept + (1 - c.tau if c.decay_input else 1) * i_TNC[t]
            s = spike(v - c.v_th, kappa_T[t], c.surrogate)
            kept = v - (s.detach() if c.detach_reset else s)
            spikes.append(s)
            potentials.append(v.detach())
        return step.output(torch.stack(spikes), kept, StepDetails(torch.stack(potentials)))

    @torch.no_grad()
    def potentials(self, step: StepInput) -> Tensor:
        """By the same equations."""
        details = self.run(step._replace(residual=None, widths=None)).details
        assert details is not None
        return details.potentials
