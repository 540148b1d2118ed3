"""One training step and one inference of ResNet-19 on a device: `python -m benchmarks.gpu_worker TASK`.

A process each gives each its own peak memory, and SpikingJelly reads which kernels to use when it is imported. The task
and the answer are JSON; what libraries print goes to stderr.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

SPIKINGJELLY = ("SJ_PLIF_CUDA_IMPLEMENTATION", "SJ_LIF_CUDA_IMPLEMENTATION")
"""What SpikingJelly 2 reads: auto, cuda, triton or torch."""


def main() -> None:
    """Measure and answer."""
    from benchmarks.worker import own_stdout

    out, task = own_stdout(), json.loads(sys.argv[1])
    try:
        answer = measure(task)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    print(json.dumps(answer), file=out, flush=True)


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a training step and of an inference, and the peak memory."""
    kind, _, how = task["contender"].partition(" ")
    if kind == "spikingjelly":
        os.environ.update(dict.fromkeys(SPIKINGJELLY, how))
    import torch
    from torch.nn import functional as F

    from benchmarks import peers
    from mpd_agl.models import create_model
    from mpd_agl.records import peak_memory_mb

    device, is_ann, on_cpu = task["device"], kind == "ann", task["device"] == "cpu"
    options = {"num_steps": task["T"], "width_mult": task["width_mult"], "method": task["method"], "ann": is_ann}
    torch.manual_seed(0)
    net: Any = create_model("resnet19", backend="eager" if kind in ("spikingjelly", "ann") else kind, **options)
    if kind == "spikingjelly":
        net = peers.rebuild(net, "spikingjelly")
        for module in net.modules():  # SpikingJelly before 2.0 chose per neuron, and its CUDA kernels were CuPy's
            if hasattr(module, "supported_backends"):
                module.backend = {"cuda": "cupy"}.get(how, how)
    net = net.to(device).train()
    count = task["batch"] * (task["T"] if is_ann else 1)
    x, y = torch.randn(count, 3, 32, 32, device=device), torch.randint(0, 10, (count,), device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=not on_cpu)

    def autocast() -> Any:
        return nullcontext() if task["precision"] == "float32" else torch.autocast(device, torch.bfloat16)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = F.cross_entropy(net(x).float().mean(0), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        peers.reset(net)

    def infer() -> None:
        with torch.no_grad(), autocast():
            net(x)
        peers.reset(net)

    wait = (lambda: None) if on_cpu else torch.cuda.synchronize
    first, steps = timed(train, wait, task["seconds"])
    peak = peak_memory_mb() if on_cpu else torch.cuda.max_memory_allocated() / 2**20
    net.eval()
    _, passes = timed(infer, wait, task["seconds"] / 8)
    return {
        "first_s": first,
        "ms": 1e3 * statistics.median(steps),
        "best_ms": 1e3 * min(steps),
        "inference_ms": 1e3 * statistics.median(passes),
        "steps": len(steps),
        "peak_mb": peak,
    }


def timed(work: Callable[[], None], wait: Callable[[], Any], seconds: float) -> tuple[float, list[float]]:
    """Seconds of the first call, and of as many others as fit; at least three."""

    def once() -> float:
        began = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - began

    first = once()
    once()
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < seconds and len(taken) < 10_000):
        taken.append(once())
    return first, taken


if __name__ == "__main__":
    main()
