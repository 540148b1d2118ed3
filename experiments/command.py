"""`python -m experiments`: the paper's tables and figures, the paper's numbers beside ours."""

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpd_agl.cli.arguments import Parser, print_table
from mpd_agl.errors import InputError

if TYPE_CHECKING:
    from experiments.pool import Pool
    from experiments.reproduce import Request
    from mpd_agl.report.section import PageSection
    from mpd_agl.train.config import RunConfig

EVIDENCE = ("ridge", "stress", "depth", "descent", "idea", "rivals")
"""The studies of docs/evidence.md, and that of docs/rivals.md."""
EPILOG = """any field of the configuration can be set for all runs, as in `mpd-agl train`:
--data.data-dir DIR --train.threads 1.
Interrupted experiments continue by the same command, finished runs are not run again, and experiments share runs.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="python -m experiments",
        description="Run experiments of the paper for all methods on one pipeline, "
        "and show tables and figures with the paper's numbers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="table1 to table4, fig-..., ridge, stress, depth, descent, idea, rivals, or all",
    )
    p.add_argument("--list", action="store_true", help="what there is, what each costs here, what is done")
    p.add_argument("--scale", default="cpu", help="paper (needs a GPU), cpu (2 cores, default) or smoke (seconds)")
    p.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1: mean, spread, paired differences")
    p.add_argument(
        "--methods",
        nargs="+",
        action="extend",
        metavar="METHOD",
        help="instead of the experiment's own; NAME@OPTION=VALUE sets an option of the model, "
        "stbp-tdbn@kappa=best takes the width that held-out training samples choose",
    )
    p.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE[,VALUE]",
        help="a slice of the experiment: method=, seed=, or a place of its table (factor=threshold data=digits)",
    )
    p.add_argument(
        "--runs-dir", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="default runs/reproduce"
    )
    p.add_argument("--draw", action="store_true", help="train nothing: draw again from the records")
    p.add_argument("--quiet", action="store_true", help="no progress, only the result")
    return p


def run(argv: list[str]) -> int:
    """List, or train what is missing and show."""
    from mpd_agl.cli.options import parse
    from mpd_agl.errors import unknown_name

    fields, others = split_fields(argv)
    a, rest = parser().parse_known_args(others)
    options = parse(fields + rest)
    surplus = [f"--{n} does not go with reproduce." for n in (*options.values, *options.flags)]
    if mistakes := options.mistakes + surplus:
        raise InputError(mistakes[0])

    from experiments.scales import SCALES

    if a.scale not in SCALES:
        raise unknown_name("scale", a.scale, SCALES)
    known = study_names()
    for name in a.names:
        if name not in (*known, "all"):
            raise unknown_name("experiment", name, known)
    if not a.names and not a.list:
        raise InputError(
            f"nothing to reproduce: name {', '.join(known)} or all. `python -m experiments --list` tells more."
        )
    if a.seeds is not None and a.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {a.seeds}. Use 3 for a mean with its spread.")

    from experiments.pool import Pool
    from experiments.reproduce import Request
    from experiments.studies import STUDIES, get_study

    names = list(STUDIES) if a.names == ["all"] or not a.names else a.names
    requests = [
        Request(
            study=study,
            scale=a.scale,
            seeds=a.seeds or (min(2, study.seeds) if a.scale == "smoke" else study.seeds),
            methods=tuple(a.methods or study.methods),
            changes=options.overrides,
            only=read_only(a.only),
        )
        for study in map(get_study, names)
    ]
    for request in requests:
        request.tuning()  # every mistake is told before anything is trained
        request.configs()
    pool = Pool(a.runs_dir / "pool")
    if a.list:
        return _list(requests, pool, a.runs_dir / "costs.json")
    return _reproduce(a, requests, pool)


def study_names() -> list[str]:
    """The experiments by their files' names: a mistake is answered before torch is loaded."""
    folder = files("experiments")
    stems = sorted(f.name.removesuffix(".py") for f in folder.iterdir() if f.name.startswith(("table", "fig_")))
    return [*(stem.replace("_", "-") for stem in stems), *EVIDENCE]


