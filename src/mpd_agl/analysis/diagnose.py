"""`diagnose(net, batch)`: what ails a spiking network, in which layers, by which figure, and the one line that cures it.

It runs training passes on one batch with a `Monitor` attached and a backward pass, and leaves the network as it was. The illnesses are
those that people write about: layers that are silent or always fire, potentials far from the threshold, gradients that vanish or explode
through depth, windows that hold nobody or everybody, dead channels, leaks that forget or pile up, and states that a reset forgot.
"""

import contextlib
import io
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mpd_agl.adapt.adapters import adapter_of
from mpd_agl.adapt.calibrate import signs_of_training
from mpd_agl.adapt.find import default_forward, everything_requires_grad, to_rest
from mpd_agl.adapt.spike import adaptive_spikes
from mpd_agl.analysis.monitor import LayerSnapshot, Monitor, Snapshot
from mpd_agl.errors import InputError

SILENT = 0.001
"""Firing rate. Under one spike in a thousand steps the layers behind have nothing to tell inputs apart by."""
SATURATED = 0.9
"""Firing rate. Neurons that fire at nine of ten steps send nearly the same whatever they see."""
FAR = 1.645
"""Standard deviations from the mean potential up to the threshold. 5 % of a normal lie above; networks beyond it trained to
28 to 68 % where the same ones, scaled to about 1.1, reached 95 % (SpikingJelly's defaults, 6 and 10 layers, digits)."""
EMPTY_WINDOW = 0.05
"""Share of neurons within the width. The monitors of a run warn under the same share; the paper's setting starts at 48 %."""
FULL_WINDOW = 0.99
"""Share of neurons within the width. Where it holds all, the gradient does not know who is near to firing."""
VANISHED = 0.01
"""Gradient norm of the first layer over the last's. With a hundredth of it the first layers learn a hundred times more slowly; ten-layer
networks that trained to 95 % had 0.07 to 1.5."""
EXPLODED = 100.0
"""Gradient norm of the first layer over the last's: a learning rate that suits the last layers throws the first ones about."""
DEAD = 0.25
"""Share of channels without one spike in the batch: a quarter of the layer computes nothing."""
DEAD_NEEDS = 10.0
"""Spikes that a channel would have at the layer's mean rate. With fewer, a silent channel may be chance (exp(-10) with ten)."""
FORGETS = 0.05
"""Share of the potential that is kept. Under a twentieth, T timesteps are T separate ones, and time only costs."""
KEEPS = 0.99
"""Share of the potential that is kept: as good as no leak, if also"""
PILED_UP = 4.0
"""the potential's standard deviation at the last step is this many times the first's: neurons that drift away never come back."""
SAME = 1e-4
"""Largest difference of two outputs over the largest output, up to which rounding may explain it."""

