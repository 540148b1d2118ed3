"""`mpd-agl sweep sweep.toml`: search over fields of a configuration; the same command continues a stopped sweep."""

import argparse
import json
import signal
import time
from pathlib import Path
from typing import Any

from mpd_agl.cli.arguments import Parser, print_table
from mpd_agl.errors import InputError
from mpd_agl.records.progress import duration
from mpd_agl.sweeps.config import Sweep, read_sweep
from mpd_agl.sweeps.jobs import Processes, Submitted, parse_slurm
from mpd_agl.sweeps.sweep import changes_on_resume, finish, open_sweep, read_folder, run_here, run_jobs
from mpd_agl.sweeps.trial import run_trial
from mpd_agl.train.console import Lines, build_display, time_left
from mpd_agl.train.dry_run import measure
from mpd_agl.train.runfolder import check_name
from mpd_agl.train.signals import EXIT_SAVED, Stopped

EXAMPLE = """a file:
  preset = "demo"
  trials = 12
  [fixed]
  "train.epochs" = 4
  [search]
  "optim.lr" = {low = 0.01, high = 1.0, log = true}
  method = {choices = ["mpd-agl", "lsg"]}
"""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl sweep",
        description="Search over fields of a configuration. The same command again continues where it was stopped.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("file", type=Path, metavar="FILE", help="the sweep's TOML file")
    p.add_argument("--name", help="the sweep's name (default: the file's)")
    p.add_argument("--sweeps-dir", type=Path, default=Path("sweeps"), metavar="DIR", help="default: sweeps")
    p.add_argument("--workers", type=int, default=1, metavar="N", help="trials at a time, each a process of its own")
    p.add_argument(
        "--slurm",
        metavar="WORDS",
        help="through submitit: partition=gpu,gpus=1,hours=4,jobs=8 (also account, qos, constraint, cpus, memory); "
        "local: submitit's own local executor",
    )
    p.add_argument(
        "--dry-run", action="store_true", help="print space, trials and cost from measured steps; run nothing"
    )
    p.add_argument("--quiet", action="store_true", help="no lines per epoch")
    p.add_argument("--json", action="store_true", help="print the results as JSON")
    p.add_argument("--trial", type=int, help=argparse.SUPPRESS)  # in a job: run this trial of the folder FILE
    return p


def run(argv: list[str]) -> int:
    """Check, run, print."""
    a = parser().parse_args(argv)
    if a.trial is not None:
        return _trial(a.file, a.trial)
    if a.workers < 1:
        raise InputError(f"--workers must be at least 1, got {a.workers}.")
    if a.slurm is not None and a.workers > 1:
        raise InputError("--workers does not go with --slurm. Say how many jobs at a time with --slurm ...,jobs=N.")

    from mpd_agl.sweeps.optuna_study import load_optuna

    words = None if a.slurm is None else parse_slurm(a.slurm)
    sweep = read_sweep(a.file)
    folder = a.sweeps_dir.expanduser() / check_name(a.name or a.file.stem)
    if a.dry_run:
        return _dry_run(sweep, as_json=a.json)
    load_optuna()
    return _run(a, sweep, folder, words)


def _trial(folder: Path, number: int) -> int:
    sweep = read_folder(folder)
    try:
        run_trial(sweep, folder, number, Lines(), changes_on_resume(sweep))
    except Stopped as stop:
        print(f"stopped by {stop.by} at step {stop.step}, saved")
        return EXIT_SAVED
    return 0


