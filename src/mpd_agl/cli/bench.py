"""`mpd-agl bench train|infer|growth|events|page`: contenders side by side, how cost grows, when spikes pay, the pages of the records."""

import argparse
import sys
from pathlib import Path
from typing import Any

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError, unknown_name

WORKS = {
    "train": "a training step: forward, loss, backward, update",
    "infer": "inference: evaluation mode, no gradients, ours folded",
    "growth": "time and memory over T (1..16), batch (1..256) and width (1/8..1); a file given by -o is continued",
    "events": "event-driven against dense, in one process: single layers; with --rates also inference and training of a network",
    "page": "docs/performance.md from the records in a folder; with --events the tables and plot of docs/active.md",
}


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    works = "\n".join(f"  {name:8} {text}" for name, text in WORKS.items())
    p = Parser(
        prog="mpd-agl bench",
        description="Contenders side by side: same weights and inputs, one process each, alternating rounds.\n"
        f"No ratio is printed for a contender whose outputs differ.\n\n{works}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("work", choices=WORKS, metavar="WORK", help="train, infer, growth, events or page")
    p.add_argument("--model", default="resnet19", help="network (default resnet19)")
    p.add_argument("--width-mult", type=float, help="multiplies the channels (default 0.125; events 1)")
    p.add_argument("--T", type=int, dest="num_steps", help="timesteps (default: the network's own)")
    p.add_argument(
        "--batch", type=int, help="samples (default: train 100, infer 64, growth 50; events: inference 32, training 16)"
    )
    p.add_argument("--image-size", type=int, default=0, metavar="PX", help="height and width (default: the network's)")
    p.add_argument("--method", default="mpd-agl", help="method of ours (default mpd-agl)")
    p.add_argument(
        "--contenders", nargs="+", metavar="NAME", help="who runs (--list names them; growth: native, spikingjelly)"
    )
    p.add_argument("--rounds", type=int, help="alternating rounds (default 5; events 7)")
    p.add_argument("--threads", type=int, default=2, help="CPU threads of every contender (default 2)")
    p.add_argument("--quick", action="store_true", help="two short rounds: a look, not a measurement")
    p.add_argument("--fresh-pages", action="store_true", help="leave the allocator at glibc's default")
    p.add_argument("--axes", nargs="+", metavar="AXIS", help="growth: of num_steps, batch, width (default: all)")
    p.add_argument("--growth-work", default="train", choices=("train", "infer"), help="growth: of what (default train)")
    p.add_argument(
        "--rates",
        type=Path,
        metavar="RUN",
        help="events: firing rates of this run's monitor data, or of a JSON that holds them",
    )
    p.add_argument(
        "--part",
        metavar="LIST",
        help="events: of table,inference,training (default: all; without --rates the table)",
    )
    p.add_argument("--events", type=Path, metavar="FILE", help="page: a record of bench events")
    p.add_argument("--records", type=Path, default=Path("docs/results/performance"), help="page: folder of the records")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw the figure (.svg or .pdf)")
    p.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the record as JSON (page: the page)")
    p.add_argument("--list", action="store_true", help="print the contenders and end")
    return p


def run(argv: list[str]) -> int:
    """Measure and print."""
    p = parser()
    if "--list" in argv:
        return _list()
    a = p.parse_args(argv)
    a.width_mult = (1.0 if a.work == "events" else 0.125) if a.width_mult is None else a.width_mult
    a.rounds = (7 if a.work == "events" else 5) if a.rounds is None else a.rounds
    if a.rounds < 1:
        raise InputError(f"--rounds must be at least 1, got {a.rounds}.")
    for path in (a.out, a.plot):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"the folder {path.parent} of {path} is not there. Make it first.")
        if path is not None and path.is_dir():
            raise InputError(f"{path} is a folder. Name a file.")
    if a.plot is not None and a.plot.suffix not in (".svg", ".pdf"):
        raise InputError(f"--plot takes a name that ends in .svg or .pdf, got {a.plot}.")
    if a.work == "page":
        return _page(a)
    if a.work == "events":
        return _events(a)
    return _growth(a) if a.work == "growth" else _compare(a)


