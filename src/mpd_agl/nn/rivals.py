"""Neurons of published rivals. Where a rival is a LIF or PLIF with other options, it is a function that makes one."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl import ops
from mpd_agl.core.mpd import WidthForm
from mpd_agl.errors import InputError
from mpd_agl.nn.moments import CAPACITY, PotentialSums
from mpd_agl.nn.neuron import LIF, NOT_ASKED, PLIF, Pass, checked_threshold
from mpd_agl.nn.width import AtgoWidth, RelativeWidth


class TrSGNeuron(PLIF):
    """TrSG (Kook et al., WACV 2026, arXiv 2511.08708): `v += (i - v)/tau'`, soft reset, `theta = softplus(p)` learnt.

    The output is `theta s`, the surrogate a rectangle over (theta/2, 3 theta/2), so that d out/dv = 1 inside it for any
    theta. Our `tau`, what is kept, is `1 - 1/tau'`, learnt as well. The method's `start="mp-init"` is `Neuron`'s.

    >>> TrSGNeuron(v_th=2.0)(torch.tensor([[[3.0]], [[4.0]]]))
    tensor([[[2.]],
    <BLANKLINE>
            [[2.]]], grad_fn=<MulBackward0>)
    """

    def __init__(self, **options: Any) -> None:
        fixed = {"reset": "soft", "decay_input": True, "scaled": True}
        super().__init__(**{"width": RelativeWidth(), **options, **fixed})

    def _set_threshold(self, v_th: Any, learn: bool) -> None:
        value = checked_threshold(v_th)
        if value.dim():
            raise InputError(f"TrSG learns one threshold per layer, got {v_th}. Give one number.")
        self.p = nn.Parameter(torch.tensor(float(value.expm1().log())))  # softplus(p) = v_th

    @property
    def v_th(self) -> Tensor:  # type: ignore[override]
        """The threshold, `softplus(p)`: never zero or less."""
        return F.softplus(self.p)


def diet_neuron(**options: Any) -> PLIF:
    """Diet-SNN (Rathi and Roy 2020): leak and threshold learnt per layer, surrogate `0.3 max(0, 1 - |v/theta - 1|)`.

    The surrogate is of v/theta, so its derivative by v is `0.3/theta` at the threshold: our triangle of width theta
    with gain 0.3. Soft reset, no gradient through its spike. The published code learns the leak as it is; ours is
    `sigmoid(rho)`, which stays between 0 and 1.
    """
    fixed: dict[str, Any] = {"reset": "soft", "learn_v_th": True, "gain": 0.3, "detach_reset": True}
    return PLIF(**{"width": RelativeWidth(), **options, "surrogate": "triangular", **fixed})


def mpr_neuron(**options: Any) -> LIF:
    """MPR (Guo et al. 2022): the potential is rectified before it fires; a soft reset takes 1 off the one that is not.

    The rectified potential crosses 1/2 where the potential does, so only the surrogate knows of it (`core.MPR`). It is
    defined for v_th = 1/2.
    """
    v_th = options.pop("v_th", 0.5)
    if v_th != 0.5:
        raise InputError(f"method mpr rectifies around the threshold 0.5, got v_th={v_th}. Use v_th=0.5.")
    return LIF(**{**options, "surrogate": "mpr", "reset": "soft", "drop": 1.0})


class _Sequence(NamedTuple):
    """What DS-ATGO's steps give; potentials only where somebody asks for them."""

    s_T: Tensor
    v_T: Tensor | None
    theta_T: Tensor
    kappa_T: Tensor


