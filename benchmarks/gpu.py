"""`mpd-agl bench gpu`: what a GPU makes of this package, in about ten minutes: one record and one page to send back.

Kernels against `core`; the fused step alone; a training step of ResNet-19 beside SpikingJelly's kernels and the ANN;
one epoch for Table 4. Without a GPU the CPU stands in its place, with a small network: that shows that the command
works, and nothing else.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from experiments.quoted import TABLE4

from benchmarks.gpu_checks import check_all
from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here
from mpd_agl.ops.step.backends import resolved_name

Note = Callable[[str], None]
PACKAGES = ("torch", "triton", "spikingjelly", "cupy-cuda12x", "cupy-cuda11x", "mpd-agl")


def setting_for(device: str) -> dict[str, Any]:
    """The paper's network and batch on a GPU; on a CPU something that is done in a minute."""
    if device == "cpu":
        return {"device": device, "T": 2, "batch": 4, "width_mult": 0.0625}
    return {"device": device, "T": 2, "batch": 100, "width_mult": 1.0}


def choose_device(name: str) -> str:
    """`auto`: a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cuda", "cpu"):
        raise InputError(f"--device must be auto, cuda or cpu, got {name!r}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device is cuda, and torch finds no GPU here. Install a CUDA build of torch, or use cpu.")
    return name


def about(device: str) -> dict[str, Any]:
    """The device, its driver's view of itself, and torch's settings that change speed."""
    if device == "cpu":
        return {"name": records.hardware()["cpu"], "stands_for_a_gpu": True}
    p = torch.cuda.get_device_properties(0)
    return {
        "name": p.name,
        "capability": f"{p.major}.{p.minor}",
        "memory_gb": round(p.total_memory / 2**30, 1),
        "processors": p.multi_processor_count,
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "convolutions_in_tf32": torch.backends.cudnn.allow_tf32,
    }


def contenders(device: str) -> Iterator[tuple[str, str]]:
    """Name and precision."""
    names = [n for n, why in backends_here(device).items() if not why]
    if device == "cpu":  # no interpreter and no compiler: they take longer than the whole rest
        yield from ((n, "float32") for n in names if n in ("native", "eager"))
        yield from (("native" if "native" in names else "eager", "bfloat16"), ("spikingjelly torch", "float32"))
        yield "ann", "float32"
        return
    for name in (*names, "spikingjelly triton", "spikingjelly cuda", "ann"):
        for precision in ("float32", "bfloat16"):
            if not (name == "eager" and precision == "bfloat16"):
                yield name, precision
    yield "spikingjelly torch", "float32"


def ask(task: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The answer of a worker's process, or its error."""
    command = [sys.executable, "-m", "benchmarks.gpu_worker", json.dumps(task)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {timeout:.0f} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"its process ended with code {done.returncode}"}
    return answer


