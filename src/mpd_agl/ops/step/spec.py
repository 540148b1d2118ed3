"""The values that a spiking layer hands to the fused step, and those that it gets back.

Shapes: T timesteps; S = T, or S = 1 where one input is the same at every step; N samples; C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from mpd_agl.core import Rectangular, Surrogate
from mpd_agl.ops.step.sync import LOCAL, BatchStats, Sync

A = TypeVar("A")
B = TypeVar("B")


def given(value: A | None, function: Callable[[A], B]) -> B | None:
    """`function(value)`, or None for None: what is optional stays optional."""
    return None if value is None else function(value)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The membrane's dtype: float32, whatever autocast made of the input; float64 stays float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True, eq=False)
class NormSpec:
    """A batch norm per channel: `i = (x - mean) weight amplitude rsqrt(var + eps) + bias` (Eq. 4-5)."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    """Running mean: read where `batch_stats` is False. The caller updates it from `StepOutput.stats`."""
    var: Tensor
    amplitude: float = 1.0
    """tdBN's alpha times v_th; 1 for a plain batch norm. A learnable factor belongs into `weight`."""
    eps: float = 1e-5
    batch_stats: bool = False
    """Whether x is normalised by its own statistics, as in training."""
    sync: Sync = LOCAL
    """The processes that hold the other parts of the batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuronSpec:
    """A leaky integrate-and-fire neuron (Eq. 2-3); the fields mean what they mean in `core.lif`."""

    tau: Tensor | float
    """Share of the potential that is kept from step to step, one or one per channel."""
    v_th: Tensor | float
    reset: str = "hard"
    decay_input: bool = False
    detach_reset: bool = False
    surrogate: Surrogate = field(default_factory=Rectangular)
    channel_dim: int = 2
    """The axis of the input along which tau and v_th differ, if they do."""
    backend: str = "auto"


class Widths(NamedTuple):
    """The surrogate at each timestep: its width, and a factor on its height."""

    kappa_T: Tensor
    gain_T: Tensor | None = None


class StepDetails(NamedTuple):
    """What a neuron with equations of its own computed on the way: for monitors. Kernels keep no potentials."""

    potentials: Tensor
    """Before reset, (T, N, ...)."""
    v_th_T: Tensor | None = None
    """The thresholds, where they differ from step to step."""
    kappa_T: Tensor | None = None
    """The widths, where the neuron sets them itself."""


class StepOutput(NamedTuple):
    """Spikes in x's dtype; the state if it was wanted; the batch's statistics if they were used."""

    spikes: Tensor
    state: Tensor | None = None
    stats: BatchStats | None = None
    details: StepDetails | None = None


class StepInput(NamedTuple):
    """One call: the layer's input and what belongs to this call alone."""

    x: Tensor
    """The synapse's output (S, N, ...), or the neuron's current where there is no norm."""
    num_steps: int
    widths: Widths | None = None
    """None: no gradient is wanted."""
    residual: Tensor | None = None
    """Added to the spikes (SEW-ADD), (T, N, ...)."""
    state: Tensor | None = None
    """What the neurons kept of their potentials after an earlier call; None: rest."""
    want_state: bool = False

    def currents(self) -> Tensor:
        """x over all T steps in the membrane's dtype: for neurons that compute by the written equations."""
        return self.x.expand(self.num_steps, *self.x.shape[1:]).to(compute_dtype(self.x))

    def output(self, spikes: Tensor, state: Tensor, details: StepDetails | None = None) -> StepOutput:
        """The answer of such a neuron: spikes in x's dtype with the residual added, the state if it is wanted."""
        spikes = spikes.to(self.x.dtype)
        spikes = spikes if self.residual is None else spikes + self.residual
        return StepOutput(spikes, state if self.want_state else None, details=details)


class CurrentMap(NamedTuple):
    """A norm as one affine map: the current is `(x - mean_C) scale_C + bias_C`."""

    mean_C: Tensor
    scale_C: Tensor
    bias_C: Tensor
