"""Rivals: every method, norm, network, gate and training that is built here, on the demo, paired by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from experiments.seeds import difference, paired, points
from experiments.study import REFERENCE, Group, Study, Variant, label
from experiments.table3 import NOTE
from mpd_agl.report import draw
from mpd_agl.report.draw import Panel
from mpd_agl.report.section import PageSection, Table, mean

WITHIN = 0.015
"""How far from MPD-AGL's accuracy a rival may end, in the mean over the seeds that both have."""


@dataclass(frozen=True)
class Row:
    """A rival on the demo: what it changes of the recipe."""

    key: str
    """As `--only rival=KEY` names it."""
    title: str
    slot: str
    method: str = "stbp-tdbn"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What a scale may change again: the width of a network."""


_THIN = {"model.width_mult": 0.125}
METHODS = (
    *("mpd-agl", "stbp-tdbn", "lsg", "psg", "asgl", "deeptage", "ds-atgo", "ds-atgo-sigma"),
    *("trsg", "mpr", "diet", "slope-schedule", "s2nn"),
)
ADAM = {"optim.name": "adam", "optim.lr": 2e-3, "optim.weight_decay": 0.0}
NEEDS: dict[str, dict[str, Any]] = {"diet": ADAM, "ltl": {**ADAM, "model.num_steps": 8}, "s2nn": {"model.num_steps": 1}}
"""What a rival needs beyond its name. Why, and whose choice it is: docs/rivals.md."""
ROWS = (
    Row("bn", "BN", "norm", fixed={"model.norm": "bn"}),
    Row("tebn", "TEBN", "norm", fixed={"model.norm": "tebn"}),
    Row("tab", "TAB", "norm", fixed={"model.norm": "tab"}),
    Row("mpbn", "MPBN", "norm", fixed={"model.norm": "mpbn"}),
    Row("tcja", "TCJA", "attention", fixed={"model.attention": "tcja"}),
    Row("mp-init", "MP-Init + TrSG", "method", "mp-init-trsg"),
    Row("tet", "TET", "training", fixed={"loss.name": "tet"}),
    Row("shortcut-heads", "shortcut heads", "training", fixed={"loss.name": "shortcut-heads"}),
    Row("ltl", "Offline LTL", "training", fixed={"loss.name": "ltl", **NEEDS["ltl"]}),
    Row("distill", "distillation from the ANN", "training", fixed={"loss.name": "distill"}),
    Row("robust", "AT, its fine-tuning", "training", fixed={"loss.name": "robust"}),
    Row("ms-resnet18", "MS-ResNet-18", "network", fixed={"model.name": "ms-resnet18"}, changes=_THIN),
    Row("sew-resnet18", "SEW-ResNet-18", "network", fixed={"model.name": "sew-resnet18"}, changes=_THIN),
    Row("statten", "STAtten", "network", fixed={"model.name": "statten", "model.depth": 2}, changes=_THIN),
)
TITLES = {row.key: row.title for row in ROWS}


def variants(methods: Sequence[str]) -> list[Variant]:
    """The demo with each method, then with each rival that is more than a method, if the methods are the study's."""
    rows = [Row(m, label(m), "method", m, NEEDS.get(m, {})) for m in methods]
    rows += ROWS if set(METHODS) <= set(methods) else ()
    return [
        Variant(preset="demo", method=r.method, changes=r.changes, fixed=r.fixed, at={"rival": r.key, "slot": r.slot})
        for r in rows
    ]


def show(groups: Sequence[Group]) -> PageSection:
    """Each rival's accuracy as a dot per seed, MPD-AGL's mean and what lies within the allowed distance of it."""
    there = [g for g in groups if g.accuracy]
    own: Mapping[int, float] = next((g.accuracy for g in there if g.variant.at["rival"] == REFERENCE), {})
    rows = []
    for g in there:
        gap = None if g.variant.at["rival"] == REFERENCE else paired(g.accuracy, own)
        inside = "" if gap is None else "yes" if abs(gap.mean) <= WITHIN else "no"
        seeds, best = str(len(g.accuracy)), points([*g.best.values()])
        rows.append([title(g), g.variant.at["slot"], seeds, g.score, best, difference(gap), inside])
    with draw.style():
        figure = Figure(figsize=(6.4, 0.24 * len(there) + 0.9))
        axes = figure.subplots()
        if own:
            middle = mean([*own.values()])
            axes.axvspan(middle - WITHIN, middle + WITHIN, color=draw.SOFT, alpha=0.25, linewidth=0)
        for y, g in enumerate(there):
            values = [*g.accuracy.values()]
            axes.plot(values, [y] * len(values), linestyle="none", marker=".", markersize=4, color=draw.INK, alpha=0.5)
            axes.plot([mean(values)], [y], linestyle="none", marker="D", markersize=4, color=draw.COLOURS[0])
        axes.set_yticks(range(len(there)), [draw.plain(title(g)) for g in there])
        axes.invert_yaxis()
        draw.percent(axes.xaxis)
        axes.set_title("Test accuracy on the demo; the band is MPD-AGL's mean and 1.5 points")
    panel = Panel("rivals", "Test accuracy of every rival on the demo, a dot per seed", figure)
    head = ("rival", "slot", "seeds", "accuracy, last epoch", "best on test", "minus MPD-AGL", "within 1.5 points")
    inside_or_not = [row[-1] for row in rows if row[-1]]
    return PageSection(
        "rivals",
        STUDY.title,
        f"{inside_or_not.count('yes')} of {len(inside_or_not)} rivals end within 1.5 points of MPD-AGL on the demo.",
        [panel],
        Table(head, rows, (2, 3, 4, 5)),
        [NOTE],
    )


def title(group: Group) -> str:
    """A row as the tables name it, and as the paper quotes it where it does."""
    return TITLES.get(group.variant.at.get("rival", "")) or label(group.method)


STUDY = Study(
    name="rivals",
    title="Rivals: all of them on the demo, same budget, same seeds",
    paper="Does every rival that is built here train the demo as well as MPD-AGL?",
    variants=variants,
    show=show,
    methods=METHODS,
    seeds=3,
    partial=True,
    protocol="docs/rivals.md",
)