class AtgoNeuron(PLIF):
    """DS-ATGO (Jiang et al. 2026): PLIF that fires at `theta_t = mean(v_t) + std(v_t)` of the layer and batch at hand.

    A running average of theta_t per timestep, with momentum 0.1 from V_th on, is a buffer and serves evaluation. The
    last timestep that was trained stands for those behind it. V_th is `v_th`. Width: `form`, see `core.atgo_width`.
    """

    sets_width = True
    """A block leaves kappa_T to this neuron, which measures what the rule needs."""
    theta: Tensor
    steps: Tensor

    def __init__(self, form: WidthForm = "threshold", **options: Any) -> None:
        super().__init__(**{"width": AtgoWidth(form), **options})
        self.measured = None  # it measures its own
        if self.reset != "hard" or not isinstance(self.v_th, float) or self.decay_input or self.start is not None:
            raise InputError(
                "method ds-atgo has a hard reset, one V_th, a current that is not decayed, and starts at rest. "
                "Leave those options out."
            )
        self.register_buffer("theta", torch.full((CAPACITY,), self.v_th))
        self.register_buffer("steps", torch.tensor(0))

    def running(self, num_steps: int) -> Tensor:
        """theta_T of evaluation."""
        last = (self.steps - 1).clamp_min(0)
        return self.theta[torch.minimum(torch.arange(num_steps, device=last.device), last)]

    def forward(
        self,
        i_SNC: Tensor,
        kappa_T: Tensor | None = None,
        *,
        num_steps: int | None = None,
        gain_T: Tensor | None = None,
        residual: Tensor | None = None,
        state: Tensor | None = NOT_ASKED,
    ) -> Tensor:
        """Spikes of T steps at the batch's own thresholds while training, at the running ones in evaluation."""
        if gain_T is not None:
            raise InputError("method ds-atgo sets its width and height itself, got gain_T. Leave it out.")
        if state is not NOT_ASKED:
            raise InputError(
                "method ds-atgo has a threshold per timestep, and a state does not tell its timestep. "
                "Run all timesteps in one call, without state."
            )
        T = self._num_steps(i_SNC, kappa_T, num_steps)
        found = self._sequence(i_SNC, T, potentials=bool(self.watchers))
        if self.training:
            self._keep(found.theta_T)
        if found.v_T is not None:
            self.show(Pass(i_SNC, None, found.kappa_T, True, found.v_T, theta_T=found.theta_T))
        return found.s_T if residual is None else found.s_T + residual

    def _sequence(self, i_SNC: Tensor, num_steps: int, *, potentials: bool) -> _Sequence:
        """`core.atgo` step by step: a kernel measures a step's potentials, another one fires at what they give."""
        dtype = torch.promote_types(i_SNC.dtype, torch.float32)
        steps, tau, kept = i_SNC.unbind(0), self.tau, None
        spikes, v_T, thetas, kappas = [], [], [], []
        for t in range(num_steps):
            i_1NC = steps[t % len(steps)].unsqueeze(0)
            theta, kappa = self._threshold_and_width(i_1NC, kept, t)
            if potentials:
                v_NC = i_1NC[0].detach().to(dtype)
                v_T.append(v_NC if kept is None else v_NC + (tau * kept).detach())
            dynamics = {**self.dynamics(), "v_th": theta.to(dtype)}
            options = {"num_steps": 1, "kept_0": kept, "return_state": True, **self.call_options(1)}
            s_1NC, kept = ops.neuron(i_1NC, tau, kappa.expand(1), **options, **dynamics)
            spikes.append(s_1NC[0].movedim(min(1, s_1NC.dim() - 2), -1))  # channels innermost, as convolutions want it
            thetas.append(theta)
            kappas.append(kappa)
        s_TNC = torch.stack(spikes).movedim(-1, min(2, i_SNC.dim() - 1))
        return _Sequence(s_TNC, torch.stack(v_T) if potentials else None, torch.stack(thetas), torch.stack(kappas))

    def _threshold_and_width(self, i_1NC: Tensor, kept_NC: Tensor | None, t: int) -> tuple[Tensor, Tensor]:
        """theta_t and kappa_t of one step; kappa_t is 1 where nobody asks for a width."""
        running = None if self.training else self.running(t + 1)[t]
        if running is not None and not torch.is_grad_enabled() and not self.watchers:
            return running, torch.ones_like(running)
        sums = super().observe(i_1NC, 1, kept_NC)
        if sums.values < 2 and self.replicas is None:
            raise InputError(
                "method ds-atgo measures the spread of a layer's potentials, got a single one. Use a larger batch."
            )
        own = torch.cat([sums.sum_T, sums.square_T, sums.sum_T.new_tensor([sums.values])])
        total, square, count = own if self.replicas is None or not self.training else self.replicas.sum(own)
        mean = total / count
        std = ((square / count - mean * mean).clamp_min(0) * count / (count - 1)).sqrt()
        theta = mean + std if running is None else running.to(mean)
        rule = self.width
        assert isinstance(rule, AtgoWidth)
        return theta, rule.of(theta, std, self.v_th)

    @torch.no_grad()
    def _keep(self, theta_T: Tensor) -> None:
        """Move the running thresholds by a tenth."""
        T = min(len(theta_T), CAPACITY)
        self.theta[:T].lerp_(theta_T[:T].to(self.theta.dtype), 0.1)
        self.steps.clamp_(min=T)

    @torch.no_grad()
    def observe(self, i_SNC: Tensor, num_steps: int, kept_0: Tensor | None = None) -> PotentialSums:
        """The sums of the potentials at the thresholds that a pass would have."""
        v_T = self._sequence(i_SNC, num_steps, potentials=True).v_T
        assert v_T is not None
        v_TM = v_T.flatten(1).double()
        return PotentialSums(v_TM.shape[1], v_TM.sum(1), v_TM.square().sum(1))
