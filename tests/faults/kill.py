"""kill -9 at random moments, a quarter of them inside a save, and resume until the run has ended."""

import math
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

from tests.faults.forks import VARIANTS, Shared, Whole, finish, train, wait
from tests.faults.tally import Tally

INSIDE, RANDOM = "inside a save", "at a random moment"


def unfinished(path: Path) -> bool:
    """Whether a save or a deletion of a checkpoint was cut off: its folder is still there under a temporary name."""
    root = path / "checkpoints"
    return root.is_dir() and any(p.name.startswith(".epoch-") for p in root.iterdir())


def repeats(shared: Shared, reached: int, interval: int, tally: Tally) -> str:
    """A sentence if the last process repeated more steps of those before it than a save interval has."""
    came = shared.began >= 0  # else it never came to its loop, or had nothing left to do
    repeated = max(0, reached - shared.began) if came else 0
    tally.worst["steps repeated"] = max(tally.worst.get("steps repeated", 0), repeated)
    return f"{repeated} steps repeated at an interval of {interval}" if repeated > interval else ""


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally, shared = Tally(), Shared()
    whole = Whole(folder, shared)
    left = {INSIDE: math.ceil(tries / 4), RANDOM: tries - math.ceil(tries / 4)}
    number = 0
    while any(count > 0 for count in left.values()):
        number += 1
        variant = draw.choice(sorted(VARIANTS))
        interval = VARIANTS[variant]["checkpoint"]["every_steps"]
        whole.fingerprint(variant)
        path = folder / f"run{number}"
        kinds: list[str] = []
        problem, reached = "", 0
        for _ in range(draw.randint(1, 4)):
            aim = left[INSIDE] > 0 and (left[RANDOM] <= 0 or draw.random() < 0.5)
            pid = train(path, VARIANTS[variant], shared, marks_from=draw.randint(1, 60) if aim else 0)
            if aim:
                shared.marked(3 * whole.took[variant])
                time.sleep(draw.choice((0, draw.uniform(0, 0.003))))
            else:
                time.sleep(draw.uniform(0.02, 0.9 * whole.took[variant]))
            os.kill(pid, signal.SIGKILL)
            code = wait(pid)
            problem = problem or repeats(shared, reached, interval, tally)
            reached = max(reached, shared.done)
            if code == 0:
                break  # it ended before the signal
            kind = INSIDE if unfinished(path) else RANDOM
            kinds.append(kind)
            left[kind] -= 1
        try:
            finish(path, VARIANTS[variant], shared)
            problem = problem or repeats(shared, reached, interval, tally)
            whole.compare(path, variant)
        except Exception as error:
            problem = problem or str(error)
        for kind in kinds:
            with tally.attempt(kind, variant):
                assert not problem, problem
        if not problem:
            shutil.rmtree(path)
    tally.facts = {
        "runs": number,
        "save interval, steps": {k: v["checkpoint"]["every_steps"] for k, v in VARIANTS.items()},
    }
    return tally
