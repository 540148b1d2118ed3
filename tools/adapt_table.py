"""Networks that do not learn before and after `adapt(net, batch)`, three seeds each, next to a hand-tuned threshold.

    python -m tools.adapt_table docs/results/adapt/networks.json --nmnist DIR    # it trains only what is missing

The networks are genuine ones of SpikingJelly and snnTorch, as their users write them (`make install` brings both).
`as built` is trained unchanged. `adapted` is the same network after one call of `adapt` on one batch. `hand-tuned` is
the best of three thresholds, chosen by one run each, a third as long, with seed 0 on held-out training samples. All see
the same batches; the accuracy is that of the last epoch on the test set. The record's `table` is what the pages show.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl import records
from mpd_agl.adaptation import adapt
from mpd_agl.records import canonical, write_atomic

SEEDS = (0, 1, 2)
THRESHOLDS = (1.0, 0.5, 0.25)
DIGITS, BATCH = 2000, 25


@dataclass(frozen=True)
class Case:
    """A network that people write, and how they train it."""

    name: str
    about: str
    make: Callable[[float], nn.Module]
    """From the threshold."""
    data: str
    forward: Callable[[nn.Module, Tensor], Tensor]
    """Logits of a batch, from rest."""
    optimizer: str = "sgd"
    lr: float = 0.05
    epochs: int = 3


def jelly_plain(depth: int, tau: float, shape: str) -> Callable[[float], nn.Module]:
    def make(v_th: float) -> nn.Module:
        from spikingjelly.activation_based import layer, neuron, surrogate

        parts: list[nn.Module] = []
        for number in range(depth):
            shapes = {"rect": surrogate.Rect(1.0), "atan": surrogate.ATan(2.0)}
            parts += [
                layer.Conv2d(1 if number == 0 else 16, 16, 3, padding=1, bias=False, step_mode="m"),
                layer.BatchNorm2d(16, step_mode="m"),
                neuron.LIFNode(tau=tau, v_threshold=v_th, surrogate_function=shapes[shape], step_mode="m"),
            ]
        pool, flat = layer.AdaptiveAvgPool2d(3, step_mode="m"), layer.Flatten(step_mode="m")
        return nn.Sequential(*parts, pool, flat, layer.Linear(16 * 9, 10, step_mode="m"))

    return make


def jelly_forward(net: nn.Module, x: Tensor) -> Tensor:
    from spikingjelly.activation_based import functional

    functional.reset_net(net)
    logits: Tensor = net(x.unsqueeze(0).repeat(4, 1, 1, 1, 1)).mean(0)
    functional.reset_net(net)
    return logits


class TorchConv(nn.Module):
    """snnTorch's tutorial network, deeper: Conv2d - Leaky, no norm."""

    def __init__(self, depth: int, beta: float, v_th: float) -> None:
        super().__init__()
        import snntorch as snn
        from snntorch import surrogate

        self.convs = nn.ModuleList(nn.Conv2d(1 if k == 0 else 16, 16, 3, padding=1) for k in range(depth))
        self.lifs = nn.ModuleList(
            snn.Leaky(beta=beta, threshold=v_th, spike_grad=surrogate.atan(alpha=2.0)) for _ in range(depth)
        )
        self.out = nn.Linear(16 * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        mems: list[Any] = [lif.init_leaky() for lif in self.lifs]
        logits = []
        for _ in range(6):
            s = x
            for k, (conv, lif) in enumerate(zip(self.convs, self.lifs, strict=True)):
                s, mems[k] = lif(conv(s), mems[k])
            logits.append(self.out(F.adaptive_avg_pool2d(s, 3).flatten(1)))
        return torch.stack(logits).mean(0)


class Recurrent(nn.Module):
    """Two recurrent layers of snnTorch (RLeaky, all to all) on event frames."""

    def __init__(self, v_th: float) -> None:
        super().__init__()
        import snntorch as snn
        from snntorch import surrogate

        def lif() -> nn.Module:
            grad = surrogate.atan(alpha=2.0)
            return snn.RLeaky(beta=0.9, threshold=v_th, all_to_all=True, linear_features=96, spike_grad=grad)

        self.fc1, self.lif1 = nn.Linear(2 * 17 * 17, 96), lif()
        self.fc2, self.lif2, self.out = nn.Linear(96, 96), lif(), nn.Linear(96, 10)

    def forward(self, x_TNF: Tensor) -> Tensor:
        s1, m1 = self.lif1.init_rleaky()
        s2, m2 = self.lif2.init_rleaky()
        logits = []
        for x in x_TNF:
            s1, m1 = self.lif1(self.fc1(x), s1, m1)
            s2, m2 = self.lif2(self.fc2(s1), s2, m2)
            logits.append(self.out(s2))
        return torch.stack(logits).mean(0)


class TokenBlock(nn.Module):
    """LayerNorm - neuron - Linear, token mixing and channel mixing, each with a shortcut."""

    def __init__(self, tokens: int, dim: int, lif: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.lif1, self.mix = nn.LayerNorm(dim), lif(), nn.Linear(tokens, tokens)
        self.norm2, self.lif2, self.fc = nn.LayerNorm(dim), lif(), nn.Linear(dim, dim)

    def forward(self, x_TNLC: Tensor) -> Tensor:
        mixed = self.mix(self.lif1(self.norm1(x_TNLC)).transpose(2, 3)).transpose(2, 3)
        x_TNLC = x_TNLC + mixed
        return x_TNLC + self.fc(self.lif2(self.norm2(x_TNLC)))


class Tokens(nn.Module):
    """A stack of token blocks on patches of 2x2 pixels: LayerNorm before SpikingJelly's LIFNode with its defaults."""

    def __init__(self, depth: int, v_th: float) -> None:
        super().__init__()
        from spikingjelly.activation_based import neuron, surrogate

        def lif() -> nn.Module:
            shape = surrogate.ATan(2.0)
            return neuron.LIFNode(tau=4.0, v_threshold=v_th, surrogate_function=shape, step_mode="m")

        self.embed = nn.Linear(4, 32)
        self.blocks = nn.Sequential(*(TokenBlock(49, 32, lif) for _ in range(depth)))
        self.norm, self.lif, self.out = nn.LayerNorm(32), lif(), nn.Linear(32, 10)

    def forward(self, x_TNCHW: Tensor) -> Tensor:
        patches = F.pixel_unshuffle(x_TNCHW.flatten(0, 1), 2).flatten(2).transpose(1, 2)
        x_TNLC = self.embed(patches).unflatten(0, x_TNCHW.shape[:2])
        logits: Tensor = self.out(self.lif(self.norm(self.blocks(x_TNLC))).mean(2))
        return logits


def call(net: nn.Module, x: Tensor) -> Tensor:
    logits: Tensor = net(x)
    return logits


JELLY = {"data": "digits", "forward": jelly_forward}
ADAM = {"optimizer": "adam", "lr": 2e-3}
CASES = [
    Case("SpikingJelly, 6 layers", "tau 4, rectangular (its issue 190)", jelly_plain(6, 4.0, "rect"), **JELLY),
    Case("SpikingJelly, 10 layers", "tau 2, ATan", jelly_plain(10, 2.0, "atan"), **JELLY),
    Case("snnTorch, 4 layers", "beta 0.9, no norm", lambda v: TorchConv(4, 0.9, v), "digits", call, **ADAM),
    Case("snnTorch, recurrent", "RLeaky on N-MNIST, 20 epochs", Recurrent, "nmnist", call, epochs=20, **ADAM),
    Case("SpikingJelly, tokens", "8 LayerNorm blocks, tau 4", lambda v: Tokens(8, v), **JELLY, **ADAM),
    Case("SpikingJelly, 18 layers", "tau 2, ATan", jelly_plain(18, 2.0, "atan"), **JELLY),
]


def load(name: str, nmnist: Path | None) -> dict[str, Tensor]:
    """x and y of both splits: digits at 14x14 as (N, 1, 14, 14); N-MNIST as 10 frames of 17x17, (N, T, F)."""
    from mpd_agl.data.load import load_dataset
    from mpd_agl.data.types import FrameConfig

    found = {}
    for split in ("train", "test"):
        if name == "digits":
            a = load_dataset("mnist5k", split)
            x = torch.from_numpy(a.x).permute(0, 3, 1, 2).float() / 255
            x = (F.avg_pool2d(x, 2) - 0.13) / 0.31
            if split == "train":
                some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:DIGITS].numpy()
                a, x = replace(a, x=a.x[some], y=a.y[some]), x[some]
        else:
            frames = FrameConfig(num_steps=10, size=17)
            a = load_dataset("nmnist", split, data_dir=nmnist, allow_partial=True, frames=frames)
            x = torch.from_numpy(a.x).float().flatten(2).clamp(max=4.0)
        found[f"x_{split}"], found[f"y_{split}"] = x, torch.from_numpy(a.y).long()
    return found


def train(case: Case, data: dict[str, Tensor], v_th: float, seed: int, how: str) -> dict[str, Any]:
    """One run; `how` is `plain`, `adapt` or `tune` (scored on 500 held-out training samples)."""
    torch.manual_seed(seed)
    net = case.make(v_th)
    x, y, x_test, y_test = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    if how == "tune":
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
        held = len(x) // 8
        x, y, x_test, y_test = x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]]
    time_first = (lambda a: a.transpose(0, 1)) if case.data == "nmnist" else (lambda a: a)
    rates = None
    if how == "adapt":
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:200]
        done = adapt(net, time_first(x[some]), forward=case.forward)
        rates = {row.layer: [row.rate_before, row.rate] for row in done.layers}
    kinds = {"sgd": lambda p: torch.optim.SGD(p, case.lr, 0.9), "adam": lambda p: torch.optim.Adam(p, case.lr)}
    optimizer = kinds[case.optimizer](net.parameters())
    generator, steps, began = torch.Generator().manual_seed(seed), math.ceil(len(x) / BATCH), time.perf_counter()
    epochs = max(1, case.epochs // 3) if how == "tune" else case.epochs
    for epoch in range(epochs):
        net.train()
        for k, index in enumerate(torch.randperm(len(x), generator=generator).split(BATCH)):
            done_share = (epoch * steps + k) / (epochs * steps)
            optimizer.param_groups[0]["lr"] = case.lr * (1 + math.cos(math.pi * done_share)) / 2
            loss = F.cross_entropy(case.forward(net, time_first(x[index])), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        right = sum(
            int((case.forward(net, time_first(a)).argmax(1) == b).sum())
            for a, b in zip(x_test.split(200), y_test.split(200), strict=True)
        )
    found = {"accuracy": right / len(y_test), "seconds": round(time.perf_counter() - began, 1)}
    return found if rates is None else {**found, "rates": rates}


def run(args: argparse.Namespace) -> None:
    """Train what is missing; the record is written after every run."""
    torch.set_num_threads(args.threads)
    record: dict[str, Any] = {"runs": {}}
    if args.record.is_file():
        record = json.loads(args.record.read_text())
    record |= {"command": "python -m tools.adapt_table", "code": records.code(), "versions": records.versions()}
    record["hardware"] = {**records.hardware(), "threads": args.threads}
    for case in CASES:
        if args.only not in case.name:
            continue
        data = load(case.data, args.nmnist)

        def once(how: str, v_th: float, seed: int, case: Case = case, data: Any = data) -> float:
            key = run_key(case, how, v_th, seed)
            if key not in record["runs"]:
                record["runs"][key] = train(case, data, v_th, seed, how)
                write_atomic(args.record, canonical(record))
                print(f"{key}: {100 * record['runs'][key]['accuracy']:.1f} %", flush=True)
            return float(record["runs"][key]["accuracy"])

        for seed in SEEDS:
            once("adapt", 1.0, seed)
            once("plain", 1.0, seed)
        grid = {v: once("tune", v, 0) for v in THRESHOLDS}
        best = max(grid, key=lambda v: grid[v])
        record.setdefault("tuned", {})[case.name] = [best]
        for seed in SEEDS:
            once("plain", best, seed)
    write_atomic(args.record, canonical({**record, "table": table(record)}))


def run_key(case: Case, how: str, v_th: float, seed: int) -> str:
    """A run's name in the record; 0.2 once varied the surrogate's sharpness as well."""
    return f"{case.name} | {how} | v_th {v_th:g} | sharpness 1 | seed {seed}"


def table(record: dict[str, Any]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds of each network: as built, adapted, and with the best threshold."""
    rows = []
    for case in (c for c in CASES if c.name in record.get("tuned", {})):
        row = [f"{case.name}, {case.about}"]
        for how, v in (("plain", 1.0), ("adapt", 1.0), ("plain", record["tuned"][case.name][0])):
            each = [100 * record["runs"][run_key(case, how, v, seed)]["accuracy"] for seed in SEEDS]
            row.append(f"{statistics.mean(each):.1f} ± {statistics.stdev(each):.1f}")
        rows.append(row)
    head = ["network (test accuracy in %, 3 seeds)", "as built", "adapted", "hand-tuned threshold"]
    return {"head": head, "rows": rows}


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--nmnist", type=Path, help="folder of the N-MNIST recordings, with Train and Test")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="networks whose name holds this")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
