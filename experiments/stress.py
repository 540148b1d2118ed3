"""Stress: one factor at a time around the defaults, fixed width against adaptive ones, paired by seed."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.evidence import (
    COMPARED_HEAD,
    COMPARED_NOTE,
    DATA,
    FIXED,
    METHODS,
    PAPER,
    compared,
    curve,
    seeds_of,
    variant,
)
from experiments.study import Group, Study, Variant, find, label, methods_of
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.section import PageSection, Table, mean

THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
DECAYS, STEPS = (0.2, 0.5, 0.8, 0.95), (2, 4, 8, 16)
DEPTHS = (8, 16, 24, 32)
BATCHES, RATES = (25, 50, 400), (0.0125, 0.05, 0.2)
NORMS = ("tdbn", "bn")

NETWORK = {"depth": "plain", "resnet19-threshold": "resnet19"}
"""The network of a factor; CNN-8 where none is named."""
TITLES = {
    "threshold": "threshold v_th",
    "resnet19-threshold": "threshold v_th",
    **{f"decay-t{T}": f"decay tau, T = {T}" for T in STEPS},
    "depth": "layers (plain, 14x14)",
    "norm": "normalisation",
    "rate": "learning rate",
    "batch": "batch size",
}


def _factors() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Factor, its value as shown, data set, fields; every factor but one at its default."""
    out: list[tuple[str, str, str, dict[str, Any]]]
    out = [("threshold", f"{v:g}", data, {"model.v_th": v}) for data in DATA for v in THRESHOLDS]
    out += [("resnet19-threshold", f"{v:g}", "digits", {"model.v_th": v}) for v in THRESHOLDS]
    for T in STEPS:
        out += [(f"decay-t{T}", f"{t:g}", "digits", {"model.tau": t, "model.num_steps": T}) for t in DECAYS]
    out += [("depth", str(d), "digits", {"model.depth": d}) for d in DEPTHS]
    out += [("norm", norm, "digits", {"model.norm": norm}) for norm in NORMS]
    out += [("rate", f"{r:g}", "digits", {"optim.lr": r}) for r in RATES]
    return out + [("batch", str(b), "digits", {"train.batch_size": b}) for b in BATCHES]


def variants(methods: Sequence[str]) -> list[Variant]:
    """CNN-8, for depth the plain networks, the threshold on CIFAR-10 and in ResNet-19 too."""
    out = []
    for factor, value, data, fixed in _factors():
        at = {"factor": factor, "value": value, "data": data}
        network = NETWORK.get(factor, "cnn8")
        out += [variant(method, network, data, at, fixed) for method in methods]
    return out


def in_smoke(found: Variant) -> bool:
    """One stressed value of most factors, on the digits that the smoke scale has."""
    at = found.at
    return at["data"] == "digits" and (at["factor"], at["value"]) in {
        *(("threshold", "0.1"), ("decay-t4", "0.95"), ("depth", "16"), ("norm", "bn"), ("batch", "25")),
    }


def show(groups: Sequence[Group]) -> PageSection:
    """A panel per factor, the worst place of every method as a table, every place behind the notes."""
    methods = methods_of(groups)
    places = dict.fromkeys((g.variant.at["data"], g.variant.at["factor"]) for g in groups if g.accuracy)
    columns = min(4, len(places))
    with draw.style():
        rows = -(-len(places) // columns)
        figure = Figure(figsize=(2.9 * columns + 0.4, 2.45 * rows + 0.7))
        grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for axes, (data, factor) in zip(grid, places, strict=False):
            _panel(axes, groups, methods, data, factor)
        for axes in grid[len(places) :]:
            axes.set_axis_off()
        named: dict[str, Any] = {}
        for axes in grid:
            named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(5, 2 * columns))
    panel = Panel("stress", "Accuracy of each method over the values of each factor", figure)
    return PageSection(
        "stress",
        STUDY.title,
        _sentence(groups),
        [panel],
        _worst(groups, methods, list(places)),
        ["The table gives the lowest mean accuracy over a factor's values, and the value where it is.", COMPARED_NOTE],
        details=_all(groups, methods),
    )


def _values(groups: Sequence[Group], data: str, factor: str) -> list[str]:
    return list(
        dict.fromkeys(
            g.variant.at["value"] for g in groups if (g.variant.at["data"], g.variant.at["factor"]) == (data, factor)
        )
    )


def _panel(axes: Axes, groups: Sequence[Group], methods: Sequence[str], data: str, factor: str) -> None:
    values = _values(groups, data, factor)
    for method in methods:
        line = [find(groups, method, factor=factor, value=v, data=data) for v in values]
        curve(axes, method, line, range(len(values)))
    axes.set_xticks(range(len(values)), values)
    axes.set_xlim(-0.25, len(values) - 0.75)
    axes.set_xlabel(TITLES.get(factor, factor))
    axes.set_title(f"{factor}, {DATA[data]}")
    draw.percent(axes.yaxis)


def _worst_of(groups: Sequence[Group], method: str, data: str, factor: str) -> tuple[float, str] | None:
    found = [
        (mean([*g.accuracy.values()]), g.variant.at["value"])
        for g in groups
        if g.method == method and (g.variant.at["data"], g.variant.at["factor"]) == (data, factor) and g.accuracy
    ]
    return min(found) if found else None


def _worst(groups: Sequence[Group], methods: Sequence[str], places: Sequence[tuple[str, str]]) -> Table:
    rows = []
    for data, factor in places:
        row = [factor, DATA[data]]
        for method in methods:
            worst = _worst_of(groups, method, data, factor)
            row.append("" if worst is None else f"{100 * worst[0]:.2f} ({worst[1]})")
        rows.append(row)
    return Table(("factor", "data", *map(label, methods)), rows, tuple(range(2, 2 + len(methods))))


def _all(groups: Sequence[Group], methods: Sequence[str]) -> Table:
    rows = []
    for g in groups:
        if g.accuracy:
            at = dict(g.variant.at)
            rows.append([at["factor"], at["value"], DATA[at["data"]], label(g.method), *compared(groups, g, **at)])
    head = ("factor", "value", "data", "method", *COMPARED_HEAD)
    return Table(head, rows, tuple(range(4, len(head))))


def _sentence(groups: Sequence[Group]) -> str:
    """The widest difference of the worst places between the paper's rule and the fixed width."""
    found = []
    for factor, where in (("threshold", "on"), ("resnet19-threshold", "in ResNet-19 on")):
        for data in DATA:
            seen = _values([g for g in groups if g.accuracy], data, factor)
            ours, fixed = (_worst_of(groups, m, data, factor) for m in (PAPER, FIXED))
            if ours and fixed:
                found.append(
                    f"{where} {DATA[data]} (v_th {', '.join(seen)}) MPD-AGL's worst is {100 * ours[0]:.1f} % "
                    f"(v_th {ours[1]}), the fixed width's {100 * fixed[0]:.1f} % (v_th {fixed[1]})"
                )
    there = sum(len(seeds_of(g)) for g in groups)
    return f"Over the thresholds: {'; '.join(found)}." if found else f"{there} runs, one factor at a time."


STUDY = Study(
    name="stress",
    title="Stress: threshold, decay, depth, gamma, norm, learning rate, batch",
    paper="Under which stress do adaptive widths win, tie, lose against a fixed one, untuned and tuned?",
    variants=variants,
    show=show,
    methods=METHODS,
    seeds=3,
    partial=True,
    protocol="docs/evidence.md",
    in_smoke=in_smoke,
)
