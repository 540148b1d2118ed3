"""What a width rule may know about a layer's membrane potential, and where that knowledge comes from.

A rule asks a `Potential` for the mean and the standard deviation of v_t at each timestep. They are *predicted* from the
parameters of the norm before the neuron (Theorems 1 and 2), or *measured* while the network trains, where no norm
stands before the neuron or where the user asks for it. A rule that needs the potentials of the batch at hand declares
it (`Width.needs_batch`) and finds their sums here.

Shapes: T timesteps, C channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.core import Rectangular, Surrogate
from mpd_agl.core.mpd import Leak, Moments
from mpd_agl.errors import InputError
from mpd_agl.nn.step_norm import TAB, TEBN
from mpd_agl.ops import Replicas


class Affine(NamedTuple):
    """A norm's last step: its output has mean `beta_C` and standard deviation `|gamma_C| * scale` per channel.

    Where each timestep has its own (TEBN, TAB), gamma and beta are (T, C).
    """

    gamma_C: Tensor
    beta_C: Tensor
    scale: float
    """tdBN's `alpha * v_th`; 1 for every other norm."""
    of_potential: bool = False
    """The norm stands on the potential itself (MPBN): its moments are these at every step, whatever leaks."""


def affine_of(norm: nn.Module) -> Affine | None:
    """gamma, beta and scale of a normalisation layer; None where the module is none that we can read.

    Reads tdBN, BatchNorm, InstanceNorm, GroupNorm, LayerNorm, RMSNorm and what derives from them, by their attributes.
    Batch norms normalise each channel over the batch, so their output has these moments while training. GroupNorm,
    LayerNorm and RMSNorm normalise each sample: over a batch the moments hold only roughly.

    >>> affine_of(nn.BatchNorm2d(2)).scale, affine_of(nn.Conv2d(1, 1, 1))
    (1.0, None)
    """
    named = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    threshold_dependent = hasattr(norm, "alpha") and hasattr(norm, "v_th")
    if not isinstance(norm, named) and not (threshold_dependent and hasattr(norm, "running_mean")):
        return None
    scale = float(norm.alpha) * float(norm.v_th) if threshold_dependent else 1.0  # type: ignore[arg-type]
    if isinstance(norm, TEBN | TAB):
        gamma_TC, beta_TC = norm.affine_TC()
        return Affine(gamma_TC.detach(), beta_TC.detach(), scale)
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    # Without an affine step every channel has gamma 1 and beta 0.
    plain = next(norm.buffers(), torch.zeros(())).new_ones(1, dtype=torch.float32)
    gamma_C = weight.detach().flatten() if isinstance(weight, Tensor) else plain
    beta_C = bias.detach().flatten() if isinstance(bias, Tensor) else torch.zeros_like(gamma_C)
    return Affine(gamma_C, beta_C, scale)


class PotentialSums(NamedTuple):
    """Of the potentials of one batch, per timestep, over all neurons of a layer and all processes."""

    values: int
    """Neurons times samples: the number of potentials in each sum."""
    sum_T: Tensor
    """sum of v_t."""
    square_T: Tensor
    """sum of v_t^2."""


@dataclass(frozen=True)
class Potential:
    """What a width rule is asked with: the neuron's constants, T, and the moments of v_t by kind."""

    num_steps: int
    v_th: Tensor | float
    tau: Tensor
    moments: Callable[[Moments], tuple[Tensor, Tensor]]
    """mean_T and std_T of the potential before reset."""
    batch: PotentialSums | None = None
    """Where the rule declares `needs_batch`: the sums of this batch. None without gradients, and for plots."""
    surrogate: Surrogate = field(default_factory=Rectangular)
    """The shape whose width is asked for."""

    @property
    def threshold(self) -> Tensor | float:
        """One threshold for the layer: the mean over channels where each has its own."""
        return self.v_th.detach().mean() if isinstance(self.v_th, Tensor) else self.v_th


def predicted(
    affines: Sequence[Affine],
    tau: Tensor,
    num_steps: int,
    kind: Moments,
    *,
    input_scale: Tensor | float = 1.0,
    leak: Leak = "two",
) -> tuple[Tensor, Tensor]:
    """Theorems 1 and 2: mean_T and std_T of a neuron's potential behind norms whose currents are added.

    The means add; the variances add too, the currents taken as independent. `input_scale` multiplies the current, as a
    neuron does that decays its input: `1 - tau`.
    """
    if not affines:
        raise InputError("the potential's moments are predicted from a norm, got none. Measure them instead.")
    tau = tau.detach().mean()  # a decay per channel: the layer's mean
    affines = [a._replace(gamma_C=a.gamma_C.to(tau.device), beta_C=a.beta_C.to(tau.device)) for a in affines]
    if any(a.gamma_C.dim() == 2 for a in affines):
        steps = {len(a.gamma_C) for a in affines if a.gamma_C.dim() == 2}
        if steps != {num_steps}:
            raise InputError(f"a norm has parameters for {max(steps)} timesteps, got {num_steps}. Use as many.")
        parts = [_current_moments([_at_step(a, t) for a in affines], kind) for t in range(num_steps)]
        mean, std = (torch.stack(each) for each in zip(*parts, strict=True))
    else:
        mean, std = _current_moments(affines, kind)
    if affines[0].of_potential:
        return mean.expand(num_steps), std.expand(num_steps)
    if not (isinstance(input_scale, float) and input_scale == 1.0):
        mean, std = mean * input_scale, std * input_scale
    return core.potential_moments(mean, std, tau, num_steps, leak=leak)


