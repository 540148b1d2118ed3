"""What a person asked for: an experiment at a scale, for methods and seeds; its runs, and what refuses them early."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.pool import Pool, run_name
from experiments.scales import config_at
from experiments.study import Study, Variant, split_method
from mpd_agl.data.registry import get
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.models import pretrained_card
from mpd_agl.train import build
from mpd_agl.train.config import RunConfig
from mpd_agl.train.dry_run import random_set
from mpd_agl.train.start_from import state_from_card
from mpd_agl.train.step import check_precision


@dataclass(frozen=True, kw_only=True)
class Request:
    """An experiment, and which part of it."""

    study: Study
    scale: str
    seeds: int
    methods: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration by dotted name, over the scale's."""
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """A slice of the experiment: the values of a variant's places, of `method` and of `seed` that are kept."""

    def __post_init__(self) -> None:
        from mpd_agl.nn import METHODS

        if self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, got {self.seeds}. Use 3 for a mean with its spread.")
        for name in (split_method(method)[0] for method in self.methods):
            if name not in METHODS:
                raise unknown_name("method", name, METHODS)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            fix = "Leave the second out." if self.methods else "Name one, as in --methods mpd-agl."
            raise InputError(f"--methods names each method once, got {' '.join(self.methods) or 'none'}. {fix}")
        if not self.variants() or not self.seed_list():
            raise InputError(f"--only leaves nothing of {self.study.name}. Take fewer conditions.")

    def variants(self) -> list[Variant]:
        """The experiment's variants for these methods, or the slice of them that was asked for."""
        found = self.study.variants(self.methods)
        where = f"{self.study.name} at scale {self.scale}"
        for key, values in self.only.items():
            known = list(map(str, range(self.seeds))) if key == "seed" else _places(found, key)
            if not known:
                keys = dict.fromkeys(k for v in found for k in v.at)
                raise unknown_name(f"condition of --only for {self.study.name}", key, (*keys, "method", "seed"))
            for value in values:
                if value not in known:
                    raise unknown_name(f"{key} of {where}", value, known)
            if key != "seed":
                found = [v for v in found if {**v.at, "method": v.method}.get(key) in values]
                where += f", {key}={','.join(values)}"
        return found

    def seed_list(self) -> list[int]:
        """The seeds of this slice."""
        return [s for s in range(self.seeds) if str(s) in self.only.get("seed", (str(s),))]

    def config(self, variant: Variant, seed: int) -> RunConfig:
        """A variant's run."""
        return config_at(variant, self.study, self.scale, seed, self.changes)

    def configs(self) -> list[RunConfig]:
        """All runs; all methods of a seed before the next seed, so that methods alternate."""
        return [self.config(variant, seed) for seed in self.seed_list() for variant in self.variants()]

    def is_done(self, config: RunConfig, pool: Pool) -> bool:
        """Whether nothing is left to train of a run."""
        return pool.ended(config) if self.study.partial else pool.finished(config)


def _places(variants: Sequence[Variant], key: str) -> list[str]:
    """The values that a place has among variants."""
    return list(dict.fromkeys({**v.at, "method": v.method}[key] for v in variants if key in (*v.at, "method")))


SAME_SAMPLES = ("name", "test_samples", "holdout", "split_rule", "split_seed", "allow_partial")
"""Fields of the data that runs of one comparison share."""


def check_before_training(requests: Sequence[Request], pool: Pool) -> None:
    """Refuse now what would else be refused after hours: runs that nothing may compare, parts that do not fit.

    Of each network and data set that unfinished runs need, one is built and read.
    """
    wanted: dict[str, RunConfig] = {}
    for request in requests:
        by_recipe: dict[str, set[tuple[Any, ...]]] = {}
        for variant in request.variants():
            data = request.config(variant, 0).data
            by_recipe.setdefault(variant.preset, set()).add(tuple(getattr(data, f, None) for f in SAME_SAMPLES))
        for recipe, scored in by_recipe.items():
            if len(scored) > 1:
                sets = " and ".join(sorted({str(s[0]) for s in scored}))
                raise InputError(
                    f"{request.study.name} compares runs of {recipe} that would be scored on different samples "
                    f"({sets}). Choose one data set for all with --data.name."
                )
        wanted |= {run_name(c): c for c in request.configs() if not request.is_done(c, pool)}
    built, read = set(), set()
    for name, config in wanted.items():
        network = (config.method, config.model, config.data, config.train.device)
        samples = (config.data, config.model.num_steps if get(config.data.name).kind == "events" else 0)
        try:
            if network not in built:
                built.add(network)
                _build(config)
            if samples not in read:
                read.add(samples)
                train, _ = (build.build_data(config, split) for split in ("train", build.scored_split(config)))
                build.check_batch_size(config, len(train))
        except InputError as error:
            raise InputError(f"{name} cannot start: {error}") from None


def _build(config: RunConfig) -> None:
    """Whether a run's parts can be made, without the memory of its weights."""
    device = build.choose_device(config.train.device)
    build.backend_that_runs(config, device)
    check_precision(config.train.precision, device)
    with torch.device("meta"):
        net = build.network_for(config, random_set(config, "train", 1))
    if config.model.weights:
        state_from_card(pretrained_card(config.model.weights), net)


def other_threads(configs: Sequence[RunConfig], pool: Pool) -> str:
    """Whether missing runs are there with another number of threads, which makes another run; "" if not."""
    missing = [c for c in configs if not pool.ended(c)]
    for threads in sorted({1, 2} - {c.train.threads for c in missing}):
        others = [c.model_copy(update={"train": c.train.model_copy(update={"threads": threads})}) for c in missing]
        if there := len({run_name(c) for c in others if pool.ended(c)}):
            return f"{there} of those that are missing are there with --train.threads {threads}: add it."
    return ""
