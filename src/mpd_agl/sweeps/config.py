"""A sweep's file: what is searched, around which recipe, and by what score.

Everything is checked before anything runs.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from mpd_agl.errors import InputError
from mpd_agl.options import ConfigTable, flatten, sentences
from mpd_agl.sweeps.search_space import Choices, Range, Space, Value, as_field, read_space
from mpd_agl.train.config import RunConfig
from mpd_agl.train.presets import read_preset
from mpd_agl.train.resolve import as_error, merge, nest, read_toml, resolve

DEFAULT_TRIALS, LARGEST_GRID = 20, 10_000
SCORES = {
    "accuracy": "test_accuracy",
    "loss": "test_loss",
    "train_accuracy": "train_accuracy",
    "train_loss": "train_loss",
}
"""An objective's name, and that score's name in an epoch's log line."""


class SweepConfig(ConfigTable):
    """The file `mpd-agl sweep` takes."""

    preset: str = ""
    """A recipe of the package."""
    config: str = ""
    """Your own TOML file, over the preset; a path seen from the sweep's file."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Fields of the configuration, over both."""
    search: dict[str, Any] = Field(default_factory=dict)
    """Fields to search: `{choices = [...]}`, or `{low = ..., high = ...}` with or without `log = true`."""
    trials: int = Field(default=0, ge=0)
    """How many runs; 0: 20, or every point of a grid."""
    objective: Literal["accuracy", "loss", "train_accuracy", "train_loss"] = "accuracy"
    """The last epoch's score that decides."""
    tune_on: Literal["validation", "test"] = "validation"
    """`validation`: held-out training samples (data.holdout, or a tenth).

    `test`: the test set, whose score is then no result.
    """
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the sampler."""
    pruner: Literal["median", "none"] = "median"
    """Ends a run that falls behind: below the median of the others at the same epoch."""
    prune_after_epochs: int = Field(default=1, ge=1)
    """Epochs that every run gets."""
    prune_after_trials: int = Field(default=5, ge=1)
    """Runs that go to their end before the median decides."""


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: settings, the configuration around which it searches, the space."""

    settings: SweepConfig
    base: RunConfig
    space: Space

    @property
    def trials(self) -> int:
        """How many runs there are to be."""
        if self.settings.sampler == "grid":
            return min(self.settings.trials or len(self.grid()), len(self.grid()))
        return self.settings.trials or DEFAULT_TRIALS

    @property
    def maximize(self) -> bool:
        """Whether a higher score is better."""
        return self.settings.objective.endswith("accuracy")

    @property
    def score(self) -> str:
        """The objective in words, with the samples that it is measured on."""
        name = self.settings.objective
        if name.startswith("train"):
            return name.replace("train_", "training ")
        return f"validation {name}" if self.base.data.holdout else f"{name} ON THE TEST SET"

    def grid(self) -> list[dict[str, Value]]:
        """Every point of the grid; the last field's values change fastest."""
        axes = [e.values for e in self.space.values() if isinstance(e, Choices)]
        return [dict(zip(self.space, point, strict=True)) for point in product(*axes)]

    def config_for(self, params: Mapping[str, Value]) -> RunConfig:
        """A trial's configuration."""
        return resolve(merge(self.base.model_dump(), nest({f: as_field(f, v) for f, v in params.items()})))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all that distinguishes this sweep from another, and `trials`."""
        kept = self.settings.model_dump(exclude={"preset", "config", "fixed", "search", "trials"})
        space = {f: e.model_dump(mode="json", by_alias=True) for f, e in self.space.items()}
        return {
            "settings": kept,
            "base": self.base.model_dump(mode="json"),
            "search": space,
            "trials": self.settings.trials,
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> "Sweep":
        """Back from JSON."""
        space: Space = {f: Choices(**e) if "choices" in e else Range(**e) for f, e in table["search"].items()}
        return cls(SweepConfig(**table["settings"], trials=table["trials"]), resolve(table["base"]), space)


def read_sweep(path: Path) -> Sweep:
    """A user's file, checked; one `InputError` with every mistake."""
    table = read_toml(path)
    try:
        settings = SweepConfig.model_validate(table)
    except ValidationError as error:
        raise as_error(sentences(error, SweepConfig), str(path)) from None
    base = resolve(merge(*_tables(settings, path)))
    base = _scored(settings, base)
    space = read_space(settings.search, base, str(path))
    if settings.sampler == "grid":
        for name, entry in space.items():
            if isinstance(entry, Range):
                raise InputError(
                    f"search: a grid needs choices, and {name} is {entry}. Give choices, or use another sampler."
                )
        size = math.prod(len(e.values) for e in space.values() if isinstance(e, Choices))
        if size > LARGEST_GRID:
            raise InputError(f"search: the grid has {size:,} points, more than {LARGEST_GRID:,}. Use another sampler.")
    return Sweep(settings, base, space)


def _tables(settings: SweepConfig, path: Path) -> Iterator[Mapping[str, Any]]:
    if not (settings.preset or settings.config):
        raise InputError(f'{path} names no recipe. Add preset = "demo", or config = "mine.toml".')
    if settings.preset:
        yield read_preset(settings.preset)
    if settings.config:
        yield read_toml(path.parent / Path(settings.config).expanduser())
    yield settings.fixed


def _scored(settings: SweepConfig, base: RunConfig) -> RunConfig:
    """The configuration with samples to be scored on: held-out ones, unless the test set was asked for by name."""
    if settings.tune_on == "test":
        if base.data.holdout:
            raise InputError(
                f"tune_on is 'test', and data.holdout is {base.data.holdout}: runs are scored on one of them. "
                "Leave one out."
            )
        return base
    if base.data.holdout:
        return base
    from mpd_agl.train.build import load_data
    from mpd_agl.train.resolve import data_set

    counts = data_set(base).counts
    if not counts:  # only the files have them
        counts = {"train": len(load_data(base, "train"))}
    tenth = (counts["train"] if "train" in counts else counts["all"] * 9 // 10) // 10
    return resolve(merge(base.model_dump(), {"data": {"holdout": tenth}}))


def changed(old: Mapping[str, Any], new: Mapping[str, Any], free: tuple[str, ...]) -> list[str]:
    """What differs between two sweeps' descriptions, in words; `free` names what may differ."""
    before, after = flatten({**old, "trials": 0}), flatten({**new, "trials": 0})
    names = [n for n in before | after if before.get(n) != after.get(n) and n not in free]
    return [f"{n.removeprefix('base.')} was {before.get(n)!r}, got {after.get(n)!r}" for n in names]
