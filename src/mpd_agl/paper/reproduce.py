"""Run an experiment: train its variants at a scale, each once, then draw the result from the records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.axes
import torch

from mpd_agl import records
from mpd_agl.data.registry import get
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.paper.pool import Pool, run_name
from mpd_agl.paper.scales import config_at, departures
from mpd_agl.paper.study import Group, Study, Variant
from mpd_agl.report import draw
from mpd_agl.report.runs import check_comparable, read_run
from mpd_agl.report.section import PageSection, markdown
from mpd_agl.runs import build
from mpd_agl.runs.config import RunConfig
from mpd_agl.runs.dry_run import random_set
from mpd_agl.train.observe import Display
from mpd_agl.train.step import check_precision


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asked for."""

    study: Study
    scale: str
    seeds: int
    methods: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration by dotted name, over the scale's."""

    def __post_init__(self) -> None:
        from mpd_agl.nn import METHODS

        if self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, got {self.seeds}. Use 3 for a mean with its spread.")
        for method in self.methods:
            if method not in METHODS:
                raise unknown_name("method", method, METHODS)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise InputError(f"--methods names each method once, got {' '.join(self.methods) or 'none'}.")

    def variants(self) -> list[Variant]:
        """The experiment's variants for these methods."""
        return self.study.variants(self.methods)

    def config(self, variant: Variant, seed: int) -> RunConfig:
        """A variant's run."""
        return config_at(variant, self.study, self.scale, seed, self.changes)

    def configs(self) -> list[RunConfig]:
        """All runs; all methods of a seed before the next seed, so that methods alternate."""
        return [self.config(variant, seed) for seed in range(self.seeds) for variant in self.variants()]


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
            config = request.config(variant, 0)
            by_recipe.setdefault(variant.preset, set()).add(tuple(getattr(config.data, f) for f in SAME_SAMPLES))
        for recipe, scored in by_recipe.items():
            if len(scored) > 1:
                sets = " and ".join(sorted({str(s[0]) for s in scored}))
                raise InputError(
                    f"{request.study.name} compares runs of {recipe} that would be scored on different samples "
                    f"({sets}). Choose one data set for all with --data.name."
                )
        wanted |= {run_name(c): c for c in request.configs() if not pool.finished(c)}
    built, read = set(), set()
    for name, config in wanted.items():
        network = (config.method, config.model, config.data.name, config.data.frame_size, config.train.device)
        data = (config.data, config.model.num_steps if get(config.data.name).kind == "events" else 0)
        try:
            if network not in built:
                built.add(network)
                _build(config)
            if data not in read:
                read.add(data)
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
        build.network_for(config, random_set(config, "train", 1))


def train(request: Request, pool: Pool, display: Callable[[], Display], say: Callable[[str], None]) -> tuple[int, int]:
    """Train what is missing; how many were trained, and how many runs there are."""
    configs = request.configs()
    return pool.train_all(configs, display, say), len({run_name(c) for c in configs})


def gather(request: Request, pool: Pool) -> list[Group]:
    """Every variant's runs; refuses to go on with less than all of them."""
    configs = {(i, s): request.config(g, s) for i, g in enumerate(request.variants()) for s in range(request.seeds)}
    lost = [run_name(c) for c in configs.values() if not pool.finished(c)]
    if lost:
        raise InputError(
            f"{len(set(lost))} of {len({run_name(c) for c in configs.values()})} runs of {request.study.name} "
            f"are not finished (first {lost[0]}). Train them by the same command without --draw."
        )
    groups = [
        Group(variant=g, runs={s: read_run(pool.path(configs[i, s])) for s in range(request.seeds)})
        for i, g in enumerate(request.variants())
    ]
    by_place: dict[str, list[Group]] = {}
    for group in groups:
        by_place.setdefault(group.variant.preset, []).append(group)
    for same in by_place.values():
        check_comparable([run for path, run in {r.path: r for g in same for r in g.runs.values()}.items()])
    return groups


