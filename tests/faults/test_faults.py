"""The small set of the fault table: every row a few times. `make faults` runs the rows at their nightly size.

Each row is a process of its own, which forks before torch has any thread.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import disk

ROOT = Path(__file__).parents[2]
FEW = {"kill": 6, "signals": 3, "bits": 40, "files": 13, "disk": 3, "nonfinite": 6, "hostile": 18, "twice": 4}


@pytest.mark.parametrize("name", FEW)
def test_the_row_holds(name: str, tmp_path: Path) -> None:
    if name == "disk" and (reason := disk.unavailable()):
        pytest.skip(reason)
    out = tmp_path / "record.json"
    command = [sys.executable, "-m", "tests.faults", name, "--tries", str(FEW[name]), "--seed", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT)
    assert out.is_file(), done.stderr
    record = json.loads(out.read_text())
    assert record["failures"] == []
    assert record["held"] == record["tries"] >= FEW[name]
