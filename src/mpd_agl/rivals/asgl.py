"""ASGL (Wang et al. 2023): training outputs in which hard spikes and their soft step are mixed at random."""

from typing import Any

from torch import Tensor

from mpd_agl.core import lif
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF
from mpd_agl.nn.neuron import lif_potentials
from mpd_agl.ops import NeuronSpec, StepDetails, StepInput, StepOutput


def soft_step(u: Tensor, kappa: Tensor | float) -> Tensor:
    """`H(u) = clamp(u/kappa + 1/2, 0, 1)`, whose derivative is the rectangular surrogate."""
    return (u / kappa + 0.5).clamp(0, 1)


def noisy_spike(u: Tensor, kappa: Tensor | float, keep: Tensor) -> Tensor:
    """ASGL's training output: `H(u) + ((step(u) - H(u)) * keep).detach()`.

    `keep` is 1 where the hard spike is passed on and 0 where its soft step is; it is drawn at each step, P(keep = 1) =
    1 - p. The gradient is that of the soft step H everywhere, and reaches kappa.
    """
    soft = soft_step(u, kappa)
    hard = (u >= 0).to(u.dtype)
    return soft + ((hard - soft) * keep).detach()


class ASGLNeuron(LIF):
    """LIF with noisy soft outputs while training; `noise` is the share of soft ones. Evaluation fires pure spikes."""

    def __init__(self, noise: float = 0.2, **options: Any) -> None:
        if not 0 <= noise < 1:
            raise InputError(f"noise must lie in [0, 1), got {noise}. ASGL uses 0.1 to 0.2.")
        super().__init__(**options)
        self.noise = noise

    def run(self, step: StepInput) -> StepOutput:
        """By the written equations while training."""
        if not self.training or self.noise == 0:
            return super().run(step)
        assert step.widths is not None
        if step.widths.gain_T is not None:
            raise InputError("ASGL's soft spikes have a height of their own, got a rule that sets it. Use method asgl.")

        def fire(u: Tensor, kappa: Tensor, _: int) -> Tensor:
            return noisy_spike(u, kappa, (self.sync.rand_like(u) >= self.noise).to(u.dtype))

        c = self.constants()
        s_TNC, v_TNC, state = lif(
            step.currents(),
            c.tau,
            step.widths.kappa_T,
            v_th=c.v_th,
            reset=c.reset,
            decay_input=c.decay_input,
            detach_reset=c.detach_reset,
            channel_dim=c.channel_dim,
            state=step.state,
            fire=fire,
        )
        return step.output(s_TNC, state, StepDetails(v_TNC.detach()))

    def potentials(self, step: StepInput) -> Tensor:
        """With spikes alone, as in evaluation."""
        return lif_potentials(self.constants(), step)

    def portable(self) -> NeuronSpec:
        """In evaluation it is a LIF."""
        return self.constants()
