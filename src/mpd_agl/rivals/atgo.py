"""DS-ATGO (Jiang et al., AAAI 2026, arXiv 2511.13050): threshold and width from the potentials of the current batch."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mpd_agl.core import KAPPA_MIN, Surrogate, lif, spike
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn import PLIF, PotentialSums
from mpd_agl.nn.called import in_backward
from mpd_agl.nn.neuron import lif_potentials
from mpd_agl.nn.potential import CAPACITY
from mpd_agl.ops import StepDetails, StepInput, StepOutput, Widths, fused_step, probe

WidthForm = Literal["threshold", "sigma"]


def atgo_width(theta: Tensor, std: Tensor, *, v_th: float = 0.5, width: float = 1.0, form: WidthForm) -> Tensor:
    """DS-ATGO (Jiang et al. 2026): `kappa = k0 (1 + tanh(theta - V_th))`, never under `KAPPA_MIN * V_th`.

    `form="threshold"` is the paper's; `"sigma"` is the published code's, which has the potential's standard deviation
    in theta's place.

    >>> theta, std = torch.tensor([0.5, 1.5]), torch.tensor([0.5, 0.5])
    >>> atgo_width(theta, std, form="threshold"), atgo_width(theta, std, form="sigma")
    (tensor([1.0000, 1.7616]), tensor([1., 1.]))
    """
    if form not in ("threshold", "sigma"):
        raise unknown_name("form", form, ("threshold", "sigma"))
    by = theta if form == "threshold" else std
    return (width * (1 + torch.tanh(by - v_th))).clamp_min(KAPPA_MIN * v_th)


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
    state: Tensor | None = None,
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
    s_T, v_T, kept = lif(i_T, tau, ones_T, v_th=0.0, fire=fire, detach_reset=detach_reset, state=state)
    return AtgoSequence(s_T, v_T, kept, torch.stack(thetas), torch.stack(stds), torch.stack(kappas))


class AtgoNeuron(PLIF):
    """PLIF that fires at `theta_t = mean(v_t) + std(v_t)` of the layer and the current batch.

    A running average of theta_t per timestep, with momentum 0.1 from V_th on, is a buffer and serves evaluation. Later
    timesteps than were trained take the last one's. V_th is `v_th`. Width: `form`, see `atgo_width`.
    """

    theta: Tensor
    steps: Tensor

    def __init__(self, form: WidthForm = "threshold", **options: Any) -> None:
        super().__init__(**options)
        self.form: WidthForm = form
        if self.reset != "hard" or not isinstance(self.v_th, float) or self.decay_input:
            raise InputError(
                "method ds-atgo has a hard reset, one V_th and a current that is not decayed. Leave those options out."
            )
        self.register_buffer("theta", torch.full((CAPACITY,), self.v_th))
        self.register_buffer("steps", torch.tensor(0))

    def running(self, num_steps: int) -> Tensor:
        """theta_T of evaluation."""
        last = (self.steps - 1).clamp_min(0)
        return self.theta[torch.minimum(torch.arange(num_steps, device=last.device), last)]

    def run(self, step: StepInput) -> StepOutput:
        """Spikes of T steps at the batch's own thresholds while training, at the running ones in evaluation."""
        if step.state is not None or step.want_state:
            raise InputError(
                "method ds-atgo has a threshold per timestep, and a state does not tell its timestep. "
                "Run all timesteps in one call, without state."
            )
        spikes_TNC, details = self._sequence(step)
        if self.training and not in_backward():
            self._keep(details.v_th_T)
        spikes_TNC = spikes_TNC if step.residual is None else spikes_TNC + step.residual
        return StepOutput(spikes_TNC, details=details)

    def _sequence(self, step: StepInput) -> tuple[Tensor, StepDetails]:
        """`atgo` step by step: a step's potentials are measured, then it fires at what they give."""
        steps, spec, kept = step.x.unbind(0), self.constants(), None
        spikes, v_T, thetas, kappas = [], [], [], []
        for t in range(step.num_steps):
            i_1NC = steps[t % len(steps)].unsqueeze(0)
            one = StepInput(i_1NC, 1, state=kept, want_state=True)
            theta, kappa = self._threshold_and_width(one, t)
            if self.is_watched:
                v_T.append(lif_potentials(spec, one)[0])
            found = fused_step(None, replace(spec, v_th=theta), one._replace(widths=Widths(kappa.expand(1))))
            kept = found.state
            # Channels innermost, as convolutions want it.
            spikes.append(found.spikes[0].movedim(min(1, found.spikes.dim() - 2), -1))
            thetas.append(theta)
            kappas.append(kappa)
        s_TNC = torch.stack(spikes).movedim(-1, min(2, step.x.dim() - 1))
        seen = torch.stack(v_T) if v_T else s_TNC.detach()
        return s_TNC, StepDetails(seen, torch.stack(thetas), torch.stack(kappas))

    def _threshold_and_width(self, one: StepInput, t: int) -> tuple[Tensor, Tensor]:
        """theta_t and kappa_t of one step; kappa_t is 1 where no width is wanted."""
        running = None if self.training else self.running(t + 1)[t].to(one.currents())
        if running is not None and not torch.is_grad_enabled() and not self.is_watched:
            return running, torch.ones_like(running)
        sums_16 = probe(one.x, None, self.constants(), torch.ones(1, device=one.x.device), one.state)
        total, square, count = sums_16[:, 2], sums_16[:, 3], one.x[0].numel()
        if count < 2 and not self.sync.is_shared:
            raise InputError(
                "method ds-atgo measures the spread of a layer's potentials, got a single one. Use a larger batch."
            )
        if self.training and self.sync.is_shared:
            own = torch.cat([total, square, total.new_tensor([count])])
            total, square, count = self.sync.sum(own)
        mean = total / count
        std = ((square / count - mean * mean).clamp_min(0) * count / (count - 1)).sqrt()
        theta = mean + std if running is None else running
        theta, std = (a.reshape(()).to(one.currents()) for a in (theta, std))
        return theta, atgo_width(theta, std, v_th=float(self.v_th), form=self.form)

    @torch.no_grad()
    def _keep(self, theta_T: Tensor | None) -> None:
        """Move the running thresholds by a tenth."""
        assert theta_T is not None
        T = min(len(theta_T), CAPACITY)
        self.theta[:T].lerp_(theta_T[:T].to(self.theta.dtype), 0.1)
        self.steps.clamp_(min=T)

    def potentials(self, step: StepInput) -> Tensor:
        """At the thresholds that a pass would have."""
        handle = self.watch(lambda _: None)  # a watched sequence keeps its potentials
        try:
            return self._sequence(step._replace(residual=None))[1].potentials
        finally:
            handle.remove()

    def sums(self, step: StepInput, current: Any = None) -> PotentialSums:
        """Of those potentials."""
        return PotentialSums.of(self.potentials(step))
