"""`adapt(net, batch)`: a scale and a width that fit, on the network you already have; `release` gives it back."""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mpd_agl.adaptation import calibrate as calibration
from mpd_agl.adaptation import fuse as fusing
from mpd_agl.adaptation.adapters import Adapter, adapter_of
from mpd_agl.adaptation.calibrate import Fit, Watched
from mpd_agl.adaptation.find import Layer, Run, default_forward, rehearsal, trace
from mpd_agl.adaptation.spike import AdaptiveSpike, adaptive_spikes, take_out
from mpd_agl.adaptation.surrogates import Shape, measure, with_width
from mpd_agl.core import Surrogate, get_surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.methods import Method, get_method
from mpd_agl.nn.moments import MeasuredMoments, PotentialSums
from mpd_agl.nn.neuron import Neuron
from mpd_agl.nn.width import set_chain

LEGEND = (
    "reads: the norm before the neuron; scale: what its current was multiplied by; to v_th: deviations from the mean "
    "to the threshold; from: where the width's moments come from; inside: the share of potentials in the window."
)
Source = Literal["auto", "predicted", "measured"]
Calibrate = bool | Literal["threshold", "force"]
Fuse = bool | Literal["dense"]


@dataclass(frozen=True, kw_only=True)
class AdaptedLayer:
    """One spiking layer, as `adapt` found and left it."""

    layer: str
    neuron: str
    library: str
    v_th: float
    """Threshold, counted from the potential at rest."""
    tau: float | None
    """Share of the potential that is kept; None where the neuron's decay is of another kind."""
    reset: str
    norm: str
    """The norms whose output is the current; empty without one."""
    synapse: str
    num_steps: int
    mean: float
    """Mean of the potential."""
    std: float
    """Standard deviation of the potential over batch, neurons and timesteps."""
    sigmas: float
    """How far the threshold lies above the mean, in standard deviations."""
    rate: float
    """Share of neurons that fire at a step."""
    rate_before: float
    spread_before: float
    """std / v_th before calibration."""
    spread: float
    """std / v_th now."""
    scale: float
    """What calibration multiplied the current by."""
    rule: str
    source: str
    """Where the width comes from: predicted, measured, or the rule alone."""
    natural_width: float | None
    """The width of the neuron's own surrogate; None where ours replaced it."""
    kappa_T: tuple[float, ...]
    """The first widths; empty where the neuron keeps its own."""
    available: float
    """Share of neurons whose potential lies within the width, so that a gradient reaches them."""
    fused: str
    """What runs as one kernel: "norm + neuron", "neuron" or nothing."""
    note: str