def split_fields(argv: list[str]) -> tuple[list[str], list[str]]:
    """The fields of the configuration with their values, and the rest: a value must not be taken for a NAME.

    >>> split_fields(["--list", "--train.threads", "1", "depth", "--data.augment", "crop=4", "flip", "--quiet"])
    (['--train.threads', '1', '--data.augment', 'crop=4', 'flip'], ['--list', 'depth', '--quiet'])
    """
    from mpd_agl.train.resolve import fields_of

    known, tokens = fields_of(), list(argv)
    fields: list[str] = []
    others: list[str] = []
    while tokens:
        token = tokens.pop(0)
        name, has_value, _ = token.partition("=")
        if not token.startswith("--") or "." not in name:
            others.append(token)
            continue
        fields.append(token)
        field = known.get(name[2:].replace("-", "_"))
        takes_many = field is not None and field.annotation == tuple[str, ...]
        takes_none = field is not None and field.annotation is bool and tokens[:1] not in (["true"], ["false"])
        while tokens and not tokens[0].startswith("--") and not has_value and not takes_none:
            fields.append(tokens.pop(0))
            if not takes_many:
                break
    return fields, others


def read_only(conditions: list[str]) -> dict[str, tuple[str, ...]]:
    """The slice that `--only` names.

    >>> read_only(["factor=threshold", "seed=0,1"])
    {'factor': ('threshold',), 'seed': ('0', '1')}
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


def _list(requests: "list[Request]", pool: "Pool", costs_file: Path) -> int:
    from experiments.costs import Costs
    from experiments.pool import run_name
    from experiments.reproduce import other_threads
    from mpd_agl.train.console import duration

    costs = Costs(costs_file)
    if not costs.known:
        print(
            f"{', '.join(r.study.name for r in requests)}: measuring a few steps of each of their networks, some "
            "minutes for all; the next list has them at once",
            flush=True,
        )
    rows: list[list[str]] = []
    wanted: dict[str, float] = {}
    left: dict[str, float] = {}

    def is_done(request: "Request", config: "RunConfig") -> bool:
        return pool.ended(config) if request.study.partial else pool.finished(config)

    def row(name: str, what: str, cost: dict[str, float], missing: dict[str, float]) -> list[str]:
        rest = duration(sum(missing.values())) if missing else ""
        return [name, what, str(len(cost)), str(len(cost) - len(missing)), duration(sum(cost.values())), rest]

    for request in requests:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{request.study.name}", end="", file=sys.stderr, flush=True)
        configs = {run_name(c): c for c in (*request.tuning(), *request.configs())}
        cost = {name: costs.run_s(c) for name, c in configs.items()}
        missing = {name: cost[name] for name, c in configs.items() if not is_done(request, c)}
        wanted |= cost
        left |= missing
        rows.append(row(request.study.name, request.study.title, cost, missing))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    rows.append(row("all", "shared runs once", wanted, left))
    print_table(("name", "what", "runs", "done", "whole, here", "left, here"), rows, range(2, 6))
    if hint := other_threads([c for r in requests for c in (*r.tuning(), *r.configs())], pool):
        print(hint)
    print(
        f"Scale {requests[0].scale}. Times are estimates from measured steps on this machine ({costs_file}); "
        "they leave out data preparation and are off by what else the machine does."
    )
    return 0


def _reproduce(a: Any, requests: "list[Request]", pool: "Pool") -> int:
    from experiments.costs import Costs
    from experiments.reproduce import check_before_training, gather, other_threads, progress, show, train, write
    from mpd_agl.train.console import build_display
    from mpd_agl.train.observe import Display
    from mpd_agl.train.signals import EXIT_SAVED, Stopped

    def display() -> Display:
        return build_display("quiet" if a.quiet or a.scale == "smoke" else "auto")

    def say(text: str) -> None:
        if not a.quiet:
            print(text, flush=True)

    if not a.draw:
        check_before_training(requests, pool)
        costs = None if a.scale == "smoke" else Costs(a.runs_dir / "costs.json")
        for request in requests:
            say(progress(request, pool, costs))
            if hint := other_threads([*request.tuning(), *request.configs()], pool):
                say(hint)
    for request in requests:
        if not a.draw:
            try:
                trained, total = train(request, pool, display, say)
            except Stopped as stop:
                print(f"stopped by {stop.by}, saved. The same command continues.")
                return EXIT_SAVED
            say(f"{request.study.name}: {trained} of {total} runs were trained now")
        say(f"{request.study.name}: reading the records")
        groups = gather(request, pool)
        if request.study.measure is not None and not a.draw:
            request.study.measure(groups, request.methods, request.scale, say)
        section = show(request, groups)
        files = write(request, groups, section, a.runs_dir / request.scale)
        _print(section)
        print(f"written to {files[0].parent}: {', '.join(f.name for f in files)}")
    return 0


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
