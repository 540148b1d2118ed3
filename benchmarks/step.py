"""Time and memory of a training step, contenders side by side: python benchmarks/step.py [--width 0.125 --batch 100 --num-steps 2]

One process per contender, alternating rounds, medians; ratios first. Contenders: `native`, `eager`, `compiled` (ours), `spikingjelly`
(same weights; in float64 its logits must be ours before a ratio is printed), `ann` (the iso-architecture ANN at batch T*N), `convs` (the
network's convolutions alone, forward and backward), `monitored` (native with all monitors at every 50th step).

`native@16` is `native` at T=16: `--contenders native@2 native@4 native@8 native@16` shows how time and memory grow with T.
Freed pages are kept by the allocator for every contender alike (`mpd_agl.kernels.reuse_pages`); `--fresh-pages` leaves glibc's default.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path


def build(a):
    """A function that does one training step and returns the loss; everything is made from one seed."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from mpd_agl.kernels import reuse_pages
    from mpd_agl.models import create_model

    torch.set_num_threads(a.threads)
    if not a.fresh_pages:
        reuse_pages()
    torch.manual_seed(0)
    options = {"width": a.width, "num_steps": a.num_steps, "method": a.method}
    backend = a.contender if a.contender in ("native", "eager", "compiled") else "auto"
    net = create_model(a.model, **options, backend=backend)
    o = net.options
    generator = torch.Generator().manual_seed(1)
    shape = (a.batch, o.in_channels, o.image_size, o.image_size)
    frames = a.model == "vggsnn"
    x = torch.randn((a.num_steps, *shape) if frames else shape, generator=generator)
    y = torch.randint(0, o.num_classes, (a.batch,), generator=generator)
    x = x if frames else x.contiguous(memory_format=torch.channels_last)
    after = None
    if a.contender == "ann":
        net = create_model(a.model, **options, ann=True)
        x = (x if frames else x.unsqueeze(0).expand(a.num_steps, *shape)).flatten(0, 1)
        x, y = x.contiguous(memory_format=torch.channels_last), y.repeat(a.num_steps)
    elif a.contender == "spikingjelly":
        import peers

        a.agrees = peers.agree(net, x[:, :4] if frames else x[:4])
        net = peers.spikingjelly(net)
        after = lambda: peers.reset(net)  # noqa: E731
    elif a.contender == "convs":
        return convolutions(net, x)
    monitor = None
    if a.contender == "monitored":
        from mpd_agl.analysis import Monitor

        monitor = Monitor(net, every=50)
    net.train()
    decay = [p for p in net.parameters() if isinstance(p, nn.Parameter)]
    optimizer = torch.optim.SGD(decay, lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x).mean(0), y)
        loss.backward()
        optimizer.step()
        if after:
            after()
        if monitor:
            monitor.step()
        return loss.detach()

    return step


def convolutions(net, x):
    """Forward and backward of every convolution on inputs of its own size, channels_last; nothing else."""
    import torch
    from torch import nn

    calls = []
    hooks = [
        m.register_forward_hook(lambda m, i, o: calls.append((m, i[0].detach())))
        for m in net.modules()
        if isinstance(m, nn.Conv2d)
    ]
    net.train()
    net(x)
    for h in hooks:
        h.remove()
    stem = calls[0][0]

    def step():
        for conv, inputs in calls:
            inputs.requires_grad_(conv is not stem)
            out = conv(inputs)
            wanted = [conv.weight] if conv is stem else [conv.weight, inputs]
            torch.autograd.grad(out, wanted, out.detach())
        return torch.zeros(())

    return step


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def worker(a):
    a.contender, _, steps = a.contender.partition("@")
    a.num_steps = int(steps or a.num_steps)
    step = build(a)
    before = peak()
    losses = [float(step()) for _ in range(a.warmup)]
    print(json.dumps({"losses": losses, "agrees": getattr(a, "agrees", True)}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps({"times": times, "peak": peak(), "before": before}), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="resnet19")
    p.add_argument("--method", default="mpd-agl")
    p.add_argument("--width", type=float, default=0.125)
    p.add_argument("--batch", type=int, default=100)
    p.add_argument("--num-steps", type=int, default=2)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3, help="steps per round")
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--contenders", nargs="+", default=["native", "spikingjelly", "ann", "convs", "eager"])
    p.add_argument("--fresh-pages", action="store_true", help="leave the allocator at glibc's default")
    p.add_argument("--json", type=Path)
    p.add_argument("--contender", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.contender:
        return worker(a)
    options = ["--model", "--method", "--width", "--batch", "--num-steps", "--threads", "--warmup"]
    passed = [str(v) for o in options for v in (o, getattr(a, o[2:].replace("-", "_")))]
    passed += ["--fresh-pages"] if a.fresh_pages else []
    procs, first, agrees = {}, {}, {}
    for name in a.contenders:
        command = [sys.executable, __file__, "--contender", name, *passed]
        proc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = proc.stdout.readline()
        if not line:
            print(f"{name}: left out, it does not start (pip install -e .[bench] brings the peers)")
            continue
        ready = json.loads(line)
        procs[name], first[name], agrees[name] = proc, ready["losses"], ready["agrees"]
    times, peaks, before = {n: [] for n in procs}, {}, {}
    for _ in range(a.rounds):
        for name, proc in procs.items():
            proc.stdin.write(f"{a.steps}\n")
            proc.stdin.flush()
            answer = json.loads(proc.stdout.readline())
            times[name] += answer["times"]
            peaks[name], before[name] = answer["peak"], answer["before"]
    for proc in procs.values():
        proc.stdin.close()
        proc.wait()
    base = "native" if "native" in procs else next(iter(procs))
    result = {}
    for name in procs:
        ms = [1e3 * t / a.batch for t in times[name]]
        result[name] = {
            "ms_per_image": statistics.median(ms),
            "spread": [min(ms), max(ms)],
            "peak_bytes": peaks[name],
            "step_bytes": peaks[name] - before[name],
            "first_losses": first[name],
        }
    header = f"{a.model}, width {a.width:g}, T={a.num_steps}, batch {a.batch}, float32, {a.threads} threads, {a.method}"
    print(f"{header}; {a.rounds} rounds of {a.steps} steps, medians")
    print(
        f"{'contender':14} {'time / ' + base:>15} {'memory / ' + base:>17} {'ms/image':>9}"
        f" {'min-max':>15} {'peak MB':>8} {'step MB':>8}"
    )
    for name, r in result.items():
        ratio = r["ms_per_image"] / result[base]["ms_per_image"]
        time_ratio = f"{ratio:.3f}" if agrees[name] else "outputs differ"
        low, high = r["spread"]
        print(
            f"{name:14} {time_ratio:>15} {r['peak_bytes'] / result[base]['peak_bytes']:17.2f} {r['ms_per_image']:9.3f}"
            f" {low:7.2f}-{high:<7.2f} {r['peak_bytes'] / 1e6:8.0f} {r['step_bytes'] / 1e6:8.0f}"
        )
    grown = [n for n in result if "@" in n]
    if len(grown) > 1:
        low, high = grown[0], grown[-1]
        steps = int(high.split("@")[1]) / int(low.split("@")[1])
        for key, what in (("ms_per_image", "time"), ("step_bytes", "memory of a step")):
            ratio = result[high][key] / result[low][key]
            print(f"{what}: {ratio:.2f}x from {low} to {high}, {ratio / steps:.2f} of linear growth")
    if a.json:
        a.json.write_text(json.dumps({"setting": header, "result": result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
