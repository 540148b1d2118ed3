"""What the studies of docs/evidence.md share: their recipes, their methods, their paired comparisons."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from experiments.grouped_bars import colour, style_of
from experiments.seeds import difference, paired, points
from experiments.study import Group, Variant, find, label
from mpd_agl.report import draw
from mpd_agl.report.section import mean

FIXED, TUNED_FIXED, PAPER, OURS = "stbp-tdbn", "stbp-tdbn@kappa=best", "mpd-agl", "mpd-gain"
METHODS = (FIXED, TUNED_FIXED, "lsg", PAPER, "mpd-agl-exact", "mpd-quantile", "psg", OURS)
"""The protocol's methods."""

DATA = {"digits": "digits", "cifar10": "CIFAR-10"}
NETWORKS = {"cnn8": "CNN-8", "resnet19": "ResNet-19"}
_PRESETS = {"digits": "demo", "cifar10": "cifar10-resnet19"}
_SHARED: dict[str, dict[str, Any]] = {
    "digits": {"train.epochs": 4, "train.batch_size": 50},
    "cifar10": {"data.train_samples": 10_000, "train.epochs": 8, "train.batch_size": 100},
}
_NETWORK: dict[str, dict[str, Any]] = {
    "cnn8": {"model.name": "cnn8", "model.width_mult": 0.25, "optim.lr": 0.05},
    "resnet19": {"model.name": "resnet19", "model.width_mult": 0.125, "optim.lr": 0.1},
    "plain": {"model.name": "plain", "model.width_mult": 1.0, "optim.lr": 0.05},
}
_SMALL_DIGITS = {"data.image_size": 14, "data.augment": ["crop=1"]}
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": {}, "adam": {"optim.name": "adam", "optim.lr": 0.002}}


def variant(
    method: str, network: str, data: str, at: Mapping[str, str], fixed: Mapping[str, Any], **changes: Any
) -> Variant:
    """A run of the protocol: network and data by name, `fixed` the factor under test, `at` its place in the result."""
    small = _SMALL_DIGITS if (network, data) == ("plain", "digits") else {}
    every = {**_SHARED[data], **_NETWORK[network], **small, "optim.schedule": "cosine-steps", "monitor.every": 40}
    every |= {name.replace("__", "."): value for name, value in changes.items()}
    return Variant(preset=_PRESETS[data], method=method, changes=every, fixed=fixed, at=at)


def seeds_of(group: Group | None) -> dict[int, float]:
    """A group's accuracies by seed; none where there is no such group yet."""
    return {} if group is None else group.accuracy


def score(group: Group | None) -> str:
    """A group's accuracy in percent, its spread over seeds; a dagger where a run ended in NaN."""
    return "" if group is None or not group.accuracy else group.score


COMPARED_WITH = (FIXED, TUNED_FIXED, PAPER)
"""Every method's accuracy minus that of these, paired by seed."""


def compared(groups: Sequence[Group], own: Group, **at: str) -> list[str]:
    """The cells of a group at a place: accuracy, best on test, paired differences with their 95 % intervals."""
    gaps = []
    for other in COMPARED_WITH:
        against = seeds_of(find(groups, other, **at))
        gaps.append("" if own.method == other else difference(paired(own.accuracy, against)))
    ours = find(groups, OURS, **at)
    last = "" if ours is None or own.method == OURS else difference(paired(ours.accuracy, own.accuracy))
    best = points([*own.best.values()]) if own.best else ""
    return [score(own), best, *gaps, last]


COMPARED_HEAD = (
    *("accuracy, last epoch", "best on test"),
    *(f"minus {label(other)}" for other in COMPARED_WITH),
    f"{label(OURS)} minus this",
)
COMPARED_NOTE = (
    "± is the standard deviation over seeds. Differences are points, paired by seed, with their 95 % interval "
    "(Student's t). A dagger counts the runs that ended in NaN; they count as guessing."
)


def curve(axes: Axes, method: str, groups: Sequence[Group | None], x: Sequence[float]) -> None:
    """Mean accuracy over the values of a factor, each seed as a faint dot; places without runs are left out."""
    there = [(place, [*seeds_of(g).values()]) for place, g in zip(x, groups, strict=True) if seeds_of(g)]
    if not there:
        return
    look: dict[str, Any] = {
        "color": colour(method),
        "linestyle": style_of(method),
        "linewidth": 2.2 if method == OURS else 1.5,
    }
    names, values = [place for place, _ in there], [mean(v) for _, v in there]
    axes.plot(names, values, marker="o", markersize=3.2, label=draw.plain(label(method)), **look)
    for place, each in there:
        if len(each) > 1:
            dots: dict[str, Any] = {
                "linestyle": "none",
                "marker": ".",
                "markersize": 3,
                "alpha": 0.45,
                "label": "_seeds",
            }
            axes.plot([place] * len(each), each, color=colour(method), **dots)