CURES_OF_LEAK = {
    "spikingjelly": "LIFNode(tau=2.0) in these layers: half is kept",
    "snntorch": "snn.Leaky(beta=0.5) in these layers: half is kept",
    "norse": "LIFParameters(tau_mem_inv=0.5 / dt) in these layers: half is kept",
    "mpd_agl": "LIF(tau=0.5) in these layers: half is kept",
    "own": "a neuron that keeps half of its potential in these layers",
}
CURES_OF_STATE = {
    "spikingjelly": "functional.reset_net(net) before every batch (spikingjelly.activation_based.functional)",
    "snntorch": "utils.reset(net) before every batch (snntorch.utils)",
    "own": "let your neurons forget their state before every batch",
}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One spiking layer on the batch, over all timesteps."""

    layer: str
    neuron: str
    library: str
    num_steps: int
    v_th: float
    tau: float | None
    """Share of the potential that is kept."""
    mean: float
    std: float
    """Of the potential, over batch, neurons and timesteps."""
    sigmas: float | None
    """How far the threshold lies above the mean, in standard deviations; None where the potential is constant."""
    rate: float
    width: float | None
    """Of the surrogate at the last timestep; None where it has none."""
    available: float | None
    """Share of neurons within the width."""
    grad_norm: float | None
    """Norm of dL/ds over neurons, samples and timesteps; None where no gradient came."""
    dead_channels: float | None
    """Share of channels that never fired; None where the batch is too small to tell."""
    uses: int
    is_read: bool
    """Whether the loss depends on the spikes: those of a layer whose potential is the output do not matter."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One illness."""

    illness: str
    layers: tuple[str, ...]
    where: str
    """The layers, as a person says it."""
    value: float
    """The figure of the worst layer."""
    limit: float
    """What it is held against."""
    figure: str
    """Both, as a clause."""
    why: str
    """Why it hurts."""
    cure: str
    """The one line."""

    def __str__(self) -> str:
        """Three lines."""
        return f"{self.illness}: {self.where}; {self.figure}.\n    {self.why}\n    cure: {self.cure}"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What `diagnose` found; `print` shows it as a table and a list."""

    layers: tuple[Layer, ...]
    """In the order in which they ran."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What one should know and what is no illness."""
    snapshot: Snapshot
    """What the monitor saw, histograms included."""

    @property
    def healthy(self) -> bool:
        """No illness found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own = {"healthy": self.healthy, **asdict(self)}
        own["snapshot"] = self.snapshot.to_dict()
        finite: dict[str, Any] = _finite(own)
        return finite

    def plot(self, path: str | Path) -> None:
        """Draw potentials with their windows, firing rates and gradients through depth, into a picture file."""
        from mpd_agl.analysis.diagnose_picture import draw

        draw(self, Path(path))

    def __str__(self) -> str:
        """As plain text."""
        table = Table(title="spiking layers, in the order in which they run", title_justify="left")
        for column in ("layer", "neuron"):
            table.add_column(column)
        for column in (
            "v_th",
            "tau",
            "std/v_th",
            "sigmas to v_th",
            "rate",
            "width",
            "in width",
            "|dL/ds|",
            "dead channels",
        ):
            table.add_column(column, justify="right")
        for row in self.layers:
            table.add_row(*_cells(row))
        out = io.StringIO()
        Console(file=out, width=150, color_system=None, legacy_windows=False).print(table)
        found = [f"{k}. {finding}" for k, finding in enumerate(self.findings, 1)] or ["no illness found"]
        return out.getvalue() + "\n".join([*found, *(f"note: {note}" for note in self.notes)])


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cells(row: Layer) -> list[str]:
    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    name = row.layer + (f" (used {row.uses} times)" if row.uses > 1 else "") + ("" if row.is_read else " (not read)")
    return [
        name,
        row.neuron,
        f"{row.v_th:.3g}",
        shown(row.tau, ".3g"),
        f"{row.std / abs(row.v_th):.2f}" if row.v_th else "-",
        shown(row.sigmas, "+.2f"),
        f"{row.rate:.2%}",
        shown(row.width, ".3g"),
        shown(row.available, ".1%"),
        shown(row.grad_norm, ".2e"),
        shown(row.dead_channels, ".0%"),
    ]


def diagnose(
    net: nn.Module,
    batch: Any,
    labels: Tensor | None = None,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    loss: Callable[..., Tensor] | None = None,
) -> Diagnosis:
    """Look for the usual illnesses of a spiking network on one training batch; the network stays as it was.

    `batch` is run as `net(batch)`, or by your own `forward(net, batch)`, which then has the loop over time. Of a pair, as data loaders give
    it, the second is the labels. The gradients are those of `loss(output, labels)` (`loss(output)` without labels); the default is the
    cross-entropy of the mean output over time, and without labels the mean square of the output.

    >>> from mpd_agl.models import create_model
    >>> net = create_model("cnn8", width_mult=0.125, image_size=16)
    >>> diagnose(net, torch.randn(8, 3, 16, 16), torch.arange(8)).healthy
    True
    """
    if labels is None and isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor):
        batch, labels = batch
    trained, adapted = signs_of_training(net) is not None, bool(adaptive_spikes(net))
    with untouched(net):
        if not net.training:
            net.train()
        run = _runner(net, batch, forward)
        left = _left_states(net)
        from_left = run(may_fail=True) if left else None
        to_rest(net)
        monitor = Monitor(net, every=1, detail=True)
        try:
            with torch.enable_grad(), everything_requires_grad(net):
                output = run()
                gradient_note = _backward(net, _loss(output, labels, loss))
            snapshot = monitor.step()
        finally:
            monitor.close()
        if snapshot is None:
            raise InputError("none of the network's neurons ran in net(batch). Pass forward= with your own loop.")
        again = run(may_fail=True)
        libraries = {name: _library(net.get_submodule(name)) for name in snapshot.ran}
        neurons = {name: type(_neuron(net.get_submodule(name))).__name__ for name in snapshot.ran}
    rows = [_layer(name, snapshot.layers[name], neurons[name], libraries[name]) for name in snapshot.ran]
    rows = _read(rows)
    doctor = _Doctor(rows, snapshot, _Cures(trained=trained, adapted=adapted))
    findings = doctor.findings()
    kept = _difference(again, output)
    if left and (gap := _difference(from_left, output)) > SAME:
        findings.insert(0, _carried_state(left, gap))
    notes = [] if gradient_note is None else [gradient_note]
    if kept > SAME and not (left and findings and findings[0].illness == "state carried over"):
        library = next((x for x in libraries.values() if x in CURES_OF_STATE), "own")
        notes.append(
            "the network keeps its state from call to call: the same batch twice gave outputs that differ by "
            f"{kept:.0%} of the largest; {CURES_OF_STATE[library]}"
        )
    notes += [f"{name} was not looked at: {why}" for name, why in monitor.not_watched.items()]
    return Diagnosis(layers=tuple(rows), findings=tuple(findings), notes=tuple(notes), snapshot=snapshot)


@contextlib.contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    """What runs inside leaves the network and the random numbers as they were: modes, buffers, states, all plain attributes."""
    attributes = {m: dict(m.__dict__) for m in net.modules()}
    holders = [v for a in attributes.values() for v in a.values() if isinstance(v, (dict, list))]
    contents = [(v, v.copy()) for v in holders]
    loose = [v for a in attributes.values() for v in a.values()]
    loose += [x for _, held in contents for x in (held.values() if isinstance(held, dict) else held)]
    tensors = {v for v in loose if isinstance(v, Tensor) and not isinstance(v, nn.Parameter)}
    values = [(t, t.detach().clone()) for t in tensors]
    devices = [t.device.index for t in (*net.parameters(), *net.buffers()) if t.device.type == "cuda"]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=sorted({d for d in devices if d is not None})):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            for module, saved in attributes.items():
                module.__dict__.clear()
                module.__dict__.update(saved)
            for holder, content in contents:
                if isinstance(holder, dict):
                    holder.clear()
                    holder.update(content)
                else:
                    holder[:] = content
            with torch.no_grad():
                for tensor, value in values:
                    if not torch.equal(tensor, value):  # batch norms write without raising the tensor's version
                        tensor.copy_(value)


def _runner(
    net: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], Any] | None
) -> Callable[..., Tensor | None]:
    devices = sorted(
        {p.device.index for p in net.parameters() if p.device.type == "cuda" and p.device.index is not None}
    )

    def run(*, may_fail: bool = False) -> Tensor | None:
        """One pass; every pass draws the same random numbers."""
        try:
            with torch.random.fork_rng(devices=devices), torch.enable_grad():
                output = (forward or default_forward)(net, batch)
        except Exception as error:
            if may_fail:
                return None
            if isinstance(error, InputError):
                raise
            called = "net(batch)" if forward is None else "forward(net, batch)"
            words = " ".join(str(error).split())[:300]
            raise InputError(
                f"{called} failed with {type(error).__name__}: {words}. Pass a batch as you train with, or forward= with your own loop."
            ) from error
        while isinstance(output, (tuple, list)) and output:
            output = output[0]
        if not isinstance(output, Tensor):
            raise InputError(
                f"the network must give a tensor, or a tuple that begins with one, got {type(output).__name__}."
            )
        return output

    return run


def _loss(output: Tensor | None, labels: Tensor | None, loss: Callable[..., Tensor] | None) -> Tensor:
    assert output is not None
    if loss is not None:
        return loss(output) if labels is None else loss(output, labels)
    if labels is None:
        return output.float().square().mean()
    mean_NK = output.float().mean(0) if output.dim() > 2 else output.float()
    fits = mean_NK.dim() == 2 and labels.dim() == 1 and len(labels) == len(mean_NK) and not labels.is_floating_point()
    if not fits or int(labels.min()) < 0 or int(labels.max()) >= mean_NK.shape[1]:
        raise InputError(
            f"labels must be class numbers, one per sample, for outputs (T, N, K) or (N, K), got {tuple(labels.shape)} {labels.dtype} for "
            f"{tuple(output.shape)}. Pass loss= with your own."
        )
    return nn.functional.cross_entropy(mean_NK, labels.to(mean_NK.device).long())


def _backward(net: nn.Module, value: Tensor) -> str | None:
    """Gradients up to the parameters, which get none; a note where there are none."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    if not value.requires_grad or not parameters:
        return "the loss does not depend on the parameters, so there are no gradients to look at"
    torch.autograd.grad(value.sum(), parameters, allow_unused=True)
    return None


