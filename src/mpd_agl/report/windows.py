"""The idea in one picture: a layer's potentials over training, and the window in which a gradient passes.

Two runs of one configuration that differ in the method alone are drawn side by side: one whose window stays, one whose
window fits. Every number is of the runs' own snapshots.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mpd_agl.options import flatten
from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, INK, SOFT, Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, mean, share

ROWS = 7
"""Moments of the training that are drawn."""
FIXED, FITTING, POTENTIAL = COLOURS[1], COLOURS[2], COLOURS[0]


def windows(runs: Sequence[Run]) -> PageSection | None:
    """The part of a page about several runs; None where no two differ in the method alone."""
    found = pair(runs)
    if found is None:
        return None
    panel = picture(*found)
    note = (
        "Dark: potentials inside the window, where a gradient passes; the shares at the right are of the whole batch."
    )
    return PageSection("windows", "A window that stays, and one that fits", panel.alt, [panel], notes=[note], wide=True)


def pair(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The first two monitored runs that differ in the method alone, the one whose width stays first; None without."""
    watched = [r for r in runs if len(r.detailed) > 1 and r.shows("kappa_T", "available_T")]
    for a in watched:
        for b in watched:
            if _stays(a) and not _stays(b) and _same_but_method(a, b) and a.layers == b.layers:
                return a, b
    return None


def _stays(run: Run) -> bool:
    first, last = run.detailed[0]["layers"], run.detailed[-1]["layers"]
    return all(np.allclose(first[n]["kappa_T"], last[n]["kappa_T"]) for n in first)


def _same_but_method(a: Run, b: Run) -> bool:
    one, other = flatten(a.record.config), flatten(b.record.config)
    shared = one.keys() & other.keys() - {"method", "monitor.every", "data.data_dir"}  # methods have own options
    return one["method"] != other["method"] and all(one[k] == other[k] for k in shared)


def middle_layer(run: Run) -> str:
    """The layer in the middle of the network: behind the image's few values, before the readout's pull."""
    return run.layers[len(run.layers) // 2]


def picture(fixed: Run, fitting: Run, layer: str = "", *, title: str = "") -> Panel:
    """Potentials and windows of one layer in both runs over training, and the accuracy that each reached."""
    name = layer or middle_layer(fitting)
    figure = Figure(figsize=(10.4, 4.4))
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.86))
    low, high = _range(fixed, fitting, name)
    _ridges(left, fixed, name, (low, high), FIXED, "a fixed window")
    _ridges(middle, fitting, name, (low, high), FITTING, f"a window that fits ({fitting.record.config['method']})")
    left.set_ylabel("training  →", fontsize=11)
    _accuracies(right, fixed, fitting)
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold", x=0.012, ha="left")
    return Panel("idea", sentence(fixed, fitting, name), figure)


def sentence(fixed: Run, fitting: Run, layer: str = "") -> str:
    """What the picture shows, in words and numbers."""
    name = layer or middle_layer(fitting)
    held, inside = (mean(r.detailed[-1]["layers"][name]["available_T"]) for r in (fixed, fitting))
    v_th = fixed.record.config["model"]["v_th"]
    return (
        f"At a threshold of {v_th:g} the window of fixed width {_width(fixed, name)} holds {share(held)} of the "
        f"potentials of {name}, and the network ends at {share(fixed.last['test_accuracy'])} test accuracy; the window "
        f"that fits them ends at width {_width(fitting, name)}, holds {share(inside)}, and the same network "
        f"reaches {share(fitting.last['test_accuracy'])}."
    )


def _width(run: Run, layer: str) -> str:
    return f"{run.detailed[-1]['layers'][layer]['kappa_T'][-1]:.2g}"


def _rows(run: Run) -> list[dict[str, Any]]:
    found = run.detailed
    places = np.unique(np.linspace(0, len(found) - 1, min(ROWS, len(found))).round().astype(int))
    return [found[int(i)] for i in places]


