"""`mpd-agl train`: a run from preset, file and command line; `--resume` continues one, `--dry-run` measures one."""

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpd_agl.cli.options import Options, parse
from mpd_agl.cli.trainhelp import help_text
from mpd_agl.errors import InputError
from mpd_agl.options import flatten
from mpd_agl.records import RunRecord
from mpd_agl.records.progress import duration
from mpd_agl.train.config import RunConfig
from mpd_agl.train.console import Mute, build_display
from mpd_agl.train.distributed import EXIT_ALONE, EndedTogether, PeerLost, connect
from mpd_agl.train.dry_run import measure
from mpd_agl.train.observe import Display
from mpd_agl.train.presets import read_preset
from mpd_agl.train.resolve import as_error, merge, nest, read_toml, resolve, to_toml
from mpd_agl.train.resuming import began_in_this_launch
from mpd_agl.train.runfolder import check_name, check_run, find_run
from mpd_agl.train.signals import EXIT_SAVED, Stopped
from mpd_agl.train.training import resume, start

EXIT_BAD = 2


@dataclass(frozen=True)
class Task:
    """What a command line asks for, checked: a run to start (with a configuration) or to continue (without)."""

    options: Options
    path: Path
    config: RunConfig | None = None
    changes: dict[str, Any] = field(default_factory=dict)


def rank() -> int:
    """The number of this process among those of its run, as a launcher set it."""
    return int(os.environ.get("RANK", "0"))


def run(argv: list[str]) -> int:
    """Train; return the exit code."""
    options = parse(argv)
    if "help" in options.flags:
        return _help(options)
    try:
        task = prepare(options)
    except InputError:
        if rank():  # rank 0 says it
            return EXIT_BAD
        raise
    if "dry-run" in options.flags and task.config is not None:
        return _dry_run(task.config, as_json="json" in options.flags)
    return _train(task)


def prepare(options: Options) -> Task:
    """Check a command line."""
    if "resume" in options.values:
        return _prepare_resume(options)
    table, mistakes = gather(options)
    path = Path(options.values.get("runs-dir", "runs")).expanduser() / run_name(options, table)
    return Task(options, path, resolve(table, given=options.overrides, mistakes=mistakes))


def _help(options: Options) -> int:
    print(help_text(read_preset(options.values["preset"]) if "preset" in options.values else {}), end="")
    return 0


def gather(options: Options) -> tuple[dict[str, Any], list[str]]:
    """The values of preset, file and command line, later ones over earlier ones, and the mistakes so far."""
    tables, mistakes = [], list(options.mistakes)
    if "preset" in options.values:
        try:
            tables.append(read_preset(options.values["preset"]))
        except InputError as error:
            mistakes.append(f"--preset: {error}")
    if "config" in options.values:
        tables.append(read_toml(Path(options.values["config"]).expanduser()))
    if not tables and not options.overrides and not mistakes:
        raise InputError(
            "nothing to train: give --preset demo, or --config FILE. `mpd-agl train --help` lists the presets."
        )
    return merge(*tables, nest(options.overrides)), mistakes


def run_name(options: Options, table: dict[str, Any]) -> str:
    """As given, or from what is run."""
    if "name" in options.values:
        return check_name(options.values["name"])
    values = flatten(RunConfig().model_dump()) | flatten(table)
    what = options.values.get("preset") or f"{values['data.name']}-{values['model.name']}"
    method = "ann" if values["model.ann"] in (True, "true") else values["method"]
    # A name that is in no registry is refused for itself, in `resolve`, and not for its letters here.
    return check_name(re.sub(r"[^\w.+=-]", ".", f"{what}-{method}-s{values['seed']}"))


