"""A width "at its best": chosen on held-out training samples with a seed of its own, never on the test set.

docs/evidence.md fixes this. Every width of the grid is trained once at the place it is chosen for; the one with the
best accuracy on the held-out samples is then trained with the comparison's own seeds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.pool import Pool
from experiments.scales import config_at
from experiments.study import TUNED, Study, Variant, split_method
from mpd_agl.errors import InputError
from mpd_agl.train.build import official_counts
from mpd_agl.train.config import RunConfig
from mpd_agl.train.resolve import flatten, nest, resolve

KAPPAS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The widths that are tried; the ridge's."""
SEED = 10
MOST_SAMPLES, MOST_HELD_OUT = 10_000, 5_000


def is_tuned(variant: Variant) -> bool:
    """Whether a width has to be chosen before the variant can be trained."""
    options = split_method(variant.method)[1]
    wrong = [name for name, value in options.items() if value == TUNED and name != "model.kappa"]
    if wrong:
        raise InputError(f"only kappa is chosen on held-out samples, got {variant.method!r}. Use @kappa={TUNED}.")
    return TUNED in options.values()


def candidates(variant: Variant, study: Study, scale: str, changes: Mapping[str, Any]) -> dict[float, RunConfig]:
    """The runs that a variant's width is chosen by: at most 10,000 training samples, a fifth of the set held out."""
    base = config_at(variant, study, scale, SEED, changes)
    official = official_counts(base)["train"]
    held = min(official // 5, MOST_HELD_OUT, 60 if scale == "smoke" else MOST_HELD_OUT)
    asked = min(base.data.train_samples or official, MOST_SAMPLES)
    own = {
        "data.holdout": held,
        "data.train_samples": asked if asked <= official - held else 0,
        "data.test_samples": 0,
        "monitor.every": 0,
    }
    table = flatten(base.model_dump(mode="json")) | own
    widths = KAPPAS[2:4] if scale == "smoke" else KAPPAS
    return {kappa: resolve(nest(table | {"model.kappa": kappa})) for kappa in widths}


@dataclass(frozen=True)
class Choice:
    """Held-out accuracy by width, and the width that was chosen."""

    accuracy: Mapping[float, float]
    kappa: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kappa": self.kappa, "held_out_accuracy": {f"{k:g}": a for k, a in self.accuracy.items()}}


def choose(found: Mapping[float, RunConfig], pool: Pool) -> Choice | None:
    """The best width; None while a candidate is missing. Equal accuracies: the lower loss, as the records say."""
    if not all(pool.ended(config) for config in found.values()):
        return None
    scores = {kappa: pool.score(config) for kappa, config in found.items()}
    order: Callable[[float], tuple[float, float]] = lambda kappa: (scores[kappa][0], -scores[kappa][1])  # noqa: E731
    return Choice({kappa: score[0] for kappa, score in scores.items()}, max(scores, key=order))
