"""Table 3: what the parts of the method contribute."""

from collections.abc import Sequence

from experiments.quoted import TABLE3
from experiments.seeds import difference, paired, points
from experiments.study import Group, Study, Variant, cells, find, label, methods_of, per_method
from mpd_agl.report.section import PageSection, Table

DATA = {"CIFAR-10": "cifar10-resnet19", "CIFAR-100": "cifar100-resnet19"}
METHODS = (
    *("stbp-tdbn", "trainable-decay", "lsg", "agr", "mpd-agl", "mpd-agl-exact", "mpd-quantile"),
    *("psg", "asgl", "deeptage", "mpd-gain"),
)
COMPARED_WITH = ("stbp-tdbn", "mpd-agl")
"""The details table has every method's accuracy minus that of these, paired by seed."""
NOTE = (
    "± is the standard deviation over seeds. Differences are points, paired by seed, with their 95 % interval "
    "(Student's t). A dagger counts the runs that ended in NaN; they count with the accuracy of chance level."
)


def variants(methods: Sequence[str]) -> list[Variant]:
    """Both data sets at T=2."""
    return [s for data, recipe in DATA.items() for s in per_method(recipe, methods, {"data": data})]


def show(groups: Sequence[Group]) -> PageSection:
    """A row per method, four columns per data set; every paired difference as details."""
    rows = []
    for method in methods_of(groups):
        row = [label(method)]
        for data in DATA:
            own = find(groups, method, data=data)
            quoted = TABLE3.get(method, {}).get(data)
            empty = ["", "", "", f"{quoted:.2f}" if quoted else ""]
            row += cells(groups, own, quoted, data=data) if own is not None and own.accuracy else empty
        rows.append(row)
    head = ["method"]
    for data in DATA:
        used = next((g.data for g in groups if g.variant.at["data"] == data and g.runs), data)
        head += [used, f"{used}, best on test", "MPD-AGL minus this", f"paper, {data} (quoted)"]
    counts = sorted({len(g.accuracy) for g in groups if g.accuracy})
    many = f"{' to '.join(map(str, counts[:: len(counts) - 1 or 1]))} seed{'s' * (counts[-1] > 1)}"
    sentence = f"Test accuracy in percent after the last epoch, {many}, ResNet-19 at T=2."
    notes = ["The paper's values are the best epoch on the test set of one run."]
    if counts[-1] > 1:
        notes.insert(0, NOTE)
    if len(counts) > 1:
        each = [f"{label(g.method)} on {g.data} {len(g.accuracy)}" for g in groups if g.accuracy]
        notes.append(f"Seeds: {', '.join(each)}.")
    table = Table(head, rows, tuple(range(1, 9)))
    return PageSection("table3", STUDY.title, sentence, [], table, notes, details=_details(groups))


def _details(groups: Sequence[Group]) -> Table:
    """Accuracy, best on test, and paired differences with their 95 % intervals."""
    rows = []
    for g in (g for g in groups if g.accuracy):
        row = [g.data, label(g.method), g.score, points([*g.best.values()])]
        for name in COMPARED_WITH:
            other = find(groups, name, **g.variant.at)
            row.append("" if other is None or other is g else difference(paired(g.accuracy, other.accuracy)))
        rows.append(row)
    minus = [f"minus {label(name)}" for name in COMPARED_WITH]
    return Table(("data", "method", "accuracy, last epoch", "best on test", *minus), rows, (2, 3, 4, 5))


STUDY = Study(
    name="table3",
    title="Table 3: ablation, CIFAR-10 and CIFAR-100",
    paper="Vanilla 92.38 %, trainable decay 93.15 %, LSG 94.41 %, AGR 95.93 %, MPD-AGL 96.18 % on CIFAR-10.",
    variants=variants,
    show=show,
    methods=METHODS,
    # 10,000 images, the whole test set, the same number of epochs for every row
    cpu={"data.test_samples": 0, "train.epochs": 8, "optim.schedule": "cosine-steps"},
    seeds=3,
    partial=True,
)
