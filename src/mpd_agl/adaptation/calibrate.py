"""The scale of the current, so that the potential's spread fits the threshold.

With plain batch norms and the usual thresholds the potential often never comes near the threshold: SpikingJelly's
defaults give it a standard deviation of a quarter to a third of v_th. Then layers are silent and no width helps.
Calibration multiplies the current of each layer so that the standard deviation of v, over the batch, the neurons and
the timesteps, is v_th (counted from the potential at rest), as tdBN has it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mpd_agl.adaptation.find import Layer, Run, to_rest
from mpd_agl.errors import InputError

TOLERANCE = 0.02
FEW_BATCHES = 3
"""Batches that a norm without learnable parameters may have counted before its network looks trained."""
MOST_PASSES = 4
"""Per layer. The reset makes the spread depend on the scale not quite linearly: three passes reach the tolerance."""


@dataclass
class Watched:
    """Sums over one pass of a layer's potential, counted from the threshold, per timestep."""

    count: dict[int, int] = field(default_factory=dict)
    sums: dict[int, Tensor] = field(default_factory=dict)
    """Per timestep: the sums of u, of u^2, of the spikes, and how many |u| are under kappa_t / 2."""
    kappa_T: Tensor | None = None
    first_calls: int = 0

    @torch.no_grad()
    def __call__(self, t: int, u: Tensor, s: Tensor) -> None:
        """Take in one timestep."""
        u = u.double()
        inside = u.new_zeros(())
        if self.kappa_T is not None:
            inside = (u.abs() < self.kappa_T[min(t, len(self.kappa_T) - 1)] / 2).sum()
        now = torch.stack([u.sum(), u.square().sum(), (s != 0).sum().to(u), inside.to(u)]).cpu()
        self.count[t] = self.count.get(t, 0) + u.numel()
        self.sums[t] = self.sums[t] + now if t in self.sums else now
        self.first_calls += t == 0

    @property
    def num_steps(self) -> int:
        """Timesteps of the pass."""
        return max(self.count, default=-1) + 1

    @property
    def mean_T(self) -> Tensor:
        """Mean of u at each step."""
        return torch.stack([self.sums[t][0] / self.count[t] for t in range(self.num_steps)])

    @property
    def var_T(self) -> Tensor:
        """Variance of u at each step."""
        squares_T = torch.stack([self.sums[t][1] / self.count[t] for t in range(self.num_steps)])
        return (squares_T - self.mean_T.square()).clamp_min(0)

    def _share(self, column: int) -> float:
        return float(sum(s[column] for s in self.sums.values())) / max(sum(self.count.values()), 1)

    @property
    def mean(self) -> float:
        """Mean of u over all steps."""
        return self._share(0)

    @property
    def std(self) -> float:
        """Standard deviation of u over all steps."""
        return math.sqrt(max(self._share(1) - self.mean**2, 0.0))

    @property
    def rate(self) -> float:
        """Share of neurons that fire at a step."""
        return self._share(2)

    @property
    def available(self) -> float:
        """Share of neurons whose potential lies within the width."""
        return self._share(3)


def watch(net: nn.Module, layers: Iterable[Layer], run: Run, *, with_widths: bool = False) -> dict[str, Watched]:
    """One training pass without gradients, from rest: what each layer's potential did."""
    layers = list(layers)
    watched = {layer.name: Watched(kappa_T=layer.spike.kappa_T if with_widths else None) for layer in layers}
    for layer in layers:
        layer.spike.watchers.append(watched[layer.name])
    try:
        to_rest(net)
        with torch.no_grad():
            run()
    finally:
        for layer in layers:
            layer.spike.watchers.remove(watched[layer.name])
    return watched


def signs_of_training(net: nn.Module) -> str | None:
    """Why a network looks trained, as a clause; None where nothing says so.

    Norms whose weights differ from channel to channel or whose biases are not zero, batch norms that learn neither and
    have counted more than `FEW_BATCHES`, and parameters that hold a gradient. Weights that were loaded into a network
    without norms look like any others: there the caller must know.
    """
    for name, module in net.named_modules():
        counted = getattr(module, "num_batches_tracked", None)
        # Weight and bias tell whether a norm was trained. A count does not: in networks that step through time it
        # rises with every timestep, also while somebody looks at shapes.
        learns = any(p.requires_grad for p in module.parameters(recurse=False))
        if isinstance(counted, Tensor) and not learns and int(counted) > FEW_BATCHES:
            return f"{name} has counted {int(counted)} batches"
        is_norm = isinstance(counted, Tensor) or isinstance(module, (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm))
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if is_norm and isinstance(weight, Tensor) and weight.numel() and bool((weight != weight.flatten()[0]).any()):
            return f"the weights of {name} differ from channel to channel"
        if is_norm and isinstance(bias, Tensor) and bool((bias != 0).any()):
            return f"the biases of {name} are not zero"
    for name, parameter in net.named_parameters():
        if parameter.grad is not None:
            return f"{name} holds a gradient"
    return None


