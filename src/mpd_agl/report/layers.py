"""Inside the layers while they learn: widths, gradient-available shares, firing rates, gamma and beta."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, mean, share

MOST_COLUMNS = 120
MOST_NAMED = 9


def series(run: Run, layer: str, key: str) -> list[Any]:
    """One layer's quantity over the snapshots."""
    return [s["layers"][layer][key] for s in run.snapshots]


def times(run: Run) -> list[float]:
    """The snapshots' times in epochs."""
    return [run.in_epochs(s) for s in run.snapshots]


def _curves(run: Run, title: str, values: Sequence[Sequence[float]]) -> tuple[Figure, Axes]:
    """One curve per layer over training, coloured by depth; of many layers only some are named."""
    figure, (axes,) = draw.new(height=3.0)
    names, x = run.layers, times(run)
    named = {0, len(names) // 2, len(names) - 1} if len(names) > MOST_NAMED else set(range(len(names)))
    for i, (name, colour, y) in enumerate(zip(names, draw.depth_colours(len(names)), values, strict=True)):
        label = draw.plain(name) if i in named else None
        draw.line(axes, x, y, color=colour, label=label, linewidth=1.3)
    draw.epochs(axes, max(x[-1], 1e-9))
    axes.set_title(title)
    draw.legend(figure, axes, 4)
    return figure, axes


def groups(run: Run, key: str) -> list[list[int]]:
    """Group the timesteps (from 0) that have the same values in every layer and snapshot."""
    values_TLK = np.array([series(run, layer, key) for layer in run.layers]).transpose(2, 0, 1)
    found: list[list[int]] = [[0]]
    for t in range(1, len(values_TLK)):
        same = np.allclose(values_TLK[t], values_TLK[found[-1][0]], rtol=1e-5, atol=1e-8)
        found[-1].append(t) if same else found.append([t])
    return found


def step_name(group: Sequence[int]) -> str:
    """Timesteps as the paper counts them.

    >>> step_name([0]), step_name([1, 2, 3])
    ('t = 1', 't = 2 to 4')
    """
    return f"t = {group[0] + 1}" if len(group) == 1 else f"t = {group[0] + 1} to {group[-1] + 1}"


def widths(run: Run) -> PageSection:
    """kappa per layer and timestep over training."""
    panels = []
    for group in groups(run, "kappa_T"):
        values = [[k[group[0]] for k in series(run, layer, "kappa_T")] for layer in run.layers]
        figure, axes = _curves(run, f"Width κ, {step_name(group)}", values)
        axes.set_ylabel("κ")
        low, high = axes.get_ylim()
        if high - low < 0.02:
            axes.set_ylim((low + high) / 2 - 0.25, (low + high) / 2 + 0.25)
        panels.append(Panel(f"kappa-t{group[0] + 1}", f"Width of each layer's surrogate at {step_name(group)}", figure))
    start, end = ({n: layer["kappa_T"] for n, layer in run.snapshots[i]["layers"].items()} for i in (0, -1))
    drift = {n: end[n][-1] / start[n][-1] for n in end}
    moved = max(drift, key=lambda n: abs(np.log(drift[n])))
    change = abs(drift[moved] - 1)
    if change < 0.005:
        held = "does not move" if change < 1e-6 else f"stays within {100 * change:.2g}\N{NO-BREAK SPACE}% of its start"
        sentence = f"The width at t = {run.num_steps} {held} in every layer; it is {end[moved][-1]:.3g} in {moved}."
    else:
        narrow, wide = min(end, key=lambda n: end[n][-1]), max(end, key=lambda n: end[n][-1])
        sentence = (
            f"At t = {run.num_steps} the width moved most in {moved}, from {start[moved][-1]:.3g} to "
            f"{end[moved][-1]:.3g}; it is now narrowest in {narrow} ({end[narrow][-1]:.3g}) "
            f"and widest in {wide} ({end[wide][-1]:.3g})."
        )
    return PageSection("widths", "Width of the surrogate gradient, κ", sentence, panels)


def _condensed(values_LK: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """At most MOST_COLUMNS columns: means of neighbours."""
    if values_LK.shape[1] <= MOST_COLUMNS:
        return values_LK
    parts = np.array_split(values_LK, MOST_COLUMNS, axis=1)
    return np.stack([p.mean(axis=1) for p in parts], axis=1)


def availability(run: Run) -> PageSection:
    """The gradient-available share: layer x epoch, a panel per timestep."""
    x, names = times(run), run.layers
    values_TLK = np.array([series(run, layer, "available_T") for layer in names]).transpose(2, 0, 1)
    top = max(0.01, float(values_TLK.max()))
    spacing = x[1] - x[0] if len(x) > 1 else 1.0
    panels = []
    for t, values_LK in enumerate(values_TLK):
        figure, (axes,) = draw.new(height=max(2.4, 0.19 * len(names) + 1.1))
        image = axes.imshow(
            _condensed(values_LK),
            aspect="auto",
            interpolation="none",
            cmap="viridis",
            vmin=0,
            vmax=top,
            extent=(x[0] - spacing / 2, x[-1] + spacing / 2, len(names) - 0.5, -0.5),
        )
        axes.grid(visible=False)
        axes.set_yticks(range(len(names)), draw.layer_names(names))
        axes.set_title(f"Gradient-available share, t = {t + 1}")
        draw.epochs(axes, 1)
        axes.set_xlim(x[0] - spacing / 2, x[-1] + spacing / 2)
        bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18)
        bar.outline.set_visible(False)
        draw.percent(bar.ax.yaxis)
        panels.append(Panel(f"available-t{t + 1}", f"Heat map, layers by epochs, of the share at t = {t + 1}", figure))
    end = {n: mean(layer["available_T"]) for n, layer in run.snapshots[-1]["layers"].items()}
    start = mean([mean(layer["available_T"]) for layer in run.snapshots[0]["layers"].values()])
    least, most = min(end, key=lambda n: end[n]), max(end, key=lambda n: end[n])
    sentence = (
        f"A gradient can pass the neurons with |v − v_th| < κ/2: {share(start)} of all at the first step, "
        f"{share(mean(list(end.values())))} now on average over layers, "
        f"fewest in {least} ({share(end[least])}), most in {most} ({share(end[most])})."
    )
    return PageSection("availability", "Gradient-available neurons", sentence, panels)


def rates(run: Run) -> PageSection:
    """Firing rates: per layer and timestep now, and over training."""
    names, last = run.layers, run.snapshots[-1]["layers"]
    T = len(last[names[0]]["rate_T"])
    colours = draw.depth_colours(T)
    figure, (axes,) = draw.new(height=max(2.4, 0.24 * len(names) + 1.1))
    thick = 0.8 / T
    for t in range(T):
        y = np.arange(len(names)) + (t - (T - 1) / 2) * thick
        axes.barh(y, [last[n]["rate_T"][t] for n in names], height=thick, color=colours[t], label=f"t = {t + 1}")
    draw.layer_rows(axes, names)
    draw.percent(axes.xaxis)
    axes.set_title("Firing rate per layer, at the end")
    draw.legend(figure, axes, 5)
    panels = [Panel("rates", "Share of neurons that fire, per layer and timestep, last snapshot", figure)]
    figure, axes = _curves(
        run, "Firing rate over training", [[mean(r) for r in series(run, n, "rate_T")] for n in names]
    )
    draw.percent(axes.yaxis)
    axes.set_ylim(bottom=0)
    panels.append(Panel("rates-training", "Firing rate of each layer over training", figure))
    end = {n: mean(last[n]["rate_T"]) for n in names}
    least, most = min(end, key=lambda n: end[n]), max(end, key=lambda n: end[n])
    sentence = (
        f"On average over layers {share(mean(list(end.values())))} of the neurons fire at a step, fewest in {least} "
        f"({share(end[least])}), most in {most} ({share(end[most])}); "
        f"training batches, step {run.snapshots[-1]['step']}."
    )
    return PageSection("rates", "Firing rates", sentence, panels)


def affine(run: Run) -> PageSection:
    """gamma and beta: layer means over training, all channels of the first layer, the spread in every layer now."""
    names, panels = run.layers, []
    detailed = run.detailed
    for key, letter in (("gamma", "γ"), ("beta", "β")):
        figure, _ = _curves(run, f"Mean {letter} of each layer", [series(run, n, f"{key}_bar") for n in names])
        panels.append(Panel(key, f"Mean over channels of {key} in each layer over training", figure))
        if not detailed:
            continue
        figure, (axes,) = draw.new()
        x = [run.in_epochs(s) for s in detailed]
        channels_KC = [s["layers"][names[0]]["detail"][f"{key}_C"] for s in detailed]
        for i, y in enumerate(zip(*channels_KC, strict=True)):
            axes.plot(x, y, color=draw.COLOURS[0], alpha=0.45, linewidth=0.8, label="a channel" if i == 0 else None)
        draw.line(axes, x, [mean(c) for c in channels_KC], color=draw.COLOURS[1], label="mean", linewidth=2)
        axes.set_title(f"{letter} of all channels of {draw.plain(names[0])}")
        draw.epochs(axes, max(x[-1], 1e-9))
        draw.legend(figure, axes, 2)
        panels.append(Panel(f"{key}-channels", f"{key} of every channel of the first layer over training", figure))
    for key, letter in (("gamma", "γ"), ("beta", "β")) if detailed else ():
        figure, (axes,) = draw.new(height=max(2.4, 0.2 * len(names) + 1.0))
        last = detailed[-1]["layers"]
        for i, (name, colour) in enumerate(zip(names, draw.depth_colours(len(names)), strict=True)):
            values = np.array(last[name]["detail"][f"{key}_C"])
            low, q1, middle, q3, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
            axes.plot((low, high), (i, i), color=colour, linewidth=1)
            axes.plot((q1, q3), (i, i), color=colour, linewidth=5, solid_capstyle="butt", alpha=0.7)
            axes.plot(middle, i, marker="|", color=draw.INK, markersize=8)
        draw.layer_rows(axes, names)
        axes.set_title(f"{letter} between channels, at the end")
        panels.append(
            Panel(f"{key}-spread", f"Range, quartiles and median of {key} over each layer's channels", figure)
        )
    start, end = run.snapshots[0]["layers"], run.snapshots[-1]["layers"]
    moved = max(names, key=lambda n: abs(end[n]["gamma_bar"] - start[n]["gamma_bar"]))
    shifted = max(names, key=lambda n: abs(end[n]["beta_bar"] - start[n]["beta_bar"]))
    sentence = (
        f"The mean γ changed most in {moved}, from {start[moved]['gamma_bar']:.3g} to {end[moved]['gamma_bar']:.3g}, "
        f"and the mean β in {shifted}, from {start[shifted]['beta_bar']:.2g} to {end[shifted]['beta_bar']:.2g}; "
        "MPD-AGL sets κ from the mean γ and the decay."
    )
    notes = [] if detailed else ["This run recorded no channels, only layer means."]
    return PageSection("affine", "Affine parameters γ and β of tdBN", sentence, panels, notes=notes)
