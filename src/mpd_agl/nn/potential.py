"""What a width rule may know about a layer's membrane potential, and where that knowledge comes from.

A rule asks a `Potential` for the mean and the standard deviation of v_t at each timestep. They are *predicted* from the
parameters of the norms before the neuron (Theorems 1 and 2), or *measured* while the network trains where no norm is
known. A rule that needs the potentials of the current batch finds their sums here.

Shapes: T timesteps, C channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.core import Surrogate
from mpd_agl.core.mpd import Leak, Moments
from mpd_agl.errors import InputError
from mpd_agl.ops import LOCAL, NeuronSpec, Sync
from mpd_agl.ops.step.spec import given

TORCH_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""torch's own norms, which know no time."""


class Affine(NamedTuple):
    """A norm's last step: its output has mean `beta_C` and standard deviation `|gamma_C| * scale` per channel.

    Where each timestep has its own, gamma and beta are (T, C).
    """

    gamma_C: Tensor
    beta_C: Tensor
    scale: float
    """tdBN's `alpha * v_th`; 1 for every other norm."""
    of_potential: bool = False
    """The norm is applied to the potential itself: its moments are these at every step, whatever leaks."""


def affines_of(norm: nn.Module | None) -> list[Affine] | None:
    """What Eq. 7 reads of a norm; None where it is none that we can read.

    Norms with `affines()` are asked. BatchNorm, InstanceNorm, GroupNorm, LayerNorm, RMSNorm and what derives from them
    are read by their attributes. Batch norms normalise each channel over the batch, so their output has these moments
    while training. GroupNorm, LayerNorm and RMSNorm normalise each sample: over a batch the moments hold only roughly.

    >>> affines_of(nn.BatchNorm2d(2))[0].scale, affines_of(nn.Conv2d(1, 1, 1))
    (1.0, None)
    """
    if not isinstance(norm, TORCH_NORMS):
        affines = getattr(norm, "affines", None)
        found: list[Affine] | None = None if affines is None else affines()
        return found
    # Threshold-dependent norms of other libraries name their factors; the rest have none.
    scale = float(getattr(norm, "alpha", 1.0)) * float(getattr(norm, "v_th", 1.0))
    # Without an affine step every channel has gamma 1 and beta 0.
    plain_C = next(norm.buffers(), torch.zeros(())).new_ones(1, dtype=torch.float32)
    gamma_C = given(norm.weight, lambda a: a.detach().flatten())
    gamma_C = plain_C if gamma_C is None else gamma_C
    beta_C = given(getattr(norm, "bias", None), lambda a: a.detach().flatten())
    return [Affine(gamma_C, torch.zeros_like(gamma_C) if beta_C is None else beta_C, scale)]


class PotentialSums(NamedTuple):
    """Of the potentials of one batch, per timestep, over all neurons of a layer and all processes."""

    values: int
    """Neurons times samples: the number of potentials in each sum."""
    sum_T: Tensor
    """sum of v_t."""
    square_T: Tensor
    """sum of v_t^2."""

    @classmethod
    def of(cls, v_T: Tensor) -> "PotentialSums":
        """Of potentials with time first."""
        v_TM = v_T.detach().flatten(1).double()
        return cls(v_TM.shape[1], v_TM.sum(1), v_TM.square().sum(1))

    def shared(self, sync: Sync) -> "PotentialSums":
        """Over all processes that share the batch."""
        if not sync.is_shared:
            return self
        own = torch.cat([self.sum_T, self.square_T, self.sum_T.new_tensor([self.values])])
        T = len(self.sum_T)
        both = sync.sum(own)
        return PotentialSums(int(both[-1]), both[:T], both[T:-1])

    def moments(self) -> tuple[Tensor, Tensor]:
        """mean_T and variance_T."""
        mean_T = self.sum_T.double() / self.values
        return mean_T, (self.square_T.double() / self.values - mean_T.square()).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class Potential:
    """What a width rule is asked with: the neuron's constants, T, and lazily what is known of v_t."""

    num_steps: int
    neuron: NeuronSpec
    affines: Sequence[Affine] | None = None
    """Of the norms whose currents are added before the neuron; None where one is unknown."""
    carried: bool = False
    """Whether the neuron continues from a state, so that its first step here is not the first of its sequence."""
    measured: Callable[[], tuple[Tensor, Tensor]] | None = None
    """mean_T and std_T as they were measured, where nothing can be predicted."""
    sums: Callable[[], PotentialSums | None] = lambda: None
    """Sums over the current batch; None outside training, as for plots. Every process of a shared batch must ask."""

    @property
    def tau(self) -> Tensor:
        """The decay, detached: the mean over channels where each has its own."""
        return torch.as_tensor(self.neuron.tau).detach().mean()

    @property
    def v_th(self) -> Tensor | float:
        """The threshold, detached: the mean over channels where each has its own."""
        v_th = self.neuron.v_th
        return v_th.detach().mean() if isinstance(v_th, Tensor) else v_th

    @property
    def surrogate(self) -> Surrogate:
        """The shape whose width is asked for."""
        return self.neuron.surrogate

    def moments(self, kind: Moments) -> tuple[Tensor, Tensor]:
        """mean_T and std_T of the potential before reset."""
        if self.affines:
            # Theorem 2 distinguishes the first step from all later ones; a neuron that continues is at a later one.
            # A norm with parameters per step has them for the steps of this call alone.
            past = 1 if self.carried and all(a.gamma_C.dim() == 1 for a in self.affines) else 0
            input_scale = 1 - self.tau if self.neuron.decay_input else 1.0
            mean_T, std_T = predicted(self.affines, self.tau, self.num_steps + past, kind, input_scale=input_scale)
            return mean_T[past:], std_T[past:]
        if self.measured is None:
            raise InputError(
                "this width rule needs the moments of the potential, and there is no norm before the neuron to predict "
                "them from. Use SpikingBlock(synapse, norm=...), or give the neuron its method: LIF(method='mpd-agl')."
            )
        return self.measured()


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
    neuron does that decays its input: `1 - tau`. `leak` is `core.potential_moments`'.
    """
    tau = tau.detach().mean()
    affines = [a._replace(gamma_C=a.gamma_C.to(tau.device), beta_C=a.beta_C.to(tau.device)) for a in affines]
    steps = {len(a.gamma_C) for a in affines if a.gamma_C.dim() == 2}
    if steps - {num_steps}:
        raise InputError(f"a norm has parameters for {max(steps)} timesteps, got {num_steps}. Use as many.")
    if steps:
        parts = [_current_moments([_at_step(a, t) for a in affines], kind) for t in range(num_steps)]
        mean, std = (torch.stack(each) for each in zip(*parts, strict=True))
    else:
        mean, std = _current_moments(affines, kind)
    if affines[0].of_potential:
        return mean.expand(num_steps), std.expand(num_steps)
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


MEASURE_EVERY = 10
"""Training calls between two measurements of the potential's moments.

