"""`mpd-agl energy MODEL`: operations and energy per layer and in total, compared with an ANN."""

import argparse
import json
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mpd_agl.cli.arguments import Parser
from mpd_agl.cli.trained import load_trained
from mpd_agl.diagnosis import EnergyReport, energy, measure_activity
from mpd_agl.errors import InputError
from mpd_agl.models import Network, create_model, load_weights
from mpd_agl.nn import TdBatchNorm
from mpd_agl.train import build
from mpd_agl.train.runfolder import find_run


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl energy",
        description="Operations and energy of one inference, per layer and in total, compared with an ANN.",
    )
    p.add_argument("model", metavar="MODEL", help="a network's name, e.g. resnet19")
    p.add_argument("--num-steps", type=int, metavar="T", help="timesteps (default: the network's own)")
    p.add_argument("--dataset-shape", metavar="C,H,W", help="input shape, e.g. 3,32,32 (default: the network's own)")
    p.add_argument("--num-classes", type=int, help="classes (default: the network's own)")
    p.add_argument("--width-mult", type=float, help="multiplies every layer's channels (default 1)")
    p.add_argument("--method", help="method, e.g. mpd-agl, lsg, stbp-tdbn (default mpd-agl)")
    p.add_argument(
        "--checkpoint",
        type=find_run,
        metavar="RUN",
        help="weights: a .safetensors file, or a run that holds one",
    )
    p.add_argument("--samples", type=int, default=8, help="inputs that the firing rates are measured on (default 8)")
    p.add_argument("--seed", type=int, default=0, help="seed of those inputs (default 0)")
    p.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return p


def parse_shape(text: str) -> tuple[int, int]:
    """`C,H,W` as channels and size; the networks take square inputs."""
    parts = text.split(",")
    if len(parts) != 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise InputError(f"--dataset-shape must be three whole numbers C,H,W, got {text!r}. CIFAR-10 is 3,32,32.")
    channels, height, width = (int(p) for p in parts)
    if height != width:
        raise InputError(
            f"--dataset-shape must be square, got {height} x {width}. Resize the input, or give C,{height},{height}."
        )
    return channels, height


def run(argv: list[str]) -> int:
    """Count, measure rates, print."""
    a = parser().parse_args(argv)
    if a.samples < 1:
        raise InputError(f"--samples must be at least 1, got {a.samples}.")

    of_run = a.checkpoint is not None and a.checkpoint.is_dir()
    net, x, source = _from_run(a) if of_run else _from_options(a)
    frames = x.dim() == 5
    report = energy(net, measure_activity(net, x), rates_from=source, static_input=not frames)
    if a.json:
        print(json.dumps(report.to_dict(), indent=1))
        return 0
    print_table(report, a.checkpoint is not None)
    return 0


def _from_run(a: argparse.Namespace) -> "tuple[Network, Tensor, str]":
    """The network, weights and test data of a run."""
    trained = load_trained(a.checkpoint)
    net = trained.network
    if net.name != a.model:
        raise InputError(
            f"{a.checkpoint} is a run of {net.name}, got MODEL {a.model}. Type: mpd-agl energy {net.name} ..."
        )
    given = [o for o in ("width_mult", "method", "num_classes", "dataset_shape") if getattr(a, o) is not None]
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')} is for a network without a run, got {a.checkpoint}. Leave it out."
        )
    net.num_steps = a.num_steps or net.num_steps
    data = build.build_data(trained.config, "test", num_steps=net.num_steps)
    loader = build.build_test_loader(trained.config, data)
    parts = []
    for x, _ in loader.epoch(0):
        parts.append(x)
        if sum(p.shape[-4] for p in parts) >= a.samples:
            break

    x = torch.cat(parts, dim=-4)
    x = x[: a.samples] if x.dim() == 4 else x[:, : a.samples]
    return net, x, f"weights {trained.weights} of {a.checkpoint}, {x.shape[-4]} test samples of {data.name}"


def _from_options(a: argparse.Namespace) -> "tuple[Network, Tensor, str]":
    """A network from the command line's options, on random inputs."""
    options: dict[str, Any] = {"width_mult": a.width_mult or 1.0, "method": a.method or "mpd-agl"}
    if a.num_steps is not None:
        options["num_steps"] = a.num_steps
    if a.num_classes is not None:
        options["num_classes"] = a.num_classes
    if a.dataset_shape is not None:
        options["in_channels"], options["image_size"] = parse_shape(a.dataset_shape)

    torch.manual_seed(a.seed)
    net = create_model(a.model, **options)
    if a.checkpoint is not None:
        load_weights(net, a.checkpoint)
    o = net.options
    shape = (a.samples, o.in_channels, o.image_size, o.image_size)
    events = o.in_channels == 2  # two polarities
    x = torch.randint(0, 2, (o.num_steps, *shape)).float() if events else torch.randn(shape)
    if a.checkpoint is None:
        # One batch sets the running statistics, which in an untrained network say nothing about its currents.
        with torch.no_grad():
            net.train()
            for norm in (m for m in net.modules() if isinstance(m, TdBatchNorm)):
                norm.momentum = 1.0
            net(x if a.samples > 1 else torch.cat([x, x], dim=-4))
    weights = "untrained weights" if a.checkpoint is None else f"weights {a.checkpoint.name}"
    return net, x, f"{weights}, {a.samples} random inputs, seed {a.seed}"


def print_table(report: "EnergyReport", trained: bool) -> None:
    """Print the table per layer, the totals by each convention, and what the words mean."""
    console = Console(soft_wrap=True)
    title = f"{report.model}, T={report.num_steps}: operations of one inference (millions)"
    table = Table(title=title, box=None, pad_edge=False, header_style="bold")
    for name in ("layer", "input", "rate in", "ANN MACs", "#Add.", "#Multi.", "uJ"):
        table.add_column(name, justify="left" if name in ("layer", "input") else "right", no_wrap=True)
    for r in report.rows:
        rate = "" if r.rate_in is None or r.values_in == "real" else f"{100 * r.rate_in:.1f} %"
        uj = (r.additions * 0.9 + r.multiplies * 4.6) * 1e-6
        cells = (r.macs, r.additions, r.multiplies)
        table.add_row(r.name, r.values_in, rate, *(f"{v / 1e6:.2f}" if v else "" for v in cells), f"{uj:.2f}")
    console.print(table)
    totals = Table(title="in total")
    for name in ("count", "#Add. (M)", "#Multi. (M)", "energy (mJ)", "of the ANN"):
        totals.add_column(name, justify="left" if name == "count" else "right")
    ann = f"{report.ann_macs / 1e6:.2f}"
    totals.add_row("ANN, same architecture", ann, ann, f"{report.ann_mj:.2f}", "100 %")
    for name, t in report.totals().items():
        share = f"{100 * t['mj'] / report.ann_mj:.1f} %"
        totals.add_row(
            f"SNN, {name}", f"{t['additions'] / 1e6:.2f}", f"{t['multiplies'] / 1e6:.2f}", f"{t['mj']:.3f}", share
        )
    console.print(totals)
    console.print(
        "paper: every hidden layer is additions. strict: a layer whose input is not 0/1 is multiply-accumulates. "
        "0.9 pJ per addition, 4.6 pJ per multiply-accumulate (45 nm)."
    )
    console.print(
        f"firing rates: {report.rates_from}." + ("" if trained else " A trained network fires less; give --checkpoint.")
    )
