"""Two processes on one run folder: the second, a process of its own, is refused at once and changes nothing."""

import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from tests.faults.forks import PLAIN, Shared, command, new_run, wait
from tests.faults.tally import Tally

KINDS = ("--resume", "the same --name", "the same --name and --overwrite", "both at the same moment")
LONG = {**PLAIN, "train": {"epochs": 100000}}


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally, shared = Tally(), Shared()
    took_all: list[float] = []
    for number in range(tries):
        kind = KINDS[number % len(KINDS)]
        path = folder / f"run{number}"
        words = new_run(path, LONG)
        second = {
            "--resume": ["train", "--resume", str(path)],
            "the same --name and --overwrite": [*words, "--overwrite"],
        }
        if kind == "both at the same moment":
            with tally.attempt(kind, path.name):
                race(words, path, folder, shared, tally)
            continue
        pid = command(words, folder / "log", shared)
        while shared.done < draw.randint(1, 5):
            time.sleep(0.005)
        with tally.attempt(kind, path.name):
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                [sys.executable, "-m", "mpd_agl", *second.get(kind, words)], capture_output=True, text=True, check=False
            )
            took_all.append(time.perf_counter() - began)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            assert done.returncode == 2, f"exit code {done.returncode}: {done.stderr}"
            assert f"is in use by process {pid} on" in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
            reached, end = shared.done, time.perf_counter() + 20
            while shared.done == reached and time.perf_counter() < end:
                time.sleep(0.01)
            assert shared.done > reached, "the first process was disturbed"
            tally.at_most_s("processor seconds to refuse, the interpreter's start included", worked, 1)
        os.kill(pid, signal.SIGTERM)
        assert wait(pid) == 75
    if took_all:
        tally.facts = {
            "seconds on the clock, median and longest": [round(statistics.median(took_all), 2), round(max(took_all), 2)]
        }
    return tally


def race(words: list[str], path: Path, folder: Path, shared: Shared, tally: Tally) -> None:
    """Two that begin together: one trains, the other is refused."""
    pids = [command(words, folder / f"log{i}", shared) for i in (1, 2)]
    gone = 0
    end = time.perf_counter() + 60
    while not gone and time.perf_counter() < end:
        for pid in pids:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                gone, code = pid, os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    assert gone, "both went on for 60 s"
    text = (folder / f"log{pids.index(gone) + 1}").read_text()
    winner = next(pid for pid in pids if pid != gone)
    began, end = shared.done, time.perf_counter() + 20
    while shared.done == began and time.perf_counter() < end:
        time.sleep(0.01)
    trained = shared.done > began
    os.kill(winner, signal.SIGTERM)
    last = wait(winner)
    assert code == 2, f"exit code {code}: {text}"
    assert "is in use by process" in text or f"run folder {path} exists" in text, text
    assert trained, "the winner did not train"
    assert last == 75, f"the winner's exit code is {last}"