@dataclass(frozen=True, kw_only=True)
class NotAdapted:
    """A layer that was left as it was, and why."""

    layer: str
    neuron: str
    reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Adaptation:
    """What `adapt` found and did; `print` shows it as a table."""

    method: str
    calibrated: bool
    layers: tuple[AdaptedLayer, ...]
    not_adapted: tuple[NotAdapted, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        """A table as plain text."""
        table = Table(title=f"adapted to {self.method}", title_justify="left")
        for column in ("layer", "neuron", "v_th", "decay", "reset", "reads"):
            table.add_column(column, no_wrap=True)
        for column in ("scale", "std/v_th", "to v_th", "rate", "width", "from", "inside"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in self.layers:
            table.add_row(*_cells(row))
        out = io.StringIO()
        console = Console(file=out, width=240, color_system=None, legacy_windows=False)
        console.print(table)
        notes = [f"{r.layer}: {r.note}." for r in self.layers if r.note]
        if self.layers and all(r.num_steps == 1 for r in self.layers):
            notes.insert(
                0, "Every layer ran for one timestep: pass forward= if you loop over time outside the network."
            )
        notes.insert(0, LEGEND)
        if fused := sum(bool(r.fused) for r in self.layers):
            notes.insert(0, f"{fused} of {len(self.layers)} layers are fused.")
        notes += [f"{r.layer} ({r.neuron}) was not adapted: {r.reason}." for r in self.not_adapted]
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        return "\n".join(lines + notes)


def _cells(row: AdaptedLayer) -> list[str]:
    """One line of the table."""
    change = f"{row.spread_before:.2f} -> {row.spread:.2f}" if row.spread_before != row.spread else f"{row.spread:.2f}"
    rate = f"{row.rate_before:.1%} -> {row.rate:.1%}" if row.rate_before != row.rate else f"{row.rate:.1%}"
    width = f"{row.kappa_T[0]:.2f} .. {row.kappa_T[-1]:.2f}" if row.kappa_T else "its own"
    return [
        row.layer,
        row.neuron,
        f"{row.v_th:.3g}",
        "-" if row.tau is None else f"{row.tau:.3g}",
        row.reset.removesuffix(", detached"),
        row.norm or row.synapse or "-",
        f"x {row.scale:.3g}",
        change,
        f"{row.sigmas:.2f} std",
        rate,
        width,
        row.source if row.kappa_T else "",
        f"{row.available:.0%}",
    ]


def adapt(
    net: nn.Module,
    batch: Any,
    *,
    method: str | Method | None = "mpd-agl",
    calibrate: Calibrate = True,
    spread: float | None = None,
    moments: Source = "auto",
    surrogate: str | Surrogate | None = None,
    momentum: float = 0.1,
    every: int = 8,
    chain: int | None = None,
    forward: Callable[[nn.Module, Any], object] | None = None,
    fuse: Fuse = False,
) -> Adaptation:
    """Give the neurons of an existing network a surrogate gradient that fits, in place; train it then as before.

    Reads networks made of SpikingJelly's, snnTorch's and Norse's neurons, and of one's own (`register_neuron`). Two
    things must fit: the scale of the potential to the threshold, and the width of the surrogate to the potential.

    `batch` is one training batch, as large as you train with; it is run as `net(batch)`, or `net(batch[0])` of a
    pair, or by your own `forward(net, batch)`, which then has the loop over time. The passes leave running
    statistics, states and random numbers as they were.

    `calibrate=True` multiplies each layer's current (the weight and bias of the norm before it, else of the synapse)
    so that the standard deviation of the potential is the threshold, twice that behind LayerNorm and RMSNorm, or
    `spread` thresholds. It is refused for a network that looks trained, unless it is "force". "threshold" moves the
    thresholds instead. False leaves the scale alone.

    `method` is any name of `mpd_agl.nn.METHODS`, or a `Method`; its width rule is used, the neuron stays yours. So a
    method that is a neuron, such as trsg, is refused. None keeps the widths. Where a norm stands before a neuron, the
    rule's moments are predicted from the norm's parameters at every training pass (the generalised Eq. 7); elsewhere,
    and with `moments="measured"`, they are running moments of the potential, measured on every `every`-th training
    pass.

    `method="mpd-gain"` sets the surrogate's height as well, and its width by `chain`: the number of spiking layers on
    the longest way without a shortcut. None takes all layers; in a residual network pass that of a branch, mostly 2.

    The neuron's own surrogate is used, stretched to the width. `surrogate="rectangular"` (or any of
    `core.SURROGATES`) replaces its shape.

    `fuse=True` runs norm and neuron of SpikingJelly's IF, LIF and ParametricLIF nodes as one kernel, where spikes and
    gradients on the batch are the same. Convolutions and linear layers then skip zeros where that is faster on this
    machine. `fuse="dense"` leaves them torch's.

    Returns what was found and done; print it.
    """
    if moments not in ("auto", "predicted", "measured"):
        raise unknown_name("moments", moments, ("auto", "predicted", "measured"))
    if calibrate not in (True, False, "threshold", "force"):
        raise unknown_name("calibrate", calibrate, ("True", "False", "threshold", "force"))
    if fuse not in (True, False, "dense"):
        raise unknown_name("fuse", fuse, ("True", "False", "dense"))
    if spread is not None and not 0 < spread < 100:
        raise InputError(
            f"spread, the potential's deviation in thresholds, must be positive, got {spread}. 1 is usual."
        )
    if every < 1:
        raise InputError(f"every must be at least 1, got {every}. The default measures every 8th training pass.")
    _check(net, batch)
    for _, neuron, spike in adaptive_spikes(net):
        if spike.only_watches and spike.watchers:
            raise InputError("a Monitor watches the network. Close it, adapt the network, and watch it again.")
        if spike.only_watches:  # a copy of a watched network
            take_out(neuron, spike)
    if adaptive_spikes(net):
        raise InputError("the network is adapted already. Call release(net) first to adapt it anew.")
    rule = None if method is None else get_method(method)
    if rule is not None and rule.replaces_neuron:
        raise InputError(
            f"method {rule.name!r} is a neuron of its own ({rule.about}), and adapt keeps yours. Use a method that is "
            "a width alone, such as mpd-agl, or build the layer with mpd_agl.nn.SpikingBlock."
        )
    shape = surrogate if surrogate is not None else None if rule is None else rule.surrogate
    ours = None if shape is None else get_surrogate(shape)
    if calibrate is True:
        calibration.check_untrained(net)
    as_it_came = [(p, p.detach().clone()) for p in net.parameters()] if calibrate is not False else []
    layers, refused = _install(net, ours)
    name = "their own widths" if rule is None else rule.name
    if not layers:
        return Adaptation(method=name, calibrated=False, layers=(), not_adapted=tuple(refused))
    try:
        with rehearsal(net):
            run = _runner(net, batch, forward)
            ran: list[Layer] = []
            before = calibration.watch(net, layers, lambda: ran.extend(trace(net, run, layers)))
            for layer in layers:
                if layer not in ran:
                    _uninstall(layer.neuron, layer.spike, layer.adapter)
                    refused.append(_refusal(layer.name, layer.neuron, "the pass over the batch did not reach it"))
            if not ran:
                raise InputError("none of the network's neurons ran in net(batch). Pass forward= with your own loop.")
            for layer in ran:
                layer.num_calls = before[layer.name].first_calls
            fits: dict[str, Fit] = {}
            if calibrate is not False:
                fits = calibration.calibrate(net, ran, run, before, threshold=calibrate == "threshold", spread=spread)
            now = calibration.watch(net, ran, run) if calibrate is not False else before
            layers_in_chain = len(ran) if chain is None else chain
            sources = {}
            for layer in ran:
                measured = MeasuredMoments(momentum=momentum)
                seen = now[layer.name]
                sources[layer.name] = _set_width(layer, rule, layers_in_chain, seen, moments, measured, every)
            with_widths = calibration.watch(net, ran, run, with_widths=True)
        left: dict[str, str] = {}
        if fuse:
            exactly = _runner(net, fusing.in_float64(batch), forward)
            how = "dense" if fuse == "dense" else "auto"
            left = fusing.fuse(net, ran, _runner(net, batch, forward), exactly, conv_impl=how)
    except BaseException:
        fusing.take_out(net)
        for layer in layers:
            if layer.spike.handles:
                _uninstall(layer.neuron, layer.spike, layer.adapter)
        with torch.no_grad():  # what calibration has scaled so far
            for parameter, value in as_it_came:
                parameter.copy_(value)
        raise
    for layer in ran:  # the rehearsal gave thresholds that are buffers back, too
        if (fit := fits.get(layer.name)) is not None and fit.v_th is not None:
            layer.adapter.set_v_th(layer.neuron, fit.v_th)
    rows = [
        _row(x, rule, sources[x.name], before[x.name], with_widths[x.name], fits.get(x.name), left.get(x.name, ""))
        for x in ran
    ]
    return Adaptation(
        method=name,
        calibrated=calibrate is not False,
        layers=tuple(rows),
        not_adapted=tuple(refused),
    )


def _refusal(name: str, neuron: nn.Module, reason: str) -> NotAdapted:
    return NotAdapted(layer=name, neuron=type(neuron).__name__, reason=reason)


def _install(net: nn.Module, ours: Surrogate | None) -> tuple[list[Layer], list[NotAdapted]]:
    """Put an AdaptiveSpike where each readable neuron has its surrogate function."""
    layers: list[Layer] = []
    refused: list[NotAdapted] = []
    for name, neuron in list(net.named_modules()):
        if isinstance(neuron, Neuron):
            refused.append(_refusal(name, neuron, "it is one of ours and has its own width rule"))
            continue
        adapter = adapter_of(neuron)
        if adapter is None:
            continue
        reason = adapter.refusal(neuron)
        shape: Shape | str = reason or measure(adapter.function(neuron))
        if isinstance(shape, str) and reason is None and ours is not None:
            shape = _step_only(adapter, neuron, shape)
        if isinstance(shape, str):
            hint = "" if reason is not None or ours is not None else "; surrogate='rectangular' replaces it"
            refused.append(_refusal(name, neuron, shape + hint))
            continue
        spike = AdaptiveSpike(
            adapter.function(neuron),
            shape,
            calls=adapter.calls,
            surrogate=ours,
        )
        spike.train(neuron.training)
        place = next((t for t in (*neuron.parameters(), *neuron.buffers(), *net.parameters())), torch.empty(0))
        spike.to(place.device)
        adapter.put(neuron, spike)
        spike.attach(neuron)
        layers.append(Layer(name, neuron, adapter, spike))
    if not layers and not any(isinstance(m, Neuron) for m in net.modules()):
        found = "; ".join(f"{r.layer} ({r.neuron}): {r.reason}" for r in refused[:3])
        raise InputError(
            "no neuron was found that can be adapted: those of SpikingJelly, snnTorch and Norse can, and your own "
            f"after register_neuron.{' Found: ' + found + '.' if found else ''}"
        )
    return layers, refused


def _step_only(adapter: Adapter, neuron: nn.Module, reason: str) -> Shape | str:
    """A surrogate whose gradient is of no use, but whose forward is the step: our shape can replace its gradient."""
    u = torch.tensor([-1.0, 0.0, 1.0])
    with torch.no_grad():
        s = adapter.function(neuron)(u)
    return Shape(1.0, bool(s[1])) if [float(s[0]), float(s[2])] == [0.0, 1.0] else reason


def _runner(net: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], object] | None) -> Run:
    """A pass over the batch; what the network says of a batch that it cannot take becomes a sentence."""

    def run() -> object:
        try:
            return (forward or default_forward)(net, batch)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InputError):
                raise
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise InputError(
                f"net(batch) failed with {words}. Pass a batch as you train with (tensors), or forward= with your loop."
            ) from error

    return run


