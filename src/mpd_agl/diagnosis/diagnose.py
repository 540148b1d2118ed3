"""`diagnose(net, batch)`: why a spiking network may not train, in which layers, by which figure, and the one line that
fixes it.

It runs training passes on one batch with a `Monitor` attached and a backward pass, and leaves the network unchanged.
The checks are for the problems that people report: layers that are silent or always fire, potentials far from the
threshold, gradients that vanish or explode through depth, windows too narrow or too wide, dead channels, leaks that
forget or pile up, and states that a reset forgot.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.adaptation.adapt import text_table
from mpd_agl.adaptation.adapters import adapter_of
from mpd_agl.adaptation.calibrate import signs_of_training
from mpd_agl.adaptation.find import Forward, call_network, everything_requires_grad, to_rest
from mpd_agl.adaptation.spike import adaptive_spikes
from mpd_agl.adaptation.undo import own_random_numbers, undone
from mpd_agl.diagnosis.checks import (
    CARRIED_STATE,
    DEAD_NEEDS,
    RESETS,
    SAME,
    Finding,
    Layer,
    Suggestions,
    carried_state,
    examine,
)
from mpd_agl.diagnosis.monitor import Monitor
from mpd_agl.diagnosis.snapshot import LayerSnapshot, Snapshot
from mpd_agl.errors import InputError


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """What `diagnose` found; `print` shows it as a table and a list."""

    layers: tuple[Layer, ...]
    """In the order in which they ran."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    """What one should know and what is no problem."""
    snapshot: Snapshot
    """What the monitor saw, histograms included."""

    @property
    def healthy(self) -> bool:
        """No problem found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own = {"healthy": self.healthy, **asdict(self)}
        own["snapshot"] = self.snapshot.to_dict()
        finite: dict[str, Any] = _finite(own)
        return finite

    def plot(self, path: str | Path) -> None:
        """Draw potentials with their windows, firing rates and gradients through depth, into a picture file."""
        from mpd_agl.diagnosis.diagnose_picture import draw

        draw(self, Path(path))

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        """As plain text."""
        left = ("layer", "neuron")
        right = ("v_th", "decay", "std/v_th", "sigmas to v_th", "rate", "width", "in width", "|dL/ds|", "dead channels")
        title = "spiking layers, in the order in which they run"
        table = text_table(title, left, right, map(_cells, self.layers), width=150)
        found = [f"{k}. {finding}" for k, finding in enumerate(self.findings, 1)] or ["no problem found"]
        return "\n".join([table, *found, *(f"note: {note}" for note in self.notes)])


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
    forward: Forward | None = None,
    loss: Callable[..., Tensor] | None = None,
) -> Diagnosis:
    """Look for the usual problems of a spiking network on one training batch; the network is left unchanged.

    `batch` is run as `net(batch)`, or by your own `forward(net, batch)`, which then has the loop over time. Of a pair,
    as data loaders give it, the second is the labels. The gradients are those of `loss(output, labels)` (`loss(output)`
    without labels); the default is the cross-entropy of the mean output over time, and without labels the mean square
    of the output.

    >>> from mpd_agl.models import create_model
    >>> net = create_model("cnn8", width_mult=0.125, image_size=16)
    >>> diagnose(net, torch.randn(8, 3, 16, 16), torch.arange(8)).healthy
    True
    """
    if labels is None and isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor):
        batch, labels = batch
    trained, adapted = signs_of_training(net) is not None, bool(adaptive_spikes(net))

    def run() -> Tensor:
        with own_random_numbers(net), torch.enable_grad():  # every pass draws the same
            return _first_tensor(call_network(net, batch, forward))

    def run_if_possible() -> Tensor | None:
        try:
            return run()
        except InputError:
            return None

    with undone(net):
        if not net.training:
            net.train()
        left = _left_states(net)
        from_left = run_if_possible() if left else None
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
        again = run_if_possible()
        rows = [_layer(name, net.get_submodule(name), snapshot.layers[name]) for name in snapshot.ran]
    rows = _read(rows)
    findings = examine(rows, Suggestions(trained=trained, adapted=adapted))
    kept = _difference(again, output)
    if left and (gap := _difference(from_left, output)) > SAME:
        findings.insert(0, carried_state(left, gap))
    notes = [] if gradient_note is None else [gradient_note]
    if kept > SAME and not any(f.problem == CARRIED_STATE for f in findings):
        library = next((row.library for row in rows if row.library in RESETS), "own")
        notes.append(
            "the network keeps its state from call to call, which is fine where your loop resets it: without a reset "
            f"the same batch twice gave outputs that differ by {kept:.0%} of the largest; {RESETS[library]}"
        )
    notes += [f"{name} was not looked at: {why}" for name, why in monitor.not_watched.items()]
    return Diagnosis(layers=tuple(rows), findings=tuple(findings), notes=tuple(notes), snapshot=snapshot)


def _first_tensor(output: Any) -> Tensor:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(
            f"the network must give a tensor, or a tuple that begins with one, got {type(output).__name__}."
        )
    return output


def _loss(output: Tensor, labels: Tensor | None, loss: Callable[..., Tensor] | None) -> Tensor:
    if loss is not None:
        return loss(output) if labels is None else loss(output, labels)
    if labels is None:
        return output.float().square().mean()
    mean_NK = output.float().mean(0) if output.dim() > 2 else output.float()
    fits = mean_NK.dim() == 2 and labels.dim() == 1 and len(labels) == len(mean_NK) and not labels.is_floating_point()
    if not fits or int(labels.min()) < 0 or int(labels.max()) >= mean_NK.shape[1]:
        raise InputError(
            "labels must be class numbers, one per sample, for outputs (T, N, K) or (N, K), "
            f"got {tuple(labels.shape)} {labels.dtype} for {tuple(output.shape)}. Pass loss= with your own."
        )
    return nn.functional.cross_entropy(mean_NK, labels.to(mean_NK.device).long())


def _backward(net: nn.Module, value: Tensor) -> str | None:
    """Gradients up to the parameters, which get none; a note where there are none."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    if not value.requires_grad or not parameters:
        return "the loss does not depend on the parameters, so there are no gradients to look at"
    torch.autograd.grad(value.sum(), parameters, allow_unused=True)
    return None


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


def _layer(name: str, module: nn.Module, seen: LayerSnapshot) -> Layer:
    adapter = adapter_of(module)
    neuron = getattr(module, "neuron", module) if adapter is None else module
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
        neuron=type(neuron).__name__,
        library="mpd_agl" if adapter is None else adapter.library,
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
        growth=math.sqrt(max(seen.var_T[-1], 0.0) / seen.var_T[0]) if seen.var_T[0] > 0 else None,
        has_norm=seen.gamma_bar is not None,
        uses=seen.uses,
        is_read=True,
    )


def _read(rows: list[Layer]) -> list[Layer]:
    """Mark the last layers whose spikes get no gradient although others do: the output is their potential."""
    if not any(row.grad_norm for row in rows):
        return rows
    last = max(k for k, row in enumerate(rows) if row.grad_norm)
    return [row if k <= last else replace(row, is_read=False) for k, row in enumerate(rows)]
