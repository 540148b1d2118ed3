"""MP-Init and TrSG (Kook et al., WACV 2026, arXiv 2511.08708): a learnt start of the potential, a relative width."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, PLIF, Neuron
from mpd_agl.nn.called import in_backward
from mpd_agl.nn.neuron import checked_threshold, lif_potentials
from mpd_agl.ops import StepInput, StepOutput, fused_step
from mpd_agl.rivals.widths import RelativeWidth


class MPInit(Neuron):
    """A neuron whose sequences start at one potential m per layer (`start`) in place of rest.

    After a training batch `m <- 0.9 m + 0.1 mean(kept_T)` over the neurons that fired. Combine it with a neuron:
    `class MyNeuron(MPInit, PLIF)`.
    """

    start: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("start", torch.zeros(()))

    def run(self, step: StepInput) -> StepOutput:
        """From m, where no state is passed in."""
        if step.state is not None:
            return super().run(step)
        if self.training and in_backward():
            raise InputError(
                "a start by MP-Init moves with every training pass, so a second pass would start elsewhere. "
                "Use it without recompute and without torch.utils.checkpoint."
            )
        dtype = torch.promote_types(step.x.dtype, torch.float32)
        start = self.start.to(dtype, copy=True).expand(step.x.shape[1:])
        output = super().run(step._replace(state=start, want_state=True, residual=None))
        # With a state asked for, a sequence comes in pieces, and its first piece's end is not the sequence's.
        if self.training and not step.want_state:
            self._learn(output)
        spikes = output.spikes if step.residual is None else output.spikes + step.residual
        return output._replace(spikes=spikes, state=output.state if step.want_state else None)

    def potentials(self, step: StepInput) -> Tensor:
        """From m, where no state is passed in."""
        if step.state is None:
            step = step._replace(state=self.start.to(step.currents(), copy=True).expand(step.x.shape[1:]))
        return lif_potentials(self.constants(), step)

    @torch.no_grad()
    def _learn(self, output: StepOutput) -> None:
        assert output.state is not None
        fired = (output.spikes >= 0.5 * self.height).any(0)  # the greater half of soft outputs
        kept = torch.where(fired, output.state.double(), 0.0).sum()
        total, count = self.sync.sum(torch.stack([kept, fired.sum().double()]))
        self.start.lerp_((total / count.clamp_min(1)).to(self.start), 0.1)


class TrSGNeuron(PLIF):
    """TrSG: `v += (i - v)/tau'`, soft reset, `theta = softplus(p)` learnt.

    The output is `theta s`, the surrogate a rectangle over (theta/2, 3 theta/2), so that d out/dv = 1 inside it for any
    theta. Our `tau`, what is kept, is `1 - 1/tau'`, learnt as well.

    >>> neuron = TrSGNeuron(v_th=2.0)
    >>> neuron(torch.tensor([[[3.0]], [[4.0]]])).detach().flatten()
    tensor([2., 2.])
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"width": RelativeWidth(), **options, "reset": "soft", "decay_input": True})

    def _set_threshold(self, v_th: Any, learn: bool) -> None:
        value = checked_threshold(v_th)
        if value.dim():
            raise InputError(f"TrSG learns one threshold per layer, got {v_th}. Give one number.")
        self.p = nn.Parameter(torch.tensor(float(value.expm1().log())))  # softplus(p) = v_th

    @property
    def v_th(self) -> Tensor:  # type: ignore[override]
        """The threshold, `softplus(p)`: never zero or less."""
        return F.softplus(self.p)

    @property
    def height(self) -> Tensor:  # type: ignore[override]
        """theta."""
        return self.v_th.detach()

    def potentials(self, step: StepInput) -> Tensor:
        """A LIF's."""
        return lif_potentials(self.constants(), step)

    def run(self, step: StepInput) -> StepOutput:
        """theta times the spikes; the residual is added behind."""
        output = fused_step(None, self.constants(), step._replace(residual=None))
        spikes = (self.v_th * output.spikes).to(step.x.dtype)
        return output._replace(spikes=spikes if step.residual is None else spikes + step.residual)


class MPInitTrSG(MPInit, TrSGNeuron):
    """Both, as published."""


class MPInitLIF(MPInit, LIF):
    """LIF that starts at m."""


class MPInitPLIF(MPInit, PLIF):
    """PLIF that starts at m."""
