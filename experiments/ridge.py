"""The ridge: accuracy over threshold and fixed width as a map, the widths that the rules take drawn over it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.evidence import DATA, METHODS, NETWORKS, score, seeds_of, variant
from experiments.grouped_bars import colour
from experiments.study import Group, Study, Variant, find, label, methods_of
from experiments.tuning import KAPPAS
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.section import PageSection, Table, mean

THRESHOLDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
RULES = tuple(m for m in METHODS if not m.startswith("stbp-tdbn"))
GROUND = LinearSegmentedColormap.from_list("ground", ["#f4f1ec", "#dfe6e4", "#a9cbd0", "#5b9fb5", "#2a6f97", "#173f5f"])


def variants(methods: Sequence[str]) -> list[Variant]:
    """The grid of fixed widths (stbp-tdbn) and every rule at each threshold, both networks, both data sets."""
    out = []
    for network in NETWORKS:
        for data in DATA:
            for v_th in THRESHOLDS:
                at = {"network": network, "data": data, "v_th": f"{v_th:g}"}
                few = {"data__test_samples": 2000} if data == "cifar10" else {}
                fixed = {"model.v_th": v_th}
                for kappa in KAPPAS:
                    place = {**at, "kappa": f"{kappa:g}"}
                    out.append(variant(f"stbp-tdbn@kappa={kappa:g}", network, data, place, fixed, **few))
                out += [variant(m, network, data, {**at, "kappa": "rule"}, fixed, **few) for m in methods]
    return out


def in_smoke(found: Variant) -> bool:
    """Four places of one map, and the rules there."""
    at = found.at
    grid = at["v_th"] in ("0.5", "1") and at["kappa"] in ("0.5", "1", "rule")
    return grid and (at["network"], at["data"]) == ("cnn8", "digits")


def widths(group: Group) -> dict[str, float]:
    """Per layer the mean over timesteps at the last snapshot, of the lowest seed."""
    if not group.runs or not group.first.snapshots:
        return {}
    return {name: mean(layer["kappa_T"]) for name, layer in group.first.snapshots[-1]["layers"].items()}


def show(groups: Sequence[Group]) -> PageSection:
    """A map per network and data set; per threshold the best fixed width and what each rule takes and reaches."""
    groups = [g for g in groups if g.accuracy]  # a threshold that was not run has no column
    rules = [m for m in methods_of(groups) if not m.startswith("stbp-tdbn@")]
    places = list(dict.fromkeys((g.variant.at["network"], g.variant.at["data"]) for g in groups))
    columns = min(2, len(places))
    rows = -(-len(places) // columns)
    with draw.style():
        figure = Figure(figsize=(4.9 * columns + 0.3, 4.3 * rows + 0.6))
        grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        for axes, (network, data) in zip(grid, places, strict=False):
            here = [g for g in groups if (g.variant.at["network"], g.variant.at["data"]) == (network, data)]
            _map(figure, axes, here, rules)
            axes.set_title(f"{NETWORKS[network]}, {DATA[data]}")
        for axes in grid[len(places) :]:
            axes.set_axis_off()
        named: dict[str, Any] = {}
        for axes in grid:
            named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if named:
            figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(4, len(named)))
    panel = Panel("ridge", "Accuracy over threshold and fixed width; the rules' widths per layer drawn over it", figure)
    notes = [
        "Map: a fixed width, test accuracy of one seed; a map claims nothing beyond its picture. The ring is the best "
        "width at each threshold. Dots: the width of each layer at the end of training by a rule, the mean over "
        "timesteps; the line joins their medians. Rules are shifted sideways, so that none hides another."
    ]
    return PageSection("ridge", STUDY.title, _sentence(groups, rules), [panel], _table(groups, rules, places), notes)


def _edges(values: Sequence[float]) -> list[float]:
    """Borders between values on a logarithmic axis.

    >>> [round(e, 3) for e in _edges([0.5, 1.0, 2.0])]
    [0.354, 0.707, 1.414, 2.828]
    """
    if len(values) == 1:
        return [values[0] / 2**0.5, values[0] * 2**0.5]
    inner = [(a * b) ** 0.5 for a, b in pairwise(values)]
    return [values[0] ** 2 / inner[0], *inner, values[-1] ** 2 / inner[-1]]


def _map(figure: Figure, axes: Axes, groups: Sequence[Group], rules: Sequence[str]) -> None:
    fixed = {
        (float(g.variant.at["v_th"]), float(g.variant.at["kappa"])): mean([*g.accuracy.values()])
        for g in groups
        if g.accuracy and g.variant.at["kappa"] != "rule"
    }
    thresholds = sorted({float(g.variant.at["v_th"]) for g in groups})
    kappas = sorted({float(g.variant.at["kappa"]) for g in groups if g.variant.at["kappa"] != "rule"})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=False)
    if fixed and kappas:
        nan = float("nan")
        z = [[fixed.get((v, k), nan) for v in thresholds] for k in kappas]
        mesh = axes.pcolormesh(_edges(thresholds), _edges(kappas), z, cmap=GROUND, edgecolors="white", linewidth=0.8)
        bar = figure.colorbar(mesh, ax=axes, shrink=0.85, pad=0.02, aspect=26)
        draw.percent(bar.ax.yaxis)
        bar.outline.set_visible(False)
        low, high = mesh.get_clim()
        for (v, k), value in fixed.items():
            ink = "white" if value > low + 0.55 * (high - low) else draw.INK
            # in the lower right corner: the rules walk from the lower left to the upper right
            look: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 6.5, "color": ink, "alpha": 0.85}
            right, low_edge = _edges(thresholds)[thresholds.index(v) + 1], _edges(kappas)[kappas.index(k)]
            axes.text(right / 1.04, low_edge * 1.04, f"{100 * value:.0f}", **look)
        for v in thresholds:
            mine = {k: a for (at, k), a in fixed.items() if at == v}
            if mine:
                best = max(mine, key=lambda k: mine[k])
                ring: dict[str, Any] = {
                    "marker": "o",
                    "markersize": 13,
                    "markerfacecolor": "none",
                    "markeredgewidth": 1.2,
                }
                axes.plot([v], [best], linestyle="none", color="white", label="_best", **ring)
    for i, rule in enumerate(rules):
        middle = []
        for v in thresholds:
            found = find(groups, rule, v_th=f"{v:g}", kappa="rule")
            layers = sorted(widths(found).values()) if found is not None else []
            if not layers:
                continue
            x = v * 1.085 ** (i - (len(rules) - 1) / 2)
            middle.append((x, layers[len(layers) // 2]))
            dots: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5, "label": "_layers"}
            axes.plot([x] * len(layers), layers, "o", markersize=3.6, color=colour(rule), **dots)
        if middle:
            line = axes.plot(*zip(*middle, strict=True), color=colour(rule), label=draw.plain(label(rule)))
            line[0].set_path_effects([withStroke(linewidth=3, foreground="white")])
    axes.set_xlim(_edges(thresholds)[0], _edges(thresholds)[-1])
    if kappas:
        axes.set_ylim(_edges(kappas)[0], _edges(kappas)[-1])
    for axis, values in ((axes.xaxis, thresholds), (axes.yaxis, kappas)):
        axis.set_major_locator(FixedLocator(values))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("threshold v_th")
    axes.set_ylabel("width kappa")


def _best(groups: Sequence[Group], network: str, data: str, v_th: str) -> Group | None:
    fixed = [
        g
        for g in groups
        if g.accuracy
        and g.variant.at["kappa"] != "rule"
        and (g.variant.at["network"], g.variant.at["data"], g.variant.at["v_th"]) == (network, data, v_th)
    ]
    return max(fixed, key=lambda g: mean([*g.accuracy.values()])) if fixed else None


def _table(groups: Sequence[Group], rules: Sequence[str], places: Sequence[tuple[str, str]]) -> Table:
    rows = []
    for network, data in places:
        here = [g for g in groups if (g.variant.at["network"], g.variant.at["data"]) == (network, data)]
        for v_th in dict.fromkeys(g.variant.at["v_th"] for g in here):
            at = {"network": network, "data": data, "v_th": v_th}
            best, one = _best(groups, **at), find(groups, "stbp-tdbn@kappa=1", **at)
            row = [
                NETWORKS[network],
                DATA[data],
                v_th,
                best.variant.at["kappa"] if best else "",
                score(best),
                score(one),
            ]
            for rule in rules:
                found = find(groups, rule, kappa="rule", **at)
                layers = sorted(widths(found).values()) if found is not None else []
                row.append(f"{score(found)} ({layers[len(layers) // 2]:.2f})" if layers else score(found))
            rows.append(row)
    head = ("network", "data", "v_th", "best fixed kappa", "its accuracy", "kappa = 1")
    names = [f"{label(rule)} (median width)" for rule in rules]
    return Table((*head, *names), rows, tuple(range(2, len(head) + len(names))))


def _sentence(groups: Sequence[Group], rules: Sequence[str]) -> str:
    """How far below the best fixed width of each threshold the rules and kappa = 1 fall at worst."""
    worst: dict[str, dict[str, tuple[float, str]]] = {}
    for method in ("stbp-tdbn@kappa=1", *rules):
        for g in groups:
            if g.method == method and seeds_of(g):
                at = {key: g.variant.at[key] for key in ("network", "data", "v_th")}
                best = _best(groups, **at)
                if best is not None:
                    gap = mean([*g.accuracy.values()]) - mean([*best.accuracy.values()])
                    place = worst.setdefault(f"{NETWORKS[at['network']]} on {DATA[at['data']]}", {})
                    place[method] = min(place.get(method, (gap, at["v_th"])), (gap, at["v_th"]))
    told = [
        f"{where}: {'; '.join(f'{label(m)} {100 * gap:+.1f} (v_th {v})' for m, (gap, v) in found.items())}"
        for where, found in worst.items()
    ]
    return f"Farthest below the best fixed width of the same threshold, in points. {'. '.join(told)}." if told else ""


STUDY = Study(
    name="ridge",
    title="The ridge: accuracy over threshold and fixed width, and where the rules walk",
    paper="Does a fixed width have to be tuned to the threshold, and do the rules lie on the ridge of good widths?",
    variants=variants,
    show=show,
    methods=RULES,
    partial=True,
    protocol="docs/evidence.md",
    in_smoke=in_smoke,
)
