"""SIGTERM and SIGINT while a run trains, and a second signal while it saves because of the first."""

import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

from mpd_agl.train.signals import EXIT_AT_ONCE, EXIT_SAVED
from tests.faults.forks import STEPS, VARIANTS, Shared, Whole, all_whole, command, finish, new_run, wait
from tests.faults.tally import Tally

SECOND = "a second signal during the save"


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally, shared = Tally(), Shared()
    whole = Whole(folder, shared)
    wanted = ["SIGTERM", "SIGINT", SECOND]
    number = 0
    while tally.tries < tries:
        number += 1
        kind = wanted[tally.tries % 3]
        variant = draw.choice(sorted(VARIANTS))
        whole.fingerprint(variant)
        limit = 2 + whole.took[variant] / STEPS
        path = folder / f"run{number}"
        pid = command(new_run(path, VARIANTS[variant]), folder / "log", shared, marks_from=1)
        target = draw.randint(1, STEPS - 3)
        while shared.done < target and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, whole.took[variant] / STEPS))
        shared.drain()
        first = signal.SIGINT if kind == "SIGINT" else signal.SIGTERM
        os.kill(pid, first)
        began = time.perf_counter()
        if kind == SECOND:
            shared.marked(5)
            time.sleep(draw.choice((0, draw.uniform(0, 0.003))))
            os.kill(pid, draw.choice((signal.SIGINT, signal.SIGTERM)))
        code = wait(pid)
        took = time.perf_counter() - began
        if kind == SECOND and code == EXIT_SAVED:
            kind = "a second signal behind the save"  # the save was over before it came
        with tally.attempt(kind, f"run {number}"):
            tally.at_most_s("seconds to exit", took, limit)
            assert code == (EXIT_AT_ONCE if kind == SECOND else EXIT_SAVED), f"exit code {code}"
            found = all_whole(path)
            if kind != SECOND:
                assert found, "no checkpoint"
                assert found[-1].step == shared.done, f"saved at step {found[-1].step}, done were {shared.done}"
            finish(path, VARIANTS[variant], shared)
            whole.compare(path, variant)
            shutil.rmtree(path)
    tally.facts = {"exit codes": {"saved": EXIT_SAVED, "at once": EXIT_AT_ONCE}}
    return tally
