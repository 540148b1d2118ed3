"""What a monitor saw: one value per layer, or per layer and timestep."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mpd_agl.diagnosis.histogram import Histogram

Mode = Literal["training", "evaluation"]


@dataclass(frozen=True)
class LayerSnapshot:
    """One layer at one step. `_T` lists have one value per timestep; `predicted_*` come from gamma, beta and tau alone.

    What needs a norm before the neuron is an empty list or None where there is none.
    """

    rate_T: list[float]
    """Share of neurons that fire."""
    available_T: list[float]
    """Share of neurons with |v - v_th| < kappa/2: those that a gradient can pass. Empty where the surrogate has no
    width."""
    kappa_T: list[float]
    """The surrogate's widths: area over peak of its derivative. Empty where it has none."""
    mean_T: list[float]
    """Mean of the membrane potential before reset."""
    var_T: list[float]
    predicted_mean_T: list[float]
    """Theorem 2, the paper's moments."""
    predicted_var_T: list[float]
    exact_mean_T: list[float]
    """Theorem 2 with the exact mixture moments."""
    exact_var_T: list[float]
    input_mean: float | None
    """Mean of the pre-synaptic input over all timesteps (Theorem 1's subject); None in neurons of other libraries."""
    input_var: float | None
    rate_in: float | None
    """Share of inputs that are not zero; None where the monitor does not know the synapse."""
    tau: float | None
    """Share of the potential that is kept from step to step; None where the neuron's decay is of another kind."""
    gamma_bar: float | None
    gamma_rms: float | None
    beta_bar: float | None
    detail: "LayerDetail | None" = None
    """Only where the monitor was asked for it."""
    grad_rms_T: list[float] = field(default_factory=list)
    """Root mean square over neurons and samples of dL/ds_t, the gradient that reaches the spikes; empty without a
    backward pass.

    A single-step neuron whose reset is not detached has the reset's part in it. A scaled loss (float16) gives scaled
    gradients."""
    grad_in_rms_T: list[float] = field(default_factory=list)
    """The same at what the neuron reads: its current, or the synapse's output where norm and neuron run as one kernel.
    One value where one timestep of input is shown at all."""
    v_th: float = math.nan
    """The threshold; the mean over channels where each has its own."""
    rest: float = 0.0
    """The potential at rest."""
    values: int = 0
    """Neurons times samples: the number of potentials per timestep."""
    uses: int = 1
    """How often the network uses this layer in one pass; the sums are over all uses."""


@dataclass(frozen=True)
class LayerDetail:
    """What is too much for every snapshot of a long run."""

    potential: Histogram
    """The membrane potential before reset."""
    gamma_C: list[float]
    """Each channel's gamma, to 5 digits; where two currents are added, both layers' channels. Empty without a norm."""
    beta_C: list[float]
    fired_C: list[int] = field(default_factory=list)
    """Spikes of each channel, over the batch, the timesteps and the places."""


@dataclass(frozen=True)
class Snapshot:
    """All layers at one step, in network order."""

    step: int
    layers: dict[str, LayerSnapshot]
    mode: Mode = "training"
    """The passes that were looked at: with the layers in training mode, or in evaluation mode."""
    ran: tuple[str, ...] = ()
    """The layers in the order in which they ran."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        layers = {n: asdict(s) for n, s in self.layers.items()}
        return {"step": self.step, "mode": self.mode, "ran": list(self.ran), "layers": layers}
