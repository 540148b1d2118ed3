"""Bars in groups, a colour per method, seeds as dots: for the figures that compare accuracies."""

from collections.abc import Mapping, Sequence

from experiments.study import LABELS, label
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.section import mean


def colour(method: str) -> str:
    """A method has the same colour in every figure, also with options (`stbp-tdbn@kappa=best`)."""
    name = method.partition("@")[0]
    return draw.COLOURS[list(LABELS).index(name) % len(draw.COLOURS)] if name in LABELS else draw.SOFT


def style_of(method: str) -> str:
    """Methods that share a colour differ by their line."""
    name, _, options = method.partition("@")
    shared = name in LABELS and list(LABELS).index(name) >= len(draw.COLOURS)
    return ":" if options else "--" if shared else "-"


def grouped_bars(key: str, title: str, groups: Sequence[str], values: Mapping[str, Sequence[Sequence[float]]]) -> Panel:
    """`values` has, per method, the accuracies over seeds of each group."""
    with draw.style():
        figure, (axes,) = draw.new(width=max(draw.WIDTH, 1.1 * len(groups) + 1.2), height=3.3)
        thick = 0.8 / len(values)
        for i, (method, by_group) in enumerate(values.items()):
            at = [g + (i - (len(values) - 1) / 2) * thick for g in range(len(groups))]
            heights = [mean(v) for v in by_group]
            axes.bar(at, heights, width=0.92 * thick, color=colour(method), label=draw.plain(label(method)))
            for x, v in zip(at, by_group, strict=True):
                if len(v) > 1:
                    axes.plot([x] * len(v), v, linestyle="none", marker=".", markersize=3, color=draw.INK)
        axes.set_xticks(range(len(groups)), [draw.plain(g) for g in groups])
        every = [v for by_group in values.values() for seeds in by_group for v in seeds]
        room = 0.15 * (max(every) - min(every)) or 0.05
        low = max(0.0, min(every) - 4 * room)
        axes.set_ylim(low, max(every) + room)
        if low > 0:
            title += f" (axis from {100 * low:.3g} %)"
        axes.grid(axis="x", visible=False)
        axes.set_title(title)
        draw.percent(axes.yaxis)
        draw.legend(figure, axes, 3)
    return Panel(key, f"{title}: bars per method in {', '.join(groups)}", figure)
