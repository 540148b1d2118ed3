"""Keeps the finished runs of `python -m experiments` in one small file, and lays them out again on another machine.

    python -m tools.kept_runs keep runs/experiments/pool FILE     # adds them to FILE, such as runs.tar.xz
    python -m tools.kept_runs lay runs/experiments/pool FILE      # there the experiments find them and train the rest

Of a run its record, the lines of its epochs and the last line of its monitor (to four digits) are kept, without folders
of the machine that ran it. `--monitor` keeps every line of the monitor, which figures over training need. A median
width that is drawn from kept runs may differ in its last digit.
"""

import argparse
import io
import json
import lzma
import re
import sys
import tarfile
from pathlib import Path
from typing import Any

from mpd_agl.errors import InputError
from mpd_agl.records import canonical, read_metrics, read_record, reading, write_atomic
from mpd_agl.report.runs import LAYER_KEYS, read_run
from mpd_agl.train.runfolder import MARK
from tools.pretrained import plain

NAME = re.compile(r"[\w.@=,-]+")
MOST_BYTES = 2**20


def kept_of(path: Path, *, whole_monitor: bool = False) -> dict[str, Any] | None:
    """What is kept of a run; None where it has not ended."""
    if not (path / "record.json").is_file():
        return None
    record = read_record(path / "record.json")
    diverged = record.failure_code == "not-finite"
    if record.status != "finished" and not diverged:
        return None
    lines = list(read_metrics(path / "metrics.jsonl"))
    monitor = [line for line in lines if line.get("log") == "monitor"]
    monitor = monitor if whole_monitor else monitor[-1:]
    for line in monitor:
        line["layers"] = {
            name: {k: _short(v) for k, v in layer.items() if k in (*LAYER_KEYS, "v_th")}
            for name, layer in line["layers"].items()
        }
    epochs = [line for line in lines if line.get("log") == "epoch"]
    return {"record": plain({**record.to_dict(), "convs": None, "energy": None}), "lines": [*epochs, *monitor]}


def _short(value: Any) -> Any:
    """Four digits of each number: what a figure shows."""
    if isinstance(value, list):
        return [_short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read_kept(file: Path) -> dict[str, dict[str, Any]]:
    """The runs of a file by their names; nothing in it is unpacked."""
    if not file.is_file():
        return {}
    found = {}
    try:
        with reading(file), tarfile.open(file, "r:xz") as tar:
            for member in tar:
                name = member.name.removesuffix(".json")
                stream = tar.extractfile(member)
                if stream is None or not NAME.fullmatch(name):
                    raise ValueError(f"an entry {member.name!r}")
                found[name] = json.loads(stream.read())
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{file} holds no kept runs ({error}). Get it again.") from None
    return found


def write_kept(file: Path, runs: dict[str, dict[str, Any]]) -> int:
    """Write the runs in the order of their names: the same runs give the same bytes. Returns how many bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as tar:
        for name, run in sorted(runs.items()):
            data = canonical(run)
            entry = tarfile.TarInfo(f"{name}.json")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    if len(data := buffer.getvalue()) >= MOST_BYTES:
        raise InputError(f"{len(runs)} runs need {len(data):,} bytes, more than {MOST_BYTES:,}. Keep some elsewhere.")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, data)
    return len(data)


def keep(pool: Path, file: Path, *, whole_monitor: bool = False) -> str:
    """Add a pool's finished runs to the file; a run that is there already stays as it is."""
    if not pool.is_dir():
        raise InputError(f"no runs at {pool}: the folder is not there. Give the pool of the experiments.")
    there = read_kept(file)
    found = {p.name: kept_of(p, whole_monitor=whole_monitor) for p in sorted(pool.iterdir()) if p.name not in there}
    new = {name: run for name, run in found.items() if run is not None}
    size = write_kept(file, there | new)
    return f"{file}: {len(new)} runs added, {len(there) + len(new)} in all, {size:,} bytes"


def lay(file: Path, pool: Path) -> str:
    """Lay the kept runs out as run folders; a run that is there stays as it is."""
    runs = read_kept(file)
    if not runs:
        raise InputError(f"no runs are kept in {file}. Name another file.")
    laid = 0
    for name, run in runs.items():
        folder = pool / name
        if (folder / MARK).exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(line) + "\n" for line in run["lines"])
        write_atomic(folder / "metrics.jsonl", lines.encode())
        write_atomic(folder / "record.json", canonical(run["record"]))
        write_atomic(folder / MARK, b"# a finished run, laid out by tools/kept_runs.py; settings: record.json\n")
        read_run(folder)
        laid += 1
    return f"{pool}: {laid} runs laid out, {len(runs) - laid} were there"


def main(argv: list[str] | None = None) -> int:
    """Keep, or lay out."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("keep", "lay"))
    p.add_argument("pool", type=Path, help="the folder `pool` in the --runs-dir of the experiments")
    p.add_argument("file", type=Path, help="the archive, such as docs/results/evidence/runs.tar.xz")
    p.add_argument("--monitor", action="store_true", help="keep every line of the monitor, not the last alone")
    a = p.parse_args(argv)
    try:
        print(keep(a.pool, a.file, whole_monitor=a.monitor) if a.what == "keep" else lay(a.file, a.pool))
    except InputError as error:
        print(f"kept_runs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