A measurement is one more pass over the current, so it adds a tenth of a pass to each call.
"""
CAPACITY = 64
"""Timesteps that are measured; later ones take the last one's moments. The buffers' shape never changes."""


class MeasuredMoments(nn.Module):
    """Running mean and variance of the potential at each timestep, measured on the training batches.

    They are buffers, so they are saved, moved, averaged and copied with the network. The first batch that has a
    timestep sets its moments; later ones move them by `momentum`.

    >>> measured = MeasuredMoments()
    >>> measured.update(PotentialSums.of(torch.tensor([[0.0, 2.0], [1.0, 1.0]])))
    >>> measured.moments()
    (tensor([1., 1.]), tensor([1., 0.]))
    """

    mean: Tensor
    var: Tensor
    steps: Tensor
    calls: Tensor
    sync: Sync = LOCAL
    """The processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise InputError(f"momentum must lie in (0, 1], got {momentum}. The default is 0.1, as in batch norms.")
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(CAPACITY))
        self.register_buffer("var", torch.ones(CAPACITY))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("calls", torch.tensor(0))
        self._known: int | None = 0
        self._calls: int | None = 0

    @property
    def known(self) -> int:
        """Timesteps that were measured so far. Read from the buffer once after it was loaded."""
        if self._known is None:
            self._known = int(self.steps)
        return self._known

    def is_due(self, num_steps: int) -> bool:
        """Count a training call; whether it should measure."""
        calls = int(self.calls) if self._calls is None else self._calls
        self._calls = calls + 1
        self.calls.fill_(calls + 1)
        return self.known < min(num_steps, CAPACITY) or calls % MEASURE_EVERY == 0

    @torch.no_grad()
    def update(self, sums: PotentialSums) -> None:
        """Take in the sums of a batch."""
        T, old = min(sums.sum_T.shape[0], CAPACITY), self.known
        mean_T, var_T = (a[:T].to(self.mean) for a in sums.shared(self.sync).moments())
        both = min(old, T)
        self.mean[:both].lerp_(mean_T[:both], self.momentum)
        self.var[:both].lerp_(var_T[:both], self.momentum)
        if old < T:
            self.mean[old:T], self.var[old:T] = mean_T[old:], var_T[old:]
            self.steps.fill_(T)
            self._known = T

    def moments(self, num_steps: int | None = None) -> tuple[Tensor, Tensor]:
        """mean_T and std_T of `num_steps`, or of all that were measured; later ones take the last one's."""
        T = self.known if num_steps is None else num_steps
        mean_T, std_T = self.mean[: self.known][:T], self.var[: self.known][:T].sqrt()
        if (missing := T - self.known) <= 0:
            return mean_T, std_T
        longer = (torch.cat([a, a[-1:].expand(missing)]) for a in (mean_T, std_T))
        return next(longer), next(longer)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        self._known = self._calls = None  # to be read from what is loaded
        state_dict.setdefault(f"{prefix}calls", torch.tensor(0))  # not in weights of 0.2
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_known": None, "_calls": None}

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"momentum={self.momentum}"
