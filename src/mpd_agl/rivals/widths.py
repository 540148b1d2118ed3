"""Width rules of published rivals."""

import torch
from torch import Tensor, nn

from mpd_agl.core import KAPPA_MIN
from mpd_agl.errors import InputError
from mpd_agl.nn import FixedWidth, Potential, Width, Widths
from mpd_agl.nn.width import positive_width


class SingleStepWidth(FixedWidth):
    """kappa = 1, for a surrogate that is made for one timestep (S2NN, Suetake et al. 2023)."""

    def forward(self, potential: Potential) -> Widths:
        """The constant; more than one timestep is refused."""
        if potential.num_steps > 1:
            raise InputError(
                f"method s2nn trains networks of one timestep, got num_steps={potential.num_steps}. "
                "Use num_steps=1 (--model.num_steps 1)."
            )
        return super().forward(potential)


class ScheduledWidth(Width):
    """Slope scheduling (Van den Berghe et al., NeurIPS 2025): the slope k rises from `first` to `last` while training.

    `kappa = 2/k` of the fast sigmoid. The share of the training that is done is the buffer `progress`, in [0, 1]: a
    training loop sets it before each step, as `train.step` does (`rule.progress.fill_(share)`). Here
    equal shares of the training multiply the slope by equal factors: along a straight line it passes 10 in the first
    tenth, and the layers of a deep network are cut off from the loss before they have learnt.
    """

    progress: Tensor

    def __init__(self, first: float = 1.0, last: float = 100.0) -> None:
        super().__init__()
        if min(first, last) <= 0:
            raise InputError(f"slopes must be positive, got {first} and {last}. The paper goes from 1 to 100.")
        self.first, self.last = first, last
        self.register_buffer("progress", torch.zeros(()))

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """2/k at this point of the training."""
        slope = self.first * (self.last / self.first) ** self.progress
        return constant_width(2 / slope, potential)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"slope {self.first:g} to {self.last:g}"


def constant_width(kappa: Tensor, potential: Potential, gain: float = 1.0) -> Widths:
    """One width, and one factor on the height, at every step."""
    kappa_T = kappa.to(potential.tau.device).reshape(1).expand(potential.num_steps)
    return Widths(kappa_T, None if gain == 1 else torch.full_like(kappa_T.detach(), gain))


class RelativeWidth(Width):
    """kappa = v_th, learnt with it: the surrogate is a function of v/v_th (TrSG, Kook et al. 2026; Diet-SNN, Rathi and
    Roy 2020).

    With `u = v - v_th` and a kappa that passes its gradient on, `dH/dv_th = -h - (u/kappa) h = -(v/v_th) h`: the
    derivative of H(v/v_th). `gain` multiplies its height.
    """

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, potential: Potential) -> Widths:
        """The threshold itself."""
        v_th = torch.as_tensor(potential.neuron.v_th, device=potential.tau.device)
        if v_th.dim():
            raise InputError(f"a relative width has one threshold per layer, got {len(v_th)}. Use one v_th.")
        return constant_width(v_th, potential, self.gain)


def _within(parameter: Tensor, low: Tensor | float, high: Tensor | float | None = None) -> Tensor:
    """The parameter's value kept in [low, high], its gradient passed on unchanged: it can come back from outside."""
    value = parameter.detach()
    kept = torch.maximum(value, torch.as_tensor(low, dtype=value.dtype, device=value.device))
    if high is not None:
        kept = torch.minimum(kept, torch.as_tensor(high, dtype=value.dtype, device=value.device))
    return parameter + (kept - value)


class LearnableWidth(Width):
    """PSG (Wang et al. 2025): the layer's width is itself a parameter, learned through dH/dkappa of the soft step."""

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.kappa = nn.Parameter(torch.tensor(positive_width(kappa)))

    def forward(self, potential: Potential) -> Widths:
        """The parameter, kept from zero."""
        return constant_width(_within(self.kappa, KAPPA_MIN * potential.v_th), potential)


class SlopeWidth(Width):
    """ASGL (Wang et al. 2023): a learnable slope `a` of the soft step `clamp(a u + 1/2, 0, 1)`; kappa = 1/a."""

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(1 / positive_width(kappa)))

    def forward(self, potential: Potential) -> Widths:
        """1/a, with a kept within what keeps kappa between `KAPPA_MIN v_th` and its inverse."""
        least = KAPPA_MIN * potential.v_th
        return constant_width(1 / _within(self.slope, least, 1 / least), potential)


def deeptage_width(sigma_T: Tensor, *, weight: float = 0.25) -> Tensor:
    """DeepTAGE (Liu et al. 2025): `delta_t = w sigma_t/sigma_1 + (1 - w)`; `sigma_t = ||v_t - v_th||_2` over the layer.

    >>> deeptage_width(torch.tensor([2.0, 4.0]))
    tensor([1.0000, 1.2500])
    """
    return weight * sigma_T / sigma_T[0].clamp_min(1e-12) + (1 - weight)


class DeepTAGEWidth(Width):
    """The width of DeepTAGE, from the norms of the potentials themselves."""

    needs = "batch"

    def __init__(self, weight: float = 0.25) -> None:
        super().__init__()
        self.weight = weight

    @torch.no_grad()
    def forward(self, potential: Potential) -> Widths:
        """`sigma_t^2 = sum v^2 - 2 v_th sum v + n v_th^2`. Without potentials (plots): 1, the width at t = 1."""
        sums, v_th = potential.sums(), potential.v_th
        if sums is None:
            return Widths(torch.ones(potential.num_steps, device=potential.tau.device))
        squares_T = sums.square_T - 2 * v_th * sums.sum_T + sums.values * v_th * v_th
        return Widths(deeptage_width(squares_T.clamp_min(0).sqrt(), weight=self.weight).float())
