"""Synaptic operations and energy of one inference, by two conventions, compared with the ANN of the same architecture.

A hidden layer takes `rate_in * T * MACs` additions of 0.9 pJ. Stem and readout take `T * MACs` multiply-accumulates of
4.6 pJ (45 nm CMOS).

`paper` counts every hidden layer as additions, whatever its input. `strict` counts a layer as multiply-accumulates if
its input is not 0/1: small integers behind a SEW addition, fractions behind average pooling or a gate, the currents of
a membrane shortcut. It adds a multiplication for each neuron behind a norm whose factor differs from timestep to
timestep, which no weights can hold. A gate multiplies in both counts; products of spikes (attention) are additions,
where both factors spike.

A static image gives the stem the same input at every step. The paper counts the stem T times; a line of its own shows
the count if the stem runs once.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mpd_agl.adaptation.find import removed
from mpd_agl.diagnosis.operations import LayerOps, attentions, count_operations, synapses, tensors
from mpd_agl.errors import InputError
from mpd_agl.models import Network
from mpd_agl.nn.modes import evaluation_mode

PJ_ADD = 0.9
PJ_MAC = 4.6


@dataclass(frozen=True)
class Activity:
    """A layer's input: the share that is not zero, and its values (`real`, `binary`, `integer` or `fraction`)."""

    rate: float
    values: str


@dataclass(frozen=True)
class LayerEnergy:
    """One row of the table: a layer's operations over T steps."""

    name: str
    macs: int
    rate_in: float | None
    values_in: str
    additions: float
    """By the paper's convention; 0 for stem and readout."""
    multiplies: float
    """By the paper's convention: multiply-accumulates of stem and readout."""
    strict_additions: float
    strict_multiplies: float


@dataclass(frozen=True)
class EnergyReport:
    """The table per layer and in total, with energies in millijoule."""

    model: str
    num_steps: int
    rows: list[LayerEnergy]
    rates_from: str
    static_input: bool

    @property
    def ann_macs(self) -> int:
        """Multiply-accumulates of the ANN of the same architecture."""
        return sum(r.macs for r in self.rows)

    @property
    def ann_mj(self) -> float:
        """The ANN's energy."""
        return self.ann_macs * PJ_MAC * 1e-9

    def total(self, convention: str) -> dict[str, float]:
        """`additions`, `multiplies` and `mj` by the convention `paper`, `strict` or `paper, stem once`."""
        strict = convention.startswith("strict")
        additions = sum(r.strict_additions if strict else r.additions for r in self.rows)
        multiplies = sum(r.strict_multiplies if strict else r.multiplies for r in self.rows)
        if convention.endswith("stem once"):
            multiplies -= self.rows[0].macs * (self.num_steps - 1)
        return {
            "additions": additions,
            "multiplies": multiplies,
            "mj": (additions * PJ_ADD + multiplies * PJ_MAC) * 1e-9,
        }

    def totals(self) -> dict[str, dict[str, float]]:
        """The totals by each convention that applies."""
        names = ["paper", "strict"] + (["paper, stem once"] if self.static_input and self.num_steps > 1 else [])
        return {name: self.total(name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, ready for JSON."""
        return {
            "model": self.model,
            "num_steps": self.num_steps,
            "rates_from": self.rates_from,
            "pj": {"addition": PJ_ADD, "multiply": PJ_MAC},
            "layers": [asdict(r) for r in self.rows],
            "ann": {"macs": self.ann_macs, "mj": self.ann_mj},
            "totals": self.totals(),
        }


def kind_of_values(x: Tensor) -> str:
    """What values an input takes: `binary`, `integer` or `fraction`."""
    if bool(((x == 0) | (x == 1)).all()):
        return "binary"
    return "integer" if bool((x == x.round()).all()) else "fraction"


@torch.no_grad()
def measure_activity(net: Network, x: Tensor, batch: int = 64) -> dict[str, Activity]:
    """The activity of each layer's input over these images or frames, measured in evaluation mode."""
    nonzero: dict[str, float] = {}
    count: dict[str, int] = {}
    values: dict[str, str] = {}
    order = ["binary", "integer", "fraction"]

    def add(name: str, inputs: list[Tensor], active: float) -> None:
        nonzero[name] = nonzero.get(name, 0.0) + active
        count[name] = count.get(name, 0) + inputs[0].numel()
        values[name] = max(values.get(name, "binary"), *map(kind_of_values, inputs), key=order.index)

    def of_synapse(name: str) -> Callable[..., None]:
        return lambda module, inputs: add(name, [inputs[0]], float(torch.count_nonzero(inputs[0])))

    def of_attention(name: str) -> Callable[..., None]:
        def read(module: Any, inputs: tuple[Any, ...]) -> None:
            x = tensors(inputs)
            add(name, x, module.active_share(*x) * x[0].numel())

        return read

    layers = synapses(net)
    products = {n: m for n, m in attentions(net).items() if m.operations == "attention"}
    hooks = [m.register_forward_pre_hook(of_synapse(n)) for n, m in layers.items()]
    hooks += [m.register_forward_pre_hook(of_attention(n)) for n, m in products.items()]
    with removed(hooks), evaluation_mode(net):
        for part in torch.split(x, batch, dim=0 if x.dim() == 4 else 1):
            net(part)
    first = next(iter(layers))
    return {n: Activity(nonzero[n] / count[n], "real" if n == first else values[n]) for n in [*layers, *products]}


def energy(
    net: Network,
    activity: Mapping[str, Activity],
    *,
    rates_from: str = "",
    static_input: bool = True,
) -> EnergyReport:
    """The energy table of a network from the activity of its layers, as `measure_activity` gives it."""
    T = net.num_steps
    operations: list[LayerOps] = count_operations(net)
    missing = [o.name for o in operations if o.kind in ("hidden", "attention") and o.name not in activity]
    if missing:
        raise InputError(
            f"no activity for {len(missing)} layers (first {missing[0]}). Measure it with measure_activity(net, x)."
        )
    rows = []
    for o in operations:
        seen = activity.get(o.name)
        if o.kind not in ("hidden", "attention"):
            paper = strict = (0.0, float(o.macs * T))
        else:
            assert seen is not None
            count = seen.rate * T * o.macs
            paper = (count, 0.0)
            strict = (count, 0.0) if seen.values == "binary" else (0.0, count)
        strict = strict[0], strict[1] + o.scales * T
        values = seen.values if seen else "real"
        rows.append(LayerEnergy(o.name, o.macs, seen.rate if seen else None, values, *paper, *strict))
    return EnergyReport(net.name, T, rows, rates_from, static_input)
