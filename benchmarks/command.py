"""`python -m benchmarks [train|infer|growth|methods|active|adapt|gpu]`: contenders side by side."""

import argparse
import sys
from pathlib import Path
from typing import Any

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.train.runfolder import find_run

COMPARED = (
    "The contenders have the same weights and inputs. Each runs in its own process, and they take turns. "
    "One whose outputs differ from ours gets no ratio."
)
ABOUT = {
    "train": ("a training step: forward, loss, backward, update", COMPARED),
    "infer": ("inference: evaluation mode, no gradients, ours folded", COMPARED),
    "growth": (
        "time and memory over T, batch and width_mult",
        "A comparison per point: T from 1 to 16, batch from 1 to 256, width_mult from 1/8 to 1; one of them moves and "
        "the others stay. A file given by -o is continued. --quick measures a few small points.",
    ),
    "methods": (
        "what each rival costs over mpd-agl",
        "A training step of every method, of mpd-agl with every norm, gate, start and network (FIELD=VALUE), and of "
        "every training (+LOSS, on stbp-tdbn). Each runs in its own process, and they take turns. Rows compute "
        "different things, so no outputs are compared.",
    ),
    "active": (
        "event-driven against dense, over the share of active inputs",
        "Single layers, and with --rates a whole network: inference and a training step. All run in one process, "
        "in turns; what computes another result gets no ratio.",
    ),
    "adapt": (
        "SpikingJelly's own networks as they come, adapted, and fused",
        "A training step of a network of its model zoo: spiking_resnet18, sew_resnet18 or spiking_vgg11_bn. "
        "All run in one process, in turns.",
    ),
}
EXAMPLES = """Without a command: a training step, one image and a large batch, beside other libraries, in some minutes.

examples:
  python -m benchmarks                                 what a user gets, in one table
  python -m benchmarks train --quick                   a look at a training step beside other libraries
  python -m benchmarks infer --width-mult 1 --batch 16 inference of the paper's ResNet-19
  python -m benchmarks active --rates runs/mine        what skipping zeros is worth at a run's firing rates
  python -m benchmarks gpu -o gpu.json                 ten minutes on a GPU: gpu.json and gpu.md, to send back
"""


