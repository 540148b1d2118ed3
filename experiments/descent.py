"""What makes a width good: how far the loss falls along the gradient it gives, and what each layer passes on."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor

from experiments import smoothed
from experiments.descent_measure import FACTORS, STEPS, Batch, measure
from experiments.evidence import FIXED, METHODS, OPTIMIZERS, OURS, variant
from experiments.grouped_bars import colour, style_of
from experiments.study import LABELS, REFERENCE, Group, Study, Variant, label
from mpd_agl import records
from mpd_agl.models import Network
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table
from mpd_agl.train import build, checkpoint
from mpd_agl.train.config import RunConfig
from mpd_agl.train.resolve import resolve

NETWORKS = {"cnn8": "CNN-8", "plain16": "plain, 16 layers", "resnet19": "ResNet-19"}
RULES = tuple(m for m in METHODS if m not in ("psg", "stbp-tdbn@kappa=best"))
"""PSG's widths are learnt, so they have no value on another rule's weights."""
BATCHES = {"smoke": 1, "cpu": 4, "paper": 16}
SMALL_NET = "smoothed.json"


def variants(methods: Sequence[str]) -> list[Variant]:
    """One run per network, trained by MPD-AGL; the rules are compared on its weights."""
    adam = {name.replace(".", "__"): value for name, value in OPTIMIZERS["adam"].items()}
    kept: dict[str, Any] = {"checkpoint__keep_last": 1000, "monitor__every": 0}
    out = []
    for network in NETWORKS:
        for data in ("digits", "cifar10"):
            at = {"network": network, "data": data}
            deep = {"model.depth": 16} if network == "plain16" else {}
            more = adam if network == "plain16" else {}
            name = "plain" if network == "plain16" else network
            out.append(variant(REFERENCE, name, data, at, {**deep, "monitor.every": 0}, **kept, **more))
    return out


def in_smoke(found: Variant) -> bool:
    """One network."""
    return (found.at["network"], found.at["data"]) == ("plain16", "digits")


def moments(epochs: int) -> list[int]:
    """Complete epochs at which a network is looked at: none, the first, half, all.

    >>> moments(8), moments(2)
    ([0, 1, 4, 8], [0, 1, 2])
    """
    return sorted({0, 1, epochs // 2, epochs})


def file_of(run: Run, epoch: int) -> Path:
    """Where the measurements of a moment are kept: beside the run's record."""
    return run.path / f"descent-epoch-{epoch:04d}.json"


def look(groups: Sequence[Group], methods: Sequence[str], scale: str, say: Callable[[str], None]) -> None:
    """Measure what is missing; every rule at every moment leaves its numbers at once."""
    for group in groups:
        for run in group.runs.values():
            _look_at(run, methods, BATCHES[scale], say)
    places = [g.first.path.parent / SMALL_NET for g in groups if g.runs]
    if places and not places[0].is_file():
        say("descent: the direction of small networks against an unbiased estimate")
        _write(places[0], _small(scale))


def _look_at(run: Run, methods: Sequence[str], count: int, say: Callable[[str], None]) -> None:
    config = resolve(run.record.config)
    batches: list[tuple[Batch, Batch]] = []
    image_set = None
    for epoch in moments(config.train.epochs):
        file = file_of(run, epoch)
        found = _read(file)
        wanted = [m for m in methods if m not in found.get("rules", {})]
        if not wanted:
            continue
        if image_set is None:
            image_set = build.build_data(config, "train")
            batches = _batches(config, image_set, count)
        net = _network(run, config, image_set, epoch)
        if net is None:
            say(f"descent: {run.name} has no checkpoint of epoch {epoch}; it is left out")
            continue
        found = found or {"run": run.name, "epoch": epoch, "steps": list(STEPS), "batches": count, "rules": {}}
        found |= {"code": records.code(), "hardware": records.hardware()}
        for method in wanted:
            say(f"descent: {run.name}, epoch {epoch}, {method}")
            found["rules"][method] = measure(net, config, method, FACTORS, batches)
            _write(file, found)