def _list() -> int:
    from mpd_agl.bench.contenders import CONTENDERS

    for c in CONTENDERS.values():
        print(f"{c.name:18} {', '.join(c.works):14} {c.about}")
    return 0


def _setting(a: argparse.Namespace, work: str, batch: int) -> Any:
    from mpd_agl.bench.setting import Setting
    from mpd_agl.models import MODELS
    from mpd_agl.nn import get_method

    if a.model not in MODELS:
        raise unknown_name("model", a.model, MODELS)
    get_method(a.method)
    return Setting(
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
    print(f"mpd-agl bench: {text}", file=sys.stderr, flush=True)


def _compare(a: argparse.Namespace) -> int:
    from mpd_agl.bench import plot, show
    from mpd_agl.bench.compare import compare
    from mpd_agl.bench.contenders import DEFAULT
    from mpd_agl.records import canonical, write_atomic

    setting = _setting(a, a.work, 100 if a.work == "train" else 64)
    names = list(dict.fromkeys(a.contenders or DEFAULT[a.work]))
    record = compare(setting, names, rounds=min(a.rounds, 2) if a.quick else a.rounds, quick=a.quick, note=_note)
    print(show.table(record))
    if a.out:
        write_atomic(a.out, canonical(record))
    if a.plot:
        _draw(plot.bars(record), a.plot)
    return 0


def _growth(a: argparse.Namespace) -> int:
    from mpd_agl.bench import growth, plot

    axes = a.axes or list(growth.AXES)
    for axis in axes:
        if axis not in growth.AXES:
            raise unknown_name("axis", axis, growth.AXES)
    setting = _setting(a, a.growth_work, 50)
    names = list(dict.fromkeys(a.contenders or ("native", "spikingjelly")))
    rounds = min(a.rounds, 2) if a.quick else a.rounds
    record = growth.grow(setting, axes, names, rounds=rounds, quick=a.quick, out=a.out, note=_note)
    print(growth.table(record))
    if a.plot:
        _draw(plot.curves(record), a.plot)
    return 0


def _events(a: argparse.Namespace) -> int:
    from mpd_agl.bench import active
    from mpd_agl.bench.rates import read_rates
    from mpd_agl.records import canonical, write_atomic

    parts = a.part.split(",") if a.part else active.PARTS if a.rates else ["table"]
    for part in parts:
        if part not in active.PARTS:
            raise unknown_name("part", part, active.PARTS)
    if a.contenders:
        raise InputError("--contenders is not for events, which has its own. Leave it out.")
    if a.plot:
        raise InputError("--plot is not for events. `mpd-agl bench page --events FILE` draws its figure.")
    plan = active.Plan(
        parts=parts,
        setting=_setting(a, "infer", active.BATCH["inference"]),
        batches=active.BATCH if a.batch is None else dict.fromkeys(active.BATCH, a.batch),
        rounds=min(a.rounds, 2) if a.quick else a.rounds,
        quick=a.quick,
    )
    record = active.measure(plan, read_rates(a.rates) if a.rates else None, _note)
    print(active.text(record))
    if a.out:
        write_atomic(a.out, canonical(record))
    return 0


def _page(a: argparse.Namespace) -> int:
    from mpd_agl.bench.page import write_page

    if a.events:
        from mpd_agl.bench.eventdocs import write_docs

        out = a.out or Path("docs/active.md")
        write_docs(a.events, out)
        print(f"{out} written from {a.events}")
        return 0
    out = a.out or Path("docs/performance.md")
    write_page(a.records, out)
    print(f"{out} written from the records in {a.records}")
    return 0


def _draw(figure: Any, path: Path) -> None:
    from mpd_agl.records import write_atomic
    from mpd_agl.report import draw

    write_atomic(path, draw.pdf_file(figure) if path.suffix == ".pdf" else draw.svg_file(figure))
