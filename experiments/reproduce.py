"""Run an experiment: train its variants at a scale, each once, then draw the result from the records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.axes
import torch

from experiments.costs import Costs
from experiments.pool import Pool, guess, run_name
from experiments.scales import NO_DEPARTURE, config_at, departures
from experiments.study import Group, Study, Variant, label, split_method
from experiments.tuning import Choice, candidates, choose, is_tuned
from mpd_agl import records
from mpd_agl.data.registry import get
from mpd_agl.data.types import EventOptions
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.models import list_pretrained, pretrained_card
from mpd_agl.options import part
from mpd_agl.report import draw
from mpd_agl.report.runs import check_comparable, read_run
from mpd_agl.report.section import PageSection, markdown
from mpd_agl.train import build
from mpd_agl.train.config import RunConfig
from mpd_agl.train.console import duration
from mpd_agl.train.dry_run import random_set
from mpd_agl.train.observe import Display
from mpd_agl.train.resolve import resolve
from mpd_agl.train.start_from import state_from_card
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
        found = [v for v in self.study.variants(self.methods) if self.scale != "smoke" or self.study.in_smoke(v)]
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

    def config(self, variant: Variant, seed: int, pool: Pool | None = None) -> RunConfig | None:
        """A variant's run; None while its width is not chosen yet. Without a pool a width to be chosen is 1."""
        changes = dict(self.changes)
        if pool is not None and is_tuned(variant):
            choice = self.choice(variant, pool)
            if choice is None:
                return None
            changes["model.kappa"] = choice.kappa
        return config_at(variant, self.study, self.scale, seed, changes)

    def choice(self, variant: Variant, pool: Pool) -> Choice | None:
        """What held-out samples say about a variant's width."""
        return choose(candidates(variant, self.study, self.scale, self.changes), pool)

    def tuning(self) -> list[RunConfig]:
        """The runs by which widths are chosen, the same for every seed."""
        return [
            config
            for variant in self.variants()
            if is_tuned(variant)
            for config in candidates(variant, self.study, self.scale, self.changes).values()
        ]

    def configs(self, pool: Pool | None = None) -> list[RunConfig]:
        """All runs; all methods of a seed before the next seed, so that methods alternate."""
        found = [self.config(variant, seed, pool) for seed in self.seed_list() for variant in self.variants()]
        return [config for config in found if config is not None]


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
            config = request.config(variant, 0)
            assert config is not None
            by_recipe.setdefault(variant.preset, set()).add(tuple(getattr(config.data, f, None) for f in SAME_SAMPLES))
        for recipe, scored in by_recipe.items():
            if len(scored) > 1:
                sets = " and ".join(sorted({str(s[0]) for s in scored}))
                raise InputError(
                    f"{request.study.name} compares runs of {recipe} that would be scored on different samples "
                    f"({sets}). Choose one data set for all with --data.name."
                )
        done = pool.ended if request.study.partial else pool.finished
        wanted |= {run_name(c): c for c in (*request.configs(), *request.tuning()) if not done(c)}
    built, read = set(), set()
    for name, config in wanted.items():
        size = part(EventOptions, config.data).frame_size
        network = (config.method, config.model, config.data.name, size, config.train.device)
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
        net = build.network_for(config, random_set(config, "train", 1))
    if config.model.weights:
        state_from_card(pretrained_card(config.model.weights), net)


def train(request: Request, pool: Pool, display: Callable[[], Display], say: Callable[[str], None]) -> tuple[int, int]:
    """Train what is missing, widths to be chosen first; how many were trained, and how many runs there are."""
    partial, tuning = request.study.partial, request.tuning()
    trained = pool.train_all(tuning, display, say, partial=partial) if tuning else 0
    configs = request.configs(pool)
    trained += pool.train_all(configs, display, say, partial=partial)
    return trained, len({run_name(c) for c in (*tuning, *configs)})


