"""Figure 4: the firing rate of each layer of ResNet-19."""

from collections.abc import Sequence

from experiments.grouped_bars import colour, style_of
from experiments.study import COMPARED, Group, Study, Variant, label, last_snapshots, per_method
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.section import PageSection, Table, mean


def variants(methods: Sequence[str]) -> list[Variant]:
    """CIFAR-10, T=2."""
    return per_method("cifar10-resnet19", methods)


def rates(group: Group) -> dict[str, float]:
    """Per layer: the mean over timesteps, seeds and the snapshots of the last epoch."""
    out: dict[str, list[float]] = {}
    for run in group.runs.values():
        for snapshot in last_snapshots(run):
            for name, layer in snapshot["layers"].items():
                out.setdefault(name, []).append(mean(layer["rate_T"]))
    return {name: mean(values) for name, values in out.items()}


def show(groups: Sequence[Group]) -> PageSection:
    """A line per method over the layers, and mean and maximum as a table."""
    rows = []
    with draw.style():
        figure, (axes,) = draw.new(width=7.2, height=3.5)
        for g in groups:
            found = rates(g)
            y = list(found.values())
            look = {"color": colour(g.method), "linestyle": style_of(g.method)}
            draw.line(
                axes, range(1, len(y) + 1), y, label=draw.plain(label(g.method)), marker="o", markersize=3, **look
            )
            top = max(found, key=lambda n: found[n])
            rows.append([label(g.method), f"{100 * mean(y):.1f}", f"{100 * max(y):.1f}", top])
        names = draw.layer_names(groups[0].first.layers)
        axes.set_xticks(range(1, len(names) + 1), names, rotation=60, ha="right", fontsize=7)
        axes.set_ylim(bottom=0)
        draw.percent(axes.yaxis)
        axes.set_title("Firing rate per layer, last epoch")
        draw.legend(figure, axes, 4)
    rows.append(["MPD-AGL in the paper (quoted)", "14", "34", ""])
    panel = Panel("fig-firing-rate", "Firing rate of each layer, a line per method", figure)
    table = Table(("method", "mean over layers, %", "highest, %", "in layer"), rows, (1, 2))
    sentence = "Share of neurons that fire at a step, on training batches of the last epoch."
    return PageSection("fig-firing-rate", STUDY.title, sentence, [panel], table)


STUDY = Study(
    name="fig-firing-rate",
    title="Figure 4: firing rate of each layer, ResNet-19, CIFAR-10, T=2",
    paper="No layer fires above 34 %, the mean is 14 %.",
    variants=variants,
    show=show,
    methods=COMPARED,
)
