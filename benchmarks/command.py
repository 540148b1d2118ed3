"""`python -m benchmarks`: contenders side by side. Every command prints a table and can write its record."""

import argparse
import sys
from pathlib import Path
from typing import Any

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError, unknown_name

COMPARED = (
    "The contenders have the same weights and inputs. Each runs in its own process, and they take turns. "
    "One whose outputs differ gets no ratio."
)
ABOUT = {
    "train": ("a training step: forward, loss, backward, update", COMPARED),
    "infer": ("inference: evaluation mode, no gradients", COMPARED),
    "growth": (
        "time and memory over T, batch and width_mult",
        "A comparison per point: T from 1 to 16, batch from 1 to 256, width_mult from 1/8 to 1; one of them moves and "
        "the others stay. A file given by -o is continued. --quick measures a few small points.",
    ),
    "adapt": (
        "SpikingJelly's own networks unchanged, adapted, and fused",
        "A training step of a network of its model zoo: spiking_resnet18, sew_resnet18 or spiking_vgg11_bn. "
        "All run in one process, in turns.",
    ),
}
EXAMPLES = """Without a command: a training step, one image and a large batch, next to other libraries, in some minutes.
`python -m benchmarks conv_limits` measures the limits of the rule that chooses how a convolution is computed.

examples:
  python -m benchmarks                                     what a user gets, in one table
  python -m benchmarks train --quick                       a look at a training step next to other libraries
  python -m benchmarks infer --width-mult 1 --batch 16     inference of the paper's ResNet-19
  python -m benchmarks train --contenders mpd_agl release --release FOLDER
                                                           this tree next to an installed release, such as a wheel:
                                                           pip install --no-deps --target FOLDER mpd_agl-0.2.0-*.whl
  python -m benchmarks gpu -o gpu.json                     ten minutes on a GPU: gpu.json and gpu.md, to send back
"""


def parser() -> argparse.ArgumentParser:
    """The options of the command and of its subcommands."""
    main = Parser(
        prog="python -m benchmarks",
        description="Measure time and memory, side by side with other libraries. Needs a quiet machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("--list", action="store_true", help="print the contenders and end")
    _common_options(main)
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    for command, (short, long) in ABOUT.items():
        p = commands.add_parser(command, help=short, description=f"{short[0].upper()}{short[1:]}. {long}")
        own = "spiking_resnet18" if command == "adapt" else "resnet19"
        batch = {"train": "100", "infer": "64", "growth": "50", "adapt": "16"}
        p.add_argument("--model", default=own, help=f"network (default {own})")
        p.add_argument("--T", type=int, dest="num_steps", help="timesteps (default: the network's own)")
        p.add_argument("--batch", type=int, help=f"samples (default {batch[command]})")
        p.add_argument(
            "--image-size", type=int, default=0, metavar="PX", help="height and width (default: the network's)"
        )
        p.add_argument("--method", default="mpd-agl", help="method of mpd_agl's networks (default mpd-agl)")
        p.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
        _own_options(p, command)
        _common_options(p)
    about = (
        "Kernels against the written equations, and a training step next to SpikingJelly's kernels with an epoch's "
        "time for Table 4. Without a GPU it runs on the CPU, with a small network."
    )
    gpu = commands.add_parser("gpu", help="kernels and a training step on a GPU", description=about)
    gpu.add_argument("--device", default="auto", help="auto, cuda or cpu (default auto: a GPU where there is one)")
    gpu.add_argument("--minutes", type=float, default=10.0, help="about how long (default 10)")
    gpu.add_argument(
        "-o", "--out", type=Path, default=Path("gpu.json"), metavar="FILE", help="the record; the page has .md"
    )
    return main


def _common_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--threads", type=int, default=2, help="CPU threads of every contender (default 2)")
    p.add_argument("--quick", action="store_true", help="two short rounds: a look, not a measurement")
    p.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the record as JSON")


def _own_options(p: argparse.ArgumentParser, command: str) -> None:
    if command == "adapt":
        p.add_argument("--ways", nargs="+", metavar="WAY", help="who runs (default: all; an unknown name lists them)")
        return
    some = "mpd_agl spikingjelly" if command == "growth" else "see `python -m benchmarks --list`"
    p.add_argument("--width-mult", type=float, default=0.125, help="multiplies the channels (default 0.125)")
    p.add_argument("--contenders", nargs="+", metavar="NAME", help=f"who runs (default: {some})")
    p.add_argument("--release", default="", metavar="FOLDER", help="another installation of mpd_agl, for `release`")
    p.add_argument("--fresh-pages", action="store_true", help="leave the allocator at glibc's default")
    if command == "growth":
        p.add_argument("--work", default="train", choices=("train", "infer"), help="what grows (default train)")
        p.add_argument("--axes", nargs="+", metavar="AXIS", help="some of num_steps, batch, width_mult (default: all)")


def run(argv: list[str]) -> int:
    """Measure and print."""
    if argv[:1] == ["conv_limits"]:
        from importlib import import_module

        status: int = import_module("benchmarks.conv_limits").main(argv[1:]) or 0
        return status
    if "--list" in argv:
        return _list()
    a = parser().parse_args(argv)
    _check_place(a.out)
    if getattr(a, "rounds", 1) < 1:
        raise InputError(f"--rounds must be at least 1, got {a.rounds}.")
    kinds = {None: _overview, "gpu": _gpu, "growth": _growth, "adapt": _adapt}
    record, text = kinds.get(a.command, _compare)(a)
    print(text)

    from mpd_agl.records import canonical, write_atomic

    if a.out:
        write_atomic(a.out, canonical(record))
        if a.command == "gpu":
            write_atomic(a.out.with_suffix(".md"), text.encode())
    return 0


def _check_place(path: Path | None) -> None:
    """Before anything is measured: can the file be written?"""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} of {path} is not there. Make it first.")
    if path is not None and path.is_dir():
        raise InputError(f"{path} is a folder. Name a file.")


