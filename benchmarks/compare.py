"""Contenders side by side: a process each, checked first, then timed in alternating rounds; the record and its text."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mpd_agl
from benchmarks.contenders import CONTENDERS, FIRST_LOSS, UNCHECKED, check, why_not
from benchmarks.equivalence import Agreement
from benchmarks.timing import FixedLoop, busy, over
from benchmarks.workload import Workload
from mpd_agl import records
from mpd_agl.errors import InputError

BASES = ("mpd_agl", "native")
ROOT = Path(__file__).parent.parent
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(64 << 20)}
"""glibc's settings under which a process keeps freed memory, as `mpd-agl train` sets them."""
NEAR_LOSS = 1e-3
"""Relative difference of the first losses of two installations: rounding moves a few spikes."""
Note = Callable[[str], None]
ROUND_S, QUICK_ROUND_S = 1.5, 0.3
MOST_UNITS = 20


@dataclass
class Process:
    """A contender's process and what it has said so far."""

    name: str
    child: "subprocess.Popen[str]"
    rounds: list[list[float]] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)

    def ask(self, count: int) -> str:
        """Time so many units of work. Returns why it could not if the process failed or died, else ""."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{count}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # the process has died; its last line, or its exit code, says why
        answer = hear(self.child)
        if "error" in answer:
            return str(answer["error"])
        self.last = answer
        self.rounds.append(answer["times"])
        return ""

    def close(self) -> None:
        """End the process."""
        try:
            self.child.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()


def own_path(package: str = "") -> dict[str, str]:
    """The environment in which a process finds these benchmarks and a package: this tree's, or one in a folder.

    The current folder is not searched: a file there named as a module would run.
    """
    folder = Path(package).resolve() if package else Path(mpd_agl.__file__).parent.parent
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT))), "PYTHONSAFEPATH": "1"}


def start(name: str, workload: Workload, what: str) -> "subprocess.Popen[str]":
    """A contender's process; `release` finds its own mpd_agl, and none of this tree's."""
    path = own_path(workload.release if name == "release" else "")
    environment = {**os.environ, **path, **({} if workload.fresh_pages else KEEP_PAGES)}
    command = [sys.executable, "-m", "benchmarks.worker", name, json.dumps(workload.to_dict()), what]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment)


def hear(child: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line that a contender says; it may be an error."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        return {"error": f"its process ended with code {child.wait()}"}
    answer: dict[str, Any] = json.loads(line)
    return answer


def compare(
    workload: Workload, names: Sequence[str], *, rounds: int = 5, quick: bool = False, note: Note
) -> dict[str, Any]:
    """Check, time in alternating rounds, and give the record: medians, spread, ratios to this tree."""
    if find_spec("resource") is None:
        raise InputError(
            "this system does not report the peak memory of a process as Unix does. Measure on Linux or macOS."
        )
    left_out = {name: why for name in names if (why := why_not(name, workload))}
    agreement: dict[str, dict[str, Any]] = {}
    running: dict[str, Process] = {}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    try:
        for name in (n for n in names if n not in left_out):
            found, process = prepare(name, workload, note)
            if process is None:
                left_out[name] = found["error"]
            else:
                agreement[name], running[name] = found, process
        if "release" in running:
            agreement["release"] = same_first_loss(running)
        loop = run_rounds(running, rounds, left_out, threads=workload.threads, quick=quick, note=note)
    finally:
        for process in running.values():
            process.close()
    return {
        "what": f"python -m benchmarks {workload.work}",
        "setting": workload.setting(),
        "rounds": rounds,
        "contenders": {n: summary(p, workload.batch, agreement[n]) for n, p in running.items()},
        "ratios": ratios(running, agreement),
        "left_out": left_out,
        **provenance(),
        "load_before": load,
        "slowdown": loop.slowdowns(),
    }


def prepare(name: str, workload: Workload, note: Note) -> tuple[dict[str, Any], Process | None]:
    """Check a contender and start it: its agreement and its process, or its error and None."""
    if name in UNCHECKED:
        found = check(name, workload).to_dict()
    else:
        note(f"{name}: checking that it computes the same")
        found = once(start(name, workload, "check"))
    if "error" in found:
        return found, None
    note(f"{name}: {'compiling, the first step takes a while' if 'compiled' in name else 'starting'}")
    process = Process(name, start(name, workload, "time"))
    process.ready = hear(process.child)
    if "error" in process.ready:
        process.close()
        return process.ready, None
    return found, process


def run_rounds(
    running: dict[str, Process],
    rounds: int,
    left_out: dict[str, str],
    *,
    threads: int,
    quick: bool,
    note: Note,
) -> FixedLoop:
    """Rounds of about equal length, every contender in turn; the loop between them shows how busy the machine was."""
    seconds = QUICK_ROUND_S if quick else ROUND_S
    units = {}
    for name in ask_all(running, dict.fromkeys(running, 1), left_out):
        units[name] = max(1, min(MOST_UNITS, round(seconds / running[name].rounds.pop()[0])))
    loop = FixedLoop(threads)
    for number in range(1, rounds + 1):
        note(f"round {number} of {rounds}")
        loop()
        ask_all(running, units, left_out)
    loop()
    return loop


def ask_all(running: dict[str, Process], units: dict[str, int], left_out: dict[str, str]) -> list[str]:
    """One round: each contender in turn. One that dies is left out with its reason; returns the names of the others."""
    for name in list(running):
        if why := running[name].ask(units[name]):
            running.pop(name).close()
            left_out[name] = why
    if not running:
        reasons = "; ".join(f"{n}: {why}" for n, why in left_out.items())
        raise InputError(f"no contender can run here ({reasons}). Use --contenders native eager.")
    return list(running)


def once(child: "subprocess.Popen[str]") -> dict[str, Any]:
    """The one answer of a process that then ends."""
    answer = hear(child)
    child.communicate()
    return answer


def summary(process: Process, batch: int, agreement: dict[str, Any]) -> dict[str, Any]:
    """Times per image and memory of one contender."""
    ms = sorted(1e3 * t / batch for times in process.rounds for t in times)
    return {
        "about": CONTENDERS[process.name].about,
        "ms_per_image": statistics.median(ms),
        "spread": [ms[0], ms[-1]],
        "timed": len(ms),
        "peak_bytes": process.last["peak"],
        "step_bytes": process.last["peak"] - process.last["before"],
        "first_step_s": process.ready["first_s"],
        "start_to_first_step_s": process.ready["start_s"],
        "first_losses": process.ready["losses"],
        "agreement": agreement,
    }


def same_first_loss(running: dict[str, Process]) -> dict[str, Any]:
    """Whether the other installation starts with the loss of this tree."""
    losses = {n: float(running[n].ready["losses"][0]) for n in (*BASES, "release") if n in running}
    base = next(iter(losses))
    if base == "release":
        return Agreement(False, "no contender of this tree to compare with").to_dict()
    off = abs(losses["release"] - losses[base]) / abs(losses[base])
    return Agreement(off < NEAR_LOSS, f"{FIRST_LOSS.how}, against {base}", off).to_dict()


def ratios(running: dict[str, Process], agreement: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each contender's time over the base's, round by round: the median and the range; None where outputs differ.

    `best` is the least time of one over the least time of the other, wherever in the rounds they were.
    """
    base = next((name for name in BASES if name in running), next(iter(running)))
    per_round = {n: [statistics.median(times) for times in p.rounds] for n, p in running.items()}
    found: dict[str, Any] = dict.fromkeys(running)
    for name, process in running.items():
        if agreement[name]["agrees"] and agreement[base]["agrees"]:
            memory = process.last["peak"] / running[base].last["peak"]
            best = min(map(min, process.rounds)) / min(map(min, running[base].rounds))
            found[name] = {**over(per_round[name], per_round[base]), "best": best, "peak_memory": memory}
    return {"base": base, "of": found}


