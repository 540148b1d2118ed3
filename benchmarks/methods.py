"""What each rival costs: time and memory of a training step over mpd-agl's, in one table.

Every row is our own network on one backend; rows differ in neuron, width rule, norm, network or objective, so they
compute different things and there is nothing to check against. Each has its own process. They take turns as in
`compare`, in groups that fit into memory; mpd-agl is in every group, and a ratio is taken within its group.
"""

import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from benchmarks.compare import Note, Process, hear, provenance, run_rounds, start
from benchmarks.timing import busy, over
from benchmarks.workload import LOSSES, Workload
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn import METHODS, get_method

BASE = "mpd-agl"
BACKEND = "native"
PARTS = {
    "norm": ("bn", "tebn", "tab", "mpbn"),
    "attention": ("tcja",),
    "start": ("mp-init",),
    "model": ("sew-resnet18", "ms-resnet18", "statten"),
}
"""Rows that are no method: a part of mpd-agl's network, or another network with its method."""
GROUP, AT_ONCE, TURN_S = 11, 2, 0.4
"""Rows of a group beside mpd-agl; processes that start at the same time; how long a turn takes."""


def every_row() -> list[str]:
    """All rows in their order.

    >>> [name for name in every_row() if "=" in name][:3]
    ['norm=bn', 'norm=tebn', 'norm=tab']
    """
    parts = [f"{field}={value}" for field, values in PARTS.items() for value in values]
    return [*METHODS, *parts, *(f"+{loss}" for loss in LOSSES if loss != "ce")]


def rows(names: Sequence[str], base: Workload) -> dict[str, Workload]:
    """The workload of each row: a method by its name, FIELD=VALUE on mpd-agl, a training as `+LOSS` on stbp-tdbn.

    mpd-agl comes first.

    >>> [(n, w.method, w.norm, w.loss, w.num_steps) for n, w in rows(["s2nn", "norm=tab", "+ltl"], Workload()).items()]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('mpd-agl', 'mpd-agl', 'tdbn', 'ce', 2), ('s2nn', 's2nn', 'tdbn', 'ce', 1),
     ('norm=tab', 'mpd-agl', 'tab', 'ce', 2), ('+ltl', 'stbp-tdbn', 'tdbn', 'ltl', 2)]
    """
    found = {}
    for name in dict.fromkeys((BASE, *names)):
        field, is_part, value = name.partition("=")
        if is_part:
            if value not in PARTS.get(field, ()):
                raise unknown_name("row", name, every_row())
            part: dict[str, Any] = {field: value}
            found[name] = replace(base, work="train", **part)
            continue
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
    workloads = rows(names or every_row(), base)
    others = [name for name in workloads if name != BASE]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    slowdowns: list[float] = []
    for first in range(0, max(1, len(others)), GROUP):
        group = {name: workloads[name] for name in (BASE, *others[first : first + GROUP])}
        running: dict[str, Process] = {}
        try:
            _start(group, running, left_out, note)
            loop = run_rounds(running, rounds, left_out, threads=base.threads, quick=quick, note=note, seconds=TURN_S)
        finally:
            for process in running.values():
                process.close()
        if BASE not in running:
            raise InputError(
                f"{BASE} could not be timed ({left_out.get(BASE, 'it ended')}), and it is what rows compare with."
            )
        slowdowns += loop.slowdowns()
        for name, process in running.items():
            found.setdefault(name, _row(process, running[BASE], workloads[name]))
    return {
        "what": "mpd-agl bench methods",
        "setting": base.to_dict(),
        "backend": BACKEND,
        "rounds": rounds,
        "base": BASE,
        "rows": found,
        "left_out": left_out,
        **provenance(),
        "load_before": load,
        "slowdown": slowdowns,
    }


def _start(group: dict[str, Workload], running: dict[str, Process], left_out: dict[str, str], note: Note) -> None:
    """A process per row, a few at a time; one that cannot run is left out with its reason."""
    names = list(group)
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        note(f"{', '.join(some)}: starting")
        running |= {name: Process(name, start(BACKEND, group[name], "time")) for name in some}
        for name in some:
            running[name].ready = hear(running[name].child)
            if "error" in running[name].ready:
                left_out[name] = str(running[name].ready["error"])
                running.pop(name).close()


def _row(process: Process, base: Process, workload: Workload) -> dict[str, Any]:
    mine, theirs = ([statistics.median(times) for times in p.rounds] for p in (process, base))
    return {
        "method": workload.method,
        "loss": workload.loss,
        "model": workload.model,
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
        f"{'row':20}{'T':>3}{'time / ' + record['base']:>16}{'':16}{'peak / ' + record['base']:>16}{'ms/image':>10}",
    ]
    for name, r in record["rows"].items():
        spread = f"  ({r['range'][0]:.2f} - {r['range'][1]:.2f})"
        ratios = f"{r['time']:16.2f}{spread:<16}{r['peak_memory']:16.2f}"
        lines.append(f"{name:20}{r['num_steps']:>3}{ratios}{r['ms_per_image']:10.3f}")
    lines += [f"{name}: left out, {why}" for name, why in record["left_out"].items()]
    return "\n".join(filter(None, [*lines, busy(record)]))
