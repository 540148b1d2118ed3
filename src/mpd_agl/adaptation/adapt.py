"""`adapt(net, batch)`: a scale and a width that fit, on the network you already have; `release` gives it back."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpd_agl.adaptation import calibrate as calibration
from mpd_agl.adaptation import fuse as fusing
from mpd_agl.adaptation.adapters import Adapter, adapter_of, mean_of, read
from mpd_agl.adaptation.calibrate import Fit, Watched
from mpd_agl.adaptation.choose import Calibrate, Choice, Moments, Request, choose, is_predictable
from mpd_agl.adaptation.find import Forward, Layer, Run, call_network, to_rest, trace
from mpd_agl.adaptation.spike import AdaptiveSpike, adaptive_spikes, put_in, take_out
from mpd_agl.adaptation.surrogates import Shape, measure, with_width
from mpd_agl.adaptation.undo import rehearsal
from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn import MeasuredMoments, Method, Neuron, get_method
from mpd_agl.nn.modes import evaluation_mode

LEGEND = (
    "reads: the norm before the neuron; scale: what its current was multiplied by; to v_th: deviations from the mean "
    "to the threshold; from: where the width's moments come from; inside: the share of potentials in the window."
)


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
    """The width of the neuron's own surrogate; None where another shape replaced it."""
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
        left = ("layer", "neuron", "v_th", "decay", "reset", "reads")
        right = ("scale", "std/v_th", "to v_th", "rate", "width", "from", "inside")
        table = text_table(f"adapted to {self.method}", left, right, map(_cells, self.layers), width=240)
        fused = sum(bool(r.fused) for r in self.layers)
        notes = [f"{fused} of {len(self.layers)} layers are fused."] * bool(fused) + [LEGEND]
        if self.layers and all(r.num_steps == 1 for r in self.layers):
            notes.append("Every layer ran for one timestep: pass forward= if you loop over time outside the network.")
        notes += [f"{r.layer}: {r.note}." for r in self.layers if r.note]
        notes += [f"{r.layer} ({r.neuron}) was not adapted: {r.reason}." for r in self.not_adapted]
        return "\n".join([table, *notes])


