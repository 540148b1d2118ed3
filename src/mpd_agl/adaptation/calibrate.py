"""The scale of the current, so that the potential's spread fits the threshold.

With plain batch norms and the usual thresholds the potential often never comes near the threshold: SpikingJelly's
defaults give it a standard deviation of a quarter to a third of v_th. Then layers are silent and no width helps.
Calibration multiplies the current of each layer so that the standard deviation of v, over the batch, the neurons and
the timesteps, is v_th (counted from the potential at rest), as tdBN has it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mpd_agl.adaptation.find import Layer, Run, removed, to_rest
from mpd_agl.adaptation.sums import StepSums
from mpd_agl.errors import InputError

TOLERANCE = 0.02
FEW_BATCHES = 3
"""Batches that a norm without learnable parameters may have counted before its network looks trained."""
MOST_PASSES = 4
"""Per layer. The reset makes the spread depend on the scale not quite linearly: three passes reach the tolerance."""


class Watched(StepSums):
    """Sums over one pass of a layer's potential, counted from rest."""

    def __init__(self, layer: Layer, kappa_T: Tensor | None) -> None:
        super().__init__()
        self.kappa_T, self.first_calls = kappa_T, 0
        self.v_th = distance(layer)

    def see(self, t: int, u: Tensor, s: Tensor) -> None:
        """Take in one timestep."""
        kappa = None if self.kappa_T is None else self.kappa_T[min(t, len(self.kappa_T) - 1)]
        self.add_step(t, u, s, self.v_th, kappa)
        self.first_calls += t == 0


def watch(net: nn.Module, layers: Iterable[Layer], run: Run, *, with_widths: bool = False) -> dict[str, Watched]:
    """One training pass without gradients, from rest: what each layer's potential did."""
    watched = {x.name: (x, Watched(x, x.spike.kappa_T if with_widths else None)) for x in layers}
    with removed([layer.spike.watch(sums.see) for layer, sums in watched.values()]), torch.no_grad():
        to_rest(net)
        run()
    return {name: sums for name, (_, sums) in watched.items()}


def signs_of_training(net: nn.Module) -> str | None:
    """Why a network looks trained, as a clause; None where nothing says so.

    Norms whose weights differ from channel to channel or whose biases are not zero, batch norms that learn neither and
    have counted more than `FEW_BATCHES`, and parameters that hold a gradient. Weights that were loaded into a network
    without norms look like any others: there the caller must know.
    """
    for name, module in net.named_modules():
        counted = getattr(module, "num_batches_tracked", None)
        # Weight and bias show that a norm was trained. A count does not: in networks that step through time it
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
    spreads: Mapping[str, float],
    layers: list[Layer],
    run: Run,
    before: dict[str, Watched],
    *,
    threshold: bool,
) -> dict[str, Fit]:
    """Bring the standard deviation of each layer in `spreads` to so many thresholds, in the order in which the layers
    run; in place.

    The spread behind a norm does not depend on the layers before, so all those are scaled at once, and again until
    they fit. A layer without a norm waits until all before it fit. With `threshold` the threshold is moved to the
    spread instead.
    """
    fits = {layer.name: Fit(before[layer.name].std / distance(layer)) for layer in layers}
    parameters: dict[str, list[Tensor]] = {}
    taken: set[Tensor] = set()
    for layer in layers:
        fit = fits[layer.name]
        parameters[layer.name], fit.done = [], True
        if not layer.is_read:
            fit.note = "its spikes do not reach the network's output, so its potential is left unchanged"
        elif layer.name in spreads:
            found, fit.note = ([], "") if threshold else scaled_by(layer)
            mine = [p for p in found if p not in taken]
            if found and not mine:
                fit.note = "its current comes from a layer that another neuron reads, which is scaled for that one"
            taken.update(mine)
            parameters[layer.name], fit.done = mine, not (mine or threshold)
    watched = before
    for _ in range(MOST_PASSES * len(layers) + 1):
        settled = True
        for layer in layers:
            fit, seen = fits[layer.name], watched[layer.name]
            if not fit.done and (settled or (layer.norms and seen.std > 1e-3 * distance(layer))):
                _improve(layer, fit, seen.std / spreads[layer.name], parameters[layer.name], threshold=threshold)
            settled = settled and fit.done
        if settled:
            break
        watched = watch(net, layers, run)
    return fits


def distance(layer: Layer) -> float:
    """The threshold, counted from rest."""
    return float(layer.adapter.membrane(layer.neuron).threshold)


@torch.no_grad()
def _improve(layer: Layer, fit: Fit, std: float, parameters: list[Tensor], *, threshold: bool) -> None:
    """One step towards std = threshold; the layer is done when it fits, or when it does not follow."""
    ratio = std / distance(layer)
    fit.done = abs(ratio - 1) <= TOLERANCE or ratio <= 1e-6 or fit.passes >= MOST_PASSES
    if ratio <= 1e-6:
        fit.note = "its current is constant, so no scale gives it a spread"
    elif fit.done and abs(ratio - 1) > 0.2:
        fit.note = f"its spread does not follow its scale: it stays at {ratio:.2f} of what was asked"
    if fit.done:
        return
    fit.passes += 1
    if threshold:
        fit.v_th = float(layer.adapter.membrane(layer.neuron).rest) + std
        layer.adapter.set_v_th(layer.neuron, fit.v_th)
        return
    factor = min(max(1 / ratio, 0.05), 20.0)
    fit.scale *= factor
    for parameter in parameters:
        parameter.mul_(factor)
