"""From an experiment's finished runs to its table or figure, and to files with the runs behind every number."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.axes

from experiments.pool import Pool, chance_level, run_name
from experiments.request import Request, other_threads
from experiments.scales import NO_DEPARTURE, departures
from experiments.study import Group, label
from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.models import list_pretrained
from mpd_agl.report import draw
from mpd_agl.report.runs import check_comparable, read_run
from mpd_agl.report.section import PageSection, Table
from mpd_agl.train.resolve import resolve


def gather(request: Request, pool: Pool) -> list[Group]:
    """Every variant's runs; refuses less than all of them, unless the experiment is shown in part."""
    variants, seeds, partial = request.variants(), request.seed_list(), request.study.partial
    configs = {(i, s): request.config(v, s) for i, v in enumerate(variants) for s in seeds}
    ready = {at: c for at, c in configs.items() if request.is_done(c, pool)}
    if (missing := [c for at, c in configs.items() if at not in ready]) and (not partial or not ready):
        raise InputError(
            f"{len(missing)} of {len(configs)} runs of {request.study.name} are not finished "
            f"(first {run_name(missing[0])}). "
            + (other_threads(missing, pool) or "Train them by the same command without --draw.")
        )
    groups = []
    for i, variant in enumerate(variants):
        mine = {s: ready[i, s] for s in seeds if (i, s) in ready}
        unfinished = {s: pool.record(c) for s, c in mine.items() if not pool.finished(c)}
        diverged = {s: chance_level(record) for s, record in unfinished.items() if record is not None}
        runs = {s: read_run(pool.path(c)) for s, c in mine.items() if s not in diverged}
        groups.append(Group(variant=variant, runs=runs, diverged=diverged))
    by_preset: dict[str, list[Group]] = {}
    for group in groups:
        by_preset.setdefault(group.variant.preset, []).append(group)
    for same in by_preset.values():
        if runs_here := {r.path: r for g in same for r in g.runs.values()}:
            check_comparable(list(runs_here.values()))
    return groups


def show(request: Request, groups: Sequence[Group]) -> PageSection:
    """The experiment's section, its departures from the paper as notes."""
    found, seeds, protocol = request.study.show(groups), len(request.seed_list()), request.study.protocol
    notes = [
        f"{'The question' if protocol else 'The paper'}: {request.study.paper}",
        *found.notes,
        *holes(request, groups),
        *departures(request.variants(), request.study, request.scale, request.changes),
        *([f"Set for all runs: {', '.join(own)}."] if protocol and (own := set_by_hand(request)) else []),
        *samples(groups),
        f"Scale {request.scale}, {seeds} seed{'s' * (seeds > 1)}; accuracies are the last epoch's. "
        + ("This scale is for tests: its numbers mean nothing. " if request.scale == "smoke" else "")
        + (
            f"The protocol: {protocol}."
            if protocol
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
    if diverged := [f"{label(g.method)} ({', '.join(g.variant.at.values())})" for g in groups if g.diverged]:
        out.append(f"Ended in NaN, counted as chance level: {'; '.join(diverged)}.")
    return out


def samples(groups: Sequence[Group]) -> list[str]:
    """How much data there was, as the records say."""
    sets = [g.first.record.data for g in groups if g.runs]
    each = [f"{d['name']}: {d['train']['samples']:,} training and {d['test']['samples']:,} test samples" for d in sets]
    return [f"Data: {'; '.join(dict.fromkeys(each))}."]


def write(request: Request, groups: Sequence[Group], section: PageSection, folder: Path) -> list[Path]:
    """The section as Markdown, its figures as PNG, SVG and PDF, its numbers and the runs behind them as JSON."""
    files: dict[str, bytes] = {}
    for panel in section.panels:
        files[f"{panel.key}.png"] = draw.png_file(panel.figure)
        files[f"{panel.key}.svg"] = draw.svg_file(panel.figure)
        files[f"{panel.key}.pdf"] = draw.pdf_file(panel.figure)
    name = request.study.name
    files[f"{name}.md"] = markdown(section, [f"{p.key}.png" for p in section.panels]).encode()
    files[f"{name}.json"] = records.canonical(summary(request, groups, section))
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
    """Table, curves, and a cell per variant with its seeds; commits and machines are listed once and numbered."""
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
                "ended_in_nan": sorted(g.diverged),
                "runs": {str(s): run.name for s, run in g.runs.items()},
                "seconds": {str(s): run.record.clock.get("elapsed_s") for s, run in g.runs.items()},
                "code": {str(s): number("code", run.record.code) for s, run in g.runs.items()},
                "hardware": sorted({number("hardware", {**r.hardware, "backend": r.backend}) for r in every}),
                "config": _plain(config),
            }
        )
    tables = {"table": section.table, "details": section.details}
    return {
        "study": request.study.name,
        "command": command(request),
        "scale": request.scale,
        "seeds": request.seeds,
        "methods": list(request.methods),
        "only": {key: list(values) for key, values in request.only.items()},
        "changes": _plain(dict(request.changes)),
        "sentence": section.sentence,
        "notes": section.notes,
        **{name: t and {"head": list(t.head), "rows": [list(r) for r in t.rows]} for name, t in tables.items()},
        "curves": {p.key: [curve for axes in p.figure.axes for curve in _curves(axes)] for p in section.panels},
        **shared,
        "cells": cells,
    }


def command(request: Request) -> str:
    """The command that makes this result, without the folders of the machine that ran it."""
    parts = ["python -m experiments", request.study.name, "--scale", request.scale, "--seeds", str(request.seeds)]
    parts += ["--methods", *request.methods]
    parts += ["--only", *(f"{key}={','.join(values)}" for key, values in request.only.items())] if request.only else []
    for name, value in _plain(dict(request.changes)).items():
        parts += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    return " ".join(parts)


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
    """Without the folders of the machine that ran it; the name of a bundled network stays."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k.rpartition(".")[2] not in _PRIVATE or _is_bundled(k, v)}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _is_bundled(field: str, value: Any) -> bool:
    return field.endswith("weights") and value in list_pretrained()


def markdown(section: PageSection, figures: Sequence[str] = ()) -> str:
    """Title, sentence, figures, table, notes; the same text for the same records."""
    parts = [f"# {_cell(section.title)}", section.sentence]
    parts += [f"![{_cell(p.alt)}]({name})" for p, name in zip(section.panels, figures, strict=False)]
    if section.table is not None:
        parts.append(_table(section.table))
    parts += section.notes
    parts += [_table(section.details)] if section.details is not None else []
    return "\n\n".join(parts) + "\n"


def _table(t: Table) -> str:
    """Rows as a Markdown table.

    >>> print(_table(Table(("method", "%"), [["a|b", "1"]], numbers=(1,))))
    | method | % |
    |---|---:|
    | a\\|b | 1 |
    """
    rule = "|" + "|".join("---:" if i in t.numbers else "---" for i in range(len(t.head))) + "|"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in (t.head, *t.rows)]
    return "\n".join([rows[0], rule, *rows[1:]])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