def text_table(title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[list[str]], *, width: int) -> str:
    """A table as plain text; the columns named in `right` are flush right."""
    table = Table(title=title, title_justify="left")
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _cells(row: AdaptedLayer) -> list[str]:
    """One line of the table."""

    def change(before: float, now: float, form: str) -> str:
        return f"{before:{form}} -> {now:{form}}" if before != now else f"{now:{form}}"

    return [
        row.layer,
        row.neuron,
        f"{row.v_th:.3g}",
        "-" if row.tau is None else f"{row.tau:.3g}",
        row.reset.removesuffix(", detached"),
        row.norm or row.synapse or "-",
        f"x {row.scale:.3g}",
        change(row.spread_before, row.spread, ".2f"),
        f"{row.sigmas:.2f} std",
        change(row.rate_before, row.rate, ".1%"),
        f"{row.kappa_T[0]:.2f} .. {row.kappa_T[-1]:.2f}" if row.kappa_T else "its own",
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
    moments: Moments = "auto",
    surrogate: str | Surrogate | None = None,
    momentum: float = 0.1,
    every: int = 8,
    chain: int | None = None,
    forward: Forward | None = None,
    fuse: bool | Literal["dense"] = False,
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
    if fuse not in (True, False, "dense"):
        raise unknown_name("fuse", fuse, ("True", "False", "dense"))
    request = Request(
        method=None if method is None else get_method(method),
        calibrate=calibrate,
        spread=spread,
        moments=moments,
        surrogate=surrogate,
        momentum=momentum,
        every=every,
        chain=chain,
    )
    shape = request.shape
    _check(net, batch)

    def run(batch: Any = batch) -> Any:
        return call_network(net, batch, forward)

    if any(is_lazy(t) for t in (*net.parameters(), *net.buffers())):  # they get their shapes in their first call
        with evaluation_mode(net), torch.no_grad():
            run()
        to_rest(net)
    if calibrate is True:
        calibration.check_untrained(net)
    unscaled = [(p, p.detach().clone()) for p in net.parameters()] if calibrate is not False else []
    layers, refused = _install(net, shape)
    if not layers:
        return Adaptation(method=request.rule, calibrated=False, layers=(), not_adapted=tuple(refused))
    try:
        rows = _adapt_layers(net, layers, refused, run, request)
        if fuse:
            implementation = "dense" if fuse == "dense" else "auto"
            exactly = lambda: run(fusing.in_float64(batch))  # noqa: E731
            left = fusing.fuse(net, [row.layer for row in rows], run, exactly, conv_impl=implementation)
            rows = [row._replace(left=left.get(row.layer.name, "")) for row in rows]
    except BaseException:
        release(net, keep_widths=False)
        with torch.no_grad():  # what calibration has scaled so far
            for parameter, value in unscaled:
                parameter.copy_(value)
        raise
    return Adaptation(
        method=request.rule,
        calibrated=calibrate is not False,
        layers=tuple(_shown(row, request) for row in rows),
        not_adapted=tuple(refused),
    )


class _Row(NamedTuple):
    """One layer, and all that was found and done."""

    layer: Layer
    choice: Choice
    fit: Fit
    before: Watched
    now: Watched
    left: str = ""
    """Why it was not fused."""


def _adapt_layers(
    net: nn.Module, layers: list[Layer], refused: list[NotAdapted], run: Run, request: Request
) -> list[_Row]:
    """Look, choose, scale, and set the widths, in the order in which the layers run."""
    ran: list[Layer] = []
    with rehearsal(net):
        before = calibration.watch(net, layers, lambda: ran.extend(trace(net, run, layers)))
        for layer in ran:
            layer.num_calls = before[layer.name].first_calls
        choices = {layer.name: choose(layer, len(ran), request) for layer in ran}
        spreads = {name: choice.spread for name, choice in choices.items() if choice.spread is not None}
        fits = calibration.calibrate(net, spreads, ran, run, before, threshold=request.calibrate == "threshold")
        scaled = calibration.watch(net, ran, run) if spreads else before
    for layer in layers:
        if layer not in ran:
            take_out(layer.neuron, layer.spike)
            refused.append(_refusal(layer.name, layer.neuron, "the pass over the batch did not reach it"))
    if not ran:
        raise InputError("none of the network's neurons ran in net(batch). Pass forward= with your own loop.")
    for layer in ran:
        if (v_th := fits[layer.name].v_th) is not None:
            layer.adapter.set_v_th(layer.neuron, v_th)
        _set_width(layer, choices[layer.name], scaled[layer.name], request)
    with rehearsal(net):
        now = calibration.watch(net, ran, run, with_widths=True)
    return [_Row(x, choices[x.name], fits[x.name], before[x.name], now[x.name]) for x in ran]


def _set_width(layer: Layer, choice: Choice, seen: Watched, request: Request) -> None:
    """Give a layer its rule, what the rule reads, and the first widths."""
    spike = layer.spike
    spike.num_steps, spike.every, spike.uses = seen.num_steps, request.every, layer.num_calls
    if choice.width is None:
        return
    spike.width = choice.width.to(spike.place.device)
    spike.norms = [norm for _, norm in layer.norms] if is_predictable(layer) else []
    if choice.source == "measured":
        spike.measured = MeasuredMoments(request.momentum).to(spike.place.device)
        spike.measured.update(seen.potentials())
    spike.ask(layer.adapter.membrane(layer.neuron), seen.num_steps)


def _refusal(name: str, neuron: nn.Module, reason: str) -> NotAdapted:
    return NotAdapted(layer=name, neuron=type(neuron).__name__, reason=reason)


def _install(net: nn.Module, own_shape: Surrogate | None) -> tuple[list[Layer], list[NotAdapted]]:
    """Put an AdaptiveSpike where each readable neuron has its surrogate function."""
    layers: list[Layer] = []
    refused: list[NotAdapted] = []
    for name, neuron in list(net.named_modules()):
        adapter = adapter_of(neuron)
        if isinstance(neuron, Neuron):
            refused.append(_refusal(name, neuron, "a neuron of mpd_agl.nn has its own width rule"))
        elif adapter is not None:
            shape = adapter.refusal(neuron) or _shape(adapter, neuron, own_shape)
            if isinstance(shape, str):
                refused.append(_refusal(name, neuron, shape))
                continue
            spike = AdaptiveSpike(adapter.function(neuron), shape, calls=adapter.calls, surrogate=own_shape)
            place = next((t for t in (*neuron.parameters(), *neuron.buffers(), *net.parameters())), torch.empty(0))
            put_in(neuron, spike, place.device)
            layers.append(Layer(name, neuron, adapter, spike))
    if not layers and not any(isinstance(m, Neuron) for m in net.modules()):
        found = "; ".join(f"{r.layer} ({r.neuron}): {r.reason}" for r in refused[:3])
        raise InputError(
            "no neuron was found that can be adapted: those of SpikingJelly, snnTorch and Norse can, and your own "
            f"after register_neuron.{' Found: ' + found + '.' if found else ''}"
        )
    return layers, refused


def _shape(adapter: Adapter, neuron: nn.Module, own_shape: Surrogate | None) -> Shape | str:
    """The shape of a neuron's surrogate function, or why it has none. Where another shape replaces its gradient, it is
    enough that its forward is the step.
    """
    function = adapter.function(neuron)
    shape = measure(function)
    if not isinstance(shape, str):
        return shape
    if own_shape is None:
        return f"{shape}; surrogate='rectangular' replaces it"
    with torch.no_grad():
        below, at, above = function(torch.tensor([-1.0, 0.0, 1.0])).tolist()
    return Shape(1.0, bool(at)) if (below, above) == (0.0, 1.0) else shape


def _check(net: Any, batch: Any) -> None:
    """Refuse what is no network, one that is adapted or watched, and a batch with NaN or Inf: calibration would carry
    it into the weights.
    """
    if not isinstance(net, nn.Module):
        raise InputError(
            f"adapt takes a network, a torch.nn.Module, got {type(net).__name__}. Pass the network itself."
        )
    for part in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else [batch]:
        if isinstance(part, Tensor) and part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise InputError("the batch holds NaN or Inf values. Correct the data; nothing was changed.")
    for _, neuron, spike in adaptive_spikes(net):
        if spike.only_watches and spike.has_watchers:
            raise InputError("a Monitor watches the network. Close it, adapt the network, and watch it again.")
        if not spike.only_watches:
            raise InputError("the network is adapted already. Call release(net) first to adapt it again.")
        take_out(neuron, spike)  # a copy of a watched network


def _shown(row: _Row, request: Request) -> AdaptedLayer:
    layer, fit, now = row.layer, row.fit, row.now
    membrane, spike = layer.adapter.membrane(layer.neuron), layer.spike
    v_th = float(membrane.threshold)
    notes = [f"not calibrated: {fit.note}"] * bool(fit.note and row.choice.spread is not None)
    notes += [row.left] * bool(row.left)
    if layer.num_calls > 1:
        notes.append(f"the network uses this neuron {layer.num_calls} times; its widths are for all uses together")
    return AdaptedLayer(
        layer=layer.name,
        neuron=type(layer.neuron).__name__,
        library=layer.adapter.library,
        v_th=v_th,
        tau=None if membrane.kept is None else float(mean_of(membrane.kept)),
        reset=membrane.reset + ", detached" * membrane.detach_reset,
        norm=" + ".join(name for name, _ in layer.norms),
        synapse=" + ".join(name for name, _ in layer.synapses),
        num_steps=now.num_steps,
        mean=now.mean,
        std=now.std,
        sigmas=(v_th - now.mean) / max(now.std, 1e-12),
        rate=now.rate,
        rate_before=row.before.rate,
        spread_before=fit.spread_before,
        spread=now.std / v_th,
        scale=fit.scale,
        rule="own" if request.method is None else request.method.name,
        source=row.choice.source,
        natural_width=None if spike.surrogate is not None else spike.shape.width,
        kappa_T=() if spike.kappa_T is None else tuple(spike.kappa_T.tolist()),
        available=now.available,
        fused="" if spike.fusion is None else "neuron" if spike.fusion.norm is None else "norm + neuron",
        note="; ".join(notes),
    )


def release(net: nn.Module, *, keep_widths: bool = True) -> dict[str, float | None]:
    """Undo `adapt`, but for calibrated weights: every neuron calls its own surrogate function again.

    With `keep_widths` each surrogate that has a parameter for it keeps its last width, the mean over the timesteps:
    SpikingJelly's with `alpha`, snnTorch's `atan` and `sigmoid`. The saved network then needs no part of this
    package. Returns the width that each layer's surrogate has now where it was set, None where it did not change.
    """
    widths: dict[str, float | None] = {}
    fusing.take_out(net)
    spikes: Sequence[tuple[str, nn.Module, AdaptiveSpike]] = adaptive_spikes(net)
    for name, neuron, spike in spikes:
        take_out(neuron, spike)
        widths[name] = None
        if not keep_widths or spike.kappa_T is None:
            continue
        kappa = float(spike.kappa_T.mean())
        function = with_width(spike.function, kappa / spike.shape.width)
        if function is not None:
            read(neuron).put(neuron, function)
            widths[name] = kappa
    return widths
