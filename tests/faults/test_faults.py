"""The small set of the fault table: every row a few times. `make faults` runs the rows at their nightly size.

The rows run in a process of their own, which forks before torch has any thread.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import disk

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, *words: str) -> dict[str, dict[str, object]]:
    command = [sys.executable, "-m", "tests.faults", *words, "--seed", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, cwd=ROOT)
    records = {p.stem: json.loads(p.read_text()) for p in tmp_path.glob("*.json")}
    assert records, done.stderr
    return records


def test_every_row_holds_a_few_times(tmp_path: Path) -> None:
    records = run(tmp_path, "few")
    assert sorted(records) == ["bits", "files", "hostile", "kill", "nonfinite", "signals", "twice"]
    assert {name: r["failures"] for name, r in records.items() if r["failures"]} == {}
    assert all(r["held"] == r["tries"] > 0 for r in records.values())
    assert records["kill"]["kinds"]["inside a save"] >= 1  # type: ignore[index]


def test_full_and_read_only_disks(tmp_path: Path) -> None:
    if reason := disk.unavailable():
        pytest.skip(reason)
    (record,) = run(tmp_path, "disk", "--tries", "3").values()
    assert record["failures"] == []
    assert record["held"] == 3


def test_a_row_that_does_not_hold_is_told(tmp_path: Path) -> None:
    from tests.faults.tally import Tally

    tally = Tally()
    with tally.attempt("a"):
        tally.at_most("steps", 2, 3)
    with tally.attempt("b", "here"):
        tally.at_most("steps", 4, 3)
    assert (tally.tries, tally.held, tally.worst) == (2, 1, {"steps": 4})
    assert tally.failures == ["b here: AssertionError: steps is 4, over 3"]
