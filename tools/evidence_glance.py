"""Draws four comparisons at every place of docs/evidence.md in one picture, and counts who is ahead where.

    python -m tools.evidence_glance [--records docs/results/evidence] [--out docs/results] [--page docs/evidence.md]

Reads the paired differences in the records that `tools.evidence_page` shows. A place that stands in several of them,
as the usual network does in every stress test, counts once. Writes glance.json, glance.png, and its place in the page.
"""

import argparse
import json
import os
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.study import label
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tools.active_page import between
from tools.evidence_page import OURS, PAGE, RECORDS

from experiments import evidence, stress
from mpd_agl.errors import InputError
from mpd_agl.records import canonical, reading, write_atomic
from mpd_agl.report import draw

OUT = Path("docs/results")
WHAT = "tools.evidence_glance"
NAMES = (
    "depth",
    "depth-24-rate-quarter",
    "depth-24-rate4",
    "depth-24-rate16",
    "depth-cifar10",
    "depth-cifar10-24",
    "depth-cifar10-24-rivals",
)
NAMES += ("table3", "table3-rate", "table3-rate4", "table3-rate8", "table3-adam", "table3-cifar100")
NAMES += ("table3-cifar100-trained", "table3-cifar100-trained-rate")
NAMES += (
    "stress",
    "stress-resnet19",
    "stress-cifar10",
    "stress-gamma",
    "stress-decay",
    "stress-decay-long",
    "stress-more",
)
"""The records whose places are shown, in the picture's order."""
MINUS_PAPER = "minus MPD-AGL"
WIDTH_1 = (label(evidence.FIXED), label("trainable-decay"))
COLUMNS = {
    "ours minus MPD-AGL": ((label(evidence.PAPER),), OURS),
    "ours minus a width of 1": (WIDTH_1, OURS),
    "ours minus the tuned width": ((label(evidence.TUNED_FIXED),), OURS),
    "MPD-AGL minus a width of 1": (WIDTH_1, MINUS_PAPER),
}
"""What is compared: the methods whose row of a record holds the difference, and its column.

A record without the first method may have the second.
"""
GAP = re.compile(r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\]")
NEAR = 2.0
"""Points around 0 that the axis shows evenly; beyond them it shows powers of ten."""


@dataclass(frozen=True)
class Place:
    """A network on its data under one setting, and the differences there: mean and interval."""

    name: str
    gaps: dict[str, tuple[float, float, float]]


CHANGES = {"optim.name": ", {}", "model.weights": ", from trained weights", "optim.lr": ", rate {}"}
"""Fields of a command that make another place of it, and how the picture names them."""


def place_name(study: str, row: dict[str, str], changes: dict[str, Any]) -> str:
    """What a row of a record compares, for people; `changes` are the fields that its command set.

    >>> place_name("depth", {"data": "digits", "optimizer": "SGD", "layers": "24"}, {})
    'plain, 24 layers, digits, SGD'
    >>> place_name("depth", {"data": "digits", "optimizer": "SGD", "layers": "24"}, {"optim.lr": "0.2"})
    'plain, 24 layers, digits, SGD, rate 0.2'
    >>> place_name("table3", {"data": "CIFAR-10"}, {"optim.name": "adam", "train.threads": "1"})
    'ResNet-19, CIFAR-10, Adam'
    >>> place_name("table3", {"data": "CIFAR-10"}, {"optim.name": "adam", "optim.lr": "0.002"})
    'ResNet-19, CIFAR-10, Adam'
    >>> place_name("table3", {"data": "CIFAR-10"}, {"optim.lr": "0.2"})
    'ResNet-19, CIFAR-10, rate 0.2'
    >>> place_name("stress", {"data": "digits", "factor": "resnet19-threshold", "value": "0.1"}, {})
    'ResNet-19, digits, threshold v_th = 0.1'
    >>> place_name("stress", {"data": "digits", "factor": "decay-t8", "value": "0.95"}, {})
    'CNN-8, digits, T = 8, decay tau = 0.95'
    """
    if study == "depth":
        rate = f", rate {changes['optim.lr']}" if "optim.lr" in changes else ""
        return f"plain, {row['layers']} layers, {row['data']}, {row['optimizer']}{rate}"
    if study == "table3":
        own = {
            f: v for f, v in changes.items() if f != "optim.lr" or "optim.name" not in changes
        }  # Adam has its own rate
        told = [words.format(str(own[field]).capitalize()) for field, words in CHANGES.items() if field in own]
        return f"ResNet-19, {row['data']}{''.join(told)}"
    network = evidence.NETWORKS[stress.NETWORK.get(row["factor"], "cnn8")]
    what, steps, T = stress.TITLES[row["factor"]].partition(", T = ")
    return f"{network}, {row['data']}{steps}{T}, {what} = {row['value']}"


