"""What each method and each training costs: time and memory of a training step over mpd-agl's, in one table.

Every row is our own network on one backend; rows differ in neuron, width rule or objective, so they compute different
things and there is nothing to check against. Each has its own process, and they take turns as in `compare`.
"""

import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from mpd_agl.bench.compare import Note, Process, hear, provenance, run_rounds, start
from mpd_agl.bench.timing import busy, over
from mpd_agl.bench.workload import LOSSES, Workload
from mpd_agl.errors import InputError
from mpd_agl.nn import METHODS, get_method

BASE = "mpd-agl"
BACKEND = "native"


def rows(names: Sequence[str], base: Workload) -> dict[str, Workload]:
    """The workload of each row: a method by its name, a training as `+LOSS` on stbp-tdbn; mpd-agl comes first.

    >>> [(n, w.method, w.loss, w.num_steps) for n, w in rows(["s2nn", "+ltl"], Workload()).items()][1:]
    [('s2nn', 's2nn', 'ce', 1), ('+ltl', 'stbp-tdbn', 'ltl', 2)]
    """
    found = {}
    for name in dict.fromkeys((BASE, *names)):
        method = get_method("stbp-tdbn" if name.startswith("+") else name)
        steps = min(base.num_steps, method.max_steps or base.num_steps)
        loss = name[1:] if name.startswith("+") else "ce"
        found[name] = replace(base, work="train", method=method.name, loss=loss, num_steps=steps)
    return found


def measure(
    base: Workload, names: Sequence[str] = (), *, rounds: int = 5, quick: bool = False, note: Note
) -> dict[str, Any]:
    """Start a process per row, time them in alternating rounds, and give the record."""
    if find_spec("resource") is None:
        raise InputError("this system does not tell a process's peak memory as Unix does. Use `mpd-agl bench active`.")
    workloads = rows(names or [*METHODS, *(f"+{loss}" for loss in LOSSES if loss != "ce")], base)
    running: dict[str, Process] = {}
    left_out: dict[str, str] = {}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    try:
        for name, workload in workloads.items():
            note(f"{name}: starting")
            process = Process(name, start(BACKEND, workload, "time"))
            process.ready = hear(process.child)
            if "error" in process.ready:
                process.close()
                left_out[name] = str(process.ready["error"])
            else:
                running[name] = process
        loop = run_rounds(running, rounds, left_out, threads=base.threads, quick=quick, note=note)
    finally:
        for process in running.values():
            process.close()
    if BASE not in running:
        raise InputError(
            f"{BASE} could not be timed ({left_out.get(BASE, 'it ended')}), and it is what rows compare with."
        )
    return {
        "what": "mpd-agl bench methods",
        "setting": base.to_dict(),
        "backend": BACKEND,
        "rounds": rounds,
        "base": BASE,
        "rows": {name: _row(p, running[BASE], workloads[name]) for name, p in running.items()},
        "left_out": left_out,
        **provenance(),
        "load_before": load,
        "slowdown": loop.slowdowns(),
    }


def _row(process: Process, base: Process, workload: Workload) -> dict[str, Any]:
    mine, theirs = ([statistics.median(times) for times in p.rounds] for p in (process, base))
    return {
        "method": workload.method,
        "loss": workload.loss,
        "num_steps": workload.num_steps,
        "ms_per_image": 1e3 * statistics.median(mine) / workload.batch,
        **over(mine, theirs),
        "peak_bytes": process.last["peak"],
        "peak_memory": process.last["peak"] / base.last["peak"],
        "step_bytes": process.last["peak"] - process.last["before"],
    }


def text(record: dict[str, Any]) -> str:
    """A line per row, ratios first."""
    w = Workload.from_dict(record["setting"])
    lines = [
        f"training step: {w.model} x{w.width_mult:g}, T={w.num_steps}, batch {w.batch}, {w.threads} threads, "
        f"{record['rounds']} rounds, medians (least - most)",
        f"{'row':18}{'T':>3}{'time / ' + record['base']:>16}{'':16}{'peak / ' + record['base']:>16}{'ms/image':>10}",
    ]
    for name, r in record["rows"].items():
        spread = f"  ({r['range'][0]:.2f} - {r['range'][1]:.2f})"
        ratios = f"{r['time']:16.2f}{spread:<16}{r['peak_memory']:16.2f}"
        lines.append(f"{name:18}{r['num_steps']:>3}{ratios}{r['ms_per_image']:10.3f}")
    lines += [f"{name}: left out, {why}" for name, why in record["left_out"].items()]
    return "\n".join(filter(None, [*lines, busy(record)]))
