"""Table 1: accuracy on the four data sets, with the published rivals."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.quoted import TABLE1
from experiments.rivals import NEEDS, ROWS, Row, title
from experiments.study import COMPARED, REFERENCE, Group, Study, Variant, cells, methods_of
from mpd_agl.report.section import PageSection, Table

PLACES = (
    ("CIFAR-10", "cifar10-resnet19", (6, 4, 2)),
    ("CIFAR-100", "cifar100-resnet19", (6, 4, 2)),
)
METHODS = (*COMPARED, "ds-atgo", "trsg", "mpr", "diet", "slope-schedule")
"""Those that every data set of the table trains."""


RIVAL_ROWS = (
    ("cifar10-resnet19", "CIFAR-10", "2", ("tab", "tebn", "mpbn", "ds-atgo-sigma", "mp-init", "shortcut-heads")),
    ("cifar10-resnet19", "CIFAR-10", "2", ("distill", "robust", "tet", "sew-resnet18")),
    ("cifar10-resnet19", "CIFAR-10", "1", ("s2nn",)),
    ("cifar10-resnet19", "CIFAR-10", "8", ("ltl",)),
    ("cifar10-resnet19", "CIFAR-10", "4", ("ms-resnet18", "tcja", "statten")),
    ("cifar100-resnet19", "CIFAR-100", "2", ("tab",)),
    ("cifar100-resnet19", "CIFAR-100", "4", ("tcja", "statten")),
    ("cifar10dvs-vggsnn", "CIFAR10-DVS", "10", ("tet", "tcja")),
    ("tinyimagenet-vgg13", "Tiny-ImageNet", "8", ("ltl",)),
    ("tinyimagenet-vgg13", "Tiny-ImageNet", "1", ("s2nn",)),
)
"""Rows that are more than a method (a training, a network, an option), as the study of all rivals has them: recipe,
data, T and keys. Each is trained with the same budget as the others."""


def _rival(recipe: str, data: str, T: str, key: str) -> Variant:
    row = next((r for r in ROWS if r.key == key), Row(key, "", "method", key, NEEDS.get(key, {})))
    network: dict[str, Any] = {"model.name": "ms-resnet18"} if key == "tcja" and data != "CIFAR10-DVS" else {}
    steps = {"model.num_steps": int(T)}
    at = {"data": data, "T": T, "rival": key}
    return Variant(preset=recipe, method=row.method, changes={**network, **steps, **row.fixed}, at=at)


RIVALS = [_rival(recipe, data, T, key) for recipe, data, T, keys in RIVAL_ROWS for key in keys]
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
    return out + RIVALS


def _each(
    preset: str, methods: Sequence[str], at: Mapping[str, str], fixed: Mapping[str, Any] | None = None
) -> list[Variant]:
    """A recipe with each method, and what the method needs beyond its name."""
    return [Variant(preset=preset, method=m, changes={**(fixed or {}), **NEEDS.get(m, {})}, at=at) for m in methods]


def show(groups: Sequence[Group]) -> PageSection:
    """In each data set the rows trained here, then the quoted ones."""
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