def places_of(record: dict[str, Any]) -> dict[str, Place]:
    """A record's places by the first run of our rule there, which tells the same place in another record."""
    rows: dict[str, list[dict[str, str]]] = {}
    for cells in record["details"]["rows"]:
        row = dict(zip(record["details"]["head"], cells, strict=True))
        rows.setdefault(place_name(record["study"], row, record["changes"]), []).append(row)
    found = {}
    for name, group in rows.items():
        gaps: dict[str, tuple[float, float, float]] = {}
        by_method = {row["method"]: row for row in group}
        for column, (methods, head) in COLUMNS.items():
            row = next((by_method[m] for m in methods if m in by_method), {})
            if gap := GAP.fullmatch(row.get(head, "")):
                mean, low, high = map(float, gap.groups())
                gaps[column] = (0 - mean, 0 - high, 0 - low) if head == MINUS_PAPER else (mean, low, high)
        if gaps:
            found[_first_run(record, group[0]) or name] = Place(name, gaps)
    return found


def _first_run(record: dict[str, Any], row: dict[str, str]) -> str | None:
    """The run of our rule with the lowest seed at a stress test's place; other studies have each place once."""
    if record["study"] != "stress":
        return None
    for cell in record["cells"]:
        at = cell["at"]["factor"], cell["at"]["value"], evidence.DATA[cell["at"]["data"]]
        if cell["method"] == evidence.OURS and at == (row["factor"], row["value"], row["data"]):
            return str(cell["runs"][min(cell["runs"], key=int)])
    return None


def verdict(gap: tuple[float, float, float]) -> int:
    """1 where the interval lies above 0, -1 below, 0 where it holds 0, or has no width because all seeds differ alike.

    >>> verdict((1.0, 0.5, 1.5)), verdict((-1.0, -1.5, -0.5)), verdict((1.0, -0.5, 2.5)), verdict((0.2, 0.2, 0.2))
    (1, -1, 0, 0)
    """
    return 0 if gap[1] == gap[2] else (gap[1] > 0) - (gap[2] < 0)


def counts(places: list[Place], column: str) -> tuple[int, int, int]:
    """Places where the first of the two is ahead, where nothing is decided, where it is behind."""
    found = [verdict(p.gaps[column]) for p in places if column in p.gaps]
    return found.count(1), found.count(0), found.count(-1)


def picture(places: list[Place]) -> bytes:
    """A column for each comparison, a row for each place, the interval as a bar."""
    with draw.style():
        figure = Figure(figsize=(10.4, 0.175 * len(places) + 1.1))
        grid = figure.subplots(1, len(COLUMNS), sharey=True)
        for axes, column in zip(grid, COLUMNS, strict=True):
            _column(axes, places, column)
            axes.set_title(column.replace(" minus ", " minus\n"))
        grid[0].set_yticks(range(len(places)), [draw.plain(p.name) for p in places])
        grid[0].set_ylim(len(places) - 0.4, -0.6)
        figure.supxlabel("points of test accuracy, with the 95 % interval", fontsize="medium")
        return draw.png_file(figure)