def _neuron(module: nn.Module) -> nn.Module:
    return getattr(module, "neuron", module) if adapter_of(module) is None else module


def _library(module: nn.Module) -> str:
    adapter = adapter_of(module)
    return "mpd_agl" if adapter is None else adapter.library


def _left_states(net: nn.Module) -> dict[str, tuple[str, bool]]:
    """Neurons that hold a state from an earlier pass: name -> library, and whether it hangs on that pass's graph."""
    found = {}
    for name, module in net.named_modules():
        adapter = adapter_of(module)
        if adapter is None or adapter.refusal(module) is not None or adapter.library == "norse":  # Norse passes states
            continue
        state = adapter.state_after(module, None)
        if state is not None and state.numel() and bool((state != 0).any()):
            found[name] = (adapter.library, state.grad_fn is not None)
    return found


def _difference(a: Tensor | None, b: Tensor | None) -> float:
    """Largest difference over the largest output; infinite where a pass failed or gave another shape."""
    if a is None or b is None or a.shape != b.shape:
        return math.inf
    gap, top = float((a - b).detach().abs().max()), float(b.detach().abs().max())
    return gap / top if top else (math.inf if gap else 0.0)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _layer(name: str, seen: LayerSnapshot, neuron: str, library: str) -> Layer:
    mean = _mean(seen.mean_T)
    var = _mean([v + m * m for v, m in zip(seen.var_T, seen.mean_T, strict=True)]) - mean**2
    std = math.sqrt(max(var, 0.0)) if not math.isnan(var) else math.nan
    distance = seen.v_th - seen.rest
    squares = [g * g for g in seen.grad_rms_T]
    fired_C = seen.detail.fired_C if seen.detail is not None else []
    rate, T = _mean(seen.rate_T), len(seen.rate_T)
    expected = rate * seen.values * T / max(len(fired_C), 1)
    return Layer(
        layer=name,
        neuron=neuron,
        library=library,
        num_steps=T,
        v_th=seen.v_th,
        tau=seen.tau,
        mean=mean,
        std=std,
        sigmas=(seen.v_th - mean) / std if std > 1e-6 * abs(distance) else None,
        rate=rate,
        width=seen.kappa_T[-1] if seen.kappa_T else None,
        available=_mean(seen.available_T) if seen.available_T else None,
        grad_norm=math.sqrt(sum(squares) * seen.values) if squares else None,
        dead_channels=sum(f == 0 for f in fired_C) / len(fired_C) if fired_C and expected >= DEAD_NEEDS else None,
        uses=seen.uses,
        is_read=True,
    )


