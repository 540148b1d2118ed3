"""Takes `mpd-gain` apart: which of width, height and bound trains a plain network of 24 layers.

    python -m tools.gain_parts runs/gain-parts          # trains what is missing, writes record and page
    python -m tools.gain_parts runs/gain-parts --draw   # from the runs that are there

Each part is the rule's own or left out: the width keeps Eq. 7's share of the signal, the height is that of unit area,
the bound on the gradient's growth is gone. The runs are held-out trials, as those of tools/gain_choice.py: digits, 800
training samples held out and scored; the test set is not touched. Writes docs/results/gain-parts.json and its place in
docs/gain.md.
"""

import argparse
import sys
import textwrap
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.evidence import OPTIMIZERS
from tools.active_page import between
from tools.evidence_page import SIMD
from tools.gain_choice import Trial, folder_of, told, train

from mpd_agl.core import mpd
from mpd_agl.errors import InputError
from mpd_agl.records import canonical, reading, write_atomic

OUT, PAGE = Path("docs/results/gain-parts.json"), Path("docs/gain.md")
WHAT = "tools.gain_parts"
DEPTH, SEEDS = 24, (10, 11, 12)
UNBOUNDED = 1e9
"""A growth that no chain reaches."""
PARTS = ("width", "height", "bound")
NAMES = {"sgd": "SGD", "adam": "Adam"}


def trial_of(optimizer: str, own: tuple[bool, bool, bool]) -> Trial:
    """The run with the rule's own width, height and bound where `own` says so, in the order of PARTS."""
    width, height, bound = own
    kept = "+".join(part for part, is_own in zip(PARTS, own, strict=True) if is_own) or "none"
    return Trial(
        f"{optimizer}, {DEPTH} layers, own {kept}",
        "plain",
        "digits",
        share=None if width else mpd.EQ7_SHARE,
        height=None if height else 0.0,
        growth=None if bound else UNBOUNDED,
        far=mpd.FAR_OUT,
        fields={"model.depth": DEPTH, **OPTIMIZERS[optimizer]},
    )


WAYS = list(product((False, True), repeat=len(PARTS)))
TRIALS = [(optimizer, own, seed) for optimizer in NAMES for seed in SEEDS for own in WAYS]


def record_of(runs: Path) -> dict[str, Any]:
    """What each trial gave, and with what it was made; every trial must be there."""
    rows = []
    for optimizer, own, seed in TRIALS:
        trial = trial_of(optimizer, own)
        folder = folder_of(runs, trial, seed)
        if not (folder / "record.json").is_file():
            raise InputError(f"{folder} is not there. Train it: leave --draw out.")
        parts = dict(zip(PARTS, own, strict=True))
        rows.append({"optimizer": optimizer, "own": parts, **told(trial, seed, folder)})
    return {"what": WHAT, "depth": DEPTH, "seeds": list(SEEDS), "trials": rows}


def lines(record: dict[str, Any]) -> list[str]:
    """The page's place: a row per combination, a column per optimizer."""
    head = ["width", "height", "bound", *(f"{name} (each seed)" for name in NAMES.values())]
    rows = []
    for own in WAYS:
        cells = []
        for optimizer in NAMES:
            wanted = {"optimizer": optimizer, "own": dict(zip(PARTS, own, strict=True))}
            found = [t for t in record["trials"] if {k: t[k] for k in wanted} == wanted]
            scores = [100 * t["held_out_accuracy"] for t in sorted(found, key=lambda t: t["seed"])]
            each = ", ".join(f"{s:.1f}" for s in scores)
            cells.append(f"{mean(scores):.1f} ± {stdev(scores):.1f} ({each})")
        words = zip(own, ("Eq. 7's share", "unit area", "none"), strict=True)
        rows.append([*("ours" if is_own else without for is_own, without in words), *cells])
    commits = sorted({str(t["code"]["commit"])[:9] + "+" * bool(t["code"].get("changed")) for t in record["trials"]})
    cpus = sorted({" with ".join(filter(None, (t["cpu"], SIMD.get(t["simd"])))) for t in record["trials"]})
    text = (
        f"Plain networks of {record['depth']} layers on digits, accuracy on held-out training samples in percent: mean "
        f"and standard deviation over seeds {', '.join(map(str, record['seeds']))}. The window is a triangle in all "
        f"rows. The last row is the rule. Commit {', '.join(commits)}; {', '.join(cpus)}. "
        "[Record](results/gain-parts.json)."
    )
    return [
        f"| {' | '.join(head)} |",
        "|---|---|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        *textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False),
        "",
        "```bash",
        "python -m tools.gain_parts runs/gain-parts",
        "```",
    ]


def main(argv: list[str] | None = None) -> int:
    """Train what is missing, write record and place."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", type=Path)
    p.add_argument("--draw", action="store_true", help="train nothing")
    p.add_argument("-o", "--out", type=Path, default=OUT)
    p.add_argument("--page", type=Path, default=PAGE)
    a = p.parse_args(argv)
    try:
        for optimizer, own, seed in () if a.draw else TRIALS:
            trial = trial_of(optimizer, own)
            folder = folder_of(a.runs, trial, seed)
            if train(trial, seed, folder, ""):
                print(f"{folder.name}: {100 * told(trial, seed, folder)['held_out_accuracy']:.2f} %", flush=True)
        record = record_of(a.runs)
        with reading(a.page):
            text = between(a.page.read_text(encoding="utf-8"), "gain-parts", lines(record), a.page)
        write_atomic(a.out, canonical(record))
        write_atomic(a.page, text.encode())
    except InputError as error:
        print(f"gain_parts: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gain_parts: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    print(f"{a.out}: {len(record['trials'])} trials")
    return 0


if __name__ == "__main__":
    sys.exit(main())