def gather(request: Request, pool: Pool) -> list[Group]:
    """Every variant's runs; refuses to go on with less than all of them, unless the experiment is shown in part."""
    variants, seeds, partial = request.variants(), request.seed_list(), request.study.partial
    configs = {(i, s): request.config(g, s, pool) for i, g in enumerate(variants) for s in seeds}
    done = pool.ended if partial else pool.finished
    ready = {at: c for at, c in configs.items() if c is not None and done(c)}
    if (lost := [at for at in configs if at not in ready]) and (not partial or not ready):
        known = (run_name(c) for at in lost if (c := configs[at]) is not None)
        first = next(known, "one whose width is not chosen yet")
        hint = other_threads([c for at in lost if (c := configs[at]) is not None], pool)
        raise InputError(
            f"{len(lost)} of {len(configs)} runs of {request.study.name} are not finished (first {first}). "
            + (hint or "Train them by the same command without --draw.")
        )
    groups = []
    for i, variant in enumerate(variants):
        mine = {s: ready[i, s] for s in seeds if (i, s) in ready}
        lost_ones = {s: pool.record(c) for s, c in mine.items() if not pool.finished(c)}
        guesses = {s: guess(record) for s, record in lost_ones.items() if record is not None}
        runs = {s: read_run(pool.path(c)) for s, c in mine.items() if s not in guesses}
        groups.append(Group(variant=variant, runs=runs, guesses=guesses))
    by_place: dict[str, list[Group]] = {}
    for group in groups:
        by_place.setdefault(group.variant.preset, []).append(group)
    for same in by_place.values():
        if runs_here := {r.path: r for g in same for r in g.runs.values()}:
            check_comparable(list(runs_here.values()))
    return groups


def other_threads(configs: Sequence[RunConfig], pool: Pool) -> str:
    """Whether runs that are not there were made with another number of threads, which makes another run."""
    lost = [c for c in configs if not pool.ended(c)]
    for threads in sorted({1, 2} - {c.train.threads for c in lost}):
        others = [c.model_copy(update={"train": c.train.model_copy(update={"threads": threads})}) for c in lost]
        if there := len({run_name(c) for c in others if pool.ended(c)}):
            return f"{there} of those that are missing are there with --train.threads {threads}: add it."
    return ""


def progress(request: Request, pool: Pool, costs: Costs | None) -> str:
    """How many runs are wanted and left, and about how long they take here, where costs are measured."""
    done = pool.ended if request.study.partial else pool.finished
    planned = {run_name(c): c for c in request.tuning()}
    for variant in request.variants():
        for seed in request.seed_list():
            chosen = request.config(variant, seed, pool)
            config = chosen or request.config(variant, seed)
            assert config is not None
            planned[run_name(chosen) if chosen else f"{variant} {seed}"] = config
    left = {name: config for name, config in planned.items() if run_name(config) != name or not done(config)}
    text = f"{request.study.name}: {len(planned)} runs, {len(left)} left"
    if costs is None or not left:
        return text
    return f"{text}, about {duration(sum(costs.run_s(c) for c in left.values()))} here"


def show(request: Request, groups: Sequence[Group]) -> PageSection:
    """The experiment's section, its departures from the paper as notes."""
    found, seeds = request.study.show(groups), len(request.seed_list())
    notes = [
        f"{'The question' if request.study.protocol else 'The paper'}: {request.study.paper}",
        *found.notes,
        *holes(request, groups),
        *departures(request.variants(), request.study, request.scale, request.changes),
        *([f"Set for all runs: {', '.join(own)}."] if request.study.protocol and (own := set_by_hand(request)) else []),
        *samples(groups),
        f"Scale {request.scale}, {seeds} seed{'s' * (seeds > 1)}; accuracies are the last epoch's. "
        + ("This scale is for tests: its numbers mean nothing. " if request.scale == "smoke" else "")
        + (
            f"The protocol: {request.study.protocol}."
            if request.study.protocol
            else "Where the implementation differs from the paper: docs/deviations.md."
        ),
    ]
    return PageSection(found.key, found.title, found.sentence, found.panels, found.table, notes, details=found.details)


def set_by_hand(request: Request) -> list[str]:
    """The fields that the command set, but for those that change no result's meaning."""
    own = {f: v for f, v in _plain(dict(request.changes)).items() if f not in NO_DEPARTURE}
    return [f"{f} {' '.join(v) if isinstance(v, list) else v}" for f, v in own.items()]