def _check(net: Any, batch: Any) -> None:
    """Refuse what is no network, and a batch with NaN or Inf: calibration would carry it into the weights."""
    if not isinstance(net, nn.Module):
        raise InputError(
            f"adapt takes a network, a torch.nn.Module, got {type(net).__name__}. Pass the network itself."
        )
    for part in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else [batch]:
        if isinstance(part, Tensor) and part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise InputError("the batch holds NaN or Inf values. Correct the data; nothing was changed.")


def _set_width(
    layer: Layer,
    rule: Method | None,
    chain: int,
    seen: Watched,
    wanted: Source,
    measured: MeasuredMoments,
    every: int,
) -> str:
    """Decide where the moments come from, and compute the first widths."""
    spike, membrane = layer.spike, layer.adapter.membrane(layer.neuron)
    spike.num_steps, spike.every, spike.uses = seen.num_steps, every, layer.num_calls
    if rule is None:
        return "own"
    spike.width = rule.width().to(spike.place.device)
    set_chain(spike, chain)
    measured.to(spike.place.device)
    first_order = membrane.kept is not None and membrane.current_kept is None
    predictable = layer.predictable and first_order and layer.num_calls == 1 and not spike.width.needs_batch
    spike.norms = [norm for _, norm in layer.norms] if predictable else []
    mean_T = seen.mean_T + float(membrane.threshold)
    measured.update_sums(PotentialSums(1, mean_T, seen.var_T + mean_T.square()))
    spike.measured = measured
    if not spike.reads_moments(membrane):  # nothing to measure
        spike.measured = None
    spike.kappa_T = spike.widths(membrane, seen.num_steps).detach()
    if spike.measured is None:
        return "rule"
    if predictable and wanted != "measured":
        spike.measured = None
        spike.kappa_T = spike.widths(membrane, seen.num_steps).detach()
        return "predicted"
    return "measured"