def _prepare_resume(options: Options) -> Task:
    surplus = sorted(
        (options.flags & {"overwrite", "dry-run"}) | (set(options.values) & {"preset", "name", "runs-dir"})
    )
    mistakes = options.mistakes + [
        f"--{name} does not go with --resume, which continues a run as it is." for name in surplus
    ]
    if mistakes:
        raise as_error(mistakes, "the command line")
    path = find_run(options.values["resume"])
    check_run(path)
    changes = nest(options.overrides)
    if "config" in options.values:
        changes = merge(read_toml(Path(options.values["config"]).expanduser()), changes)
    return Task(options, path, None, changes)


def _train(task: Task) -> int:
    """Start or resume, on this process or as one of several, and report its end."""
    flags, path = task.options.flags, task.path
    as_json = "json" in flags
    display = build_display("json" if as_json else "quiet" if "quiet" in flags else "auto") if rank() == 0 else Mute()
    try:
        record = _start_or_resume(task, display)
    except PeerLost as lost:
        _say(f"mpd-agl: another process of this run is gone ({lost}); the last checkpoint stands.", sys.stderr)
        return EXIT_ALONE
    except EndedTogether:
        return EXIT_BAD
    except InputError as error:
        if rank():
            raise InputError(f"rank {rank()}: {error}", error.code) from error
        raise
    except Stopped as stop:
        line = json.dumps({"log": "stopped", "by": stop.by, "step": stop.step})
        words = f"stopped by {stop.by} at step {stop.step}, saved. Continue: mpd-agl train --resume {path}"
        _say(line if as_json else words)
        return EXIT_SAVED
    _say(json.dumps({"log": "record", **record.to_dict()}) if as_json else _result(record, path))
    return 0


def _start_or_resume(task: Task, display: "Display") -> "RunRecord":
    path, config, overwrite = task.path, task.config, "overwrite" in task.options.flags
    with connect() as ranks:
        if config is None:
            return resume(path, task.changes, display, ranks=ranks)
        if began_in_this_launch(path, ranks):
            if overwrite:
                display.note("--overwrite is ignored: this launch began the run there, and continues it.")
            return resume(path, config.model_dump(mode="json"), display, ranks=ranks, restarted=True)
        return start(config, path, display, overwrite=overwrite, ranks=ranks)


def _say(text: str, where: Any = None) -> None:
    """Print, if this is the process that speaks for its run."""
    if rank() == 0:
        print(text, file=where)


def _result(record: "RunRecord", path: Path) -> str:
    final, best = record.final or {}, record.best_on_test or {}
    held_out = record.config["data"].get("holdout")
    scored, where = ("validation", "held-out samples") if held_out else ("test", "test set")
    return (
        f"{scored} accuracy {100 * final['test_accuracy']:.2f} % at the last epoch, {final['epoch']} "
        f"(best on the {where}: {100 * best['test_accuracy']:.2f} %, epoch {best['epoch']}); "
        f"{duration(record.clock['elapsed_s'])}; {path}"
    )


def _dry_run(config: RunConfig, *, as_json: bool) -> int:
    """Print the configuration, and what it would cost."""
    e = measure(config)  # first, so that an error is printed alone
    if as_json:
        print(json.dumps({"config": config.model_dump(mode="json"), "estimate": vars(e)}))
        return 0
    print(to_toml(config))
    T, N = config.model.num_steps, config.train.batch_size
    rows = {
        "parameters": f"{e.parameters:,}",
        "operations": "not counted in your own network"
        if e.macs_per_step is None
        else f"{e.macs_per_step / 1e6:,.2f} M multiply-accumulates per input and timestep, times T={T}",
        "backend": e.backend,
        "measured on": f"{e.data}, {e.steps_measured} steps of {N}",
        "step": f"{1e3 * e.step_s:.1f} ms ({1e3 * e.step_s / N:.2f} ms per image)",
        "epoch": f"{duration(e.epoch_s)}, of it testing {duration(e.test_s)}",
        "run": f"{duration(e.run_s)} for {config.train.epochs} epochs",
        "peak memory": "not known here" if e.peak_mb is None else f"{e.peak_mb:,.0f} MB",
    }
    print("\n".join(f"{name:14}{text}" for name, text in rows.items()))
    return 0
