"""`mpd-agl demo`: three minutes that show what the package is for, from nothing but what it brings."""

import argparse
from pathlib import Path

from mpd_agl.cli import train
from mpd_agl.cli.arguments import Parser
from mpd_agl.records import write_atomic
from mpd_agl.report import build_page, draw, read_run, windows

THRESHOLD = "0.1"
DIGITS, FIXED, FITTING = "demo", "demo-fixed", "demo-fitting"


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(
        prog="mpd-agl demo",
        description="Train a small spiking network on digits; then the same network at a threshold at which a fixed "
        "surrogate width fails, once with that width and once with MPD-AGL. Leaves a picture and a report.",
    )
    p.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="default runs")
    p.add_argument("--quick", action="store_true", help="a few steps of each, to see that it works; it shows nothing")
    return p


def run(argv: list[str]) -> int:
    """Train, draw, tell."""
    a = parser().parse_args(argv)

    few = ["--train.epochs", "2", "--data.train_samples", "100", "--data.test_samples", "60", "--monitor.every", "2"]
    stressed = ["--model.v_th", THRESHOLD, "--train.epochs", "4", "--optim.lr", "0.05"]
    stressed += ["--optim.schedule", "cosine-steps"]  # as experiments/idea.py trains
    parts: tuple[tuple[str, str, list[str]], ...] = (
        (DIGITS, "a spiking network learns digits with MPD-AGL", []),
        (FIXED, f"the same network at a threshold of {THRESHOLD}, with a fixed width", ["--method", "stbp-tdbn"]),
        (FITTING, "the same again, with MPD-AGL's width", ["--method", "mpd-agl"]),
    )
    for number, (name, words, method) in enumerate(parts, 1):
        print(f"\n{number} of {len(parts)}: {words}", flush=True)
        options = [*method, *(stressed if method else []), *(few if a.quick else [])]
        fixed = ["--preset", "demo", "--name", name, "--runs-dir", str(a.runs_dir), "--overwrite"]
        if code := train.run([*fixed, *options]):
            print("The same command starts the demo again.")
            return code
    picture, page, words = show(a.runs_dir)
    print(f"\n{words}\n")
    print(f"picture  {picture}\nreport   {page}")
    place = "" if a.runs_dir == Path("runs") else f"{a.runs_dir} "
    print(f"next     mpd-agl runs {place}--open {DIGITS}     (the report in your browser)")
    print(f"         mpd-agl predict {a.runs_dir / DIGITS} digit.png     (a digit that you drew)")
    print("         mpd-agl diagnose module:factory     (why your own network does not learn)")
    return 0


def show(folder: Path) -> tuple[Path, Path, str]:
    """Write the picture and the page about all three runs; their paths and what the picture says."""
    digits, fixed, fitting = (read_run(folder / name) for name in (DIGITS, FIXED, FITTING))
    with draw.style():
        panel = windows.picture(fixed, fitting)
        picture, page = folder / DIGITS / "windows.png", folder / DIGITS / "report.html"
        write_atomic(picture, draw.png_file(panel.figure))
    write_atomic(page, build_page([fixed, fitting, digits]))
    return picture, page, panel.alt
