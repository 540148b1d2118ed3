"""When skipping zeros pays: event-driven against dense layers, alone and in a whole network.

    python benchmarks/events.py table [--threads 1] [--json table.json]
    python benchmarks/events.py rates runs/NAME --json rates.json
    python benchmarks/events.py network --rates rates.json [--json network.json]
    python benchmarks/events.py docs --table table.json --network network.json

`table` times single convolutions of random spikes, oneDNN's dense one in channels_last beside ours, forward and weight gradient. `rates`
takes each layer's firing rate from a run's monitor data, the mean over the last epoch's snapshots. `network` builds ResNet-19 with those
rates and times inference (ours event-driven, ours dense, both folded, and the ANN at batch N) and a training step (ours, the convolutions
alone, SpikingJelly). `docs` writes tables and plot of both records into docs/events.md.

How rates are imposed: weights are random, and in one pass over a random batch each layer's tdBN takes the batch's statistics and the one
beta, the same for all channels, with which the share of spikes over all timesteps is the given one. So a layer's rate is a trained
network's; its spread over channels and space is not.

Contenders alternate in one process; medians. Outputs must agree before a ratio is printed.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path

SHAPES = ((128, 32, 32), (256, 16, 64), (512, 8, 128))  # channels, size, batch
RATES = (0.05, 0.10, 0.14, 0.20, 0.30)
DOC = Path(__file__).parents[1] / "docs" / "events.md"


def provenance(a):
    """What the figures were measured with."""
    from mpd_agl.kernels import native
    from mpd_agl.records import code, hardware, versions

    facts = {"threads": a.threads, "rounds": a.rounds, "simd": native.level()}
    return {"setting": facts, "code": code(), "versions": versions(), "hardware": hardware()}


def alternate(functions, rounds):
    """Median seconds of each, and all of them, taken in turns; the first round warms up."""
    times = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}, times


def relative(got, want):
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def one_convolution(channels, size, batch, rate, rounds):
    """Dense and event-driven milliseconds of a 3x3 convolution of random spikes."""
    import torch

    from mpd_agl.kernels import events

    g = torch.Generator().manual_seed(0)
    last = torch.channels_last
    x = (torch.rand(batch, channels, size, size, generator=g) < rate).float().contiguous(memory_format=last)
    w = (torch.randn(channels, channels, 3, 3, generator=g) / channels).contiguous(memory_format=last)
    gy = torch.randn(batch, channels, size, size, generator=g).contiguous(memory_format=last)
    found, packed = events.scan(x), events.pack(w)

    def dense_grad():
        where = (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (False, True, False)
        return torch.ops.aten.convolution_backward(gy, x, w, None, *where)[1]

    contenders = {
        "dense": lambda: torch.conv2d(x, w, None, 1, 1),
        "event": lambda: events.conv(x, w, padding=1),
        "event, lists and weights at hand": lambda: events.conv(x, w, padding=1, events=found, packed=packed),
        "scan": lambda: events.scan(x),
        "pack": lambda: events.pack(w),
        "dense weight gradient": dense_grad,
        "event weight gradient": lambda: events.weight_grad(found, x.shape, w, gy, 1, 1),
    }
    with torch.no_grad():
        off = relative(contenders["event"](), contenders["dense"]())
        off_grad = relative(contenders["event weight gradient"](), dense_grad())
        median, times = alternate(contenders, rounds)
    return {
        "channels": channels,
        "size": size,
        "batch": batch,
        "rate": float(x.mean()),
        "asked_rate": rate,
        "ms": {name: 1e3 * s for name, s in median.items()},
        "spread_ms": {name: [1e3 * min(t), 1e3 * max(t)] for name, t in times.items()},
        "difference": off,
        "weight_gradient_difference": off_grad,
        "dense_gflops": 2 * 9 * channels**2 * size**2 * batch / median["dense"] / 1e9,
        "speed_up": median["dense"] / median["event, lists and weights at hand"],
        "speed_up_alone": median["dense"] / median["event"],
        "speed_up_weight_gradient": median["dense weight gradient"] / median["event weight gradient"],
    }


def table(a):
    """Every shape at every rate."""
    import torch

    from mpd_agl.kernels import reuse_pages

    torch.set_num_threads(a.threads)
    reuse_pages()
    print(
        f"3x3, stride 1, float32, {a.threads} threads; times dense / event: forward with lists and packed weights at hand,"
    )
    print("forward with scan and packing, weight gradient")
    print(f"{'channels, size, batch':22}" + "".join(f"{100 * r:>20.0f} %" for r in a.at))
    cells = []
    for channels, size, batch in SHAPES:
        row = [one_convolution(channels, size, max(1, batch // a.divide), rate, a.rounds) for rate in a.at]
        cells += row
        bad = [c for c in row if max(c["difference"], c["weight_gradient_difference"]) > 2e-6]
        shown = [
            "outputs differ"
            if c in bad
            else f"{c['speed_up']:.2f} {c['speed_up_alone']:.2f} {c['speed_up_weight_gradient']:.2f}"
            for c in row
        ]
        print(
            f"{f'{channels}, {size}x{size}, {batch // a.divide}':22}" + "".join(f"{s:>22}" for s in shown), flush=True
        )
    return {"kind": "table", **provenance(a), "divide": a.divide, "cells": cells}


def rates(a):
    """Each layer's firing rate over the last epoch's snapshots of a run."""
    from mpd_agl.errors import InputError
    from mpd_agl.records import read_metrics, read_record

    record = read_record(a.run / "record.json")
    snapshots = [e for e in read_metrics(a.run / "metrics.jsonl") if e["event"] == "monitor"]
    if not snapshots:
        raise InputError(f"{a.run} was not monitored: it holds no firing rates. Train with --monitor.every 50.")
    last = [s for s in snapshots if s["epoch"] == snapshots[-1]["epoch"]]
    layers = {}
    for name in last[-1]["layers"]:
        seen = [s["layers"][name] for s in last]
        rate_T = [statistics.fmean(r) for r in zip(*(s["rate_T"] for s in seen), strict=True)]
        layers[name] = {
            "rate": statistics.fmean(rate_T),
            "rate_T": rate_T,
            "rate_in": statistics.fmean(s["rate_in"] for s in seen),
        }
        print(
            f"{name:26} fires {100 * layers[name]['rate']:5.1f} %, inputs active {100 * layers[name]['rate_in']:5.1f} %"
        )
    config = record.config
    return {
        "kind": "rates",
        "run": {
            "model": config["model"],
            "data": config["data"]["name"],
            "method": config["method"],
            "code": record.code,
            "epoch": last[-1]["epoch"],
            "steps": [s["step"] for s in last],
            "final": record.final,
        },
        "layers": layers,
    }


def impose(net, x, wanted):
    """Give each layer the firing rate asked for; returns what every layer's inputs then are."""
    import torch

    from mpd_agl import kernels
    from mpd_agl.nn import SpikingBlock

    seen = {}

    def hook(name, block):
        def set_beta(module, inputs, output):
            T = net.num_steps
            y = output.detach()
            x_SNC = y.view(-1, x.shape[0], *y.shape[1:])
            mean_C, var_C = kernels.moments(x_SNC)
            norm = block.norm
            norm.running_mean.copy_(mean_C)
            norm.running_var.copy_(var_C)
            scale_C = norm.weight * (norm.alpha * norm.v_th) * torch.rsqrt(var_C + norm.eps)
            low, high, one_T = -5.0, 5.0, torch.ones(T)
            for _ in range(24):
                beta = (low + high) / 2
                beta_C = torch.full_like(mean_C, beta)
                sums_T6 = kernels.probe(x_SNC, mean_C, scale_C, beta_C, block.neuron.tau, one_T)
                rate = float(sums_T6[:, 0].sum()) / (T * x_SNC[0].numel())
                low, high = (beta, high) if rate < wanted[name] else (low, beta)
            norm.bias.fill_(beta)
            active = float(torch.count_nonzero(inputs[0])) / inputs[0].numel()
            seen[name] = {"rate": rate, "asked": wanted[name], "rate_in": active, "beta": beta}

        return set_beta

    blocks = {n: m for n, m in net.named_modules() if isinstance(m, SpikingBlock)}
    handles = [block.conv.register_forward_hook(hook(name, block)) for name, block in blocks.items()]
    with torch.no_grad():
        net.eval()(x)
    for handle in handles:
        handle.remove()
    return seen