def parser() -> argparse.ArgumentParser:
    """The options of the command and of its subcommands."""
    main = Parser(
        prog="python -m benchmarks",
        description="Measure time and memory, side by side with other libraries. Wants a quiet machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("--list", action="store_true", help="print the contenders and end")
    main.add_argument("--quick", action="store_true", help="two short rounds: a look, not a measurement")
    main.add_argument("--threads", type=int, default=2, help="CPU threads of every contender (default 2)")
    main.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the records as JSON")
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    for command, (short, long) in ABOUT.items():
        p = commands.add_parser(command, help=short, description=f"{short[0].upper()}{short[1:]}. {long}")
        width, batch, rounds = {
            "train": (0.125, "100", 5),
            "infer": (0.125, "64", 5),
            "growth": (0.125, "50, quick 8; if given, the batch axis ends with it", 5),
            "methods": (0.125, "50", 5),
            "active": (1.0, "inference 32, training 16", 7),
            "adapt": (1.0, "16", 5),
        }[command]
        own = "spiking_resnet18" if command == "adapt" else "resnet19"
        p.add_argument("--model", default=own, help=f"network (default {own})")
        if command != "adapt":
            about = f"multiplies the channels (default {width:g})"
            p.add_argument("--width-mult", type=float, default=width, help=about)
        p.add_argument("--T", type=int, dest="num_steps", help="timesteps (default: the network's own)")
        p.add_argument("--batch", type=int, help=f"samples (default {batch})")
        p.add_argument(
            "--image-size", type=int, default=0, metavar="PX", help="height and width (default: the network's)"
        )
        p.add_argument("--method", default="mpd-agl", help="method of ours (default mpd-agl)")
        _own_options(p, command)
        p.add_argument("--rounds", type=int, default=rounds, help=f"alternating rounds (default {rounds})")
        p.add_argument("--threads", type=int, default=2, help="CPU threads of every contender (default 2)")
        quick = "small points, two short rounds" if command == "growth" else "two short rounds"
        p.add_argument("--quick", action="store_true", help=f"{quick}: a look, not a measurement")
        p.add_argument("--fresh-pages", action="store_true", help="leave the allocator at glibc's default")
        p.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure (.svg or .pdf)")
        p.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the record as JSON")
    about = (
        "Kernels against the written equations, the fused step alone, a training step beside SpikingJelly's kernels, "
        "and an epoch for Table 4. Without a GPU the CPU stands in its place, with a small network."
    )
    gpu = commands.add_parser("gpu", help="what a GPU makes of it, one record and one page", description=about)
    gpu.add_argument("--device", default="auto", help="auto, cuda or cpu (default auto: a GPU where there is one)")
    gpu.add_argument("--minutes", type=float, default=10.0, help="about how long (default 10)")
    gpu.add_argument(
        "-o", "--out", type=Path, default=Path("gpu.json"), metavar="FILE", help="the record; the page has .md"
    )
    return main


def _own_options(p: argparse.ArgumentParser, command: str) -> None:
    if command == "adapt":
        p.add_argument("--ways", nargs="+", metavar="WAY", help="who runs (default: all; an unknown name lists them)")
        p.add_argument("--calibrate", action="store_true", help="calibrate the network first, for all of them")
        return
    if command == "active":
        p.add_argument(
            "--rates",
            type=find_run,
            metavar="RUN",
            help="take the firing rates from this run's monitor data, or from a JSON that holds them",
        )
        p.add_argument(
            "--part", metavar="LIST", help="some of table,inference,training (default: all; without --rates the table)"
        )
        return
    if command == "methods":
        p.add_argument(
            "--rows", nargs="+", metavar="NAME", help="methods, FIELD=VALUE such as norm=tab, or +LOSS (default: all)"
        )
        return
    some = "ours spikingjelly" if command == "growth" else "see `python -m benchmarks --list`"
    p.add_argument("--contenders", nargs="+", metavar="NAME", help=f"who runs (default: {some})")
    if command == "growth":
        p.add_argument("--work", default="train", choices=("train", "infer"), help="what grows (default train)")
        p.add_argument("--axes", nargs="+", metavar="AXIS", help="some of num_steps, batch, width_mult (default: all)")


def run(argv: list[str]) -> int:
    """Measure and print."""
    if "--list" in argv:
        return _list()
    a = parser().parse_args(argv)
    if a.command is None:
        return _overview(a)
    if a.command == "gpu":
        return _gpu(a)
    if a.rounds < 1:
        raise InputError(f"--rounds must be at least 1, got {a.rounds}.")
    _check_places(a.out, a.plot)
    if a.plot is not None and a.plot.suffix not in (".svg", ".pdf"):
        raise InputError(f"--plot takes a name that ends in .svg or .pdf, got {a.plot}.")
    if a.plot is not None and a.command == "methods":
        raise InputError("bench methods prints a table and draws nothing. Leave --plot out.")
    a.rounds = min(a.rounds, 2) if a.quick else a.rounds
    kinds = {"growth": _growth, "methods": _methods, "active": _active, "adapt": _adapt}
    record, text, figure = kinds.get(a.command, _compare)(a)
    print(text)

    from mpd_agl.records import canonical, write_atomic
    from mpd_agl.report import draw

    if a.out:
        write_atomic(a.out, canonical(record))
    if a.plot:
        write_atomic(a.plot, draw.pdf_file(figure) if a.plot.suffix == ".pdf" else draw.svg_file(figure))
    return 0


def _check_places(*paths: Path | None) -> None:
    """Before anything is measured: can the files be written?"""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise InputError(f"the folder {path.parent} of {path} is not there. Make it first.")
        if path is not None and path.is_dir():
            raise InputError(f"{path} is a folder. Name a file.")


def _gpu(a: argparse.Namespace) -> int:
    from benchmarks import gpu
    from mpd_agl.records import canonical, write_atomic

    page = a.out.with_suffix(".md")
    _check_places(a.out, page)
    record = gpu.measure(gpu.choose_device(a.device), a.minutes, _note)
    text = gpu.page(record)
    print(text)
    write_atomic(a.out, canonical(record))
    write_atomic(page, text.encode())
    return 0


def _overview(a: argparse.Namespace) -> int:
    """What a user gets, in one table."""
    from benchmarks import overview
    from mpd_agl.records import canonical, write_atomic

    _check_places(a.out)
    found = overview.measure(threads=a.threads, quick=a.quick, note=_note)
    print(overview.text(found))
    if a.out:
        write_atomic(a.out, canonical(found))
    return 0


def _list() -> int:
    from benchmarks.contenders import CONTENDERS, DEFAULT

    for c in CONTENDERS.values():
        default = "" if c.name in DEFAULT else " (on request)"
        print(f"{c.name:18} {', '.join(c.works):14} {c.about}{default}")
    return 0


def _workload(a: argparse.Namespace, work: str, batch: int) -> Any:
    from benchmarks.workload import Workload
    from mpd_agl.models import MODELS
    from mpd_agl.nn import get_method

    if a.model not in MODELS:
        raise unknown_name("model", a.model, MODELS)
    get_method(a.method)
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
    )


