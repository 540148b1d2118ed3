"""Figures: bars of a comparison, curves of time and memory over a sweep, speed-ups over the share of active inputs."""

from typing import Any

from matplotlib.figure import Figure

from benchmarks.workload import Workload
from mpd_agl.report import draw

LABELS = {"num_steps": "T", "batch": "batch", "width_mult": "width_mult"}


def ordered(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The contenders, the quickest first."""
    return sorted(record["contenders"].items(), key=lambda item: float(item[1]["ms_per_image"]))


def bars(record: dict[str, Any]) -> Figure:
    """Time per image (with its quartiles) and peak memory of every contender."""
    contenders = dict(ordered(record))
    names = list(contenders)
    with draw.style():
        figure = Figure(figsize=(2 * draw.WIDTH, 0.9 + 0.3 * len(names)))
        left, right = figure.subplots(1, 2, sharey=True)
        colours = [draw.COLOURS[0] if contenders[n]["about"].startswith("ours") else draw.COLOURS[7] for n in names]
        ms = [contenders[n]["ms_per_image"] for n in names]
        low = [m - contenders[n]["quartiles"][0] for n, m in zip(names, ms, strict=True)]
        high = [contenders[n]["quartiles"][1] - m for n, m in zip(names, ms, strict=True)]
        left.barh(names, ms, xerr=[low, high], color=colours, ecolor=draw.SOFT)
        left.invert_yaxis()
        left.set_xlabel("ms per image, median and quartiles")
        right.barh(names, [contenders[n]["peak_bytes"] / 1e6 for n in names], color=colours)
        right.set_xlabel("peak memory of the process, MB")
        figure.suptitle(Workload.from_dict(record["setting"]).title, fontsize=8.5)
    return figure


def curves(record: dict[str, Any]) -> Figure:
    """Time and memory of a step over T, batch and width_mult, one column each; both axes logarithmic."""
    axes_of = [a for a in LABELS if any(p["axis"] == a for p in record["points"])]
    with draw.style():
        figure = Figure(figsize=(0.85 * draw.WIDTH * len(axes_of), 1.7 * draw.HEIGHT))
        grid = figure.subplots(2, len(axes_of), squeeze=False)
        for column, axis in enumerate(axes_of):
            points = [p for p in record["points"] if p["axis"] == axis]
            names = list(dict.fromkeys(n for p in points for n in p["contenders"]))
            for number, name in enumerate(names):
                here = sorted((p for p in points if name in p["contenders"]), key=lambda p: p["value"])
                x = [p["value"] for p in here]
                ms = [p["contenders"][name]["ms_per_image"] * p["setting"]["batch"] for p in here]
                mb = [p["contenders"][name]["step_bytes"] / 1e6 for p in here]
                for row, y in enumerate((ms, mb)):
                    draw.line(grid[row][column], x, y, color=draw.COLOURS[number], label=name)
            for row, label in enumerate(("ms per step", "memory of a step, MB")):
                panel = grid[row][column]
                panel.set_xscale("log", base=2)
                panel.set_yscale("log")
                panel.set_xlabel(LABELS[axis])
                panel.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
                if column == 0:
                    panel.set_ylabel(label)
        draw.legend(figure, grid[0][0], 4)
    return figure


def speed_ups(cells: list[dict[str, Any]]) -> Figure:
    """Forward speed-up of single layers over the share of active inputs, a curve per shape."""
    with draw.style():
        figure, (axes,) = draw.new(height=3.0)
        shapes = dict.fromkeys((c["channels"], c["size"]) for c in cells)
        for colour, (channels, size) in zip(draw.COLOURS, shapes, strict=False):
            here = [c for c in cells if (c["channels"], c["size"]) == (channels, size) and c["speed_up"] is not None]
            here.sort(key=lambda c: float(c["rate"]))
            x, y = [c["rate"] for c in here], [c["speed_up"] for c in here]
            draw.line(axes, x, y, color=colour, label=f"{channels} channels, {size}x{size}")
        axes.axhline(1, color=draw.SOFT, linewidth=0.8)
        draw.percent(axes.xaxis)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("inputs that are not zero")
        axes.set_title("Dense time / event-driven time, forward")
        draw.legend(figure, axes, 3)
    return figure
