"""`python -m benchmarks gpu`: kernels and a training step on a GPU, in about ten minutes: one record and one page.

Kernels against `core`; a training step of ResNet-19 next to SpikingJelly's kernels and the ANN; the methods of Table 4.
Without a GPU it runs on the CPU with a small network: that shows that the command works, and nothing else.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.compare import own_path, provenance
from benchmarks.gpu_checks import check_all
from experiments.quoted import TABLE4
from mpd_agl import records
from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here
from mpd_agl.ops.step.backends import resolved_name

Note = Callable[[str], None]
PAPER_METHOD = "mpd-agl"


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
        return {"name": records.hardware()["cpu"], "is_gpu": False}
    p = torch.cuda.get_device_properties(0)
    return {
        "name": p.name,
        "is_gpu": True,
        "capability": f"{p.major}.{p.minor}",
        "memory_gb": round(p.total_memory / 2**30, 1),
        "processors": p.multi_processor_count,
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "convolutions_in_tf32": torch.backends.cudnn.allow_tf32,
    }


def contenders(device: str, backend: str) -> Iterator[tuple[str, str, str]]:
    """Name, precision and method; the methods of Table 4 on the backend that `auto` takes."""
    names = [n for n, why in backends_here(device).items() if not why]
    if device == "cpu":  # neither interpreter nor compiler: they take longer than all others
        names = [n for n in names if n in ("native", "eager")]
    peers = ["spikingjelly triton", "spikingjelly cuda"] if device == "cuda" else []
    for name in (*names, *peers, "ann"):
        for precision in ("float32", "bfloat16"):
            yield name, precision, PAPER_METHOD
    yield "spikingjelly torch", "float32", PAPER_METHOD
    for method in TABLE4:
        if method != PAPER_METHOD:
            yield backend, "float32", method


def ask(task: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The answer of a worker's process, or its error."""
    command = [sys.executable, "-m", "benchmarks.gpu_worker", json.dumps(task)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "check": False}
    try:
        done = subprocess.run(command, timeout=timeout, env={**os.environ, **own_path()}, **options)
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {timeout:.0f} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"its process ended with code {done.returncode}"}
    return answer


def measure(device: str, minutes: float, note: Note) -> dict[str, Any]:
    """The whole record; `minutes` is divided among the contenders."""
    if not minutes > 0:
        raise InputError(f"--minutes must be positive, got {minutes:g}. Ten are enough on a GPU.")
    began, setting = time.perf_counter(), setting_for(device)
    note(f"checking the kernels on {device}")
    checks = check_all(device, device == "cpu")
    backend = resolved_name("auto", device, torch.float32)
    steps, every = [], list(contenders(device, backend))
    for name, precision, method in every:
        note(f"{name}, {precision}, {method}: a training step")
        who = {"contender": name, "precision": precision, "method": method}
        seconds = 60 * minutes * 0.8 / len(every)
        steps.append({**who, **ask({**who, **setting, "seconds": seconds}, 120 + 10 * seconds)})
    return {
        "what": "python -m benchmarks gpu",
        "device": about(device),
        "setting": setting,
        **provenance(),
        "backends": backends_here(device),
        "backend_auto": backend,
        "checks": checks,
        "steps": steps,
        "seconds": time.perf_counter() - began,
    }


def page(record: dict[str, Any]) -> str:
    """The record as a page of Markdown."""
    d, s = record["device"], record["setting"]
    lines = [f"# python -m benchmarks gpu: {d['name']}", ""]
    if not d["is_gpu"]:
        lines += ["No GPU: a CPU with a small network. It shows that the command works; no figure counts.", ""]
    lines += [", ".join(f"{k} {v}" for k, v in {**d, **record["versions"]}.items() if k != "name") + ".", ""]
    lines += ["## Backends", ""]
    lines += [f"- {n}: {why or 'works'}" for n, why in record["backends"].items()]
    lines += ["", f"`auto` takes {record['backend_auto']}.", "", "## Kernels against the written equations", ""]
    lines += ["| backend | dtype | cases | agree | worst gradient |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["checks"]:
        groups.setdefault((row["backend"], row["dtype"]), []).append(row)
    for (backend, dtype), rows in groups.items():
        worst = max((max(r["far"].values()) for r in rows if "far" in r), default=float("nan"))
        lines.append(f"| {backend} | {dtype} | {len(rows)} | {sum(r['agrees'] for r in rows)} | {worst:.1e} |")
    lines += [f"- failed: {r['backend']} {r['dtype']}: {r['error']}" for r in record["checks"] if "error" in r]
    title = f"ResNet-19, width_mult {s['width_mult']:g}, T={s['T']}, batch {s['batch']}"
    lines += ["", f"## A training step: {title}", ""]
    lines += ["| who | precision | method | first, s | ms | best, ms | peak, MB | epoch, s | inference, s | paper, s |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in record["steps"]:
        head = f"| {row['contender']} | {row['precision']} | {row['method']} |"
        if "error" in row:
            lines.append(f"{head} {row['error']} | | | | | | |")
            continue
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}"
        whole = f"{row['ms'] * 50 / s['batch']:.1f} | {row['inference_ms'] * 10 / s['batch']:.1f}"
        is_table4 = row["contender"] == record["backend_auto"] and row["precision"] == "float32"
        quoted = "{} and {}".format(*TABLE4[row["method"]]) if is_table4 else ""
        times = f"{row['first_s']:.1f} | {row['ms']:.2f} | {row['best_ms']:.2f}"
        lines.append(f"{head} {times} | {peak} | {whole} | {quoted} |")
    lines += ["", "Epochs: 50,000 training and 10,000 test images, from the steps' times. Paper: an RTX 3090.", ""]
    return "\n".join(lines)
