"""Contenders side by side: a process each, checked first, then timed in alternating rounds; the record of it."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mpd_agl import records
from mpd_agl.bench.contenders import CONTENDERS, UNCHECKED, check, why_not
from mpd_agl.bench.setting import Setting
from mpd_agl.errors import InputError

AUTO = "native+auto"
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
        """Time so many units of work; why it could not, if the process failed or died."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{count}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # it has died, and what it said last tells why
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


def start(name: str, setting: Setting, what: str) -> "subprocess.Popen[str]":
    """A contender's process."""
    command = [sys.executable, "-m", "mpd_agl.bench.worker", name, json.dumps(setting.to_dict()), what]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


def hear(child: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line of a contender, which may be an error."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        return {"error": f"its process ended with code {child.wait()}"}
    answer: dict[str, Any] = json.loads(line)
    return answer


def compare(
    setting: Setting, names: Sequence[str], *, rounds: int = 5, quick: bool = False, note: Note
) -> dict[str, Any]:
    """Check, time in alternating rounds, and give the record: medians, spread, ratios to the first of ours."""
    left_out = {name: why for name in names if (why := why_not(name, setting))}
    agreement: dict[str, dict[str, Any]] = {}
    running: dict[str, Process] = {}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    try:
        for name in (n for n in names if n not in left_out):
            if name in UNCHECKED:
                answer = check(name, setting).to_dict()
            else:
                note(f"{name}: checking that it computes the same")
                answer = once(start(name, setting, "check"))
            if "error" in answer:
                left_out[name] = answer["error"]
                continue
            agreement[name] = answer
            slow = "compiling, the first step takes a while" if "compiled" in name else "starting"
            note(f"{name}: {slow}")
            process = Process(name, start(name, setting, "time"))
            process.ready = hear(process.child)
            if "error" in process.ready:
                left_out[name] = process.ready["error"]
                process.close()
                continue
            running[name] = process
        seconds = QUICK_ROUND_S if quick else ROUND_S
        units = {}
        for name in ask_all(running, dict.fromkeys(running, 1), left_out):
            units[name] = max(1, min(MOST_UNITS, round(seconds / running[name].rounds.pop()[0])))
        for number in range(1, rounds + 1):
            note(f"round {number} of {rounds}")
            ask_all(running, units, left_out)
    finally:
        for process in running.values():
            process.close()
    return {
        "what": f"mpd-agl bench {setting.work}",
        "setting": setting.to_dict(),
        "rounds": rounds,
        "contenders": {n: summary(p, setting.batch, agreement[n]) for n, p in running.items()},
        "ratios": ratios(running, agreement),
        "ratios_auto": ratios(running, agreement, AUTO) if AUTO in running else None,
        "left_out": left_out,
        **provenance(),
        "load_before": load,
    }


def ask_all(running: dict[str, Process], units: dict[str, int], left_out: dict[str, str]) -> list[str]:
    """One round in turn: a contender that dies in it is left out with its reason, and the others go on; who is left."""
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
        "quartiles": [ms[len(ms) // 4], ms[(3 * len(ms)) // 4]],
        "timed": len(ms),
        "peak_bytes": process.last["peak"],
        "step_bytes": process.last["peak"] - process.last["before"],
        "first_step_s": process.ready["first_s"],
        "start_to_first_step_s": process.ready["start_s"],
        "first_losses": process.ready["losses"],
        "agreement": agreement,
    }


def ratios(running: dict[str, Process], agreement: dict[str, dict[str, Any]], base: str = "native") -> dict[str, Any]:
    """Each contender's time over the base's, round by round: the median and the range; only where outputs agree."""
    base = base if base in running else next(iter(running))
    per_round = {n: [statistics.median(times) for times in p.rounds] for n, p in running.items()}
    found: dict[str, Any] = {}
    for name, process in running.items():
        if not (agreement[name]["agrees"] and agreement[base]["agrees"]):
            found[name] = None
            continue
        each = [a / b for a, b in zip(per_round[name], per_round[base], strict=True)]
        found[name] = {
            "time": statistics.median(each),
            "range": [min(each), max(each)],
            "peak_memory": process.last["peak"] / running[base].last["peak"],
        }
    return {"base": base, "of": found}


def provenance() -> dict[str, Any]:
    """Commit, versions with the peers', machine."""
    versions = records.versions()
    for package in ("spikingjelly", "snntorch", "onnxruntime"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {"code": records.code(), "versions": versions, "hardware": records.hardware()}
