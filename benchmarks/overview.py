"""`python -m benchmarks` without a command: what a user gets, next to other libraries, in one table."""

import time
from typing import Any

from benchmarks.compare import Note, compare, provenance
from benchmarks.timing import busy
from benchmarks.workload import Workload

WORKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "training, 1/8 of the channels, batch 100": (
        {"work": "train", "batch": 100},
        ("mpd_agl", "spikingjelly", "snntorch", "ann", "convs"),
    ),
    "one image, 1/8 of the channels": (
        {"work": "infer", "batch": 1},
        ("mpd_agl", "mpd_agl-int8", "spikingjelly", "snntorch", "ann", "convs"),
    ),
    "inference, all channels, batch 32": (
        {"work": "infer", "batch": 32, "width_mult": 1.0},
        ("mpd_agl", "mpd_agl-int8", "spikingjelly", "ann", "convs"),
    ),
}
"""ResNet-19 at T=2. In training `ann` is the same network at batch T*N, and `convs` the bare dense convolutions."""
LABELS = {
    "mpd_agl": "mpd_agl, defaults",
    "mpd_agl-int8": "mpd_agl, int8",
    "spikingjelly": "SpikingJelly",
    "snntorch": "snnTorch",
    "ann": "ANN at batch T*N",
    "convs": "bare convolutions",
}
ROUNDS = 4


def measure(*, threads: int, quick: bool, note: Note) -> dict[str, Any]:
    """All works, one after the other."""
    found, began = {}, time.monotonic()
    for title, (setting, names) in WORKS.items():
        note(title)
        workload = Workload(**setting, threads=threads)
        found[title] = compare(workload, names, rounds=2 if quick else ROUNDS, quick=True, note=lambda text: None)
    return {"what": "python -m benchmarks", "works": found, "seconds": time.monotonic() - began, **provenance()}


def cell(record: dict[str, Any], name: str) -> str:
    """A contender's time over mpd_agl's with its range, the best, and its peak memory."""
    if name not in record["contenders"]:
        return "left out" if name in record["left_out"] else ""
    ratio, c = record["ratios"]["of"][name], record["contenders"][name]
    if not ratio:
        return "outputs differ"
    low, high = ratio["range"]
    over = f"{ratio['time']:6.2f}x ({low:.2f} to {high:.2f}), best {ratio['best']:.2f}x"
    return f"{c['ms_per_image']:8.2f} ms {over}, {c['peak_bytes'] / 1e6:.0f} MB"


def text(record: dict[str, Any]) -> str:
    """A block per work, a line per contender; more than 1x is slower than mpd_agl."""
    lines = [
        f"ResNet-19, T=2, {record['hardware']['cpu']}, {record['hardware']['cores']} cores, float32 unless said.",
        "Milliseconds per image, and the time over mpd_agl's: median of the rounds (range), best of each; peak memory.",
    ]
    for title, found in record["works"].items():
        lines += ["", title]
        lines += [f"  {label:20}{cell(found, name)}" for name, label in LABELS.items() if cell(found, name)]
        lines += [f"  {name}: {why}" for name, why in found["left_out"].items()]
    pauses = {"slowdown": [s for found in record["works"].values() for s in found["slowdown"]]}
    lines += ["", busy(pauses) or "The machine was quiet: a fixed loop between the rounds took its best time."]
    return "\n".join([*lines, f"Measured in {record['seconds']:.0f} s."])