def _note(text: str) -> None:
    print(f"python -m benchmarks: {text}", file=sys.stderr, flush=True)


def _list() -> int:
    from benchmarks.contenders import CONTENDERS, DEFAULT

    for c in CONTENDERS.values():
        default = "" if c.name in DEFAULT else " (on request)"
        print(f"{c.name:18} {', '.join(c.works):14} {c.about}{default}")
    return 0


def _gpu(a: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from benchmarks import gpu

    record = gpu.measure(gpu.choose_device(a.device), a.minutes, _note)
    return record, gpu.page(record)


def _overview(a: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """What a user gets, in one table."""
    from benchmarks import overview

    record = overview.measure(threads=a.threads, quick=a.quick, note=_note)
    return record, overview.text(record)


def _workload(a: argparse.Namespace, work: str, batch: int) -> Any:
    from benchmarks.workload import Workload
    from mpd_agl.models import MODELS
    from mpd_agl.nn import get_method

    if a.model not in MODELS:
        raise unknown_name("model", a.model, MODELS)
    get_method(a.method)
    if a.release and not (Path(a.release) / "mpd_agl").is_dir():
        raise InputError(
            f"--release {a.release} holds no package mpd_agl. Make it with pip install --no-deps --target FOLDER WHEEL."
        )
    return Workload(
        work=work,  # type: ignore[arg-type]
        model=a.model,
        width_mult=a.width_mult,
        num_steps=MODELS[a.model].defaults["num_steps"] if a.num_steps is None else a.num_steps,
        batch=batch if a.batch is None else a.batch,
        image_size=a.image_size,
        method=a.method,
        threads=a.threads,
        fresh_pages=a.fresh_pages,
        release=a.release,
    )


def _compare(a: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from benchmarks import compare
    from benchmarks.contenders import default_for

    workload = _workload(a, a.command, 100 if a.command == "train" else 64)
    names = list(dict.fromkeys(a.contenders or default_for(workload)))
    record = compare.compare(workload, names, rounds=_rounds(a), quick=a.quick, note=_note)
    return record, compare.text(record)


def _rounds(a: argparse.Namespace) -> int:
    rounds: int = min(a.rounds, 2) if a.quick else a.rounds
    return rounds


def _adapt(a: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from benchmarks import zoo

    record = zoo.measure(
        a.model,
        list(dict.fromkeys(a.ways or zoo.WAYS)),
        num_steps=4 if a.num_steps is None else a.num_steps,
        batch=16 if a.batch is None else a.batch,
        image_size=a.image_size or 64,
        method=a.method,
        rounds=_rounds(a),
        threads=a.threads,
        note=_note,
    )
    return record, zoo.text(record)


def _growth(a: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from benchmarks import growth

    axes = a.axes or list(growth.AXES)
    for axis in axes:
        if axis not in growth.AXES:
            raise unknown_name("axis", axis, growth.AXES)
    record = growth.grow(
        _workload(a, a.work, growth.QUICK_BATCH if a.quick else growth.BATCH),
        axes,
        list(dict.fromkeys(a.contenders or ("mpd_agl", "spikingjelly"))),
        rounds=_rounds(a),
        quick=a.quick,
        out=a.out,
        note=_note,
    )
    return record, growth.text(record)
