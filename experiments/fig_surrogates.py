"""Figure 3: four shapes of the surrogate under the methods that leave the shape open."""

from collections.abc import Sequence

from experiments.grouped_bars import grouped_bars
from experiments.quoted import SURROGATES
from experiments.study import SHAPED, Group, Study, Variant, cells, find, label, methods_of, per_method
from mpd_agl.report.section import PageSection, Table

SHAPES = ("rectangular", "triangular", "sigmoid", "arctan")


def variants(methods: Sequence[str]) -> list[Variant]:
    """CIFAR-100, T=2; shapes are scaled to unit area and peak 1/kappa at equal kappa (our choice)."""
    return [
        s
        for shape in SHAPES
        for s in per_method("cifar100-resnet19", methods, {"shape": shape}, model__surrogate=shape)
    ]


def show(groups: Sequence[Group]) -> PageSection:
    """Bars, and the same as a table."""
    methods, rows = methods_of(groups), []
    for shape in SHAPES:
        for method in methods:
            own = find(groups, method, shape=shape)
            assert own is not None
            rows.append([shape, label(method), *cells(groups, own, SURROGATES.get((shape, method)), shape=shape)])
    values = {m: [[*g.accuracy.values()] for s in SHAPES if (g := find(groups, m, shape=s))] for m in methods}
    panel = grouped_bars("fig-surrogates", "Test accuracy, last epoch", SHAPES, values)
    head = ("shape", "method", "accuracy, last epoch", "best on test", "MPD-AGL minus this", "paper (quoted)")
    sentence = "Test accuracy in percent with four shapes of the surrogate, all of unit area and peak 1/kappa."
    notes = [
        "The paper prints numbers for the rectangular and triangular shapes only; of sigmoid and arctan it shows bars."
    ]
    return PageSection("fig-surrogates", STUDY.title, sentence, [panel], Table(head, rows, (2, 3, 4, 5)), notes)


STUDY = Study(
    name="fig-surrogates",
    title="Figure 3: other surrogate functions, CIFAR-100, T=2",
    paper="MPD-AGL is ahead of STBP-tdBN and LSG with each of four shapes.",
    variants=variants,
    show=show,
    methods=SHAPED,
    cpu={"train.epochs": 6},
)