def show(request: Request, groups: Sequence[Group]) -> PageSection:
    """The experiment's section, its departures from the paper as notes."""
    found = request.study.show(groups)
    notes = [
        f"The paper: {request.study.paper}",
        *found.notes,
        *departures(request.variants(), request.study, request.scale, request.changes),
        *samples(groups),
        f"Scale {request.scale}, {request.seeds} seed{'s' * (request.seeds > 1)}; accuracies are the last epoch's. "
        "Where the implementation differs from the paper: docs/deviations.md.",
    ]
    return PageSection(found.key, found.title, found.sentence, found.panels, found.table, notes)


def samples(groups: Sequence[Group]) -> list[str]:
    """How much data there was, as the records say."""
    found: dict[str, None] = {}
    for data in (g.first.record.data for g in groups):
        found[f"{data['name']}: {data['train']['samples']:,} training and {data['test']['samples']:,} test samples"] = (
            None
        )
    return [f"Data: {'; '.join(found)}."]


def write(request: Request, groups: Sequence[Group], section: PageSection, folder: Path) -> list[Path]:
    """The section as Markdown, its figures as PNG, SVG and PDF, its numbers and the runs behind them as JSON."""
    files: dict[str, bytes] = {}
    for panel in section.panels:
        files[f"{panel.key}.png"] = draw.png_file(panel.figure)
        files[f"{panel.key}.svg"] = draw.svg_file(panel.figure)
        files[f"{panel.key}.pdf"] = draw.pdf_file(panel.figure)
    name = request.study.name
    files[f"{name}.md"] = markdown(section, [f"{p.key}.png" for p in section.panels]).encode()
    files[f"{name}.json"] = records.canonical(numbers(request, groups, section))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            records.write_atomic(folder / file, data)
    except OSError as error:
        raise InputError(
            f"the result cannot be written to {folder} ({error.strerror}). Choose another --runs-dir."
        ) from None
    return [folder / file for file in files]


def numbers(request: Request, groups: Sequence[Group], section: PageSection) -> dict[str, Any]:
    """Every number of the result with the run it came from; the curves of the figures as they are drawn."""
    cells = [
        {
            "method": group.method,
            "at": dict(group.variant.at),
            "seed": seed,
            "run": run.name,
            "final": run.record.final,
            "best_on_test": run.record.best_on_test,
            "backend": run.record.backend,
            "code": run.record.code,
            "hardware": run.record.hardware,
            "data": {
                "name": run.record.data["name"],
                **{part: run.record.data[part] for part in ("train", "test")},
            },
            "config": run.record.config,
        }
        for group in groups
        for seed, run in group.runs.items()
    ]
    table = section.table and {"head": list(section.table.head), "rows": [list(r) for r in section.table.rows]}
    return {
        "study": request.study.name,
        "scale": request.scale,
        "seeds": request.seeds,
        "methods": list(request.methods),
        "changes": dict(request.changes),
        "sentence": section.sentence,
        "notes": section.notes,
        "table": table,
        "curves": {p.key: [curve for axes in p.figure.axes for curve in _curves(axes)] for p in section.panels},
        "cells": _plain(cells),
    }


def _curves(axes: matplotlib.axes.Axes) -> list[dict[str, Any]]:
    return [
        {
            "axes": axes.get_title(loc="left"),
            "name": str(line.get_label()),
            "x": _short(line.get_xdata()),
            "y": _short(line.get_ydata()),
        }
        for line in axes.get_lines()
    ]


def _short(values: Any) -> list[float]:
    return [float(f"{float(v):.5g}") for v in values]


_PRIVATE = ("source", "data_dir", "origin")


def _plain(value: Any) -> Any:
    """Without the folders of the machine that ran it."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k not in _PRIVATE}
    return [_plain(v) for v in value] if isinstance(value, list) else value
