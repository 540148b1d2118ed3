"""One measurement of `mpd-agl bench gpu` in a process of its own: `python -m benchmarks.gpu_worker TASK`.

A process each gives each its own peak memory, and SpikingJelly reads which kernels to use when it is imported. The task
and the answer are JSON; what libraries print goes to stderr.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

SPIKINGJELLY = ("SJ_PLIF_CUDA_IMPLEMENTATION", "SJ_LIF_CUDA_IMPLEMENTATION")
"""What SpikingJelly 2 reads: auto, cuda, triton or torch."""
LAYERS = ((128, 32), (256, 16), (512, 8))
"""Channels and size of ResNet-19's stages."""


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
    """The answer to a task."""
    return {"step": _step, "epoch": _epoch, "layers": _layers}[task["task"]](task)


def _timed(work: Callable[[], Any], device: str, seconds: float, least: int = 3) -> tuple[float, list[float]]:
    """Seconds of the first call, and of as many others as fit."""
    import torch

    def once() -> float:
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    first = once()
    once()
    taken: list[float] = []
    while len(taken) < least or (sum(taken) < seconds and len(taken) < 10_000):
        taken.append(once())
    return first, taken


def _peak_mb(device: str) -> float | None:
    import torch

    from mpd_agl.records import peak_memory_mb

    return torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else peak_memory_mb()


def _config(task: dict[str, Any], **model: Any) -> Any:
    from mpd_agl.train.presets import read_preset
    from mpd_agl.train.resolve import merge, resolve

    options = {"num_steps": task["T"], "width_mult": task["width_mult"], **model}
    train = {"batch_size": task["batch"], "precision": task.get("precision", "float32"), "device": task["device"]}
    given = {"method": task.get("method", "mpd-agl"), "model": options, "train": train}
    return resolve(merge(read_preset("cifar10-resnet19"), given))


def _network(config: Any, device: str) -> Any:
    from mpd_agl.train import build

    return build.build_network(config, in_channels=3, image_size=32, num_classes=10).to(device).train()


def _step(task: dict[str, Any]) -> dict[str, Any]:
    """A training step of ResNet-19 by one contender."""
    import torch

    kind, _, how = task["contender"].partition(" ")
    if kind == "spikingjelly":
        os.environ.update(dict.fromkeys(SPIKINGJELLY, how))
    from benchmarks import peers
    from mpd_agl.train import build

    device, batch = task["device"], task["batch"]
    ann = kind == "ann"
    config = _config(task, ann=ann, backend="eager" if kind in ("spikingjelly", "ann") else kind)
    net = _network(config, device)
    if kind == "spikingjelly":
        net = peers.rebuild(net, "spikingjelly").to(device)
        _choose_before_2(net, how)
    count = batch * (task["T"] if ann else 1)
    x, y = torch.randn(count, 3, 32, 32, device=device), torch.randint(0, 10, (count,), device=device)
    stepper = build.build_stepper(config, net, torch.device(device))

    def work() -> None:
        stepper.step(x, y)
        if stepper.unread >= stepper.read_every:
            stepper.read()
        peers.reset(net)

    first, taken = _timed(work, device, task["seconds"])
    loss = stepper.read()[-1].loss if stepper.unread else None
    times = {"first_s": first, "ms": 1e3 * statistics.median(taken), "best_ms": 1e3 * min(taken), "steps": len(taken)}
    return {**times, "peak_mb": _peak_mb(device), "loss": loss}


def _choose_before_2(net: Any, how: str) -> None:
    """SpikingJelly before 2.0 chose per neuron, and its CUDA kernels were CuPy's."""
    for module in net.modules():
        if hasattr(module, "supported_backends"):
            module.backend = {"cuda": "cupy"}.get(how, how)


def _epoch(task: dict[str, Any]) -> dict[str, Any]:
    """Table 4: an epoch of training and one of inference, from as many steps as the time allows."""
    import torch

    from mpd_agl.train import build

    device, batch = task["device"], task["batch"]
    config = _config(task, backend=task["backend"])
    net = _network(config, device)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(0, 10, (batch,), device=device)
    stepper = build.build_stepper(config, net, torch.device(device))

    def train() -> None:
        stepper.step(x, y)
        if stepper.unread >= stepper.read_every:
            stepper.read()

    def infer() -> None:
        with torch.no_grad(), stepper.autocast():
            net(x)

    _, steps = _timed(train, device, task["seconds"])
    net.eval()
    _, passes = _timed(infer, device, task["seconds"] / 8)
    whole = {"train_s": statistics.fmean(steps) * 50_000 / batch, "test_s": statistics.fmean(passes) * 10_000 / batch}
    return {**whole, "steps": len(steps), "passes": len(passes), "peak_mb": _peak_mb(device)}


def _layers(task: dict[str, Any]) -> dict[str, Any]:
    """The fused step alone, forward and backward, at the sizes of ResNet-19's stages."""
    import torch

    rows = []
    for wide, size in LAYERS:
        C = max(1, round(wide * task["width_mult"]))
        x = torch.randn(task["T"] * task["batch"], C, size, size, device=task["device"])
        x = x.to(getattr(torch, task["precision"])).contiguous(memory_format=torch.channels_last)
        x = x.view(task["T"], task["batch"], C, size, size)
        first, taken = _timed(_fused_step(x, task["contender"]), task["device"], task["seconds"] / len(LAYERS))
        seconds = statistics.median(taken)
        moved = 9 * x.numel() * x.element_size()  # moments 1, forward 2, backward 3, normalise_grad 3
        rows.append({"C": C, "size": size, "first_s": first, "ms": 1e3 * seconds, "GB_per_s": moved / seconds / 1e9})
    return {"layers": rows}


def _fused_step(x_TNC: Any, backend: str) -> Callable[[], Any]:
    """A function that runs tdBN, neuron and surrogate on x, forward and backward."""
    import torch

    from mpd_agl.ops import tdbn_neuron

    T, C, device = x_TNC.shape[0], x_TNC.shape[2], x_TNC.device
    x, gamma, beta = x_TNC.requires_grad_(), torch.ones(C, device=device), torch.zeros(C, device=device)
    running, leaves = (beta.clone(), gamma.clone()), (x, gamma.requires_grad_(), beta.requires_grad_())
    tau, kappa = torch.tensor(0.2, device=device), torch.ones(T, device=device)

    def work() -> None:
        s, _, _ = tdbn_neuron(*leaves, *running, tau, kappa, num_steps=T, batch_stats=True, backend=backend)
        torch.autograd.grad(s, leaves, s.detach())

    return work


if __name__ == "__main__":
    main()