def _at_step(affine: Affine, t: int) -> Affine:
    gamma, beta = affine.gamma_C, affine.beta_C
    return affine._replace(gamma_C=gamma[t], beta_C=beta[t]) if gamma.dim() == 2 else affine


def _current_moments(affines: Sequence[Affine], kind: Moments) -> tuple[Tensor, Tensor]:
    """Theorem 1: mean and standard deviation of the sum of currents."""
    if kind == "exact" and len({len(a.gamma_C) for a in affines}) == 1:
        # One current per channel: its variance is the sum of theirs, its mean the sum of their betas.
        squares_C = torch.stack([(a.gamma_C * a.scale).square() for a in affines]).sum(0)
        affines = [Affine(squares_C.sqrt(), torch.stack([a.beta_C for a in affines]).sum(0), 1.0)]
    parts = [core.input_moments(a.gamma_C, a.beta_C, v_th=a.scale, moments=kind) for a in affines]
    if len(parts) == 1:
        return parts[0]
    mean = torch.stack([m for m, _ in parts]).sum()
    return mean, torch.stack([s * s for _, s in parts]).sum().sqrt()


CAPACITY = 64
"""Timesteps that are measured; the last of them stands for those behind it. The buffers' shape never changes."""


class MeasuredMoments(nn.Module):
    """Running mean and variance of the potential at each timestep, measured on the training batches.

    They are buffers, so they are saved, moved, averaged and copied with the network. The first batch that has a
    timestep sets its moments; later ones move them by `momentum`. Sums are shared between the processes of
    `share_batch`.

    >>> measured = MeasuredMoments()
    >>> measured.update(torch.tensor([[0.0, 2.0], [1.0, 1.0]]))
    >>> measured.moments()
    (tensor([1., 1.]), tensor([1., 0.]))
    """

    mean: Tensor
    var: Tensor
    steps: Tensor
    replicas: Replicas | None = None
    """Processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise InputError(
                f"momentum must lie in (0, 1], got {momentum}. The default is 0.1, as batch norms take it."
            )
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(CAPACITY))
        self.register_buffer("var", torch.ones(CAPACITY))
        self.register_buffer("steps", torch.tensor(0))
        self._known: int | None = 0

    @property
    def known(self) -> int:
        """Timesteps that were measured so far. Read from the buffer once after it was loaded."""
        if self._known is None:
            self._known = int(self.steps)
        return self._known

    @property
    def mean_T(self) -> Tensor:
        """Mean at each timestep that was measured."""
        return self.mean[: self.known]

    @property
    def var_T(self) -> Tensor:
        """Variance at each timestep that was measured."""
        return self.var[: self.known]

    @torch.no_grad()
    def update(self, v_TM: Tensor) -> None:
        """Take in the potentials of a batch, time first."""
        v_TM = v_TM.detach().flatten(1)
        self.update_sums(PotentialSums(v_TM.shape[1], v_TM.sum(1), v_TM.square().sum(1)))

    @torch.no_grad()
    def update_sums(self, sums: PotentialSums) -> None:
        """Take in the sums of a batch."""
        T, old = min(sums.sum_T.shape[0], CAPACITY), self.known
        mean_T, var_T = (a[:T].to(self.mean) for a in moments_of(sums, self.replicas))
        both = min(old, T)
        self.mean[:both].lerp_(mean_T[:both], self.momentum)
        self.var[:both].lerp_(var_T[:both], self.momentum)
        if old < T:
            self.mean[old:T], self.var[old:T] = mean_T[old:], var_T[old:]
            self.steps.fill_(T)
            self._known = T

    def moments(self, kind: Moments = "exact", num_steps: int | None = None) -> tuple[Tensor, Tensor]:
        """mean_T and std_T, of `num_steps` or of all that were measured; the last stands for those that were not.

        They are the potential's own, so both kinds are the same here.
        """
        T = self.known if num_steps is None else num_steps
        found = self.mean_T[:T], self.var_T[:T].sqrt()
        if (missing := T - self.known) <= 0:
            return found
        mean_T, std_T = (torch.cat([a, a[-1:].expand(missing)]) for a in found)
        return mean_T, std_T

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        self._known = None  # to be read from what is loaded
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_known": None}

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"momentum={self.momentum}"


def moments_of(sums: PotentialSums, replicas: Replicas | None = None) -> tuple[Tensor, Tensor]:
    """mean_T and variance_T from sums, over all processes that share the batch."""
    both_2T = torch.stack([sums.sum_T, sums.square_T]).double()
    total: Tensor | float = float(sums.values)
    if replicas is not None:
        *flat, total = replicas.sum(torch.cat([both_2T.flatten(), both_2T.new_tensor([sums.values])]))
        both_2T = torch.stack(flat).view_as(both_2T)
    mean_T = both_2T[0] / total
    return mean_T, (both_2T[1] / total - mean_T.square()).clamp_min(0)
