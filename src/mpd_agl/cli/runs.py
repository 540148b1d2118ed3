"""`mpd-agl runs`: the runs in a folder as a table."""

import argparse
import json
import math
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpd_agl.cli.arguments import Parser, print_table
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.records import read_metrics, read_record, reading
from mpd_agl.records.progress import duration
from mpd_agl.train.runfolder import MARK, in_use

COLUMNS = ("name", "status", "method", "model", "data", "epochs", "accuracy", "best", "time", "started")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="mpd-agl runs", description="List runs. Accuracy is the last epoch's; best is on the test set.")
    p.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="folder of runs (default runs)")
    p.add_argument("--runs-dir", type=Path, metavar="DIR", help="the same, as `mpd-agl train` calls it")
    p.add_argument("--sort", default="started", choices=COLUMNS, help="column to sort by (default started)")
    p.add_argument("--reverse", action="store_true", help="from the other end")
    p.add_argument("--json", action="store_true", help="print JSON lines")
    p.add_argument(
        "--open", nargs="?", const="", metavar="NAME", help="open a run's report in the browser (default: the newest's)"
    )
    return p


def run(argv: list[str]) -> int:
    """Read the records and print."""
    a = parser().parse_args(argv)
    if a.folder and a.runs_dir and a.folder != a.runs_dir:
        raise InputError(f"two folders of runs: {a.folder} and --runs-dir {a.runs_dir}. Name one.")
    folder: Path = a.folder or a.runs_dir or Path("runs")
    if not folder.is_dir():
        raise InputError(
            f"no folder of runs at {folder}. Train one with `mpd-agl train --preset demo`, or name the folder."
        )
    rows = [row for path in sorted(folder.iterdir()) if (row := read_row(path)) is not None]
    if a.open is not None:
        return _open(folder, a.open, rows)
    rows.sort(key=lambda r: (r[a.sort] is not None, r[a.sort]), reverse=a.reverse)
    if a.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    if not rows:
        print(f"no runs in {folder}")
        return 0
    _print(rows)
    return 0


def _open(folder: Path, name: str, rows: list[dict[str, Any]]) -> int:
    """Write the report where the records are newer than it, and show it."""
    from mpd_agl.cli import report

    known = sorted((row["started"] or "", row["name"]) for row in rows if row["status"] != "unreadable")
    if not known:
        raise InputError(f"no runs in {folder}. Train one with `mpd-agl train --preset demo`.")
    if name and name not in (names := [n for _, n in known]):
        raise unknown_name(f"run in {folder}", name, names)
    path = folder / (name or known[-1][1])
    page = path / "report.html"
    written = [p for p in (path / "record.json", path / "metrics.jsonl") if p.is_file()]
    if not page.is_file() or any(p.stat().st_mtime > page.stat().st_mtime for p in written):
        report.run([str(path)])
    else:
        print(f"report: {page}")
    if not webbrowser.open(page.resolve().as_uri()):
        print("No browser opens here. Open that file by hand.")
    return 0


def read_row(path: Path) -> dict[str, Any] | None:
    """A run in one row; None where there is no run. A record that cannot be read is a row that says so."""
    if not (path / MARK).is_file():
        return None
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row["name"] = path.name
    alive = in_use(path)
    try:
        record = read_record(path / "record.json")
        with reading(path):
            config, m = record.config, record.config["model"]
            status = record.status if alive or record.status != "running" else "killed"
            last = record.final or last_epoch(path / "metrics.jsonl") or {}
            best = record.best_on_test or {}
            return {
                **row,
                "status": "running" if alive else status,
                "method": record.method,
                "model": f"{m['name']} x{m['width_mult']:g} T={m['num_steps']}"
                if "class" not in record.network
                else f"{record.network['class'].rpartition(':')[2]} T={record.network['num_steps']}",
                "data": str(config["data"]["name"]) + (" (held out)" if config["data"].get("holdout") else ""),
                "epochs": f"{last.get('epoch', 0)}/{config['train']['epochs']}",
                "accuracy": _number(last.get("test_accuracy")),
                "best": _number(best.get("test_accuracy")),
                "time": _number(record.clock.get("elapsed_s", last.get("elapsed_s"))),
                "started": None if record.clock.get("started") is None else str(record.clock["started"]),
            }
    except InputError:
        return {**row, "status": "unreadable"}


def _number(value: Any) -> float | None:
    if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
        raise InputError(f"expected a number, got {value!r}.")
    return value


def last_epoch(path: Path) -> dict[str, Any] | None:
    """The newest epoch of an unfinished run's metrics."""
    last = None
    try:
        for line in read_metrics(path):
            last = line if line.get("log") == "epoch" else last
    except InputError:
        return last
    return last


def _print(rows: list[dict[str, Any]]) -> None:
    shown: dict[str, Callable[[Any], str]] = {
        "accuracy": lambda share: f"{100 * share:.2f} %",
        "best": lambda share: f"{100 * share:.2f} %",
        "time": duration,
        "started": lambda moment: str(moment[:16].replace("T", " ")),
    }
    numbers = [COLUMNS.index(name) for name in ("epochs", "accuracy", "best", "time")]
    cells = [["" if row[n] is None else shown.get(n, str)(row[n]) for n in COLUMNS] for row in rows]
    print_table(COLUMNS, cells, numbers)