def build(a, conv, wanted, x):
    """ResNet-19 at those rates; the same weights whatever `conv` is."""
    import torch

    from mpd_agl.models import create_model

    torch.manual_seed(0)
    net = create_model("resnet19", width=a.width, num_steps=a.num_steps, conv=conv)
    for name, module in net.named_modules():
        if name in wanted and hasattr(module, "norm"):
            module.norm.load_state_dict(wanted[name])
    return net


def network(a):
    """Inference and a training step of the whole network."""
    import torch

    from mpd_agl.kernels import reuse_pages
    from mpd_agl.models import create_model
    from mpd_agl.nn import fold, sparse_layers

    torch.set_num_threads(a.threads)
    reuse_pages()
    source = json.loads(a.rates.read_text())
    wanted = {name: layer["rate"] for name, layer in source["layers"].items()}
    g = torch.Generator().manual_seed(1)
    last = torch.channels_last
    images = torch.randn(max(a.batch, a.train_batch), 3, 32, 32, generator=g).contiguous(memory_format=last)
    result = {"kind": "network", **provenance(a), "rates": source, "width": a.width, "num_steps": a.num_steps}
    parts = ["inference", "training"] if a.part == "both" else [a.part]
    for part in parts:
        batch = a.batch if part == "inference" else a.train_batch
        x = images[:batch].contiguous(memory_format=last)
        torch.manual_seed(0)
        base = create_model("resnet19", width=a.width, num_steps=a.num_steps)
        imposed = impose(base, x, wanted)
        norms = {n: m.norm.state_dict() for n, m in base.named_modules() if n in imposed}
        nets = {conv: build(a, conv, norms, x) for conv in ("dense", "event", "auto")}
        if part == "inference":
            steps = inference(a, nets, x, fold, create_model)
        else:
            steps = training(a, nets, x)
        median, times = alternate(steps, a.rounds)
        first = "event-driven (auto)"
        print(
            f"{part}: ResNet-19 x{a.width:g}, T={a.num_steps}, batch {batch}, {a.threads} threads, {a.rounds} rounds, medians"
        )
        for name, seconds in median.items():
            print(f"  {name:28} {1e3 * seconds:9.1f} ms  {seconds / median[first]:6.3f} of ours")
        layers = {}
        for name, layer in sparse_layers(nets["auto"]).items():
            choice = layer.choice or next(
                (f.choice for n, f in sparse_layers(nets.get("folded", nets["auto"])).items() if n == name), None
            )
            layers[name] = {**imposed[name], **(choice.to_dict() if choice else {})}
        result[part] = {
            "batch": batch,
            "ms": {n: 1e3 * s for n, s in median.items()},
            "spread_ms": {n: [1e3 * min(t), 1e3 * max(t)] for n, t in times.items()},
            "layers": layers,
        }
    return result