def provenance() -> dict[str, Any]:
    """Commit, versions with the peers', machine."""
    versions = records.versions()
    for package in ("spikingjelly", "snntorch", "triton"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {"code": records.code(), "versions": versions, "hardware": records.hardware()}


def text(record: dict[str, Any]) -> str:
    """A line per contender; no ratio for one whose outputs differ."""
    base, of = record["ratios"]["base"], record["ratios"]["of"]
    lines = [
        f"{Workload.from_dict(record['setting']).title}; {record['rounds']} rounds",
        f"{'':19}{'ms/image':>9}{'time over ' + base:>17}{'(of the rounds)':>18}{'best':>8}{'peak MB':>10}"
        f"{'peak over ' + base:>17}",
    ]
    for name, c in record["contenders"].items():
        ratio = of[name]
        shown = f"{'outputs differ':>17}{'':26}"
        if ratio:
            low, high = ratio["range"]
            best = f"{ratio['best']:7.2f}x" if "best" in ratio else ""
            shown = f"{ratio['time']:16.2f}x{f'({low:.2f} to {high:.2f})':>18}{best:>8}"
        memory = f"{ratio['peak_memory']:16.2f}x" if ratio else ""
        lines.append(f"{name:19}{c['ms_per_image']:9.3f}{shown}{c['peak_bytes'] / 1e6:10.0f}{memory}")
    return "\n".join(filter(None, [*lines, *remarks(record), busy(record)]))


def remarks(record: dict[str, Any]) -> list[str]:
    """Why contenders have no ratio or were left out, a line each."""
    found = {n: c["agreement"] for n, c in record["contenders"].items()}
    lines = [f"{n}: no ratio, its outputs differ ({a['how']})" for n, a in found.items() if not a["agrees"]]
    return lines + [f"{name}: left out, {why}" for name, why in record["left_out"].items()]
