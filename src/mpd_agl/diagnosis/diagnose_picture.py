"""The picture of a diagnosis, one row per layer: potentials with their windows, firing rates, gradients."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpd_agl.errors import InputError

if TYPE_CHECKING:
    from mpd_agl.diagnosis.diagnose import Diagnosis

INK, SOFT, BLUE, GOLD, RED = "#1d2026", "#6c737d", "#2f80c2", "#e3b23c", "#c8435a"
SUFFIXES = (".png", ".svg", ".pdf")


def draw(diagnosis: "Diagnosis", path: Path) -> None:
    """Write the picture."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"the picture's name must end in {', '.join(SUFFIXES)}, got {path.name}. Use {path.stem}.png.")
    count = len(diagnosis.layers)
    figure = Figure(figsize=(10.5, 1.9 + 0.42 * count), layout="constrained", facecolor="white")
    left, middle, right = figure.subplots(1, 3, width_ratios=(2.4, 1, 1), sharey=True)
    _potentials(left, diagnosis)
    _rates(middle, diagnosis)
    _gradients(right, diagnosis)
    left.set_ylim(count - 0.35, -1.05)  # the first layer on top
    found = {name for finding in diagnosis.findings for name in finding.layers}
    left.set_yticks(range(count), [_plain(layer.layer) for layer in diagnosis.layers])
    for label, layer in zip(left.get_yticklabels(), diagnosis.layers, strict=True):
        label.set_color(RED if layer.layer in found else INK)
    for axes in (left, middle, right):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(labelsize=8)
    names = list(dict.fromkeys(finding.problem for finding in diagnosis.findings))
    figure.suptitle(
        "; ".join(names) or "no problem found", x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK
    )
    try:
        figure.savefig(path, dpi=140)
    except OSError as error:
        raise InputError(f"the picture cannot be written to {path} ({error.strerror}). Choose another file.") from None


def _plain(text: str) -> str:
    """matplotlib would read $...$ as a formula."""
    return text.replace("$", r"\$")


def _potentials(axes: Axes, diagnosis: "Diagnosis") -> None:
    """Histograms over all timesteps, in units of the threshold, each layer's window behind."""
    lows, highs = [-0.2], [1.3]
    for k, layer in enumerate(diagnosis.layers):
        seen = diagnosis.snapshot.layers[layer.layer]
        unit = (seen.v_th - seen.rest) or 1.0
        if layer.width is not None:
            half = layer.width / 2 / abs(unit)
            axes.fill_between((1 - half, 1 + half), k - 0.85, k + 0.05, color=GOLD, alpha=0.28, linewidth=0)
            lows.append(1 - half)
            highs.append(1 + half)
        if seen.detail is None:
            continue
        counts_B = np.array(seen.detail.potential.count_TB, dtype=float).sum(0)
        low, high = ((end - seen.rest) / unit for end in (seen.detail.potential.low, seen.detail.potential.high))
        edges = np.linspace(low, high, len(counts_B) - 1)
        # What lies outside is counted in the outermost bins.
        inside = counts_B[1:-1].copy()
        inside[0] += counts_B[0]
        inside[-1] += counts_B[-1]
        total = max(inside.sum(), 1.0)
        below = np.cumsum(inside) / total
        lows.append(float(edges[int(np.searchsorted(below, 0.002))]))
        highs.append(float(edges[min(len(inside), int(np.searchsorted(below, 0.998)) + 1)]))
        # A square root: the few neurons near the threshold are what matters.
        height = 0.82 * np.sqrt(inside / max(inside.max(), 1.0))
        axes.stairs(k - height, edges, baseline=k, fill=True, color=BLUE, alpha=0.75)
        axes.axhline(k, color=SOFT, linewidth=0.4)
    axes.axvline(1, color=INK, linewidth=1, linestyle=":")
    axes.set_xlim(max(min(lows), -4.0), min(max(highs), 6.0))
    axes.set_title("potentials; shaded: where a gradient passes", loc="left", color=INK, fontsize=9.5)
    axes.set_xlabel("v / v_th, counted from rest; heights are square roots of counts", fontsize=8.5)


def _rates(axes: Axes, diagnosis: "Diagnosis") -> None:
    """Firing rates as bars with their numbers."""
    rates = [layer.rate for layer in diagnosis.layers]
    axes.barh(np.arange(len(rates)) - 0.35, rates, height=0.5, color=BLUE, alpha=0.75)
    top = max([*rates, 0.02])
    for k, rate in enumerate(rates):
        axes.text(rate + 0.02 * top, k - 0.35, f"{rate:.1%}", va="center", fontsize=7.5, color=INK)
    axes.set_xlim(0, 1.25 * top)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axes.set_title("firing rate", loc="left", color=INK, fontsize=9.5)


def _gradients(axes: Axes, diagnosis: "Diagnosis") -> None:
    """Norms on a logarithmic axis; a zero is a cross at the left edge."""
    y = np.arange(len(diagnosis.layers)) - 0.35
    norms = [layer.grad_norm for layer in diagnosis.layers]
    known = [g for g in norms if g and math.isfinite(g)]
    axes.set_title("gradient norm |dL/ds|", loc="left", color=INK, fontsize=9.5)
    if not known:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=SOFT)
        axes.set_xticks([])
        return
    floor = 10 ** (math.floor(math.log10(min(known))) - 0.5)
    drawn = [g if g and math.isfinite(g) else math.nan for g in norms]
    axes.plot(drawn, y, color=BLUE, marker="o", markersize=4, linewidth=1.3)
    zeros = [k for k, g in zip(y, norms, strict=True) if g == 0]
    if zeros:
        axes.plot([floor] * len(zeros), zeros, linestyle="", marker="x", color=RED, markersize=5, clip_on=False)
    axes.set_xscale("log")
    axes.set_xlim(floor, 10 ** (math.ceil(math.log10(max(known))) + 0.1))
    axes.grid(axis="x", color="#d5d9df", linewidth=0.6)