def inference(a, nets, x, fold, create_model):
    """Contenders for one batch of inference, all folded."""
    import torch

    torch.manual_seed(0)
    ann = fold(create_model("resnet19", width=a.width, ann=True).eval())
    folded = {conv: fold(net.eval()) for conv, net in nets.items()}
    nets["folded"] = folded["auto"]

    def run(net):
        def once():
            with torch.no_grad():
                return net(x)

        return once

    steps = {
        "event-driven (auto)": run(folded["auto"]),
        "event-driven everywhere": run(folded["event"]),
        "dense": run(folded["dense"]),
        "ANN, batch N": run(ann),
    }
    agree(folded["event"], steps["event-driven everywhere"])
    return steps


def agree(net, run):
    """Every layer against its dense self, on the input that flows. Whole networks may differ: a spike at the threshold flips others."""
    from mpd_agl.nn import sparse_layers

    def check(name):
        def compare(layer, inputs, output):
            off = relative(output.detach(), layer.dense(inputs[0]).detach())
            if off > 1e-5:
                sys.exit(f"{name} differs from its dense self by {off:.1e}")

        return compare

    handles = [layer.register_forward_hook(check(name)) for name, layer in sparse_layers(net).items()]
    run()
    for handle in handles:
        handle.remove()


def training(a, nets, x):
    """Contenders for one training step; the learning rate is 0, so that rates stay as imposed."""
    import torch
    from step import convolutions
    from torch.nn import functional as F

    y = torch.randint(0, 10, (x.shape[0],), generator=torch.Generator().manual_seed(2))

    def steps_of(net, after=None):
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)

        def step():
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x).mean(0), y).backward()
            optimizer.step()
            if after:
                after()

        return step

    agree(nets["event"].train(), lambda: nets["event"](x))
    steps = {
        "event-driven (auto)": steps_of(nets["auto"]),
        "event-driven everywhere": steps_of(nets["event"]),
        "dense": steps_of(nets["dense"]),
        "dense convolutions alone": convolutions(copy.deepcopy(nets["dense"]), x),
    }
    try:
        import peers

        peer = peers.spikingjelly(nets["dense"])
        steps["SpikingJelly"] = steps_of(peer, lambda: peers.reset(peer))
    except ImportError:
        print("SpikingJelly: left out, it is not installed (pip install -e .[bench])")
    return steps


