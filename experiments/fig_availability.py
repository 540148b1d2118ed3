"""Figure 5: does the width keep neurons where a gradient can pass? Six panels."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.grouped_bars import colour, style_of
from experiments.study import COMPARED, Group, Study, Variant, find, label, last_snapshots, per_method
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.layers import series, times
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection, Table, mean, share

LAYER = 7
"""The paper's layer, counted along the main path from the stem."""


def variants(methods: Sequence[str]) -> list[Variant]:
    """CIFAR-10, T=2."""
    return per_method("cifar10-resnet19", methods)


def main_path(run: Run) -> list[str]:
    """The layers without shortcuts, as the paper counts them."""
    return [name for name in run.layers if not name.endswith("shortcut")]


def at_end(run: Run, layer: str, key: str) -> float:
    """A layer's quantity, mean over timesteps and over the last epoch's snapshots."""
    return mean([mean(s["layers"][layer][key]) for s in last_snapshots(run)])


def over_seeds(group: Group, value: Callable[[Run], list[float]]) -> list[float]:
    """A curve's mean over seeds."""
    curves = [value(run) for run in group.runs.values()]
    return [mean(points) for points in zip(*curves, strict=True)]


def show(groups: Sequence[Group]) -> PageSection:
    """Loss, accuracy, share of layer 7 over epochs; widths per layer of MPD-AGL and LSG; share per layer."""
    layers = main_path(groups[0].first)
    seventh = layers[min(LAYER, len(layers)) - 1]
    with draw.style():
        figure = Figure(figsize=(10.5, 6.4))
        axes = figure.subplots(2, 3).ravel().tolist()
        _epochs(axes[0], groups, "train_loss", "(a) Training loss")
        _epochs(axes[1], groups, "test_accuracy", "(b) Test accuracy")
        draw.percent(axes[1].yaxis)
        for g in groups:
            y = over_seeds(g, lambda run: [mean(a) for a in series(run, seventh, "available_T")])
            _line(axes[2], g, times(g.first), y)
        draw.epochs(axes[2], times(groups[0].first)[-1])
        axes[2].set_title(f"(c) Gradient-available share, layer {LAYER}")
        draw.percent(axes[2].yaxis)
        for ax, method, letter in ((axes[3], "mpd-agl", "d"), (axes[4], "lsg", "e")):
            _widths(ax, find(groups, method), layers, f"({letter}) Width per layer, {label(method)}")
        for g in groups:
            y = [mean([at_end(run, name, "available_T") for run in g.runs.values()]) for name in layers]
            _line(axes[5], g, range(1, len(layers) + 1), y)
        axes[5].set_title("(f) Gradient-available share per layer")
        _layer_axis(axes[5])
        draw.percent(axes[5].yaxis)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(handles)))
    panel = Panel("fig-availability", "Six panels: loss, accuracy, share of layer 7, widths, share per layer", figure)
    return PageSection(
        "fig-availability", STUDY.title, _sentence(groups, layers), [panel], _table(groups, layers, seventh)
    )


def _line(axes: Axes, group: Group, x: Sequence[float], y: Sequence[float]) -> None:
    look = {"color": colour(group.method), "linestyle": style_of(group.method)}
    draw.line(axes, x, y, label=draw.plain(label(group.method)), **look)


def _epochs(axes: Axes, groups: Sequence[Group], key: str, title: str) -> None:
    for g in groups:
        _line(axes, g, [e["epoch"] for e in g.first.epochs], over_seeds(g, lambda r: [e[key] for e in r.epochs]))
    draw.epochs(axes, groups[0].first.epochs[-1]["epoch"], 1)
    axes.set_title(title)


def _widths(axes: Axes, group: Group | None, layers: Sequence[str], title: str) -> None:
    axes.set_title(title)
    _layer_axis(axes)
    if group is None:
        axes.text(0.5, 0.5, "not among the methods", ha="center", transform=axes.transAxes, color=draw.SOFT)
        return
    T = group.first.num_steps
    for t in range(T):
        last = [run.snapshots[-1]["layers"] for run in group.runs.values()]
        y = [mean([at[name]["kappa_T"][t] for at in last]) for name in layers]
        draw.line(
            axes, range(1, len(layers) + 1), y, alpha=(t + 1) / T, color=colour(group.method), label=f"t = {t + 1}"
        )
    axes.axhline(1.0, color=draw.SOFT, linewidth=0.8, linestyle=":")
    axes.legend(fontsize=7)


def _layer_axis(axes: Axes) -> None:
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))


def _shares(group: Group, layers: Sequence[str]) -> list[float]:
    return [mean([at_end(run, name, "available_T") for run in group.runs.values()]) for name in layers]


def _table(groups: Sequence[Group], layers: Sequence[str], seventh: str) -> Table:
    rows = []
    for g in groups:
        shares = _shares(g, layers)
        widths = [mean([at_end(run, name, "kappa_T") for run in g.runs.values()]) for name in layers]
        least = min(range(len(layers)), key=lambda i: shares[i])
        rows.append(
            [
                label(g.method),
                share(mean(list(g.accuracy.values())), 2),
                f"{mean([run.last['train_loss'] for run in g.runs.values()]):.3f}",
                share(mean(shares)),
                share(shares[layers.index(seventh)]),
                f"{share(shares[least])} ({layers[least]})",
                f"{mean(widths):.3f}",
                f"{min(widths):.3f} to {max(widths):.3f}",
            ]
        )
    head = ("method", "test accuracy, last epoch", "training loss", "available, mean", f"available, layer {LAYER}")
    return Table((*head, "available, least", "width, mean", "width, range"), rows, (1, 2, 3, 4, 6))


def _sentence(groups: Sequence[Group], layers: Sequence[str]) -> str:
    own, others = find(groups, "mpd-agl"), [g for g in groups if g.method in ("stbp-tdbn", "lsg")]
    if own is None or not others:
        return "Share of neurons with |v - v_th| < kappa/2, those that a gradient can pass."
    mine = _shares(own, layers)
    parts = []
    for g in others:
        more = sum(a > b for a, b in zip(mine, _shares(g, layers), strict=True))
        parts.append(f"{more} of {len(layers)} layers than {label(g.method)}'s")
    return (
        f"At the end the share of gradient-available neurons of MPD-AGL is higher in {' and in '.join(parts)} "
        "(the paper: in all layers)."
    )


STUDY = Study(
    name="fig-availability",
    title="Figure 5: gradient-available neurons, ResNet-19, CIFAR-10, T=2",
    paper="MPD-AGL keeps more neurons in the gradient-available interval in every layer; "
    "its widths gather around 1.26, LSG's around 1.12.",
    variants=variants,
    show=show,
    methods=COMPARED,
)
