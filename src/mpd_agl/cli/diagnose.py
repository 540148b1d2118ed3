"""`mpd-agl diagnose module:factory`: training problems of your own spiking network, and their fixes."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mpd_agl.cli.arguments import Parser
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.data.types import FrameConfig
from mpd_agl.diagnosis import diagnose
from mpd_agl.errors import InputError
from mpd_agl.train.own_network import call_factory

EXAMPLES = """examples:
  mpd-agl diagnose mynet:build                                   on digits (28 x 28, one channel)
  mpd-agl diagnose mynet:build --data.name cifar10 --samples 32  on a data set of `mpd-agl data list`
  mpd-agl diagnose mynet:build --batch batch.npz --plot network.png  on your own arrays x (and labels y)

This command imports your module and calls your factory: it runs your own code, with all that the code may do.
The exit code is 0 for a healthy network, 1 where a problem was found, 2 for bad input.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl diagnose",
        description="Look for the usual problems of your own spiking network, on one batch. Runs your own code.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("factory", metavar="MODULE:FACTORY", help="a callable without arguments that returns the nn.Module")
    p.add_argument("--batch", type=Path, metavar="FILE.npz", help="arrays x, as the network takes it, and y (optional)")
    p.add_argument("--data.name", dest="data", metavar="NAME", help="a data set in place of --batch (default mnist5k)")
    p.add_argument("--data.data-dir", dest="data_dir", type=Path, metavar="DIR", help="folder with its official files")
    p.add_argument("--resize", type=int, metavar="PIXELS", help="resize the data set's images to this height and width")
    p.add_argument(
        "--num-steps", type=int, metavar="T", help="give (T, N, ...): images T times, recordings as T frames"
    )
    p.add_argument("--samples", type=int, default=64, metavar="N", help="samples of the data set (default 64)")
    p.add_argument("--seed", type=int, default=0, help="seed of the factory's random weights (default 0)")
    p.add_argument("--plot", type=Path, metavar="FILE.png", help="draw potentials, rates and gradients")
    p.add_argument("--json", action="store_true", help="print JSON in place of the table")
    return p


def run(argv: list[str]) -> int:
    """Build, diagnose, print."""
    a = parser().parse_args(argv)
    if a.batch is not None and a.data is not None:
        raise InputError("--batch and --data.name exclude each other. Leave one out.")
    for option, value in (("--samples", a.samples), ("--num-steps", a.num_steps), ("--resize", a.resize)):
        if value is not None and value < 1:
            raise InputError(f"{option} must be at least 1, got {value}.")

    if a.batch is not None and (a.num_steps is not None or a.resize is not None):
        raise InputError("--batch is taken as it is, got --num-steps or --resize as well. Leave them out.")
    torch.manual_seed(a.seed)
    net = call_factory(a.factory, {}).net
    x, y = _from_file(a.batch) if a.batch is not None else _from_data(a)
    diagnosis = diagnose(net, x, y)
    if a.plot is not None:
        diagnosis.plot(a.plot)
    print(json.dumps(diagnosis.to_dict(), indent=1) if a.json else str(diagnosis))
    return 0 if diagnosis.healthy else 1


def _from_file(path: Path) -> "tuple[Tensor, Tensor | None]":
    """x and y of an .npz file; no pickled objects are read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("x", "y") if name in file.files}
            names = ", ".join(file.files)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from None
    except (ValueError, AttributeError, EOFError) as error:
        raise InputError(
            f"{path} is no .npz file of plain arrays ({error}). Write it by numpy.savez(path, x=x, y=y)."
        ) from None
    if "x" not in arrays:
        raise InputError(f"{path} holds no array x, got {names or 'none'}. Write it by numpy.savez(path, x=x, y=y).")
    x = torch.from_numpy(arrays["x"])
    if not x.is_floating_point():
        raise InputError(f"x in {path} must be floating-point, as the network takes it, got {x.dtype}. Scale it first.")
    return x if x.dtype == torch.float32 else x.float(), torch.from_numpy(arrays["y"]) if "y" in arrays else None


def _from_data(a: argparse.Namespace) -> "tuple[Tensor, Tensor]":
    """The first samples of a data set, normalised as in training, in a fixed random order."""
    frames = FrameConfig(num_steps=a.num_steps) if a.num_steps else None
    data = load_dataset(a.data or "mnist5k", "train", data_dir=a.data_dir, frames=frames)
    index_N = np.random.default_rng(0).permutation(len(data))[: a.samples]
    x, y = Loader(data, batch_size=len(index_N), seed=0, train=False).make(np.sort(index_N), 0)
    if a.resize is not None:
        shape = x.shape
        x = F.interpolate(x.reshape(-1, *shape[-3:]), size=(a.resize, a.resize), mode="bilinear", antialias=True)
        x = x.reshape(*shape[:-2], a.resize, a.resize)
    if a.num_steps is not None and x.dim() == 4:
        x = x.expand(a.num_steps, *x.shape)
    return x, y
