"""Table 1: accuracy on the four data sets, the published rivals beside it."""

from collections.abc import Sequence

from mpd_agl.paper.quoted import TABLE1
from mpd_agl.paper.study import COMPARED, REFERENCE, Group, Study, Variant, cells, label, methods_of, per_method
from mpd_agl.report.section import PageSection, Table

PLACES = (
    ("CIFAR-10", "cifar10-resnet19", (6, 4, 2)),
    ("CIFAR-100", "cifar100-resnet19", (6, 4, 2)),
)
NETWORKS = {"resnet19": "ResNet-19", "vggsnn": "VGGSNN", "vgg13": "VGG-13"}


def variants(methods: Sequence[str]) -> list[Variant]:
    """MPD-AGL at every T of the paper, the others at the lowest, where the paper sees the largest difference."""
    out: list[Variant] = []
    for data, recipe, steps in PLACES:
        for T in steps:
            chosen = methods if T == 2 else [m for m in methods if m == REFERENCE]
            out += per_method(f"{recipe}-t{T}", chosen, {"data": data, "T": str(T)})
    out += per_method("cifar10dvs-vggsnn", methods, {"data": "CIFAR10-DVS", "T": "10"})
    starred = [m for m in methods if m == REFERENCE]
    out += per_method("cifar10dvs-vggsnn-tet", starred, {"data": "CIFAR10-DVS", "T": "10", "star": "*"})
    return out + per_method("tinyimagenet-vgg13", methods, {"data": "Tiny-ImageNet", "T": "4"})


def show(groups: Sequence[Group]) -> PageSection:
    """Ours first in each data set, then the quoted rows."""
    rows = []
    for data in dict.fromkeys(g.variant.at["data"] for g in groups):
        for g in (g for g in groups if g.variant.at["data"] == data):
            T, star = g.first.num_steps, g.variant.at.get("star", "")
            name = g.first.record.config["model"]["name"]
            published = _published(data, label(g.method), T, bool(star))
            found = cells(groups, g, published, data=data, T=g.variant.at["T"])
            rows.append([g.data, label(g.method) + star, "here", NETWORKS.get(name, name), str(T), *found])
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
    methods=COMPARED,
    cpu={"train.epochs": 3},
)