def _batches(config: RunConfig, data: Any, count: int) -> list[tuple[Batch, Batch]]:
    """Pairs of training batches: one that the gradient is of, and a fresh one."""
    train, _ = build.build_loaders(config, data, data)
    with train.epoch(0) as every:
        taken: list[tuple[Tensor, Tensor]] = []
        for batch in every:
            taken.append((batch[0].clone(), batch[1].clone()))
            if len(taken) == 2 * count:
                break
    half = len(taken) // 2
    return list(zip(taken[:half], taken[half : 2 * half], strict=True))


def _network(run: Run, config: RunConfig, data: Any, epoch: int) -> Network | None:
    """The run's network after so many epochs; None where its checkpoint is not kept."""
    net = build.network_for(config, data)
    if epoch == 0:
        return net
    root = run.path / "checkpoints"
    there = [at for at in checkpoint.positions(root) if at.epoch == epoch]
    if not there:
        return None
    net.load_state_dict(checkpoint.read(root / there[0].folder).tensors["model"])
    return net


def _small(scale: str) -> dict[str, Any]:
    """Small networks of 1 to 4 hidden layers on digits of 7x7 pixels."""
    from mpd_agl.data.load import load_dataset

    data = load_dataset("mnist5k", "train", image_size=7)
    N, draws, repeats = (20, 32, 2) if scale == "smoke" else (100, 128, 24)
    index = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:N]
    x_NF = torch.from_numpy(data.x.astype("float32")).flatten(1)[index] / 255
    x_NF = (x_NF - data.mean[0]) / data.std[0]
    y_N = torch.from_numpy(data.y)[index]
    found = []
    for layers in (1, 2, 4):
        net = smoothed.Small(features=x_NF.shape[1], layers=layers)
        found.append(smoothed.compare(net, x_NF, y_N, draws=draws, repeats=repeats))
    return {"code": records.code(), "hardware": records.hardware(), "nets": found}


def _write(file: Path, table: dict[str, Any]) -> None:
    records.write_atomic(file, records.canonical(table))


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def show(groups: Sequence[Group]) -> PageSection:
    """A row of panels per network: fall of the loss over the width, and the gradient's size by layer."""
    runs = [(g, g.first) for g in groups if g.runs]
    found = {g.variant.at["network"] + g.variant.at["data"]: _moments_of(run) for g, run in runs}
    small = _read(runs[0][1].path.parent / SMALL_NET) if runs else {}
    with draw.style():
        figure = Figure(figsize=(13.2, 2.75 * len(runs) + 3.3))
        grid = figure.subplots(len(runs) + 1, 4, squeeze=False)
        for row, (g, _) in zip(grid, runs, strict=False):
            _row(row, g, found[g.variant.at["network"] + g.variant.at["data"]])
        _cosines(grid[-1], small)
        named: dict[str, Any] = {}
        for axes in grid.ravel()[: 4 * len(runs)]:
            named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=6)
    panel = Panel("descent", "Fall of the loss along each rule's gradient, gradient by layer, cosines", figure)
    rows = [
        [NETWORKS[g.variant.at["network"]], g.variant.at["data"], str(epoch), label(method), c, *_cells(measured)]
        for g, _ in runs
        for epoch, rules in found[g.variant.at["network"] + g.variant.at["data"]].items()
        for method, by_factor in rules.items()
        for c, measured in by_factor.items()
    ]
    head = ("network", "data", "epoch", "rule", "c")
    falls = ("fall, same batch", "fall, fresh batch", "layerwise, same", "layerwise, fresh")
    details = Table((*head, *falls, "gradient first/last layer"), rows, tuple(range(4, 10)))
    notes = [
        f"Largest fall of the loss over steps of {', '.join(f'{s:g}' for s in STEPS)} of the weights' norm against the "
        "surrogate gradient, below 0 where every step makes it rise: along the whole gradient (as SGD goes), and along "
        "each parameter's own with a length of its own (layerwise: the direction without the layers' gains). Same: the "
        "batch that the gradient is of; fresh: another one, which table and figure show, along the whole gradient. "
        "First / last: the rms of the gradient at the first layer's spikes over that at the last's. "
        "c multiplies the rule's width, and a rule's own height is matched to it. "
        "All rules see the same weights, those of a run trained by MPD-AGL.",
        "Cosines: networks of linear layers with normal noise in their potentials, where the likelihood ratio "
        "estimates the gradient without bias; the dashed line is the largest cosine that the estimate's own noise "
        "allows.",
    ]
    table = _by_width([(g.variant, found[g.variant.at["network"] + g.variant.at["data"]]) for g, _ in runs])
    return PageSection("descent", STUDY.title, _sentence(groups, found), [panel], table, notes, details=details)


