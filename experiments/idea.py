"""README's picture: a layer's potentials over training, with a fixed window and with one that follows them."""

from collections.abc import Sequence

from experiments.study import REFERENCE, Group, Study, Variant, find, label
from mpd_agl.errors import InputError
from mpd_agl.report import draw, windows
from mpd_agl.report.section import PageSection, Table, share

FIXED = "stbp-tdbn"
THRESHOLD = 0.1
"""Here a width of 1 is ten times the potentials' spread."""
RECIPE = {
    "model.name": "cnn8",
    "model.width_mult": 0.25,
    "optim.lr": 0.05,
    "optim.schedule": "cosine-steps",
    "train.epochs": 4,
    "train.batch_size": 50,
    "monitor.every": 40,
}


def variants(methods: Sequence[str]) -> list[Variant]:
    """CNN-8 on the digits."""
    if FIXED not in methods or set(methods) == {FIXED}:
        raise InputError(f"the picture compares {FIXED} with another method. Use --methods {FIXED} {REFERENCE}.")
    fixed = {"model.v_th": THRESHOLD}
    return [Variant(preset="demo", method=m, changes=RECIPE, fixed=fixed, at={"data": "digits"}) for m in methods]


def show(groups: Sequence[Group]) -> PageSection:
    """The picture of the lowest seed, and every seed's accuracy."""
    fitting, fixed = next(g for g in groups if g.method != FIXED), find(groups, FIXED)
    assert fixed is not None  # variants() asks for both
    with draw.style():
        panel = windows.picture(fixed.first, fitting.first)
    rows = [
        [label(g.method), ", ".join(f"{share(a)} (seed {s})" for s, a in sorted(g.accuracy.items()))] for g in groups
    ]
    table = Table(("method", "test accuracy, last epoch"), rows)
    return PageSection("idea", STUDY.title, panel.alt, [panel], table, wide=True)


STUDY = Study(
    name="idea",
    title="A window that stays, and one that fits",
    paper="What happens where the potentials are not where a fixed window expects them?",
    variants=variants,
    show=show,
    methods=(FIXED, REFERENCE),
    protocol="docs/evidence.md",
)
