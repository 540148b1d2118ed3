"""Table 1: accuracy on the four data sets, the published rivals beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.quoted import TABLE1
from experiments.rivals import NEEDS, title
from experiments.study import COMPARED, REFERENCE, Group, Study, Variant, cells, methods_of
from mpd_agl.report.section import PageSection, Table

PLACES = (
    ("CIFAR-10", "cifar10-resnet19", (6, 4, 2)),
    ("CIFAR-100", "cifar100-resnet19", (6, 4, 2)),
)
METHODS = (*COMPARED, "ds-atgo", "trsg", "mpr", "diet", "slope-schedule")
"""Those that every data set of the table trains."""


@dataclass(frozen=True)
class Rival:
    """A row that is more than a method: a training, a network, an option; trained in our budget like the others."""

    key: str
    """As `--only rival=KEY` names it, here and in the study of all rivals."""
    recipe: str
    data: str
    T: str
    method: str = "stbp-tdbn"
    changes: Mapping[str, Any] = field(default_factory=dict)


_C10, _TINY = ("cifar10-resnet19", "CIFAR-10", "2"), ("tinyimagenet-vgg13", "Tiny-ImageNet", "4")
_C10_T4, _C100_T4 = (("cifar10-resnet19", "CIFAR-10", "4"), ("cifar100-resnet19", "CIFAR-100", "4"))
_T4 = {"model.num_steps": 4}
_DVS = ("cifar10dvs-vggsnn", "CIFAR10-DVS", "10")
_TCJA = {"model.name": "ms-resnet18", "model.attention": "tcja"}
_STATTEN = {"model.name": "statten", "model.depth": 2}
RIVALS = (
    Rival("tab", *_C10, changes={"model.norm": "tab"}),
    Rival("tebn", *_C10, changes={"model.norm": "tebn"}),
    Rival("mpbn", *_C10, changes={"model.norm": "mpbn"}),
    Rival("ds-atgo-sigma", *_C10, method="ds-atgo-sigma"),
    Rival("mp-init", *_C10, method="trsg", changes={"model.start": "mp-init"}),
    Rival("shortcut-heads", *_C10, changes={"loss.name": "shortcut-heads"}),
    Rival("distill", *_C10, changes={"loss.name": "distill"}),
    Rival("robust", *_C10, changes={"loss.name": "robust"}),
    Rival("tet", *_C10, changes={"loss.name": "tet"}),
    Rival("s2nn", *_C10[:2], "1", method="s2nn", changes={"model.num_steps": 1}),
    Rival("ltl", *_C10[:2], "8", changes={"loss.name": "ltl", **NEEDS["ltl"]}),
    Rival("sew-resnet18", *_C10, changes={"model.name": "sew-resnet18"}),
    Rival("ms-resnet18", *_C10_T4, changes={"model.name": "ms-resnet18", **_T4}),
    Rival("tcja", *_C10_T4, changes=_TCJA | _T4),
    Rival("statten", *_C10_T4, changes=_STATTEN | _T4),
    Rival("tab", "cifar100-resnet19", "CIFAR-100", "2", changes={"model.norm": "tab"}),
    Rival("tcja", *_C100_T4, changes=_TCJA | _T4),
    Rival("statten", *_C100_T4, changes=_STATTEN | _T4),
    Rival("tet", *_DVS, changes={"loss.name": "tet"}),
    Rival("tcja", *_DVS, changes={"model.attention": "tcja"}),
    Rival("ltl", *_TINY[:2], "8", changes={"loss.name": "ltl", **NEEDS["ltl"]}),
    Rival("s2nn", *_TINY[:2], "1", method="s2nn", changes={"model.num_steps": 1}),
)
NETWORKS = {
    "resnet19": "ResNet-19",
    "vggsnn": "VGGSNN",
    "vgg13": "VGG-13",
    "ms-resnet18": "MS-ResNet-18",
    "sew-resnet18": "SEW-ResNet-18",
    "statten": "spike-driven transformer",
}


def variants(methods: Sequence[str]) -> list[Variant]:
    """MPD-AGL at every T of the paper, the others at the lowest, where the paper sees the largest difference.

    The rows that are more than a method belong to the whole table: a choice of methods leaves them out.
    """
    out: list[Variant] = []
    for data, recipe, steps in PLACES:
        for T in steps:
            chosen = methods if T == 2 else [m for m in methods if m == REFERENCE]
            out += _each(recipe, chosen, {"data": data, "T": str(T)}, {"model.num_steps": T})
    out += _each("cifar10dvs-vggsnn", methods, {"data": "CIFAR10-DVS", "T": "10"})
    starred = [m for m in methods if m == REFERENCE]
    out += _each("cifar10dvs-vggsnn-tet", starred, {"data": "CIFAR10-DVS", "T": "10", "star": "*"})
    out += _each("tinyimagenet-vgg13", methods, {"data": "Tiny-ImageNet", "T": "4"})
    if not set(METHODS) <= set(methods):
        return out
    return out + [
        Variant(preset=r.recipe, method=r.method, changes=r.changes, at={"data": r.data, "T": r.T, "rival": r.key})
        for r in RIVALS
    ]


def _each(
    preset: str, methods: Sequence[str], at: Mapping[str, str], fixed: Mapping[str, Any] | None = None
) -> list[Variant]:
    """A recipe with each method, and what the method needs beyond its name."""
    return [Variant(preset=preset, method=m, changes={**(fixed or {}), **NEEDS.get(m, {})}, at=at) for m in methods]


def show(groups: Sequence[Group]) -> PageSection:
    """Ours first in each data set, then the quoted rows."""
    rows = []
    for data in dict.fromkeys(g.variant.at["data"] for g in groups):
        for g in (g for g in groups if g.variant.at["data"] == data and g.runs):
            T, star = g.first.num_steps, g.variant.at.get("star", "")
            name = g.first.record.config["model"]["name"]
            called = title(g)
            published = _published(data, called, T, bool(star))
            found = cells(groups, g, published, data=data, T=g.variant.at["T"])
            rows.append([g.data, called + star, "here", NETWORKS.get(name, name), str(T), *found])
        for row in (r for r in TABLE1 if r.data == data):
            steps = " / ".join(map(str, row.accuracy))
            values = " / ".join(f"{v:.2f}" for v in row.accuracy.values())
            rows.append([data, row.method + "*" * row.star, "quoted", row.network, steps, "", "", "", values])
    head = ("data", "method", "source", "network", "T", "accuracy, last epoch", "best on test", "MPD-AGL minus this")
    sentence = (
        f"Test accuracy in percent of {len(methods_of(groups))} methods on one pipeline, and what the paper quotes."
    )
    notes = [
        "Quoted: from the paper's Table 1, the best epoch on the test set, other people's pipelines. "
        "* Adam and the TET loss.",
        "What each row is here, and how far it is its authors': docs/rivals.md.",
    ]
    return PageSection(
        "table1", STUDY.title, sentence, [], Table((*head, "paper (quoted)"), rows, (4, 5, 6, 7, 8)), notes
    )


def _published(data: str, method: str, T: int, star: bool) -> float | None:
    for row in TABLE1:
        if (row.data, row.method, row.star) == (data, method, star):
            return row.accuracy.get(T)
    return None


STUDY = Study(
    name="table1",
    title="Table 1: accuracy on four data sets",
    paper="MPD-AGL is ahead of every quoted method on all four data sets.",
    variants=variants,
    show=show,
    methods=METHODS,
    cpu={"train.epochs": 3},
    partial=True,
    smoke={"data.train_samples": 60, "data.test_samples": 40},
)
