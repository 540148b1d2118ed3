"""The figure of early answers: accuracy against timesteps and against time, one point per threshold."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from mpd_agl.report import draw


def early_figure(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Accuracy over the mean number of steps, and over milliseconds per image; thresholds beside the points."""
    with draw.style():
        figure = Figure(figsize=(2 * draw.WIDTH, draw.HEIGHT))
        axes = figure.subplots(1, 2, sharey=True)
        ordered = sorted(rows, key=lambda r: float(r["threshold"]))
        for panel, key, label in zip(
            axes, ("mean_steps", "ms_per_image"), ("timesteps, mean", "ms per image"), strict=True
        ):
            draw.line(panel, [r[key] for r in ordered], [r["accuracy"] for r in ordered], color=draw.COLOURS[0])
            for r in ordered:
                panel.annotate(
                    f"{r['threshold']:g}",
                    (r[key], r["accuracy"]),
                    xytext=(3, -9),
                    textcoords="offset points",
                    fontsize=7,
                )
            panel.set_xlabel(label)
        axes[0].set_ylabel("accuracy")
        draw.percent(axes[0].yaxis)
        figure.suptitle(draw.plain(title), fontsize=8.5)
    return figure