def _run(a: argparse.Namespace, sweep: "Sweep", folder: Path, words: dict[str, str] | None) -> int:
    from mpd_agl.sweeps import optuna_study as studies

    say = (lambda text: None) if a.json else print
    jobs: Processes | None = None
    if words is not None:
        jobs = Submitted(folder, words)
    elif a.workers > 1:
        jobs = Processes(folder, a.workers)
    with open_sweep(sweep, folder) as study:
        there, began, ended_now = studies.begun(study), time.monotonic(), 0
        left = sweep.trials - sum(row["state"] != "running" for row in studies.rows(study, sweep))
        say(f"{sweep.trials} trials by {sweep.score}, {there} begun before; {folder}")

        def report(row: dict[str, Any]) -> None:
            nonlocal ended_now
            ended_now += 1
            best = studies.best(studies.rows(study, sweep), sweep)
            so_far = f"; best so far: trial {best['trial']}, {best['value']:.4f}" if best else ""
            say(f"trial {row['trial']}: {outcome(row)}, {point(row['params'])}{so_far}")
            if left > 1:
                say(time_left(ended_now, left, time.monotonic() - began))

        try:
            if jobs is None:
                run_here(sweep, folder, study, build_display("quiet" if a.quiet or a.json else "auto"), report)
            else:
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                run_jobs(sweep, folder, study, jobs, report)
        except (Stopped, KeyboardInterrupt):
            ended = jobs is None or jobs.interrupt()
            what = "stopped and saved" if ended else "stopped; its jobs continue"
            say(f"{what}. Continue with the same command.")
            return EXIT_SAVED
        except InputError:
            if jobs is not None:
                jobs.interrupt()
            raise
        results = finish(sweep, folder, study)
    if a.json:
        print(json.dumps(results))
        return 0
    print_trials(results, sweep)
    if results["best"] is None:
        print(f"no trial went to its end. The reasons are in {folder / 'results.json'}.")
        return 2
    print(
        f"best: trial {results['best']['trial']}, {sweep.score} {results['best']['value']:.4f}; {folder / 'best.toml'}"
    )
    print(f"train it, nothing held out, scored on the test set: mpd-agl train --config {folder / 'best.toml'}")
    return 0


def outcome(row: dict[str, Any]) -> str:
    """How a trial ended, in words."""
    if row["state"] == "fail":
        return f"failed ({row['reason']})"
    value = "" if row["value"] is None else f" {row['value']:.4f}"
    return f"{row['state']}{value} after {row['epochs']} epochs"


def point(params: dict[str, Any]) -> str:
    """A point of the space in one line."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in params.items()
    )


def print_trials(results: dict[str, Any], sweep: "Sweep") -> None:
    """The trials, best first, then those that did not go to their end."""

    def order(row: dict[str, Any]) -> tuple[bool, float, int]:
        value = float("inf") if row["value"] is None else (-1 if sweep.maximize else 1) * row["value"]
        return row["state"] != "complete", value, row["trial"]

    rows = []
    for row in sorted(results["trials"], key=order):
        value = "" if row["value"] is None else f"{row['value']:.4f}"
        params = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row["params"].values()]
        rows.append([str(row["trial"]), row["state"], value, str(row["epochs"]), *params])
    head = ("trial", "state", sweep.score, "epochs", *sweep.space)
    print_table(head, rows, (i for i in range(len(head)) if i != 1))


def _dry_run(sweep: "Sweep", *, as_json: bool) -> int:
    estimate = measure(sweep.base)
    most_s = estimate.run_s * sweep.trials
    if as_json:
        print(json.dumps({"sweep": sweep.to_dict(), "trials": sweep.trials, "run_s": estimate.run_s, "most_s": most_s}))
        return 0
    s, d = sweep.settings, sweep.base.data
    scored = f"{d.holdout} held-out training samples" if d.holdout else "the test set"
    rows = {
        **{name: str(entry) for name, entry in sweep.space.items()},
        "trials": f"{sweep.trials}, sampler {s.sampler}, seed {s.seed}, pruner {s.pruner}",
        "objective": f"{sweep.score} of the last epoch, {'highest' if sweep.maximize else 'lowest'}, "
        f"on {scored} of {d.name}",
        "a run": f"{duration(estimate.run_s)} for {sweep.base.train.epochs} epochs, from {estimate.steps_measured} "
        f"steps on {estimate.data}, with the values of the recipe",
        "the sweep": f"at most {duration(most_s)} one after the other; pruning makes it less",
    }
    width = max(map(len, rows)) + 2
    print("\n".join(f"{name:{width}}{text}" for name, text in rows.items()))
    return 0