def docs(a):
    """Tables and plot of the records, written between the marks of docs/events.md."""
    made = {}
    if a.table:
        record = json.loads(a.table.read_text())
        made["table"] = _table_lines(record)
        _plot(record, DOC.with_name("events-speedup.svg"))
    if a.network:
        made["network"] = _network_lines(json.loads(a.network.read_text()))
    text = DOC.read_text()
    for name, lines in made.items():
        start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, _, rest = text.partition(start)
        text = before + start + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    DOC.write_text(text)


def _where(record):
    s, h = record["setting"], record["hardware"]
    commit = (record["code"]["commit"] or "no commit")[:9] + (", changed" if record["code"]["changed"] else "")
    return f"{h['cpu']}, {s['threads']} threads, {s['simd']}, torch {record['versions']['torch']}, {s['rounds']} rounds, commit {commit}."


def _table_lines(record):
    cells = record["cells"]
    at = sorted({c["asked_rate"] for c in cells})
    out = [_where(record), ""]
    for key, title in (
        ("speed_up", "forward, lists from the neuron"),
        ("speed_up_alone", "forward, with the scan and the packing of weights"),
        ("speed_up_weight_gradient", "weight gradient"),
    ):
        out += [f"| {title} | " + " | ".join(f"{100 * r:g} % active" for r in at) + " |", "|---" * (len(at) + 1) + "|"]
        for channels, size, batch in sorted({(c["channels"], c["size"], c["batch"]) for c in cells}):
            row = {c["asked_rate"]: c for c in cells if c["channels"] == channels}
            out.append(
                f"| {channels}, {size}x{size}, {batch} | " + " | ".join(f"{row[r][key]:.2f}x" for r in at) + " |"
            )
        out.append("")
    return out


def _network_lines(record):
    out = [_where(record), ""]
    for part in ("inference", "training"):
        if part in record:
            ms, batch = record[part]["ms"], record[part]["batch"]
            ours = ms["event-driven (auto)"]
            out += [f"| {part}, batch {batch} | ms | times ours |", "|---|---|---|"]
            out += [f"| {name} | {value:.1f} | {value / ours:.2f} |" for name, value in ms.items()]
            out.append("")
    return out


def _plot(record, path):
    from mpd_agl.report import draw

    with draw.style():
        figure, (axes,) = draw.new(height=3.0)
        for number, (channels, size, _) in enumerate(SHAPES):
            row = sorted((c for c in record["cells"] if c["channels"] == channels), key=lambda c: c["rate"])
            draw.line(
                axes,
                [c["rate"] for c in row],
                [c["speed_up"] for c in row],
                color=draw.COLOURS[number],
                label=f"{channels} channels, {size}x{size}",
            )
        axes.axhline(1, color=draw.SOFT, linewidth=0.8)
        draw.percent(axes.xaxis)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("inputs that are not zero")
        axes.set_title("Dense time / event-driven time, forward")
        draw.legend(figure, axes, 3)
        path.write_bytes(draw.svg_file(figure))


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(dest="command", required=True)
    t = commands.add_parser("table")
    t.add_argument("--at", type=float, nargs="+", default=list(RATES), help="shares of active inputs")
    t.add_argument("--divide", type=int, default=1, help="divides the batches: a quick look")
    n = commands.add_parser("network")
    n.add_argument("--rates", type=Path, required=True)
    n.add_argument("--width", type=float, default=1.0)
    n.add_argument("--num-steps", type=int, default=2)
    n.add_argument("--batch", type=int, default=32)
    n.add_argument("--train-batch", type=int, default=16)
    n.add_argument("--part", choices=("both", "inference", "training"), default="both")
    for command in (t, n):
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--rounds", type=int, default=7)
    r = commands.add_parser("rates")
    r.add_argument("run", type=Path)
    d = commands.add_parser("docs")
    d.add_argument("--table", type=Path)
    d.add_argument("--network", type=Path)
    for command in (t, n, r):
        command.add_argument("--json", type=Path)
    a = p.parse_args(argv)
    record = {"table": table, "rates": rates, "network": network, "docs": docs}[a.command](a)
    if record and a.json:
        a.json.write_text(json.dumps(record, indent=1) + "\n")
    return record


if __name__ == "__main__":
    main()
