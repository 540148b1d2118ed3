"""`mpd-agl import-weights FILE.pt`: the tensors of another program's checkpoint as a safetensors file."""

import argparse
import json
from pathlib import Path

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError
from mpd_agl.export import import_weights
from mpd_agl.models import create_model, save_weights


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl import-weights",
        description="Read the tensors of a .pt file, and nothing else, into a network, and save it as safetensors.",
    )
    p.add_argument(
        "file", type=Path, metavar="FILE", help="written by torch.save: a state_dict, or a dict that holds one"
    )
    p.add_argument("--from", dest="source", required=True, metavar="PROGRAM", help="mpd-agl, authors or spikingjelly")
    p.add_argument("--model", required=True, metavar="NAME", help="the network, as `mpd-agl info` lists them")
    p.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the safetensors file to write")
    p.add_argument("--method", default="mpd-agl", help="default mpd-agl")
    for name, kind in (("num-classes", int), ("num-steps", int), ("in-channels", int), ("image-size", int)):
        p.add_argument(f"--{name}", type=kind, metavar="N", help="default: the network's")
    for name in ("width-mult", "v-th", "alpha"):
        p.add_argument(f"--{name}", type=float, metavar="X", help="default: the network's")
    p.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    p.add_argument("--json", action="store_true", help="print which layer went where, as JSON")
    return p


def run(argv: list[str]) -> int:
    """Read, convert, write."""
    a = parser().parse_args(argv)
    if a.out.exists() and not a.overwrite:
        raise InputError(f"{a.out} exists. Name another file, or add --overwrite.")
    if not a.out.parent.is_dir():
        raise InputError(f"{a.out.parent} is no folder. Make it first.")
    if not a.file.is_file():
        raise InputError(f"{a.file} is no file. Check the path.")

    names = ("num_classes", "num_steps", "in_channels", "image_size", "width_mult", "v_th", "alpha")
    options = {name: getattr(a, name) for name in names if getattr(a, name) is not None}
    net = create_model(a.model, method=a.method, **options)
    report = import_weights(net, a.file, a.source)
    try:
        save_weights(net, a.out)
    except OSError as error:
        raise InputError(f"cannot write {a.out}: {error.strerror or error}. Choose another place.") from None
    if a.json:
        print(json.dumps({"out": str(a.out), "pairs": report.pairs, "unused": report.unused}))
        return 0
    left = ""
    if report.unused:
        left = f"; {len(report.unused)} tensors have no place here and were left out (first {report.unused[0]})"
    print(f"{len(report.pairs)} layers of {a.file} are in {a.out}{left}. Load them with mpd_agl.models.load_weights.")
    return 0