def measure(device: str, minutes: float, note: Note) -> dict[str, Any]:
    """The whole record; `minutes` is shared out between the parts."""
    if not minutes > 0:
        raise InputError(f"--minutes must be positive, got {minutes:g}. Ten are enough on a GPU.")
    began, small, setting = time.perf_counter(), device == "cpu", setting_for(device)
    note(f"checking the kernels on {device}")
    checks = check_all(device, small)
    who = list(contenders(device))
    seconds = 60 * minutes * 0.25 / len(who)
    timeout = 120 + 10 * seconds
    steps, layers = [], []
    for name, precision in who:
        note(f"{name}, {precision}: a training step")
        task = {"task": "step", "contender": name, "precision": precision, "seconds": seconds, **setting}
        steps.append({"contender": name, "precision": precision, **ask(task, timeout)})
        if name in backends_here(device):
            layers.append({"contender": name, "precision": precision, **ask({**task, "task": "layers"}, timeout)})
    backend = resolved_name("auto", device, torch.float32)
    epochs = []
    for method in TABLE4:
        note(f"Table 4: {method}")
        task = {
            "task": "epoch",
            "method": method,
            "backend": backend,
            "seconds": 60 * minutes * 0.5 / len(TABLE4),
            **setting,
        }
        epochs.append({"method": method, **ask(task, 120 + 60 * minutes)})
    return {
        "what": "mpd-agl bench gpu",
        "device": about(device),
        "setting": setting,
        "versions": {**records.versions(), **_packages()},
        "code": records.code(),
        "hardware": records.hardware(),
        "backends": backends_here(device),
        "backend_auto": backend,
        "checks": checks,
        "layers": layers,
        "steps": steps,
        "epochs": epochs,
        "seconds": time.perf_counter() - began,
        "spikingjelly": {k: v for k, v in os.environ.items() if k.startswith("SJ_")},
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def page(record: dict[str, Any]) -> str:
    """The record as a page of Markdown."""
    d, s = record["device"], record["setting"]
    lines = [f"# mpd-agl bench gpu: {d['name']}", ""]
    if d.get("stands_for_a_gpu"):
        lines += [
            "A CPU in the GPU's place, with a small network: this shows that the command works. No figure counts.",
            "",
        ]
    lines += [", ".join(f"{k} {v}" for k, v in {**d, **record["versions"]}.items() if k != "name") + ".", ""]
    lines += ["## Backends", ""]
    lines += [f"- {n}: {why or 'works'}" for n, why in record["backends"].items()]
    lines += ["", f"`auto` takes {record['backend_auto']}.", "", "## Kernels against the written equations", ""]
    lines += ["| backend | dtype | cases | agree | worst gradient |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["checks"]:
        groups.setdefault((row["backend"], row.get("dtype", "failed")), []).append(row)
    for (backend, dtype), rows in groups.items():
        worst = max((max(r["far"].values()) for r in rows if "far" in r), default=float("nan"))
        lines.append(f"| {backend} | {dtype} | {len(rows)} | {sum(r['agrees'] for r in rows)} | {worst:.1e} |")
    lines += [f"- failed: {r['backend']} {r['case']}: {r['error']}" for r in record["checks"] if "error" in r]
    lines += ["", "## The fused step alone, forward and backward", ""]
    lines += ["| backend | precision | channels, size | first, s | ms | GB/s |", "|---|---|---|---|---|---|"]
    for row in record["layers"]:
        head = f"| {row['contender']} | {row['precision']} |"
        if "error" in row:
            lines.append(f"{head} {row['error']} | | | |")
        for at in row.get("layers", []):
            numbers = f"{at['first_s']:.1f} | {at['ms']:.3f} | {at['GB_per_s']:.0f}"
            lines.append(f"{head} {at['C']}, {at['size']}x{at['size']} | {numbers} |")
    title = f"ResNet-19, width_mult {s['width_mult']:g}, T={s['T']}, batch {s['batch']}"
    lines += ["", f"## A training step: {title}", ""]
    lines += ["| who | precision | first, s | ms | best, ms | peak, MB |", "|---|---|---|---|---|---|"]
    for row in record["steps"]:
        head = f"| {row['contender']} | {row['precision']} |"
        if "error" in row:
            lines.append(f"{head} {row['error']} | | | |")
        else:
            peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}"
            lines.append(f"{head} {row['first_s']:.1f} | {row['ms']:.2f} | {row['best_ms']:.2f} | {peak} |")
    lines += ["", "## Table 4: one epoch, 50,000 training and 10,000 test images", ""]
    lines += ["| method | steps | training, s | inference, s | paper, RTX 3090 |", "|---|---|---|---|---|"]
    for row in record["epochs"]:
        if "error" in row:
            lines.append(f"| {row['method']} | {row['error']} | | | |")
        else:
            paper = "{} and {} s".format(*TABLE4[row["method"]])
            numbers = f"{row['steps']} | {row['train_s']:.1f} | {row['test_s']:.1f}"
            lines.append(f"| {row['method']} | {numbers} | {paper} |")
    lines += ["", "Seconds are scaled from the measured steps, on random images that lie on the device.", ""]
    return "\n".join(lines)
