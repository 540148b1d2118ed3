"""Table 3: what the parts of the method contribute."""

from collections.abc import Sequence

from mpd_agl.paper.quoted import TABLE3
from mpd_agl.paper.study import Group, Study, Variant, cells, find, label, methods_of, per_method
from mpd_agl.report.section import PageSection, Table

DATA = {"CIFAR-10": "cifar10-resnet19-t2", "CIFAR-100": "cifar100-resnet19-t2"}
METHODS = (
    "stbp-tdbn",
    "trainable-decay",
    "lsg",
    "agr",
    "mpd-agl",
    "mpd-agl-exact",
    "mpd-quantile",
    "mpd-gain",
    "psg",
    "asgl",
)


def variants(methods: Sequence[str]) -> list[Variant]:
    """Both data sets at T=2."""
    return [s for data, recipe in DATA.items() for s in per_method(recipe, methods, {"data": data})]


def show(groups: Sequence[Group]) -> PageSection:
    """A row per method, three columns per data set."""
    rows = []
    for method in methods_of(groups):
        row = [label(method)]
        for data in DATA:
            own = find(groups, method, data=data)
            assert own is not None
            row += cells(groups, own, TABLE3.get(method, {}).get(data), data=data)
        rows.append(row)
    head = ["method"]
    for data in DATA:
        used = next(g.data for g in groups if g.variant.at["data"] == data)
        head += [used, f"{used}, best on test", "MPD-AGL minus this", f"paper, {data} (quoted)"]
    seeds = len(groups[0].runs)
    many = f"{seeds} seed{'s' * (seeds > 1)}"
    sentence = f"Test accuracy in percent after the last epoch, {many}, ResNet-19 at T={groups[0].first.num_steps}."
    notes = ["The paper's values are the best epoch on the test set of one run."]
    if seeds > 1:
        notes.insert(
            0, "± is the standard deviation over seeds; differences are paired by seed, with their 95 % interval."
        )
    return PageSection("table3", STUDY.title, sentence, [], Table(head, rows, tuple(range(1, 9))), notes)


STUDY = Study(
    name="table3",
    title="Table 3: ablation, CIFAR-10 and CIFAR-100",
    paper="Vanilla 92.38 %, trainable decay 93.15 %, LSG 94.41 %, AGR 95.93 %, MPD-AGL 96.18 % on CIFAR-10.",
    variants=variants,
    show=show,
    methods=(*METHODS, "deeptage"),
)