def _by_width(found: Sequence[tuple[Variant, dict[int, dict[str, Any]]]]) -> Table:
    """Falls on a fresh batch and the first layer's gradient over the last's, at multiples of Eq. 7's width and ours."""
    columns = [*((REFERENCE, f"{c:g}") for c in FACTORS), *((OURS, c) for c in ("0.25", "1", "4"))]
    rows = []
    for variant_, by_epoch in found:
        name = f"{NETWORKS[variant_.at['network']]}, {variant_.at['data']}"
        for epoch, rules in by_epoch.items():
            every = [rules.get(method, {}).get(c) for method, c in columns]
            falls = ["" if m is None else f"{_fall(m, 'whole', 'fresh'):+.3f}" for m in every]
            ratios = ["" if m is None else _shown(_ratio(m)) for m in every]
            rows += [[name, str(epoch), "fall", *falls], [name, str(epoch), "first / last", *ratios]]
    names = [f"{'Eq. 7' if method == REFERENCE else 'ours'} x {c}" for method, c in columns]
    return Table(("network", "epoch", "what", *names), rows, tuple(range(3, 3 + len(names))))


def _moments_of(run: Run) -> dict[int, dict[str, Any]]:
    epochs = int(run.record.config["train"]["epochs"])
    every = {epoch: _read(file_of(run, epoch)).get("rules", {}) for epoch in moments(epochs)}
    order = list(LABELS)
    return {
        epoch: {m: rules[m] for m in sorted(rules, key=lambda m: order.index(m) if m in order else len(order))}
        for epoch, rules in every.items()
        if rules
    }


def _fall(measured: dict[str, Any], kind: str, on: str) -> float:
    """Of the step that lets the loss fall farthest."""
    return float(max(measured[kind][on]))


def _cells(measured: dict[str, Any]) -> list[str]:
    falls = [_fall(measured, kind, on) for kind in ("whole", "layerwise") for on in ("same", "fresh")]
    return [*(f"{f:+.4f}" for f in falls), _shown(_ratio(measured))]


def _ratio(measured: dict[str, Any]) -> float | None:
    """The gradient at the first layer's spikes over the one at the last's."""
    rms = measured["gradient_rms"]
    return float(rms[0] / rms[-1]) if rms and rms[-1] > 0 else None


def _shown(ratio: float | None) -> str:
    """
    >>> _shown(0.217), _shown(2.06e-5), _shown(1.28e4)
    ('0.22', '2e-5', '1e4')
    """
    if ratio is None:
        return ""
    return f"{ratio:.2g}" if 0.01 <= ratio < 99.5 else f"{ratio:.0e}".replace("e-0", "e-").replace("e+0", "e")


def _row(row: Any, group: Group, found: dict[int, dict[str, Any]]) -> None:
    """Falls at the first and last moment, the gradient's growth at the last, gradients by layer at the start."""
    name = f"{NETWORKS[group.variant.at['network']]}, {group.variant.at['data']}"
    epochs = list(found)
    if not epochs:
        for axes in row:
            axes.set_axis_off()
        return
    for axes, epoch in ((row[0], epochs[0]), (row[1], epochs[-1])):
        _over_width(axes, found[epoch], lambda m: _fall(m, "whole", "fresh"))
        axes.axhline(0, color=draw.SOFT, linewidth=0.8)
        axes.set_ylabel("fall of the loss")
        axes.set_title(f"{name}\nfresh batch, epoch {epoch}")
    _over_width(row[2], found[epochs[-1]], _ratio)
    row[2].set_yscale("log")
    row[2].set_title(f"{name}\ngradient, first layer / last, epoch {epochs[-1]}")
    for method, by_factor in found[epochs[0]].items():
        rms = by_factor.get("1", {}).get("gradient_rms", [])
        if rms and rms[-1] > 0:
            row[3].plot(range(1, len(rms) + 1), [max(r / rms[-1], 1e-12) for r in rms], **_look(method))
    row[3].set_yscale("log")
    row[3].set_xlabel("layer")
    row[3].set_title(f"{name}\nrms of dL/ds, last layer = 1, epoch {epochs[0]}")


