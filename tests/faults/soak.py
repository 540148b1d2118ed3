"""Hours of training on real data, watched from outside: memory, open files, the share of time in checkpoints.

usage: python -m tests.faults soak --tries MINUTES --data DIR   (DIR holds the official CIFAR-10 files)
       python -m tests.faults soak --tries 0 --folder FOLDER    (what a soak in that folder wrote so far)
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.tally import Tally

DATA = "MPD_AGL_SOAK_DATA"
WARM_UP, WINDOW, EVERY_S = 600.0, 900.0, 10.0
RUN = (
    *("--preset", "cifar10-resnet19", "--model.width_mult", "0.125", "--train.threads", "1", "--name", "soak"),
    # epochs of minutes: evaluations and checkpoints in every window
    *("--data.train_samples", "10000", "--data.test_samples", "2000"),
)


def train(folder: Path) -> int:
    """The watched process: `mpd-agl train` with a clock around the checkpoints."""
    from mpd_agl.cli import main
    from mpd_agl.train.loop import Trainer

    plain, spent = Trainer.save, {"saves": 0, "save_s": 0.0}

    def timed(self: Trainer) -> None:
        began = time.perf_counter()
        plain(self)
        spent["saves"] += 1
        spent["save_s"] += time.perf_counter() - began
        (folder / "saves.json").write_text(json.dumps(spent))

    Trainer.save = timed  # type: ignore[method-assign]
    data = ["--data.data_dir", os.environ[DATA]] if os.environ.get(DATA) else []
    return main(["train", *RUN, *data, "--runs-dir", str(folder), "--overwrite"])


def look(pid: int) -> dict[str, float]:
    """Resident memory and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {"rss_mb": int(rss.split()[1]) / 1024, "files": len(list(Path(f"/proc/{pid}/fd").iterdir()))}


def judge(samples: list[dict[str, float]], saves: dict[str, float]) -> Tally:
    """Growth between the first window after the warm-up and the last one; none if the run is shorter than both."""
    tally = Tally()
    lasted = samples[-1]["t"]
    tally.facts = {"minutes": round(lasted / 60, 1), "samples": len(samples), "checkpoints": int(saves["saves"])}
    with tally.attempt("soak"):
        first = [s for s in samples if WARM_UP <= s["t"] < WARM_UP + WINDOW]
        last = [s for s in samples if s["t"] > lasted - WINDOW]
        assert first, f"{lasted:.0f} s are too short to compare"
        assert last[0]["t"] > first[-1]["t"], f"{lasted:.0f} s are too short to compare"
        before, after = (statistics.median(s["rss_mb"] for s in part) for part in (first, last))
        top = max(s["rss_mb"] for s in last) / max(s["rss_mb"] for s in first)
        tally.facts |= {"rss_mb_first": round(before, 1), "rss_mb_last": round(after, 1)}
        tally.facts["files"] = sorted({int(s["files"]) for s in samples if s["t"] >= WARM_UP})
        share = saves["save_s"] / lasted
        tally.worst |= {"memory growth, %": 100 * (after / before - 1), "growth of the peak, %": 100 * (top - 1)}
        tally.worst |= {"checkpoints, % of time": 100 * share}
        usual = [statistics.median(s["files"] for s in part) for part in (first, last)]
        tally.worst["open files, growth"] = usual[1] - usual[0]
        assert after / before < 1.01, f"memory grew from {before:.1f} to {after:.1f} MB"
        assert usual[0] == usual[1], f"open files went from {usual[0]} to {usual[1]}"
        assert share < 0.01, f"checkpoints took {100 * share:.2f} % of the time"
    return tally


def run(folder: Path, minutes: int, draw: Random) -> Tally:
    if minutes == 0:  # judge what a soak in this folder has written
        return from_folder(folder)
    log = (folder / "train.log").open("w")
    child = subprocess.Popen([sys.executable, "-m", "tests.faults.soak", str(folder)], stdout=log, stderr=log)
    began, samples = time.perf_counter(), []
    with (folder / "samples.jsonl").open("w") as out:
        while time.perf_counter() - began < 60 * minutes and child.poll() is None:
            time.sleep(EVERY_S)
            try:
                samples.append({"t": round(time.perf_counter() - began, 1), **look(child.pid)})
            except (OSError, StopIteration):
                break
            out.write(json.dumps(samples[-1]) + "\n")
            out.flush()
    alive = child.poll() is None
    child.send_signal(signal.SIGTERM)
    code = child.wait(600)
    tally = from_folder(folder)
    tally.facts["exit"] = code
    if not alive or code != 75:
        tally.held, tally.failures = 0, [*tally.failures, f"the run ended by itself or badly, exit code {code}"]
    return tally


def from_folder(folder: Path) -> Tally:
    """The judgement of what a soak has written so far."""
    samples: list[dict[str, Any]] = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    saves = json.loads((folder / "saves.json").read_text()) if (folder / "saves.json").exists() else {}
    return judge(samples, {"saves": 0, "save_s": 0.0, **saves})


if __name__ == "__main__":
    sys.exit(train(Path(sys.argv[1])))
