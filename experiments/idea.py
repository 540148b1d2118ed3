"""The idea in one picture: a layer's potentials over training, a window that stays, and one that fits."""

from collections.abc import Sequence

from experiments.evidence import FIXED, PAPER, variant
from experiments.study import Group, Study, Variant, find, label
from mpd_agl.errors import InputError
from mpd_agl.report import draw, windows
from mpd_agl.report.section import PageSection, Table, share

THRESHOLD = 0.1
"""Where a width of 1 is ten times the potentials' spread."""


def variants(methods: Sequence[str]) -> list[Variant]:
    """Of the stress study's runs those on digits at this threshold: they are trained once for both."""
    if FIXED not in methods or set(methods) == {FIXED}:
        raise InputError(f"the picture lays {FIXED} beside another method. Name both, as in --methods {FIXED} {PAPER}.")
    at = {"factor": "threshold", "value": f"{THRESHOLD:g}", "data": "digits"}
    return [variant(method, "cnn8", "digits", at, {"model.v_th": THRESHOLD}) for method in methods]


def show(groups: Sequence[Group]) -> PageSection:
    """The picture of the lowest seed, and every seed's accuracy."""
    ours, fixed = next(g for g in groups if g.method != FIXED), find(groups, FIXED)
    assert fixed is not None  # variants() asks for both
    with draw.style():
        panel = windows.picture(fixed.first, ours.first)
    rows = [
        [label(g.method), ", ".join(f"{share(a)} (seed {s})" for s, a in sorted(g.accuracy.items()))] for g in groups
    ]
    return PageSection(
        "idea", STUDY.title, panel.alt, [panel], Table(("method", "test accuracy, last epoch"), rows), wide=True
    )


STUDY = Study(
    name="idea",
    title="A window that stays, and one that fits",
    paper="What happens where the potentials are not where a fixed window expects them?",
    variants=variants,
    show=show,
    methods=(FIXED, PAPER),
    protocol="docs/evidence.md",
)