def _note(text: str) -> None:
    print(f"python -m benchmarks: {text}", file=sys.stderr, flush=True)


def _compare(a: argparse.Namespace) -> tuple[dict[str, Any], str, Any]:
    from benchmarks import compare, plot
    from benchmarks.contenders import default_for

    workload = _workload(a, a.command, 100 if a.command == "train" else 64)
    names = list(dict.fromkeys(a.contenders or default_for(workload)))
    record = compare.compare(workload, names, rounds=a.rounds, quick=a.quick, note=_note)
    return record, compare.text(record), plot.bars(record) if a.plot else None


def _adapt(a: argparse.Namespace) -> tuple[dict[str, Any], str, Any]:
    from benchmarks import zoo

    if a.plot:
        raise InputError("bench adapt draws no figure, got --plot. Leave it out; -o writes the record.")
    record = zoo.measure(
        a.model,
        list(dict.fromkeys(a.ways or zoo.WAYS)),
        num_steps=4 if a.num_steps is None else a.num_steps,
        batch=16 if a.batch is None else a.batch,
        image_size=a.image_size or 64,
        calibrate=a.calibrate,
        method=a.method,
        fresh_pages=a.fresh_pages,
        rounds=a.rounds,
        threads=a.threads,
        note=_note,
    )
    return record, zoo.text(record), None


def _growth(a: argparse.Namespace) -> tuple[dict[str, Any], str, Any]:
    from benchmarks import growth, plot

    axes = a.axes or list(growth.AXES)
    for axis in axes:
        if axis not in growth.AXES:
            raise unknown_name("axis", axis, growth.AXES)
    record = growth.grow(
        _workload(a, a.work, growth.QUICK_BATCH if a.quick else growth.BATCH),
        axes,
        list(dict.fromkeys(a.contenders or ("ours", "spikingjelly"))),
        rounds=a.rounds,
        quick=a.quick,
        largest=a.batch,
        out=a.out,
        note=_note,
    )
    return record, growth.text(record), plot.curves(record) if a.plot else None


def _methods(a: argparse.Namespace) -> tuple[dict[str, Any], str, Any]:
    from benchmarks import methods
    from benchmarks.workload import LOSSES

    for name in a.rows or ():
        if name.startswith("+") and name[1:] not in LOSSES:
            raise unknown_name("loss", name[1:], LOSSES)
    record = methods.measure(_workload(a, "train", 50), a.rows or (), rounds=a.rounds, quick=a.quick, note=_note)
    return record, methods.text(record), None


def _active(a: argparse.Namespace) -> tuple[dict[str, Any], str, Any]:
    from benchmarks import active, plot
    from benchmarks.firing_rates import read_rates

    parts = a.part.split(",") if a.part else active.PARTS if a.rates else ["table"]
    for part in parts:
        if part not in active.PARTS:
            raise unknown_name("part", part, active.PARTS)
    if a.plot and "table" not in parts:
        raise InputError("--plot draws the table of single layers, which --part leaves out. Add table to --part.")
    record = active.measure(
        _workload(a, "infer", active.BATCH["inference"]),
        parts=parts,
        batches=active.BATCH if a.batch is None else dict.fromkeys(active.BATCH, a.batch),
        rates=read_rates(a.rates) if a.rates else None,
        rounds=a.rounds,
        quick=a.quick,
        note=_note,
    )
    return record, active.text(record), plot.speed_ups(record["table"]["cells"]) if a.plot else None