def holes(request: Request, groups: Sequence[Group]) -> list[str]:
    """Runs that are missing from what is shown, and runs that ended in NaN."""
    wanted, there = len(groups) * len(request.seed_list()), sum(len(g.accuracy) for g in groups)
    out = []
    if there < wanted:
        out.append(f"Not complete: {wanted - there} of {wanted} runs are not there yet.")
    if lost := [f"{label(g.method)} ({', '.join(g.variant.at.values())})" for g in groups if g.guesses]:
        out.append(f"Ended in NaN, counted as guessing: {'; '.join(lost)}.")
    return out


def samples(groups: Sequence[Group]) -> list[str]:
    """How much data there was, as the records say."""
    found: dict[str, None] = {}
    for data in (g.first.record.data for g in groups if g.runs):
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
    tell = summary if request.study.protocol else numbers
    files[f"{name}.json"] = records.canonical(tell(request, groups, section))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            records.write_atomic(folder / file, data)
    except OSError as error:
        raise InputError(
            f"the result cannot be written to {folder} ({error.strerror}). Choose another --runs-dir."
        ) from None
    return [folder / file for file in files]


def summary(request: Request, groups: Sequence[Group], section: PageSection) -> dict[str, Any]:
    """As `numbers`, but small: a cell per variant with its seeds, and what the runs share once."""
    shared: dict[str, list[Any]] = {"code": [], "hardware": []}

    def number(kind: str, value: Any) -> int:
        if value not in shared[kind]:
            shared[kind].append(value)
        return shared[kind].index(value)

    cells = []
    for g in groups:
        every = [run.record for run in g.runs.values()]
        config = resolve(every[0].config).model_dump(mode="json", exclude_defaults=True) if every else None
        cells.append(
            {
                "method": g.method,
                "at": dict(g.variant.at),
                "accuracy": {str(s): a for s, a in sorted(g.accuracy.items())},
                "best_on_test": {str(s): a for s, a in sorted(g.best.items())},
                "ended_in_nan": sorted(g.guesses),
                "runs": {str(s): run.name for s, run in g.runs.items()},
                "seconds": {str(s): run.record.clock.get("elapsed_s") for s, run in g.runs.items()},
                "code": {str(s): number("code", run.record.code) for s, run in g.runs.items()},
                "hardware": sorted({number("hardware", {**r.hardware, "backend": r.backend}) for r in every}),
                "config": _plain(config),
            }
        )
    return {
        **{k: v for k, v in numbers(request, (), section).items() if k not in ("cells", "ended_in_nan")},
        "only": {key: list(values) for key, values in request.only.items()},
        **shared,
        "cells": cells,
    }


def _tables(section: PageSection) -> dict[str, Any]:
    tables = {"table": section.table, "details": section.details}
    return {name: t and {"head": list(t.head), "rows": [list(r) for r in t.rows]} for name, t in tables.items()}


def command(request: Request) -> str:
    """The command that makes this result, without the folders of the machine that ran it."""
    parts = ["mpd-agl reproduce", request.study.name, "--scale", request.scale, "--seeds", str(request.seeds)]
    parts += ["--methods", *request.methods]
    parts += ["--only", *(f"{key}={','.join(values)}" for key, values in request.only.items())] if request.only else []
    for name, value in _plain(dict(request.changes)).items():
        parts += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return " ".join(parts)


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
    lost = [
        {
            "method": g.method,
            "at": dict(g.variant.at),
            "seeds": sorted(g.guesses),
            "accuracy": {str(s): a for s, a in sorted(g.guesses.items())},
        }
        for g in groups
        if g.guesses
    ]
    return {
        "study": request.study.name,
        "command": command(request),
        "scale": request.scale,
        "seeds": request.seeds,
        "methods": list(request.methods),
        "changes": _plain(dict(request.changes)),
        "sentence": section.sentence,
        "notes": section.notes,
        **_tables(section),
        "curves": {p.key: [curve for axes in p.figure.axes for curve in _curves(axes)] for p in section.panels},
        "cells": _plain(cells),
        "ended_in_nan": lost,
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


_PRIVATE = ("source", "data_dir", "origin", "teacher", "weights")


def _plain(value: Any) -> Any:
    """Without the folders of the machine that ran it; the name of a trained network in the box stays."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k.rpartition(".")[2] not in _PRIVATE or _in_box(k, v)}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _in_box(field: str, value: Any) -> bool:
    return field.endswith("weights") and value in list_pretrained()
