"""A sweep from its file to its table: one trial after the other or several at once, then the best configuration.

sweeps/<name>/  sweep.json  journal.jsonl  trials/trial-0000/ ...  results.json  best.toml
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.options import flatten
from mpd_agl.records import canonical, explain, lock_file, write_atomic
from mpd_agl.sweeps import optuna_study as studies
from mpd_agl.sweeps.config import Sweep, changed
from mpd_agl.sweeps.jobs import Done, Processes
from mpd_agl.sweeps.trial import run_path, run_trial
from mpd_agl.train import checkpoint
from mpd_agl.train.config import FREE_ON_RESUME
from mpd_agl.train.observe import Display
from mpd_agl.train.resolve import merge, nest, resolve, to_toml

Report = Callable[[dict[str, Any]], None]
"""Takes the row of a trial that has ended."""
STUCK = 2
"""The sweep ends when so many jobs of a trial in a row bring it no further."""


@contextmanager
def open_sweep(sweep: Sweep, folder: Path) -> Iterator[Any]:
    """The sweep's folder, locked, and its study. A folder of another sweep is refused."""
    studies.load_optuna()
    if folder.exists() and not (folder / "sweep.json").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is no sweep's folder (no sweep.json in it). Choose another --name.")
    try:
        if (folder / "sweep.json").is_file():
            check_same_sweep(read_folder(folder), sweep, folder)
        (folder / "trials").mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("ab") as lock:
            if not lock_file(lock):
                raise InputError(
                    f"the sweep {folder} is in use by another process. Wait for it, or choose another --name."
                )
            write_atomic(folder / "sweep.json", canonical(sweep.to_dict()))
            yield studies.open_study(folder, sweep)
    except OSError as error:
        raise explain(error, folder) from error


def read_folder(folder: Path) -> Sweep:
    """The sweep that a folder holds."""
    path = folder / "sweep.json"
    try:
        return Sweep.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{folder} is no sweep's folder (no sweep.json in it).") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}). Start a new sweep with another --name.") from None


def check_same_sweep(old: Sweep, new: Sweep, folder: Path) -> None:
    """Refuse to continue with another space or recipe. `trials` and what a resumed run may change may differ."""
    free = tuple(f"base.{name}" for name in FREE_ON_RESUME)
    if differ := changed(old.to_dict(), new.to_dict(), free):
        raise InputError(
            f"the sweep {folder} began with other settings: {'; '.join(differ)}. "
            "Use the old ones, or another --name for a new sweep."
        )


def changes_on_resume(sweep: Sweep) -> dict[str, Any]:
    """What a continued run takes from the sweep's file as it is now."""
    values = flatten(sweep.base.model_dump())
    return nest({name: values[name] for name in FREE_ON_RESUME if name in values and name not in sweep.space})


def run_here(
    sweep: Sweep, folder: Path, study: Any, display: Display, report: Callable[[dict[str, Any]], None]
) -> None:
    """Run trial after trial in this process, first one that was interrupted."""
    while (number := _next(study, sweep, set())) is not None:
        run_trial(sweep, folder, number, display, changes_on_resume(sweep))
        report(studies.rows(study, sweep)[number])


def run_jobs(sweep: Sweep, folder: Path, study: Any, jobs: Processes, report: Report) -> None:
    """Several trials at once. A job that ends without a result is submitted again as long as its run gets further."""
    running: dict[int, Done] = {}
    reached: dict[int, list[Any]] = {}
    poll = 0.2
    while True:
        for number in [n for n, done in running.items() if done()]:
            del running[number]
            row = studies.rows(study, sweep)[number]
            if row["state"] != "running":
                report(row)
                continue
            reached.setdefault(number, []).append(_reached(folder, number))
            if len(reached[number]) >= STUCK and len(set(reached[number][-STUCK:])) == 1:
                raise InputError(
                    f"trial {number} ended {STUCK} times without getting further: {_last_line(jobs.log(number))} "
                    f"Its output: {jobs.log(number)}."
                )
        while len(running) < jobs.limit and (following := _next(study, sweep, set(running))) is not None:
            running[following] = jobs.attach(following) or jobs.submit(following)
            poll = 0.2
        if not running:
            return
        time.sleep(poll)
        poll = min(5.0, 1.5 * poll)


def _next(study: Any, sweep: Sweep, running: set[int]) -> int | None:
    """The next trial to run: an open one, else a new one, else none."""
    open_ = [n for n in studies.unfinished(study) if n not in running]
    if open_:
        return open_[0]
    return studies.next_trial(study, sweep) if studies.begun(study) < sweep.trials else None


def _reached(folder: Path, number: int) -> Any:
    kept = checkpoint.positions(run_path(folder, number) / "checkpoints")
    return kept[-1] if kept else None


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it printed nothing."
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing.")


def finish(sweep: Sweep, folder: Path, study: Any) -> dict[str, Any]:
    """Write results.json and, where a trial went to its end, best.toml; return the results."""
    rows = studies.rows(study, sweep)
    best = studies.best(rows, sweep)
    optuna: str = studies.load_optuna().__version__
    results = {
        "score": sweep.score,
        "maximize": sweep.maximize,
        "trials": rows,
        "best": best,
        "sweep": sweep.to_dict(),
        "code": records.code(),
        "versions": {**records.versions(), "optuna": optuna},
        "hardware": records.hardware(),
    }
    write_atomic(folder / "results.json", canonical(results))
    if best is not None:
        config = sweep.config_for(best["params"])
        config = resolve(merge(config.model_dump(), {"data": {"holdout": 0}}))
        warning = (
            f"chosen on {sweep.base.data.holdout} held-out training samples; "
            "here nothing is held out and epochs are scored on the test set"
            if sweep.base.data.holdout
            else "CHOSEN ON THE TEST SET: its test accuracy is optimistic and no result"
        )
        head = (
            f"# trial {best['trial']}, the best of {len(rows)} of the sweep {folder.name}: "
            f"{sweep.score} {best['value']:.4f};\n"
            f"# {warning}.\n# mpd-agl train --config {folder / 'best.toml'}\n"
        )
        write_atomic(folder / "best.toml", (head + to_toml(config)).encode())
    return results
