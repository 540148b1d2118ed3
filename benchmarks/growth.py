"""How time and memory grow with T, batch and width_mult: a comparison per point."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare import Note, compare, provenance
from benchmarks.timing import busy
from benchmarks.workload import Workload
from mpd_agl.errors import InputError
from mpd_agl.records import canonical, write_atomic

AXES: dict[str, tuple[float, ...]] = {
    "num_steps": (1, 2, 4, 8, 16),
    "batch": (1, 4, 16, 64, 256),
    "width_mult": (0.125, 0.25, 0.5, 1.0),
}
QUICK_AXES: dict[str, tuple[float, ...]] = {"num_steps": (1, 2, 4), "batch": (1, 4, 16), "width_mult": (0.125, 0.25)}
BATCH, QUICK_BATCH = 50, 8
"""The batch where another axis moves."""
AT_WIDTH_BATCH = 16
"""Full width at a larger batch would take minutes for a point."""


def points(base: Workload, axes: Sequence[str], *, quick: bool = False) -> list[tuple[str, float, Workload]]:
    """The workloads of a sweep: one axis moves, the others stay. Training, which needs a batch of 2, starts there."""
    found = []
    for axis in axes:
        values = list((QUICK_AXES if quick else AXES)[axis])
        if axis == "batch":
            values = [max(v, 2) for v in values] if base.work == "train" else values
        for value in dict.fromkeys(values):
            moved: dict[str, Any] = {axis: value if axis == "width_mult" else int(value)}
            if axis == "width_mult":
                moved["batch"] = min(base.batch, AT_WIDTH_BATCH)
            found.append((axis, moved[axis], replace(base, **moved)))
    return found


def read(path: Path | None, base: Workload) -> dict[str, Any]:
    """What was measured before, if it was the same sweep."""
    if path is None or not path.is_file():
        return {"what": "python -m benchmarks growth", "setting": base.setting(), "points": [], **provenance()}
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        same = record["setting"] == base.setting() and isinstance(record["points"], list)
    except (ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise InputError(f"{path} holds another measurement. Give another -o, or delete it.")
    return record


def grow(
    base: Workload,
    axes: Sequence[str],
    names: Sequence[str],
    *,
    rounds: int,
    quick: bool = False,
    out: Path | None,
    note: Note,
) -> dict[str, Any]:
    """Measure every point that `out` does not hold yet."""
    record = read(out, base)
    done = {(p["axis"], p["value"]) for p in record["points"]}
    for axis, value, workload in points(base, axes, quick=quick):
        if (axis, value) in done:
            continue
        note(f"{axis} {value:g}")
        measured = compare(workload, names, rounds=rounds, quick=quick, note=lambda text: None)
        kept = ("setting", "contenders", "ratios", "left_out", "load_before", "slowdown")
        record["points"].append({"axis": axis, "value": value, **{k: measured[k] for k in kept}})
        if out is not None:
            write_atomic(out, canonical(record))
    return record


def text(record: dict[str, Any]) -> str:
    """A line per point and contender, and how the ends of each axis compare."""
    lines = [f"{'':18}{'contender':17}{'ms/step':>10}{'ms/image':>10}{'step MB':>9}{'peak MB':>9}"]
    for p in record["points"]:
        for name, c in p["contenders"].items():
            where = f"{p['axis']} {p['value']:g}"
            per_step = c["ms_per_image"] * p["setting"]["batch"]
            lines.append(
                f"{where:18}{name:17}{per_step:10.1f}{c['ms_per_image']:10.3f}"
                f"{c['step_bytes'] / 1e6:9.0f}{c['peak_bytes'] / 1e6:9.0f}"
            )
    for name, low, high, time_ratio, memory_ratio in ends(record):
        lines.append(
            f"{name}: T={high:g} against T={low:g}: {time_ratio:.2f}x time, {memory_ratio:.2f}x memory of a step"
        )
    absent = {name: why for p in record["points"] for name, why in p["left_out"].items()}
    lines += [f"{name}: left out, {why}" for name, why in absent.items()]
    pauses = {"slowdown": [s for p in record["points"] for s in p.get("slowdown", ())]}
    return "\n".join(filter(None, [*lines, busy(pauses)]))


def ends(record: dict[str, Any], low: int = 2, high: int = 16) -> list[tuple[str, int, int, float, float]]:
    """Time and memory at T = `high` over those at T = `low`, for every contender that has both."""
    at = {p["value"]: p["contenders"] for p in record["points"] if p["axis"] == "num_steps"}
    if low not in at or high not in at:
        return []
    return [
        (
            name,
            low,
            high,
            at[high][name]["ms_per_image"] / at[low][name]["ms_per_image"],
            at[high][name]["step_bytes"] / at[low][name]["step_bytes"],
        )
        for name in at[low]
        if name in at[high] and at[low][name]["step_bytes"] > 0
    ]
