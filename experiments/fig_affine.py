"""Figure 2: the affine parameters of tdBN drift while an 8-layer network learns."""

from collections.abc import Sequence
from dataclasses import replace

from experiments.study import Group, Study, Variant, per_method
from mpd_agl.report.layers import affine
from mpd_agl.report.section import PageSection

PANELS = ("gamma", "beta", "gamma-channels", "beta-channels")


def variants(methods: Sequence[str]) -> list[Variant]:
    """CNN-8 in place of ResNet-19: the paper does not specify its 8-layer network."""
    return per_method("cifar10-resnet19", methods, model__name="cnn8")


def show(groups: Sequence[Group]) -> PageSection:
    """Layer means on top, all channels of the first layer below; one run."""
    found = affine(groups[0].first)
    panels = [replace(p, key=f"fig-affine-{key}") for key in PANELS for p in found.panels if p.key == key]
    notes = [*found.notes, f"Method {groups[0].method}, seed {min(groups[0].runs)}."]
    return PageSection("fig-affine", STUDY.title, found.sentence, panels, notes=notes)


STUDY = Study(
    name="fig-affine",
    title="Figure 2: gamma and beta of tdBN over training, CNN-8",
    paper="gamma and beta leave their start, and channels grow apart, as training continues.",
    variants=variants,
    show=show,
    methods=("stbp-tdbn",),
    cpu={"model.width_mult": 0.25, "train.epochs": 16},
)
