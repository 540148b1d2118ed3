"""Run rows of the fault table and write their records; each row is a process of its own.

usage: python -m tests.faults ROW [--tries N] [--seed S] [--out FILE] [--folder DIR]
       python -m tests.faults few [--out DIR]  a few tries of the quick rows, without limits of time: for the test suite
       python -m tests.faults all [--out DIR]  every row at its nightly size, except those with a record of this commit
       python -m tests.faults table            write the table of docs/reliability.md from the records
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from mpd_agl import records
from tests.faults import tally

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "faults"
ROWS = ("kill", "ranks", "signals", "bits", "files", "disk", "nonfinite", "hostile", "mutated", "twice", "soak")


def row(name: str) -> tally.Row:
    found: tally.Row = importlib.import_module("tests.faults.rows").ROWS[name]
    return found


def run_row(name: str, tries: int, seed: int, out: Path, folder: Path | None) -> bool:
    spec = row(name)
    began = time.time()
    with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as scratch:
        place = folder or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        result = spec.run(place, tries, Random(seed))
    command = f"python -m tests.faults {name} --tries {tries} --seed {seed}"
    content = tally.record(name, spec, result, seed=seed, command=command, began=began)
    tally.write(out, content)
    print(json.dumps({k: content[k] for k in ("row", "tries", "held", "worst", "failures", "took_s")}, indent=1))
    return result.held == result.tries


FEW = {"kill": 3, "signals": 3, "bits": 10, "files": 13, "nonfinite": 6, "hostile": 18, "twice": 4}


def run_all(out: Path) -> bool:
    good = True
    for name in ROWS:
        path, commit = out / f"{name}.json", records.code()["commit"]
        if path.exists() and commit and json.loads(path.read_text())["code"]["commit"] == commit:
            print(f"{name}: has a record of this commit")
            continue
        print(f"{name}: {row(name).fault}, {row(name).nightly} tries", flush=True)
        command = [sys.executable, "-m", "tests.faults", name, "--out", str(path)]
        good = subprocess.run(command, cwd=ROOT, check=False).returncode == 0 and good
    return good


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    p.add_argument("row", choices=(*ROWS, "few", "all", "table"))
    p.add_argument("--tries", type=int, help="how often (soak: minutes); default: the nightly number")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="the record's file, or a folder; default: docs/results/faults")
    p.add_argument("--folder", type=Path, help="where to work, and what to keep; default: a temporary folder")
    p.add_argument("--data", help="soak: folder with CIFAR-10's official files")
    a = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if a.row == "table":
        from tests.faults.table import fill

        return fill(ROOT / "docs" / "reliability.md", RESULTS)
    if a.row == "few":
        tally.Tally.timed = False
        held = [run_row(name, tries, a.seed, a.out / f"{name}.json", None) for name, tries in FEW.items()]
        return 0 if all(held) else 1
    if a.row == "all":
        return 0 if run_all(a.out or RESULTS) else 1
    if a.data:
        os.environ["MPD_AGL_SOAK_DATA"] = a.data
    tries = row(a.row).nightly if a.tries is None else a.tries
    out = a.out or RESULTS
    return 0 if run_row(a.row, tries, a.seed, out if out.suffix == ".json" else out / f"{a.row}.json", a.folder) else 1


if __name__ == "__main__":
    sys.exit(main())
