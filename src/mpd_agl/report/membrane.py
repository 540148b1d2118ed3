"""Membrane potentials: histograms, the normals that Theorem 2 predicts, and the gradient-available interval."""

import math
from typing import Any

import numpy as np

from mpd_agl.report import draw
from mpd_agl.report.draw import COLOURS, INK, Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, share


def membranes(run: Run) -> PageSection | None:
    """A panel per layer with a row per timestep (the first, second and last of many); None without histograms."""
    if not run.detailed:
        return None
    snapshot = run.detailed[-1]
    panels = [_panel(run, i, name, layer) for i, (name, layer) in enumerate(snapshot["layers"].items())]
    gaps = {
        (name, t): abs(math.sqrt(layer["predicted_var_T"][t] / v) - 1)
        for name, layer in snapshot["layers"].items()
        for t, v in enumerate(layer["var_T"])
        if layer["predicted_var_T"] and v > 0
    }
    sentence = (
        f"Bars are the potentials before reset at step {snapshot['step']}, the shaded band is where a gradient passes."
    )
    if gaps:
        name, t = max(gaps, key=lambda g: gaps[g])
        layer = snapshot["layers"][name]
        sentence = sentence[:-1] + (
            f"; the paper's normal is furthest off in {name} at t = {t + 1}, where it predicts a deviation of "
            f"{math.sqrt(layer['predicted_var_T'][t]):.2g} and {math.sqrt(layer['var_T'][t]):.2g} is measured."
        )
    counted = [layer["detail"]["potential"]["samples"] for layer in snapshot["layers"].values()]
    few, many = min(counted), max(counted)
    note = (
        f"Counted: {few if few == many else f'{few} to {many}'} samples of the training batch per layer. "
        "The shares above the bars are of the whole batch."
    )
    title = "Membrane potentials and the predicted normal"
    return PageSection("membranes", title, sentence, panels, notes=[note], small=True)


def _panel(run: Run, index: int, name: str, layer: dict[str, Any]) -> Panel:
    potential = layer["detail"]["potential"]
    T = len(potential["count_TB"])
    shown = list(range(T)) if T <= 3 else [0, 1, T - 1]
    edges = np.linspace(potential["low"], potential["high"], len(potential["count_TB"][0]) - 1)
    v_th = run.v_th(layer)
    left, right = _range(v_th, layer, shown, edges)
    figure, rows = draw.new(len(shown), height=0.85 + 1.0 * len(shown), width=3.7, sharex=True)
    for axes, t in zip(rows, shown, strict=True):
        count_B = np.array(potential["count_TB"][t], dtype=float)
        density = count_B[1:-1] / count_B.sum() / np.diff(edges)
        half = layer["kappa_T"][t] / 2
        axes.axvspan(
            v_th - half,
            v_th + half,
            color=COLOURS[4],
            alpha=0.22,
            linewidth=0,
            label="|v - $v_{th}$| < κ/2",
        )
        axes.stairs(density, edges, fill=True, color=COLOURS[0], alpha=0.55, label="measured")
        v = np.linspace(left, right, 240)
        for kind, colour, dashes, label in (
            ("exact", COLOURS[2], "-", "exact moments"),
            ("predicted", COLOURS[1], "--", "paper's normal"),
        ):
            mean_T, var_T = layer[f"{kind}_mean_T"], layer[f"{kind}_var_T"]
            if var_T and var_T[t] > 0:
                z = (v - mean_T[t]) ** 2 / var_T[t]
                axes.plot(
                    v,
                    np.exp(-z / 2) / math.sqrt(2 * math.pi * var_T[t]),
                    color=colour,
                    linestyle=dashes,
                    linewidth=1.4,
                    label=label,
                )
        axes.axvline(v_th, color=INK, linewidth=0.8, linestyle=":", label="$v_{th}$")
        axes.set_xlim(left, right)
        axes.set_ylim(0, _top(axes, density))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False)
        axes.set_title(
            f"t = {t + 1}: {share(layer['available_T'][t])} available", fontsize=8, fontweight="normal", pad=3
        )
    rows[-1].set_xlabel("membrane potential v")
    figure.suptitle(draw.plain(name), x=0.02, ha="left", fontsize=9, fontweight="bold")
    draw.legend(figure, rows[0], 3)
    return Panel(f"membrane-{index + 1}", f"Histogram of {name}'s potentials with the predicted normals", figure)


def _range(v_th: float, layer: dict[str, Any], shown: list[int], edges: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Where all but a thousandth of the values lie, and the interval."""
    inside = np.array([layer["detail"]["potential"]["count_TB"][t][1:-1] for t in shown], dtype=float).sum(0)
    below = np.cumsum(inside) / max(1.0, inside.sum())
    low = float(edges[int(np.searchsorted(below, 0.001))])
    high = float(edges[min(len(edges) - 1, int(np.searchsorted(below, 0.999)) + 1)])
    half = max(layer["kappa_T"][t] for t in shown) / 2
    return min(low, v_th - 1.1 * half), max(high, v_th + 1.1 * half)


def _top(axes: Any, density: np.ndarray[Any, Any]) -> float:
    """Leave space for the curves, but do not let one high bin (a nearly constant channel) flatten the rest."""
    curves = [float(np.max(line.get_ydata())) for line in axes.get_lines() if len(line.get_ydata()) > 2]
    usual = float(np.sort(density)[-3]) if len(density) > 2 else float(density.max())
    return 1.08 * max([1.6 * usual if density.max() > 3 * usual else float(density.max()), *curves, 1e-6])