def _density(snapshot: dict[str, Any], layer: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Edges of the bins and the density in them, at the last timestep."""
    potential = snapshot["layers"][layer]["detail"]["potential"]
    count = np.asarray(potential["count_TB"][-1], dtype=float)
    edges = np.linspace(potential["low"], potential["high"], len(count) - 1)
    return edges, count[1:-1] / max(1.0, count.sum()) / np.diff(edges)


def _range(fixed: Run, fitting: Run, layer: str) -> tuple[float, float]:
    """Where nearly all potentials of both runs lie, and both windows."""
    low, high = np.inf, -np.inf
    for run in (fixed, fitting):
        v_th = run.v_th(run.detailed[0]["layers"][layer])
        for s in _rows(run):
            edges, density = _density(s, layer)
            below = np.cumsum(density * np.diff(edges))
            low = min(low, edges[min(len(edges) - 1, int(np.searchsorted(below, 0.004)))])
            high = max(high, edges[min(len(edges) - 1, int(np.searchsorted(below, 0.996)) + 1)])
            half = s["layers"][layer]["kappa_T"][-1] / 2
            low, high = min(low, v_th - 1.12 * half), max(high, v_th + 1.12 * half)
    return float(low), float(high)


def _ridges(axes: Axes, run: Run, layer: str, limits: tuple[float, float], tint: str, title: str) -> None:
    rows = _rows(run)
    v_th = run.v_th(rows[0]["layers"][layer])
    y = np.arange(len(rows), dtype=float)
    half = np.array([s["layers"][layer]["kappa_T"][-1] / 2 for s in rows])
    ends_y, ends_half = np.append(y, len(rows) - 0.08), np.append(half, half[-1])
    axes.fill_betweenx(ends_y, v_th - ends_half, v_th + ends_half, color=tint, alpha=0.20, linewidth=0)
    for sign in (-1, 1):
        axes.plot(v_th + sign * ends_half, ends_y, color=tint, linewidth=1.8)
    shapes = [_density(s, layer) for s in rows]
    tallest = max(float(np.sort(d)[-2]) for _, d in shapes)
    for at, s, (edges, density) in zip(y, rows, shapes, strict=True):
        middle = (edges[1:] + edges[:-1]) / 2
        height = at + 0.92 * np.minimum(density / tallest, 1.15)
        inside = np.abs(middle - v_th) < s["layers"][layer]["kappa_T"][-1] / 2
        axes.fill_between(middle, at, height, color=POTENTIAL, alpha=0.25, linewidth=0, zorder=3 + len(rows) - at)
        axes.fill_between(
            middle, at, height, where=inside, color=tint, alpha=0.85, linewidth=0, zorder=3.1 + len(rows) - at
        )
        axes.plot(middle, height, color=INK, linewidth=0.9, zorder=3.2 + len(rows) - at)
        inside_share = share(s["layers"][layer]["available_T"][-1], 0)
        axes.text(limits[1], at + 0.1, inside_share, ha="left", fontsize=10, color=tint, fontweight="bold", zorder=40)
    axes.axvline(v_th, color=INK, linewidth=0.9, linestyle=":", zorder=30)
    axes.set_xlim(limits[0], limits[1] + 0.16 * (limits[1] - limits[0]))
    axes.set_ylim(-0.12, len(rows) + 0.25)
    axes.set_yticks(y + 0.2, [f"step {s['step'] - 1}" for s in rows], fontsize=9.5)
    axes.text(limits[1], len(rows) + 0.02, "inside", ha="left", va="bottom", fontsize=9, color=tint)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel(f"membrane potential, {draw.plain(layer)} (dotted: threshold)", fontsize=10)
    axes.set_title(title, fontsize=12, color=tint)


def _accuracies(axes: Axes, fixed: Run, fitting: Run) -> None:
    end = max(r.epochs[-1]["epoch"] for r in (fixed, fitting))
    for run, tint, words in ((fixed, FIXED, "fixed"), (fitting, FITTING, "fits")):
        x, y = [e["epoch"] for e in run.epochs], [e["test_accuracy"] for e in run.epochs]
        axes.plot(x, y, color=tint, linewidth=2.4, marker="o", markersize=4.5)
        axes.text(
            x[-1] + 0.06 * end,
            y[-1],
            f"{words}\n{share(y[-1], 1)}",
            ha="left",
            va="center",
            color=tint,
            fontsize=11.5,
            fontweight="bold",
        )
    chance = 1 / len(fixed.record.data["classes"])
    axes.axhline(chance, color=SOFT, linewidth=0.9, linestyle="--")
    axes.text(1, chance - 0.015, "chance level", va="top", fontsize=9, color=SOFT)
    draw.percent(axes.yaxis)
    draw.epochs(axes, end, 1)
    axes.set_ylim(0, 1.05)
    axes.set_xlim(1 - 0.05 * end, end + 0.42 * max(1, end - 1))
    axes.set_xticks(sorted({1, *range(2, end + 1, max(1, end // 4)), end}))
    axes.set_xlabel("epoch", fontsize=10)
    axes.set_title("test accuracy", fontsize=12)
