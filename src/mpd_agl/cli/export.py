"""`mpd-agl export RUN --format onnx|nir -o FILE`: a trained network for other programs."""

import argparse
from pathlib import Path

import torch

from mpd_agl.cli.arguments import FACTORY_HELP, Parser
from mpd_agl.cli.trained import load_trained
from mpd_agl.errors import InputError
from mpd_agl.export.nir import export_nir
from mpd_agl.export.onnx import export_onnx
from mpd_agl.models import Network
from mpd_agl.train.runfolder import check_run, find_run


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="mpd-agl export", description="Write a run's network for other programs.")
    p.add_argument("run", type=find_run, metavar="RUN", help="a run folder, or its name in runs")
    p.add_argument(
        "--format", required=True, choices=("onnx", "nir"), help="onnx: ONNX Runtime; nir: neuromorphic tools"
    )
    p.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the file to write")
    p.add_argument("--num-steps", type=int, metavar="T", help="onnx: timesteps (default: as trained)")
    p.add_argument("--int8", action="store_true", help="onnx: hidden weights as 8-bit whole numbers")
    p.add_argument("--weights", default="last", help="last: the result (default); best: best epoch on the test set")
    p.add_argument("--factory", default="", metavar="MODULE:FACTORY", help=FACTORY_HELP)
    p.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    return p


def run(argv: list[str]) -> int:
    """Export, check, print."""
    a = parser().parse_args(argv)
    if not a.out.parent.is_dir():
        raise InputError(f"the folder {a.out.parent} of {a.out} is not there. Make it first.")
    if a.out.exists() and not a.overwrite:
        raise InputError(f"{a.out} exists. Name another file, or add --overwrite.")
    if a.num_steps is not None and a.num_steps < 1:
        raise InputError(f"--num-steps must be at least 1, got {a.num_steps}.")
    if a.int8 and a.format != "onnx":
        raise InputError("--int8 goes with --format onnx; NIR files hold the weights as they are.")
    check_run(a.run)

    trained = load_trained(a.run, weights=a.weights, factory=a.factory)
    shape = trained.record.data["shape"]
    T, frames = a.num_steps or trained.num_steps, len(shape) == 4
    trained.set_steps(T)
    if a.format == "nir":
        export_nir(trained.network, a.out)
        print(f"{a.out}: NIR graph of {trained.record.name}, {a.out.stat().st_size:,} bytes")
        return 0

    own = None if isinstance(trained.net, Network) else trained.net
    example = None if own is None else torch.randn(*([T] if frames else []), 2, shape[-1], *shape[-3:-1])
    if own is not None and own.sample_shape is not None:
        example = torch.randn(2, *own.sample_shape)
    net = trained.net if own is None else own.traced
    difference = export_onnx(net, a.out, example=example, frames=frames, int8=a.int8)
    checked = "not checked: onnxruntime is not installed"
    if difference is not None:
        checked = f"checked with ONNX Runtime, largest difference {difference:.1e}"
    size = f"{a.out.stat().st_size:,} bytes"
    print(f"{a.out}: {trained.record.name}, T={T}, any batch size, {size}; {checked}")
    return 0
