"""Table 3: what the parts of the method contribute."""

from collections.abc import Sequence

from experiments.evidence import COMPARED_HEAD, COMPARED_NOTE, OURS, TUNED_FIXED, compared
from experiments.quoted import TABLE3
from experiments.study import Group, Study, Variant, cells, find, label, methods_of, per_method
from mpd_agl.report.section import PageSection, Table

DATA = {"CIFAR-10": "cifar10-resnet19", "CIFAR-100": "cifar100-resnet19"}
METHODS = (
    *("stbp-tdbn", TUNED_FIXED, "trainable-decay", "lsg", "agr", "mpd-agl", "mpd-agl-exact", "mpd-quantile"),
    *("psg", "asgl", "deeptage", OURS),
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
        notes.insert(0, COMPARED_NOTE)
    if len(counts) > 1:
        each = [f"{label(g.method)} on {g.data} {len(g.accuracy)}" for g in groups if g.accuracy]
        notes.append(f"Seeds: {', '.join(each)}.")
    every = [[g.data, label(g.method), *compared(groups, g, **g.variant.at)] for g in groups if g.accuracy]
    details = Table(("data", "method", *COMPARED_HEAD), every, tuple(range(2, 2 + len(COMPARED_HEAD))))
    table = Table(head, rows, tuple(range(1, 9)))
    return PageSection("table3", STUDY.title, sentence, [], table, notes, details=details)


STUDY = Study(
    name="table3",
    title="Table 3: ablation, CIFAR-10 and CIFAR-100",
    paper="Vanilla 92.38 %, trainable decay 93.15 %, LSG 94.41 %, AGR 95.93 %, MPD-AGL 96.18 % on CIFAR-10.",
    variants=variants,
    show=show,
    methods=METHODS,
    # docs/evidence.md: 10,000 images, the whole test set, the same number of epochs for every row
    cpu={"data.test_samples": 0, "train.epochs": 8, "optim.schedule": "cosine-steps"},
    seeds=3,
    partial=True,
)
