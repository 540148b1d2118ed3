"""An experiment of the paper as data: which variants it trains, and what it shows of their records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.seeds import difference, paired, points
from mpd_agl.errors import InputError
from mpd_agl.report.runs import Run
from mpd_agl.report.section import PageSection

LABELS = {
    "stbp-tdbn": "STBP-tdBN",
    "trainable-decay": "trainable decay",
    "lsg": "LSG",
    "agr": "AGR",
    "mpd-agl": "MPD-AGL",
    "mpd-agl-exact": "MPD-AGL, exact moments",
    "mpd-quantile": "quantile width",
    "psg": "PSG",
    "asgl": "ASGL",
    "deeptage": "DeepTAGE",
    "ds-atgo": "DS-ATGO",
    "ds-atgo-sigma": "DS-ATGO, its code's width",
    "trsg": "TrSG",
    "mpr": "MPR",
    "diet": "Diet-SNN",
    "slope-schedule": "slope schedule",
    "s2nn": "S3NN's surrogate",
    "mpd-gain": "mpd-gain",
}
"""Methods as a table names them."""
COMPARED = ("stbp-tdbn", "lsg", "mpd-agl", "mpd-agl-exact", "mpd-quantile", "mpd-gain", "psg", "asgl", "deeptage")
"""The methods of every comparison: the paper's three, this package's three, and rivals that optimise the surrogate."""
SHAPED = tuple(m for m in COMPARED if m not in ("asgl", "deeptage"))
"""Those whose surrogate's shape can be chosen."""
REFERENCE = "mpd-agl"
"""Differences are this method's accuracy minus another's."""


def label(method: str) -> str:
    """A method as a table names it.

    >>> label("mpd-agl"), label("stbp-tdbn@kappa=0.5")
    ('MPD-AGL', 'STBP-tdBN, kappa=0.5')
    """
    if method in LABELS:
        return LABELS[method]
    name, _, options = method.partition("@")
    return LABELS.get(name, name) + (f", {options.replace(',', ', ')}" if options else "")


def split_method(method: str) -> tuple[str, dict[str, str]]:
    """A method of a comparison: its name, and the options of the model that stand behind an @.

    >>> split_method("mpd-agl@leak=full,tau=0.5"), split_method("lsg")
    (('mpd-agl', {'model.leak': 'full', 'model.tau': '0.5'}), ('lsg', {}))
    """
    name, at, rest = method.partition("@")
    pairs = [part.partition("=") for part in rest.split(",")] if at else []
    if any(not key or not value for key, _, value in pairs):
        raise InputError(f"a method's options are written NAME@OPTION=VALUE, got {method!r}. Example: psg@kappa=2.")
    return name, {f"model.{key}": value for key, _, value in pairs}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe of the paper as one place of a table or figure changes it: trained once per seed."""

    preset: str
    """The paper's recipe."""
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What the experiment itself changes in the recipe, by dotted name."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What no scale changes: the factor under test, by dotted name."""
    at: Mapping[str, str] = field(default_factory=dict)
    """Its place in the result: column, shape of the surrogate, ..."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A variant with its finished runs by seed."""

    variant: Variant
    runs: Mapping[int, Run]
    diverged: Mapping[int, float] = field(default_factory=dict)
    """Seeds whose run ended in NaN: they count with the accuracy of chance level."""

    @property
    def method(self) -> str:
        """The variant's method."""
        return self.variant.method

    @property
    def first(self) -> Run:
        """The run of the lowest seed: for pictures of a single run."""
        return self.runs[min(self.runs)]

    @property
    def data(self) -> str:
        """The data set's place in the paper, and the set that was really used where it is another."""
        place = self.variant.at.get("data", "")
        used = str(self.first.record.data["name"]) if self.runs else place.lower().replace("-", "")
        return place if place.lower().replace("-", "") == used else f"{place} ({used})".strip()

    @property
    def accuracy(self) -> dict[int, float]:
        """The result by seed: test accuracy after the last epoch."""
        return {seed: float(run.last["test_accuracy"]) for seed, run in self.runs.items()} | dict(self.diverged)

    @property
    def best(self) -> dict[int, float]:
        """The best epoch on the test set by seed: what the literature reports."""
        return {seed: float(run.best["test_accuracy"]) for seed, run in self.runs.items()} | dict(self.diverged)

    @property
    def score(self) -> str:
        """The result in percent, its spread over seeds; a dagger counts the runs that ended in NaN."""
        return points([*self.accuracy.values()]) + (f" \N{DAGGER}{len(self.diverged)}" if self.diverged else "")


@dataclass(frozen=True, kw_only=True)
class Study:
    """One table or figure. To add one: a file with a `STUDY`, and its name in `studies`."""

    name: str
    title: str
    paper: str
    """What the paper shows there, in a sentence."""
    variants: Callable[[Sequence[str]], list[Variant]]
    """The variants for these methods."""
    show: Callable[[Sequence[Group]], PageSection]
    """The result, from records alone."""
    methods: tuple[str, ...] = COMPARED
    cpu: Mapping[str, Any] = field(default_factory=dict)
    """What `--scale cpu` changes beyond its changes for every experiment."""
    smoke: Mapping[str, Any] = field(default_factory=dict)
    """What `--scale smoke` changes beyond its changes for every experiment."""
    seeds: int = 1
    """Seeds where none are asked for."""
    partial: bool = False
    """Shown from the runs that there are; a run that ended in NaN counts with the accuracy of chance level."""
    protocol: str = ""
    """The page that fixes its recipes at `--scale cpu`, where they are not the paper's."""


def last_snapshots(run: Run) -> list[dict[str, Any]]:
    """The monitor's snapshots of the last epoch, or the last one where that epoch has none."""
    found: list[dict[str, Any]] = [s for s in run.snapshots if s["epoch"] == run.epochs[-1]["epoch"]]
    return found or [*run.snapshots[-1:]]


def per_method(
    preset: str, methods: Sequence[str], at: Mapping[str, str] | None = None, **changes: Any
) -> list[Variant]:
    """The same variant for each method; `model__width_mult=1` changes model.width_mult."""
    table = {name.replace("__", "."): value for name, value in changes.items()}
    return [Variant(preset=preset, method=m, changes=table, at=at or {}) for m in methods]


def find(groups: Sequence[Group], method: str, **at: str) -> Group | None:
    """The group of a method at a place."""
    for group in groups:
        plain = "rival" in at or "rival" not in group.variant.at  # a row that is more than its method is not it
        if group.method == method and plain and all(group.variant.at.get(k) == v for k, v in at.items()):
            return group
    return None


def methods_of(groups: Sequence[Group]) -> list[str]:
    """The methods in their order."""
    return list(dict.fromkeys(g.method for g in groups))


def cells(groups: Sequence[Group], own: Group, quoted: float | None, **at: str) -> list[str]:
    """A group's cells: accuracy, best on test, MPD-AGL's accuracy at this place minus it, the paper's value."""
    top = find(groups, REFERENCE, **at)
    itself = own.method == REFERENCE and "rival" not in own.variant.at
    gap = "" if top is None or itself else difference(paired(top.accuracy, own.accuracy))
    return [own.score, points([*own.best.values()]), gap, f"{quoted:.2f}" if quoted else ""]