def _over_width(axes: Axes, rules: dict[str, Any], value: Callable[[dict[str, Any]], float | None]) -> None:
    """A value over the median width, a line per rule; a ring marks the rule's own width."""
    for method, by_factor in rules.items():
        points = sorted((_width(m), v) for m in by_factor.values() if (v := value(m)) is not None)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, **_look(method))
        if "1" in by_factor and (own := value(by_factor["1"])) is not None:
            ring: dict[str, Any] = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "label": "_own"}
            axes.plot([_width(by_factor["1"])], [own], color=colour(method), linestyle="none", **ring)
    _log_axis(axes)
    axes.set_xlabel("median width of the layers")


def _look(method: str) -> dict[str, Any]:
    return {"color": colour(method), "linestyle": style_of(method), "label": draw.plain(label(method))}


def _width(measured: dict[str, Any]) -> float:
    every = sorted(measured["kappa"])
    return float(every[len(every) // 2])


def _log_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _cosines(row: Any, small: dict[str, Any]) -> None:
    nets = small.get("nets", [])
    for axes, found in zip(row, nets, strict=False):
        c = [float(key) for key in found["cosine"]]
        tints = draw.depth_colours(found["net"]["layers"])
        for layer, tint in enumerate(tints):
            y = [values["layers"][layer] for values in found["cosine"].values()]
            axes.plot(c, y, color=tint, linewidth=1, label=f"layer {layer + 1}")
        axes.plot(c, [v["all"] for v in found["cosine"].values()], color=draw.INK, linewidth=2, label="all layers")
        axes.axhline(found["largest"], color=draw.SOFT, linestyle="--", linewidth=1)
        axes.axvline(2, color=draw.SOFT, linestyle=":", linewidth=1)
        _log_axis(axes)
        axes.xaxis.set_major_locator(FixedLocator(c))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("width in deviations of the potential")
        axes.set_title(f"cosine with the unbiased gradient\nhidden layers: {found['net']['layers']}")
        axes.legend(fontsize=6.5)
    for axes in row[len(nets) :]:
        axes.set_axis_off()


def _sentence(groups: Sequence[Group], found: dict[str, dict[int, dict[str, Any]]]) -> str:
    """How much the gradient's size depends on the width, by Eq. 7 and by our rule."""
    told = []
    for g in groups:
        by_epoch = found.get(g.variant.at["network"] + g.variant.at["data"], {})
        rules = by_epoch[max(by_epoch)] if by_epoch else {}
        each = []
        for method, name in ((REFERENCE, "Eq. 7"), (OURS, "ours")):
            ratios = [r for m in rules.get(method, {}).values() if (r := _ratio(m))]
            each += [f"{name} {_shown(max(ratios) / min(ratios))}"] if ratios else []
        if each:
            told.append(f"{NETWORKS[g.variant.at['network']]}: {', '.join(each)}")
    if not told:
        return "Fall of the loss along surrogate gradients of different widths."
    over = "over widths from 1/4 to 4 times a rule's own"
    return f"Largest over smallest gradient of the first layer, {over}: {'; '.join(told)}."


STUDY = Study(
    name="descent",
    title="What makes a width good: how far the loss falls along its gradient",
    paper="How far does the loss really fall along the surrogate gradient, and how large is it in each layer?",
    variants=variants,
    show=show,
    methods=(FIXED, *(m for m in RULES if m != FIXED)),
    partial=True,
    protocol="docs/evidence.md",
    measure=look,
    in_smoke=in_smoke,
)