def check_untrained(net: nn.Module) -> None:
    """Refuse to rescale a trained network."""
    if (why := signs_of_training(net)) is not None:
        raise InputError(
            f"the network looks trained ({why}), and calibration would rescale it. "
            "Pass calibrate=False to set widths only, or calibrate='force'."
        )


def scaled_by(layer: Layer) -> tuple[list[Tensor], str]:
    """The parameters that multiply a layer's current, of its norms or else its synapses; or why there are none."""
    own: list[Tensor] = list(layer.adapter.weights(layer.neuron))
    if layer.norms:
        modules = [m for _, m in layer.norms]
    elif own:
        return own, ""
    else:
        modules = [m for _, m in layer.synapses]
    if not modules:
        return [], "its current is no norm's or synapse's output; calibrate='threshold' would move its threshold"
    parameters: list[Tensor] = []
    for module in modules:
        if parametrize.is_parametrized(module):
            return [], f"the weight of a {type(module).__name__} before it is computed from other parameters"
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if not isinstance(weight, Tensor):
            return [], f"the {type(module).__name__} before it has no weight to scale"
        parameters += [p for p in (weight, bias) if isinstance(p, Tensor)]
    return parameters, ""


def usual_spread(layer: Layer) -> float:
    """1, as tdBN has it; 2 behind a norm of each token.

    There the neuron encodes a stream of real numbers, to which every block adds. At 1 it fires at 13 % and a stack of 8
    blocks reaches 58 %; at 2 it fires at 25 % and reaches 68 % (docs/adapt.md says how that was chosen).
    """
    each_token = bool(layer.norms) and all(isinstance(m, (nn.LayerNorm, nn.RMSNorm)) for _, m in layer.norms)
    return 2.0 if each_token else 1.0


@dataclass
class Fit:
    """What calibration did to one layer."""

    spread_before: float
    """Standard deviation of the potential over the threshold."""
    scale: float = 1.0
    v_th: float | None = None
    """The threshold that was set instead, where asked."""
    note: str = ""
    passes: int = 0
    done: bool = False


def calibrate(
    net: nn.Module,
    layers: list[Layer],
    run: Run,
    before: dict[str, Watched],
    *,
    threshold: bool,
    spread: float | None = None,
) -> dict[str, Fit]:
    """Bring each layer's standard deviation to `spread` thresholds, in the order in which the layers run; in place.

    None takes `usual_spread`.
    The spread behind a norm does not depend on the layers before, so all those are scaled at once, and again until
    they fit. A layer without a norm waits until all before it fit. With `threshold` the threshold is moved to the
    spread instead.
    """
    fits = {layer.name: Fit(before[layer.name].std / _distance(layer)) for layer in layers}
    parameters: dict[str, list[Tensor]] = {}
    taken: set[Tensor] = set()
    for layer in layers:
        fit = fits[layer.name]
        if not layer.is_read:
            parameters[layer.name], fit.done = [], True
            fit.note = "its spikes do not reach the network's output, so its potential is left as it is"
            continue
        found, fit.note = ([], "") if threshold else scaled_by(layer)
        mine = [p for p in found if p not in taken]
        if found and not mine:
            fit.note = "its current comes from a layer that another neuron reads, which is scaled for that one"
        taken.update(mine)
        parameters[layer.name] = mine
        fit.done = not (mine or threshold)
    watched = before
    for _ in range(MOST_PASSES * len(layers) + 1):
        settled = True
        for layer in layers:
            fit, seen = fits[layer.name], watched[layer.name]
            if fit.done or not (settled or (layer.norms and seen.std > 1e-3 * _distance(layer))):
                settled = settled and fit.done
                continue
            wanted = usual_spread(layer) if spread is None else spread
            _improve(layer, fit, seen.std / wanted, parameters[layer.name], threshold=threshold)
            settled = settled and fit.done
        if all(fit.done for fit in fits.values()):
            break
        watched = watch(net, layers, run)
    return fits


def _distance(layer: Layer) -> float:
    """The threshold, counted from rest."""
    return float(layer.adapter.membrane(layer.neuron).threshold)


@torch.no_grad()
def _improve(layer: Layer, fit: Fit, std: float, parameters: list[Tensor], *, threshold: bool) -> None:
    """One step towards std = threshold; the layer is done when it fits, or when it does not follow."""
    distance = _distance(layer)
    if abs(std / distance - 1) <= TOLERANCE:
        fit.done = True
        return
    if std <= 1e-6 * distance:
        fit.done, fit.note = True, "its current is constant, so no scale gives it a spread"
        return
    if fit.passes >= MOST_PASSES:
        fit.done = True
        if abs(std / distance - 1) > 0.2:
            fit.note = f"its spread does not follow its scale: it stays at {std / distance:.2f} of what was asked"
        return
    fit.passes += 1
    factor = min(max(distance / std, 0.05), 20.0)
    if threshold:
        fit.v_th = float(layer.adapter.membrane(layer.neuron).rest) + std
        layer.adapter.set_v_th(layer.neuron, fit.v_th)
        return
    fit.scale *= factor
    for parameter in parameters:
        parameter.mul_(factor)
