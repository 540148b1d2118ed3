"""`python -m experiments`: train what is missing of the paper's tables and figures, and show them with its numbers."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.studies import NAMES, get_study
from mpd_agl.cli.arguments import Parser, print_table
from mpd_agl.errors import InputError, unknown_name

if TYPE_CHECKING:
    from experiments.pool import Pool
    from experiments.request import Request
    from mpd_agl.report.section import PageSection

EPILOG = f"""names: {", ".join(NAMES)}, or all

any field of the configuration can be set for all runs, as in `mpd-agl train`:
--data.data-dir DIR --train.threads 1.
Interrupted experiments continue by the same command, finished runs are not run again, and experiments share runs.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="python -m experiments",
        usage="python -m experiments NAME [NAME ...] [options]",
        description="Run experiments of the paper for all methods on one pipeline, "
        "and show tables and figures with the paper's numbers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--list", action="store_true", help="what there is, and what is done")
    p.add_argument("--cost", action="store_true", help="with --list: measure a few steps, and estimate times here")
    p.add_argument("--scale", default="cpu", help="paper (needs a GPU), cpu (2 cores, default) or smoke (seconds)")
    p.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1: mean, spread, paired differences")
    p.add_argument(
        "--methods",
        nargs="+",
        action="extend",
        metavar="METHOD",
        help="instead of the experiment's own; NAME@OPTION=VALUE sets an option of the model",
    )
    p.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE[,VALUE]",
        help="a slice of the experiment: method=, seed=, or a place of its table (data=CIFAR-10)",
    )
    p.add_argument(
        "--runs-dir", type=Path, default=Path("runs/experiments"), metavar="DIR", help="default runs/experiments"
    )
    p.add_argument("--draw", action="store_true", help="train nothing: draw again from the records")
    p.add_argument("--quiet", action="store_true", help="no progress, only the result")
    return p


def run(argv: list[str]) -> int:
    """List, or train what is missing and show."""
    first_option = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    names, words = argv[:first_option], argv[first_option:]
    a, fields = parser().parse_known_args(words)
    for name in names:
        if name not in (*NAMES, "all"):
            raise unknown_name("experiment", name, NAMES)
    if not names and not a.list:
        raise InputError(f"no experiment is named. Choose from {', '.join(NAMES)} or all; --list shows what is done.")
    if a.seeds is not None and a.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {a.seeds}. Use 3 for a mean with its spread.")

    from experiments.pool import Pool
    from experiments.request import Request
    from experiments.scales import SCALES
    from mpd_agl.cli.options import parse

    if a.scale not in SCALES:
        raise unknown_name("scale", a.scale, SCALES)
    options = parse(fields)
    surplus = [f"--{n} is not an option of experiments." for n in (*options.values, *options.flags)]
    if mistakes := options.mistakes + surplus:
        raise InputError(mistakes[0])
    requests = [
        Request(
            study=study,
            scale=a.scale,
            seeds=a.seeds or (min(2, study.seeds) if a.scale == "smoke" else study.seeds),
            methods=tuple(a.methods or study.methods),
            changes=options.overrides,
            only=read_only(a.only),
        )
        for study in map(get_study, NAMES if names == ["all"] or not names else names)
    ]
    for request in requests:
        request.configs()  # every mistake is reported before anything is trained
    pool = Pool(a.runs_dir / "pool")
    if a.list:
        return _list(requests, pool, a.runs_dir / "costs.json" if a.cost else None)
    return _reproduce(a, requests, pool)


def read_only(conditions: list[str]) -> dict[str, tuple[str, ...]]:
    """The slice that `--only` names.

    >>> read_only(["data=CIFAR-10", "seed=0,1"])
    {'data': ('CIFAR-10',), 'seed': ('0', '1')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in conditions:
        key, _, values = text.partition("=")
        if not key or not values:
            raise InputError(f"--only takes KEY=VALUE[,VALUE], got {text!r}. Example: --only seed=0,1.")
        if key in found:
            raise InputError(f"--only takes each key once, got {key} again. Use {key}=VALUE,VALUE.")
        found[key] = tuple(values.split(","))
    return found


def _list(requests: "list[Request]", pool: "Pool", costs_file: Path | None) -> int:
    from experiments.costs import Costs
    from experiments.pool import run_name
    from experiments.request import other_threads
    from mpd_agl.records.progress import duration

    costs = Costs(costs_file) if costs_file else None
    head = ["name", "what", "runs", "done", *(["whole, here", "left, here"] if costs else [])]
    every: dict[str, float] = {}
    every_left: dict[str, float] = {}

    def row(name: str, what: str, cost: dict[str, float], left: dict[str, float]) -> list[str]:
        times = [duration(sum(cost.values())), duration(sum(left.values())) if left else ""] if costs else []
        return [name, what, str(len(cost)), str(len(cost) - len(left)), *times]

    rows: list[list[str]] = []
    for request in requests:
        configs = {run_name(c): c for c in request.configs()}
        cost = {name: costs.run_s(c) if costs else 0.0 for name, c in configs.items()}
        left = {name: cost[name] for name, c in configs.items() if not request.is_done(c, pool)}
        every |= cost
        every_left |= left
        rows.append(row(request.study.name, request.study.title, cost, left))
    rows.append(row("all", "shared runs once", every, every_left))
    print_table(head, rows, range(2, len(head)))
    if hint := other_threads([c for r in requests for c in r.configs()], pool):
        print(hint)
    if costs:
        print(f"Scale {requests[0].scale}. Times are estimates from measured steps on this machine ({costs_file}).")
    return 0


def _reproduce(a: argparse.Namespace, requests: "list[Request]", pool: "Pool") -> int:
    from experiments.request import check_before_training
    from experiments.result import gather, show, write
    from mpd_agl.train.signals import EXIT_SAVED, Stopped

    def say(text: str) -> None:
        if not a.quiet:
            print(text, flush=True)

    if not a.draw:
        check_before_training(requests, pool)
    for request in requests:
        name = request.study.name
        if not a.draw:
            try:
                _train(request, pool, is_quiet=a.quiet or a.scale == "smoke", say=say)
            except Stopped as stop:
                print(f"stopped by {stop.by}, saved. The same command continues.")
                return EXIT_SAVED
        say(f"{name}: reading the records")
        groups = gather(request, pool)
        section = show(request, groups)
        files = write(request, groups, section, a.runs_dir / request.scale)
        _print(section)
        print(f"written to {files[0].parent}: {', '.join(f.name for f in files)}")
    return 0


def _train(request: "Request", pool: "Pool", *, is_quiet: bool, say: Callable[[str], None]) -> None:
    from experiments.pool import run_name
    from experiments.request import other_threads
    from mpd_agl.train.console import build_display

    configs, name = request.configs(), request.study.name
    left = {run_name(c) for c in configs if not request.is_done(c, pool)}
    say(f"{name}: {len({run_name(c) for c in configs})} runs, {len(left)} left")
    if hint := other_threads(configs, pool):
        say(hint)
    trained = pool.train_all(
        configs, lambda: build_display("quiet" if is_quiet else "auto"), say, partial=request.study.partial
    )
    say(f"{name}: {trained} runs were trained now")


def _print(section: "PageSection") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console = Console(width=console.width if console.is_terminal else 200)
    console.print(Text(section.title, style="bold"))
    console.print(Text(section.sentence))
    if section.table is not None:
        print_table(section.table.head, section.table.rows, section.table.numbers, width=200)
    for note in section.notes:
        console.print(Text(note, style="dim"))
