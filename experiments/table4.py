"""Table 4: training and inference time of one epoch."""

import statistics
from collections.abc import Sequence

from experiments.quoted import TABLE4
from experiments.study import COMPARED, Group, Study, Variant, find, label, per_method
from mpd_agl.report.section import PageSection, Table

WHOLE = {"train": 50_000, "test": 10_000}
BASE = "stbp-tdbn"


def variants(methods: Sequence[str]) -> list[Variant]:
    """Three epochs each: time does not need 150."""
    return per_method("cifar10-resnet19", methods, train__epochs=3)


def seconds(group: Group, part: str) -> float:
    """Median over epochs and seeds, scaled to the whole data set."""
    each: list[float] = []
    for run in group.runs.values():
        samples = run.record.data[part]["samples"]
        each += [e[f"{part}_s"] * WHOLE[part] / samples for e in run.epochs]
    return statistics.median(each)


def show(groups: Sequence[Group]) -> PageSection:
    """Seconds and ratios to STBP-tdBN."""
    base = find(groups, BASE)
    rows = []
    for g in groups:
        times = {part: seconds(g, part) for part in ("train", "test")}
        ratios = [f"{times[p] / seconds(base, p):.3f}" if base else "" for p in times]
        quoted = TABLE4.get(g.method)
        here = [f"{t:.1f}" for t in times.values()]
        rows.append([label(g.method), *here, *ratios, *(map(str, quoted) if quoted else ("", ""))])
    head = ("method", "training, s", "inference, s", "training / tdBN", "inference / tdBN")
    run = groups[0].first.record
    hardware = f"{run.hardware.get('cpu', run.hardware.get('device', ''))}, {run.hardware['threads']} threads"
    notes = [
        f"Medians over epochs and seeds on {hardware}, backend {run.backend}; "
        "scaled to 50,000 training and 10,000 test images. "
        "Methods alternate with every seed. The paper's seconds are of one RTX 3090: compare ratios."
    ]
    sentence = "Adjusting the width costs a few operations per layer and timestep in training and none at inference."
    table = Table((*head, "paper training, s (quoted)", "paper inference, s (quoted)"), rows, tuple(range(1, 7)))
    return PageSection("table4", STUDY.title, sentence, [], table, notes)


STUDY = Study(
    name="table4",
    title="Table 4: time of one epoch, ResNet-19, CIFAR-10, T=2",
    paper="Training takes 1m37s with tdBN, 1m39s with LSG, 1m40s with MPD-AGL; inference 8 s with each.",
    variants=variants,
    show=show,
    methods=COMPARED,
    cpu={"train.epochs": 2, "data.train_samples": 4_000},
    seeds=3,
)
