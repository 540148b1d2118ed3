"""`mpd-agl report`: runs as one self-contained page, and as figures for a paper."""

import argparse
from pathlib import Path

from mpd_agl.cli.arguments import Parser
from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic
from mpd_agl.report import build_page, check_comparable, read_run, write_figures
from mpd_agl.train.runfolder import find_run


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl report",
        description="Make one HTML page from the records of runs; several runs are compared. "
        "The command trains nothing, and the page asks no server for anything.",
    )
    p.add_argument("runs", type=find_run, nargs="+", metavar="RUN", help="run folder of `mpd-agl train`, or its name")
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default RUN/report.html for one run, report.html for several)",
    )
    p.add_argument("--figures", type=Path, metavar="DIR", help="also write every figure as SVG and PDF")
    return p


def run(argv: list[str]) -> int:
    """Read, draw, write, tell where."""
    a = parser().parse_args(argv)
    output: Path = a.output or (a.runs[0] / "report.html" if len(a.runs) == 1 else Path("report.html"))
    if output.is_dir():
        raise InputError(f"{output} is a folder. Name a file, as in -o {output / 'report.html'}.")
    if a.output and not output.parent.is_dir():
        raise InputError(f"no folder {output.parent} for the page. Make it, or choose another -o.")

    with reading(", ".join(map(str, a.runs))):
        found = [read_run(path) for path in a.runs]
        check_comparable(found)
        page = build_page(found)
        written = [] if a.figures is None else write_figures(found, a.figures)
    if a.figures is not None:
        print(f"figures: {len(written)} files in {a.figures}")
    try:
        write_atomic(output, page)
    except OSError as error:
        raise InputError(
            f"the page cannot be written to {output} ({error.strerror}). Choose another place with -o."
        ) from None
    print(f"report: {output}")
    return 0