def _row(
    layer: Layer, rule: Method | None, source: str, before: Watched, now: Watched, fit: Fit | None, left: str
) -> AdaptedLayer:
    membrane, spike = layer.adapter.membrane(layer.neuron), layer.spike
    v_th = float(membrane.threshold)
    kept = membrane.kept
    tau = None if kept is None else float(kept.mean()) if isinstance(kept, Tensor) else float(kept)
    notes = [] if fit is None or not fit.note else [f"not calibrated: {fit.note}"]
    notes += [left] if left else []
    if rule is not None and rule.noise > 0:
        notes.append(f"the noisy outputs of {rule.name} are left out, as only our own neurons have them")
    if layer.num_calls > 1:
        notes.append(f"the network uses this neuron {layer.num_calls} times; its widths are for all uses together")
    return AdaptedLayer(
        layer=layer.name,
        neuron=type(layer.neuron).__name__,
        library=layer.adapter.library,
        v_th=v_th,
        tau=tau,
        reset=membrane.reset + (", detached" if membrane.detach_reset else ""),
        norm=" + ".join(name for name, _ in layer.norms),
        synapse=" + ".join(name for name, _ in layer.synapses),
        num_steps=now.num_steps,
        mean=now.mean + v_th,
        std=now.std,
        sigmas=-now.mean / max(now.std, 1e-12),
        rate=now.rate,
        rate_before=before.rate,
        spread_before=before.std / v_th if fit is None else fit.spread_before,
        spread=now.std / v_th,
        scale=1.0 if fit is None else fit.scale,
        rule="own" if rule is None else rule.name,
        source=source,
        natural_width=None if spike.surrogate is not None else spike.shape.width,
        kappa_T=() if spike.kappa_T is None else tuple(float(k) for k in spike.kappa_T),
        available=now.available,
        fused="" if spike.fusion is None else "neuron" if spike.fusion.norm is None else "norm + neuron",
        note="; ".join(notes),
    )


