"""kill -9 of one of two ranks of `mpd-agl launch`: the run goes on and ends with the bytes of an undisturbed one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from mpd_agl.train.resolve import to_toml
from tests.faults.tally import Tally
from tests.train.tiny import fingerprint, tiny

ROOT = Path(__file__).parents[2]
EPOCHS = 12
HANG_S, RECOVERY_S = 60.0, 10.0
CHANGES = {
    "train": {"epochs": EPOCHS},
    "data": {"train_samples": 46, "test_samples": 41},
    "checkpoint": {"every_steps": 3},
}


class Launch:
    """A run on two ranks, started by the command itself; its workers are the launcher's children."""

    def __init__(self, folder: Path, name: str, restarts: int) -> None:
        config = folder / "tiny.toml"
        config.write_text(to_toml(tiny(CHANGES)))
        self.run = folder / name
        command = [sys.executable, "-m", "mpd_agl", "launch", "--nproc", "2", "--threads", "1"]
        command += ["--max-restarts", str(restarts), "--", "train", "--quiet", "--config", str(config)]
        command += ["--runs-dir", str(folder), "--name", name]
        self.output = (folder / f"{name}.out").open("w")
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=self.output, stderr=subprocess.STDOUT)

    def workers(self) -> dict[int, tuple[int, int]]:
        """Process and restart count of each rank that is alive."""
        found = {}
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            children = []
        for pid in map(int, children):
            try:
                pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            env = dict(pair.partition("=")[::2] for pair in pairs)
            if "RANK" in env and "TORCHELASTIC_RESTART_COUNT" in env:
                found[int(env["RANK"])] = (pid, int(env["TORCHELASTIC_RESTART_COUNT"]))
        return found

    def starts(self) -> int:
        """How often the ranks came as far as training."""
        try:
            lines = (self.run / "log.txt").read_text().splitlines()
        except OSError:
            return 0
        return sum(line.partition(" ")[2].startswith(("started", "resumed")) for line in lines)

    def wait_for_start(self, number: int, limit: float = HANG_S) -> bool:
        """Until training has begun so often; False where the run has ended before."""
        deadline = time.monotonic() + limit
        while self.starts() < number:
            assert time.monotonic() < deadline, f"hang: no start number {number} within {limit:.0f} s"
            if self.process.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def end(self) -> int:
        """The exit code, once the run has ended."""
        return self.process.wait(timeout=600)

    def close(self) -> None:
        if self.process.poll() is None:
            for pid, _ in self.workers().values():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        self.output.close()


def undisturbed(folder: Path) -> dict[str, object]:
    whole = Launch(folder, "whole", 0)
    try:
        assert whole.end() == 0, (folder / "whole.out").read_text()[-2000:]
        return fingerprint(whole.run)
    finally:
        whole.close()


def run(folder: Path, tries: int, draw: Random, limit: float = RECOVERY_S) -> Tally:
    """Kill until the run ends, then again in a new run, until there were so many kills; each run's end is compared."""
    tally, expected, rounds = Tally(), undisturbed(folder), 0
    seconds: list[float] = []
    while tally.tries < tries:
        rounds += 1
        launch = Launch(folder, f"killed{rounds}", tries)
        try:
            launch.wait_for_start(1, 600.0)
            while tally.tries < tries and launch.process.poll() is None:
                _kill(launch, tally, draw, seconds, limit)
            assert launch.end() == 0, (folder / f"killed{rounds}.out").read_text()[-1000:]
            got = fingerprint(launch.run)
            for part, value in expected.items():
                assert got[part] == value, f"{part} differ from an undisturbed run's"
        except AssertionError as error:
            tally.held, tally.failures = 0, [*tally.failures, f"round {rounds}: {error}"]
            break
        finally:
            launch.close()
    seconds.sort()
    tally.facts = {
        "runs": rounds,
        "recovery_s": [round(s, 2) for s in seconds],
        "median_s": round(seconds[len(seconds) // 2], 2) if seconds else None,
        "load_average": round(os.getloadavg()[0], 1),
    }
    return tally


def _kill(launch: Launch, tally: Tally, draw: Random, seconds: list[float], limit: float) -> None:
    """One kill at a random moment of the training, and the time until the ranks train again."""
    time.sleep(draw.uniform(0.0, 1.5))
    before, rank = launch.starts(), draw.randrange(2)
    workers = launch.workers()
    if len(workers) < 2 or launch.process.poll() is not None:
        time.sleep(0.1)  # the run ends
        return
    pid, restarts = workers[rank]
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    if not launch.wait_for_start(before + 1):
        return  # it had just finished
    took = time.monotonic() - began
    with tally.attempt(f"rank {rank}"):
        seconds.append(took)
        again = launch.workers().get(rank, (0, restarts + 1))[1]
        assert again == restarts + 1, f"{again - restarts} restarts"
        tally.at_most("recovery_s", took, limit)