def _read(rows: list[Layer]) -> list[Layer]:
    """Mark the last layers whose spikes get no gradient although others do: the output is their potential."""
    if not any(row.grad_norm for row in rows):
        return rows
    last = max(k for k, row in enumerate(rows) if row.grad_norm)
    return [row if k <= last else replace(row, is_read=False) for k, row in enumerate(rows)]


@dataclass(frozen=True, kw_only=True)
class _Cures:
    trained: bool
    adapted: bool

    def fit(self, row: Layer) -> str:
        """For a scale or a width that does not fit."""
        if row.library == "mpd_agl":
            return (
                "torch.nn.init.ones_(layer.norm.weight); torch.nn.init.zeros_(layer.norm.bias) in these layers, or build them as "
                "SpikingBlock(synapse, method='mpd-agl')"
            )
        again = "mpd_agl.release(net); " if self.adapted else ""
        return again + f"mpd_agl.adapt(net, batch{', calibrate=' + repr('force') if self.trained else ''})"

    def width(self, row: Layer) -> str:
        """For a window that does not fit."""
        if row.library == "mpd_agl":
            return "SpikingBlock(synapse, method='mpd-agl') or LIF(method='mpd-agl') in these layers"
        return self.fit(row)


class _Doctor:
    def __init__(self, rows: list[Layer], snapshot: Snapshot, cures: _Cures) -> None:
        self.rows = [row for row in rows if row.is_read]
        self.all, self.snapshot, self.cures = rows, snapshot, cures

    def findings(self) -> list[Finding]:
        looks = (
            self.not_finite,
            self.silent,
            self.saturated,
            self.far,
            self.window,
            self.gradient,
            self.dead,
            self.leak,
        )
        return [finding for look in looks for finding in look()]

    def _found(
        self,
        illness: str,
        rows: list[Layer],
        worst: Layer,
        value: float,
        limit: float,
        figure: str,
        why: str,
        cure: str,
    ) -> list[Finding]:
        names = tuple(row.layer for row in rows)
        others = f" (worst of {len(rows)}: {worst.layer})" if len(rows) > 1 else ""
        return [
            Finding(
                illness=illness,
                layers=names,
                where=self._where(rows),
                value=value,
                limit=limit,
                figure=figure + others,
                why=why,
                cure=cure,
            )
        ]

    def _where(self, rows: list[Layer]) -> str:
        """All layers; from one on; or their names."""
        if len(rows) == len(self.rows) > 1:
            return "in all layers"
        if len(rows) > 1 and rows == self.rows[-len(rows) :]:
            k = len(self.rows) - len(rows) + 1
            return f"from layer {k} ({rows[0].layer}) on"
        names = [row.layer for row in rows]
        return "in " + ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def not_finite(self) -> list[Finding]:
        rows = [r for r in self.all if not all(math.isfinite(x) for x in (r.mean, r.std, r.grad_norm or 0.0))]
        if not rows:
            return []
        return self._found(
            "not finite",
            rows,
            rows[0],
            math.nan,
            0.0,
            "potentials or gradients are NaN or infinite",
            "One NaN in a gradient makes every weight NaN at the next step.",
            "load the last weights that were finite, and train with a tenth of the learning rate",
        )

    def silent(self) -> list[Finding]:
        rows = [r for r in self.rows if r.rate < SILENT]
        if not rows:
            return []
        worst = min(rows, key=lambda r: r.rate)
        return self._found(
            "silent",
            rows,
            worst,
            worst.rate,
            SILENT,
            f"firing rate {worst.rate:.3%}, under {SILENT:.1%}",
            "No spike, no information: the layers behind see the same for every input.",
            self.cures.fit(rows[0]),
        )

    def saturated(self) -> list[Finding]:
        rows = [r for r in self.rows if r.rate > SATURATED]
        if not rows:
            return []
        worst = max(rows, key=lambda r: r.rate)
        cure = self.cures.fit(worst)
        if worst.mean - worst.v_th > worst.std:  # a scale does not move a mean: a norm does
            cure = "a norm before the neuron, e.g. nn.BatchNorm2d(channels): the current's mean, not its scale, is above the threshold"
        return self._found(
            "saturated",
            rows,
            worst,
            worst.rate,
            SATURATED,
            f"firing rate {worst.rate:.1%}, over {SATURATED:.0%}",
            "Neurons that always fire send the same whatever they see, and every spike costs energy.",
            cure,
        )

    def far(self) -> list[Finding]:
        rows = [r for r in self.rows if r.sigmas is not None and r.sigmas > FAR]
        if not rows:
            return []
        worst = max(rows, key=lambda r: r.sigmas or 0.0)
        assert worst.sigmas is not None
        return self._found(
            "potentials far below the threshold",
            rows,
            worst,
            worst.sigmas,
            FAR,
            f"the threshold is {worst.sigmas:.1f} standard deviations above the mean, over {FAR:.2f}",
            "Few neurons ever come near the threshold, so few fire and few are reached by a gradient; no width alone helps.",
            self.cures.fit(worst),
        )

    def window(self) -> list[Finding]:
        found = []
        empty = [r for r in self.rows if r.available is not None and r.available < EMPTY_WINDOW]
        full = [r for r in self.rows if r.available is not None and r.available > FULL_WINDOW and r.std > 0]
        if empty:
            worst = min(empty, key=lambda r: r.available or 0.0)
            found += self._found(
                "window that holds nobody",
                empty,
                worst,
                worst.available or 0.0,
                EMPTY_WINDOW,
                f"{worst.available:.2%} of the neurons lie within the surrogate's width {worst.width:.3g}, under {EMPTY_WINDOW:.0%}",
                "A neuron outside of the window gets next to no gradient: these weights hardly change.",
                self.cures.width(worst),
            )
        if full:
            worst = max(full, key=lambda r: (r.width or 0.0) / r.std)
            found += self._found(
                "window that holds everybody",
                full,
                worst,
                worst.available or 0.0,
                FULL_WINDOW,
                f"{worst.available:.2%} of the neurons lie within the surrogate's width {worst.width:.3g}, over {FULL_WINDOW:.0%}",
                "Neurons that can never fire get the same gradient as those about to: it no longer points to what changes a spike.",
                self.cures.width(worst),
            )
        return found

    def gradient(self) -> list[Finding]:
        rows = [r for r in self.rows if r.grad_norm is not None and math.isfinite(r.grad_norm)]
        if len(rows) < 2:
            return []
        first, last = rows[0].grad_norm or 0.0, rows[-1].grad_norm or 0.0
        if not last:
            return self._vanished(rows, 0.0, rows[-1].layer)
        ratio = first / last
        # Between neighbours: where going back loses, or gains, most.
        steps = [((a.grad_norm or 0.0) / (b.grad_norm or math.inf), a, b) for a, b in pairwise(rows)]
        if ratio < VANISHED:
            _, a, b = min(steps, key=lambda s: s[0])
            return self._vanished(rows[: rows.index(a) + 1], ratio, f"{a.layer}, behind {b.layer}")
        if ratio > EXPLODED:
            factor, a, b = max(steps, key=lambda s: s[0])
            clip = "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) before optimizer.step()"
            return self._found(
                "gradient explodes through depth",
                rows,
                rows[0],
                ratio,
                EXPLODED,
                f"its norm at the first layer is {ratio:.3g} times the last's, over {EXPLODED:g}; "
                f"it grows most from {b.layer} to {a.layer}, by {factor:.3g}",
                "A learning rate that suits the last layers throws the first ones about.",
                clip if self.cures.adapted or rows[0].library == "mpd_agl" else self.cures.width(rows[0]),
            )
        return []

    def _vanished(self, rows: list[Layer], ratio: float, where: str) -> list[Finding]:
        return self._found(
            "gradient vanishes through depth",
            rows,
            rows[0],
            ratio,
            VANISHED,
            f"its norm at the first layer is {ratio:.2g} of the last's, under {VANISHED:g}; it falls most at {where}",
            "The first layers hardly learn, so the last ones learn on features that stay random.",
            self.cures.width(rows[0]) if rows[0].library == "mpd_agl" else self._rectangular(rows[0]),
        )

    def _rectangular(self, row: Layer) -> str:
        """An adapted network's gradient still fades where the surrogate's tails carry most of it: a rectangle's does not."""
        return self.cures.fit(row)[:-1] + ", surrogate='rectangular')" if self.cures.adapted else self.cures.fit(row)

    def dead(self) -> list[Finding]:
        rows = [r for r in self.rows if r.rate >= SILENT and r.dead_channels is not None and r.dead_channels > DEAD]
        if not rows:
            return []
        worst = max(rows, key=lambda r: r.dead_channels or 0.0)
        return self._found(
            "dead channels",
            rows,
            worst,
            worst.dead_channels or 0.0,
            DEAD,
            f"{worst.dead_channels:.0%} of the channels never fired on this batch, over {DEAD:.0%}",
            "A channel that never fires computes nothing, and gets a gradient only while its potential is near the threshold.",
            "a norm per channel before the neuron, e.g. nn.BatchNorm2d(channels)"
            if worst.library != "mpd_agl"
            else self.cures.fit(worst),
        )

    def leak(self) -> list[Finding]:
        found = []
        rows = [r for r in self.rows if r.num_steps > 1 and r.tau is not None and r.tau < FORGETS]
        if rows:
            worst = min(rows, key=lambda r: r.tau or 0.0)
            found += self._found(
                "leak that forgets everything",
                rows,
                worst,
                worst.tau or 0.0,
                FORGETS,
                f"{worst.tau:.2%} of the potential is kept from step to step, under {FORGETS:.0%}",
                f"The {worst.num_steps} timesteps are {worst.num_steps} separate ones: nothing is integrated over time.",
                CURES_OF_LEAK[worst.library],
            )
        growth = {}
        for row in self.rows:
            var_T = self.snapshot.layers[row.layer].var_T
            if row.tau is not None and row.tau >= KEEPS and var_T[0] > 0:
                growth[row.layer] = math.sqrt(max(var_T[-1], 0.0) / var_T[0])
        rows = [r for r in self.rows if growth.get(r.layer, 0.0) > PILED_UP]
        if rows:
            worst = max(rows, key=lambda r: growth[r.layer])
            found += self._found(
                "leak that keeps everything",
                rows,
                worst,
                growth[worst.layer],
                PILED_UP,
                f"{worst.tau:.1%} of the potential is kept, and its standard deviation at step {worst.num_steps} is "
                f"{growth[worst.layer]:.1f} times the first's, over {PILED_UP:g}",
                "Potentials pile up: neurons that drift below the threshold never come back, and no width fits all steps.",
                CURES_OF_LEAK[worst.library],
            )
        return found


def _carried_state(left: dict[str, tuple[str, bool]], gap: float) -> Finding:
    """The network came with states that change what it says of the batch."""
    library = next(iter(left.values()))[0]
    hangs = any(has_graph for _, has_graph in left.values())
    size = "the pass from there fails" if math.isinf(gap) else f"it changes the outputs by {gap:.0%} of the largest"
    return Finding(
        illness="state carried over",
        layers=tuple(left),
        where=f"in {len(left)} layer{'s' * (len(left) > 1)}",
        value=gap,
        limit=SAME,
        figure=f"the network came with the state of an earlier pass, and {size}, over {SAME:g}",
        why="Every batch starts from the potentials of the one before, which are other samples'."
        + (
            " The state hangs on that pass's graph: this is 'Trying to backward through the graph a second time'."
            if hangs
            else ""
        ),
        cure=CURES_OF_STATE.get(library, CURES_OF_STATE["own"]),
    )