def _column(axes: Axes, places: list[Place], column: str) -> None:
    for at, place in enumerate(places):
        if (gap := place.gaps.get(column)) is None:
            continue
        shade = {1: draw.COLOURS[0], 0: draw.SOFT, -1: draw.COLOURS[1]}[verdict(gap)]
        axes.plot(gap[1:], [at, at], color=shade, linewidth=1.6, solid_capstyle="butt")
        axes.plot(gap[0], at, "o", color=shade, markersize=3.6)
    axes.axvline(0, color=draw.INK, linewidth=0.8)
    axes.set_xscale("symlog", linthresh=NEAR, linscale=1.0)
    ticks = (-10, -1, 0, 1, 10, 100)
    axes.set_xticks(ticks, [f"{t:+d}" if t else "0" for t in ticks], fontsize="xx-small")
    axes.set_xlim(-60, 130)


def record_of(places: list[Place]) -> dict[str, Any]:
    """The counts, and every place's differences."""
    found = {}
    for column in COLUMNS:
        ahead, undecided, behind = counts(places, column)
        found[column] = {"ahead": ahead, "undecided": undecided, "behind": behind}
    shown = [{"name": place.name, "gaps": {k: list(v) for k, v in place.gaps.items()}} for place in places]
    return {"what": WHAT, "counts": found, "places": shown}


def lines(places: list[Place], picture_link: str, record_link: str) -> list[str]:
    """The page's place: the counts, the picture."""
    told = []
    for column in COLUMNS:
        ahead, undecided, behind = counts(places, column)
        told.append(f"{column}, ahead at {ahead} of {ahead + undecided + behind} places, behind at {behind}")
    pairs = [[p.gaps.get(f"ours minus {name}") for name in ("a width of 1", "the tuned width")] for p in places]
    same = sum(fixed == tuned for fixed, tuned in pairs if tuned)
    text = (
        f"Four comparisons at every place of this page: {'; '.join(told)}. Ahead and behind mean that the 95 % "
        "interval excludes 0 (blue, orange); at the other places it holds 0 (grey), or has no width because all seeds "
        "differ by the same. Each interval is one of 95 % by itself, so one in twenty excludes 0 by chance. At "
        f"{same} places the tuned width is 1, and two columns show the same runs. Our rule was changed after test "
        "results at some of these places ([changes](#changes-of-the-protocol)), so its counts are not independent. The "
        f"axis is even up to 2 points and goes by powers of ten beyond. [Record]({record_link})."
    )
    return [
        *textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False),
        "",
        f"![Paired differences at {len(places)} places, with intervals]({picture_link})",
        "",
        "```bash",
        "python -m tools.evidence_glance",
        "```",
    ]


def read(records: Path) -> list[Place]:
    """The places of all records that are there."""
    places: dict[str, Place] = {}
    for file in (records / f"{name}.json" for name in NAMES):
        if file.is_file():
            with reading(file):
                for run, place in places_of(json.loads(file.read_text(encoding="utf-8"))).items():
                    there = places.setdefault(run, place)
                    places[run] = Place(there.name, place.gaps | there.gaps)
    if not places:
        raise InputError(f"no record in {records} compares our rule with another. Name docs/results/evidence.")
    return list(places.values())


def main(argv: list[str] | None = None) -> int:
    """Write picture and place, say the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    try:
        places, files = read(args.records), [args.out / f"glance.{kind}" for kind in ("png", "json")]
        made = lines(places, *(os.path.relpath(file, args.page.parent) for file in files))
        text = between(args.page.read_text(encoding="utf-8"), "glance", made, args.page)
        write_atomic(files[0], picture(places))
        write_atomic(files[1], canonical(record_of(places)))
        write_atomic(args.page, text.encode())
    except InputError as error:
        print(f"evidence_glance: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"evidence_glance: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    for column in COLUMNS:
        print(f"{column}: ahead, undecided, behind at {', '.join(map(str, counts(places, column)))} places")
    return 0


if __name__ == "__main__":
    sys.exit(main())
