"""Depth: plain networks of 8 to 32 layers, two data sets, SGD and Adam, every method, paired by seed."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.evidence import (
    COMPARED_HEAD,
    COMPARED_NOTE,
    DATA,
    METHODS,
    OPTIMIZERS,
    compared,
    curve,
    score,
    variant,
)
from experiments.study import Group, Study, Variant, find, label, methods_of
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.section import PageSection, Table, mean

DEPTHS = (8, 16, 24, 32)
NAMES = {"sgd": "SGD", "adam": "Adam"}


def variants(methods: Sequence[str]) -> list[Variant]:
    """Digits at 14x14 and 10,000 CIFAR-10 images."""
    return [
        variant(
            method,
            "plain",
            data,
            {"data": data, "optimizer": optimizer, "depth": str(depth)},
            {"model.depth": depth},
            **{name.replace(".", "__"): value for name, value in fields.items()},
        )
        for data in DATA
        for optimizer, fields in OPTIMIZERS.items()
        for depth in DEPTHS
        for method in methods
    ]


def in_smoke(found: Variant) -> bool:
    """Two depths of the digits; the other data set is the digits too at this scale."""
    return found.at["data"] == "digits" and found.at["depth"] in ("8", "16")


def show(groups: Sequence[Group]) -> PageSection:
    """A panel per data set and optimizer; accuracy by depth as a table, differences behind the notes."""
    methods = methods_of(groups)
    places = list(dict.fromkeys((g.variant.at["data"], g.variant.at["optimizer"]) for g in groups if g.accuracy))
    depths = list(dict.fromkeys(g.variant.at["depth"] for g in groups))
    rows = []
    with draw.style():
        figure = Figure(figsize=(3.6 * len(places) + 0.4, 3.6))
        grid = figure.subplots(1, len(places), squeeze=False).ravel().tolist()
        for axes, (data, optimizer) in zip(grid, places, strict=True):
            for method in methods:
                line = [find(groups, method, data=data, optimizer=optimizer, depth=d) for d in depths]
                curve(axes, method, line, range(len(depths)))
                if any(g is not None and g.accuracy for g in line):
                    rows.append([DATA[data], NAMES[optimizer], label(method), *map(score, line)])
            axes.set_xticks(range(len(depths)), depths)
            axes.set_xlabel("layers")
            axes.set_ylim(bottom=0)
            axes.set_title(f"{DATA[data]}, {NAMES[optimizer]}")
            draw.percent(axes.yaxis)
        draw.legend(figure, grid[0], min(4, 2 * len(places)))
    panel = Panel("depth", "Accuracy of each method over the depth of plain networks", figure)
    head = ("data", "optimizer", "method", *(f"{d} layers" for d in depths))
    details = [
        [
            DATA[g.variant.at["data"]],
            NAMES[g.variant.at["optimizer"]],
            g.variant.at["depth"],
            label(g.method),
            *compared(groups, g, **g.variant.at),
        ]
        for g in groups
        if g.accuracy
    ]
    return PageSection(
        "depth",
        STUDY.title,
        _sentence(groups),
        [panel],
        Table(head, rows, tuple(range(3, len(head)))),
        [COMPARED_NOTE],
        details=Table(("data", "optimizer", "layers", "method", *COMPARED_HEAD), details, tuple(range(4, 10))),
    )


def _sentence(groups: Sequence[Group]) -> str:
    """Which method is ahead at the deepest networks."""
    told = []
    for data in DATA:
        for optimizer, name in NAMES.items():
            here = [g for g in groups if (g.variant.at["data"], g.variant.at["optimizer"]) == (data, optimizer)]
            deep = [g for g in here if g.variant.at["depth"] == str(DEPTHS[-2]) and g.accuracy]
            if deep:
                best = max(deep, key=lambda g: mean([*g.accuracy.values()]))
                value = 100 * mean([*best.accuracy.values()])
                told.append(f"{DATA[data]} with {name}: {label(best.method)}, {value:.1f} %")
    return f"Ahead at {DEPTHS[-2]} layers: {'; '.join(told)}." if told else "Test accuracy in percent by depth."


STUDY = Study(
    name="depth",
    title="Depth: plain networks of 8 to 32 layers without shortcuts",
    paper="Which rule trains networks through which a gradient has one way only?",
    variants=variants,
    show=show,
    methods=METHODS,
    seeds=3,
    partial=True,
    protocol="docs/evidence.md",
    in_smoke=in_smoke,
)