def _uninstall(neuron: nn.Module, spike: AdaptiveSpike, adapter: Adapter) -> None:
    if spike.fusion is not None:
        spike.fusion.take_out()
    spike.detach()
    adapter.put(neuron, spike.function)


def release(net: nn.Module, *, keep_widths: bool = True) -> dict[str, float | None]:
    """Take everything of ours out of an adapted network: every neuron calls its own surrogate function again.

    With `keep_widths` each surrogate that has a parameter for it keeps its last width, the mean over the timesteps:
    SpikingJelly's with `alpha`, snnTorch's `atan` and `sigmoid`. The saved network then needs no part of this
    package. Calibrated weights stay as they are. Returns the width that each layer's surrogate has now where it was
    set, None where it is as it was.
    """
    widths: dict[str, float | None] = {}
    fusing.take_out(net)
    spikes: Sequence[tuple[str, nn.Module, AdaptiveSpike]] = adaptive_spikes(net)
    for name, neuron, spike in spikes:
        adapter = adapter_of(neuron)
        assert adapter is not None
        _uninstall(neuron, spike, adapter)
        widths[name] = None
        if not keep_widths or spike.kappa_T is None:
            continue
        kappa = float(spike.kappa_T.mean())
        function = with_width(spike.function, kappa / spike.shape.width)
        if function is not None:
            adapter.put(neuron, function)
            widths[name] = kappa
    return widths
