"""`mpd-agl train`: a run from a preset, a file and the command line; `--resume` continues one, `--dry-run` measures one."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpd_agl.cli.options import Options, parse
from mpd_agl.errors import InputError
from mpd_agl.runs.config import RunConfig
from mpd_agl.runs.presets import read_preset
from mpd_agl.runs.resolve import flatten, merge, nest, read_toml, resolve
from mpd_agl.train.runfolder import RunFolder, check_free, check_name, check_run

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
        task = prepare(options, free="TORCHELASTIC_RUN_ID" not in os.environ)
    except InputError:
        if rank():  # rank 0 says it
            return EXIT_BAD
        raise
    if "dry-run" in options.flags and task.config is not None:
        from mpd_agl.cli.dryrun import show

        return show(task.config, as_json="json" in options.flags)
    return _train(task)


def prepare(options: Options, *, free: bool) -> Task:
    """Check a command line; `free`: its folder too, before torch is imported, so that a refusal takes no second."""
    if "resume" in options.values:
        return _prepare_resume(options, free)
    table, mistakes = gather(options)
    path = Path(options.values.get("runs-dir", "runs")).expanduser() / run_name(options, table)
    if free and not mistakes and "dry-run" not in options.flags:
        check_free(path, overwrite="overwrite" in options.flags)
    return Task(options, path, resolve(table, given=options.overrides, mistakes=mistakes))


def _help(options: Options) -> int:
    from mpd_agl.cli.trainhelp import help_text

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
    return check_name(f"{what}-{method}-s{values['seed']}")


def _prepare_resume(options: Options, free: bool) -> Task:
    surplus = sorted(
        (options.flags & {"overwrite", "dry-run"}) | (set(options.values) & {"preset", "name", "runs-dir"})
    )
    mistakes = options.mistakes + [
        f"--{name} does not go with --resume, which continues a run as it is." for name in surplus
    ]
    if mistakes:
        raise InputError(
            mistakes[0] if len(mistakes) == 1 else f"{len(mistakes)} mistakes:\n  " + "\n  ".join(mistakes)
        )
    path = Path(options.values["resume"]).expanduser()
    check_run(path)
    if free:
        RunFolder.open(path).close()
    changes = nest(options.overrides)
    if "config" in options.values:
        changes = merge(read_toml(Path(options.values["config"]).expanduser()), changes)
    return Task(options, path, None, changes)


def _train(task: Task) -> int:
    """Start or resume, on this process or as one of several, and tell how it ended."""
    from mpd_agl.runs.resuming import began_in_this_launch
    from mpd_agl.runs.training import resume, start
    from mpd_agl.train.console import Mute, build_display, duration
    from mpd_agl.train.distributed import EXIT_ALONE, EndedTogether, PeerLost, connect
    from mpd_agl.train.signals import EXIT_SAVED, Stopped

    options, path, config = task.options, task.path, task.config
    quiet, as_json = "quiet" in options.flags, "json" in options.flags
    display = build_display("json" if as_json else "quiet" if quiet else "auto") if rank() == 0 else Mute()
    try:
        with connect() as ranks:
            if config is None:
                record = resume(path, task.changes, display, ranks=ranks)
            elif began_in_this_launch(path, ranks):
                if "overwrite" in options.flags:
                    display.note("--overwrite is left aside: the run there is this launch's own, and is continued.")
                record = resume(path, config.model_dump(mode="json"), display, ranks=ranks, restarted=True)
            else:
                record = start(config, path, display, overwrite="overwrite" in options.flags, ranks=ranks)
    except PeerLost as lost:
        if rank() == 0:
            print(
                f"mpd-agl: another process of this run is gone ({lost}); the last checkpoint stands.", file=sys.stderr
            )
        return EXIT_ALONE
    except EndedTogether:
        return EXIT_BAD
    except InputError as error:
        raise InputError(f"rank {rank()}: {error}" if rank() else str(error)) from error
    except Stopped as stop:
        if rank():
            return EXIT_SAVED
        if as_json:
            print(json.dumps({"event": "stopped", "by": stop.by, "step": stop.step}))
        else:
            print(f"stopped by {stop.by} at step {stop.step}, saved. Continue: mpd-agl train --resume {path}")
        return EXIT_SAVED
    if rank():
        return 0
    if as_json:
        print(json.dumps({"event": "record", **record.to_dict()}))
        return 0
    final, best = record.final or {}, record.best_on_test or {}
    held_out = record.config["data"].get("holdout")
    scored, where = ("validation", "held-out samples") if held_out else ("test", "test set")
    print(
        f"{scored} accuracy {100 * final['test_accuracy']:.2f} % at the last epoch, {final['epoch']} "
        f"(best on the {where}: {100 * best['test_accuracy']:.2f} %, epoch {best['epoch']}); "
        f"{duration(record.clock['elapsed_s'])}; {path}"
    )
    return 0
