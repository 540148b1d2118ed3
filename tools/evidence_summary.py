"""Writes the short tables of the evidence into README.md and docs/evidence.md from the records of docs/evidence.md.

    python -m tools.evidence_summary [--records docs/results/evidence]

A row is one place of the page, or the worst place over the values of a factor. Which rows there are is decided here, by
hand, so that places without a difference stand beside those with one. README has those rows that say what to take. A
row without a record yet is left out.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.study import label
from tools.active_page import between
from tools.evidence_glance import COLUMNS, GAP, verdict
from tools.evidence_page import PAGE, RECORDS

from experiments import evidence
from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic

README = Path("README.md")
ACCURACY, GAIN = "accuracy, last epoch", "ours minus MPD-AGL"


@dataclass(frozen=True)
class Row:
    """A row of the table: the record it stands in, and the places of that record that it is of."""

    name: str
    record: str
    at: Mapping[str, str] = field(default_factory=dict)
    worst: bool = False
    """The lowest mean over all places; without a difference, since methods have their lowest at different places."""
    width_1: str = evidence.FIXED
    """The method with a width of 1."""
    take: str = ""
    """What a user at this place should take; such a row stands in README too."""

    @property
    def columns(self) -> dict[str, str]:
        """Columns, and the names of their methods in the record."""
        methods = (self.width_1, evidence.TUNED_FIXED, evidence.PAPER, evidence.OURS)
        return dict(zip(("width 1", "tuned width", "MPD-AGL", "ours"), map(label, methods), strict=True))


SCALES = "`mpd-agl`, `mpd-gain`"
ROWS = (
    Row(
        "plain, 8 layers, digits, SGD",
        "depth",
        {"data": "digits", "optimizer": "SGD", "layers": "8"},
        take="a width of 1 will do",
    ),
    Row(
        "plain, 24 layers, digits, SGD",
        "depth",
        {"data": "digits", "optimizer": "SGD", "layers": "24"},
        take="`mpd-gain`",
    ),
    Row(
        "plain, 24 layers, digits, Adam",
        "depth",
        {"data": "digits", "optimizer": "Adam", "layers": "24"},
        take="`mpd-gain`",
    ),
    Row("plain, 24 layers, CIFAR-10, SGD", "depth-cifar10-24-rivals", take="`mpd-gain`"),
    Row("plain, 24 layers, CIFAR-10, Adam", "depth-cifar10-24", {"optimizer": "Adam"}),
    Row("CNN-8, digits", "stress-gamma", {"factor": "gamma", "value": "1"}),
    Row("CNN-8, digits, gamma from 0.3", "stress-gamma", {"factor": "gamma", "value": "0.3"}, take="`mpd-gain`"),
    Row("CNN-8, digits, rate / 4", "stress-more", {"factor": "rate", "value": "0.0125"}),
    Row("CNN-8, digits, worst of v_th 0.1 to 4", "stress", worst=True, take=f"{SCALES}, or tune the width"),
    Row("CNN-8, CIFAR-10", "stress-cifar10", {"value": "0.5"}),
    Row("CNN-8, CIFAR-10, worst of v_th 0.1 to 4", "stress-cifar10", worst=True, take=SCALES),
    Row("ResNet-19, digits, v_th = 0.1", "stress-resnet19", {"value": "0.1"}, take=SCALES),
    Row("ResNet-19, digits, v_th = 4", "stress-resnet19", {"value": "4"}),
    Row("ResNet-19, CIFAR-10, SGD", "table3", take="`mpd-gain`"),
    Row("ResNet-19, CIFAR-10, SGD, rate x 2", "table3-rate", take="`mpd-gain`"),
    Row("ResNet-19, CIFAR-10, SGD, rate x 4", "table3-rate4"),
    Row("ResNet-19, CIFAR-10, SGD, rate x 8", "table3-rate8"),
    Row("ResNet-19, CIFAR-10, Adam", "table3-adam", take="any: no difference is shown"),
    Row("ResNet-19, CIFAR-100", "table3-cifar100"),
    Row(
        "ResNet-19, CIFAR-100, trained start",
        "table3-cifar100-trained",
        width_1="trainable-decay",
        take="`mpd-agl`, or a width of 1",
    ),
    Row("the same, rate / 4", "table3-cifar100-trained-rate", width_1="trainable-decay"),
)


def row_cells(row: Row, record: dict[str, Any]) -> list[str]:
    """A row: its seeds, the accuracies by column, our rule's difference to the paper's, bold where it excludes 0."""
    head = record["details"]["head"]
    every = [dict(zip(head, values, strict=True)) for values in record["details"]["rows"]]
    here = [r for r in every if all(r[key] == value for key, value in row.at.items())]
    by_column = {name: [r for r in here if r["method"] == method] for name, method in row.columns.items()}
    counts = {len(rows) for rows in by_column.values() if rows}
    if len(counts) != 1 or (counts != {1} and not row.worst):
        told = ", ".join(f"{name} {len(rows)}" for name, rows in by_column.items())
        raise InputError(
            f"row {row.name!r} of the record {row.record} has other than one place for each method ({told}). "
            "Mend the row, or train what is missing."
        )
    if row.worst:
        shown = [min((r[ACCURACY].split()[0] for r in rows), key=float, default="") for rows in by_column.values()]
        return [seeds(row, record), *shown, ""]
    methods, column = COLUMNS[GAIN]
    gap = next((r[column] for r in here if r["method"] in methods), "")
    match = GAP.fullmatch(gap)
    apart = match is not None and verdict((float(match[1]), float(match[2]), float(match[3]))) != 0
    accuracies = ["".join(r[ACCURACY] for r in rows) for rows in by_column.values()]
    return [seeds(row, record), *accuracies, f"**{gap}**" if apart else gap]


def seeds(row: Row, record: dict[str, Any]) -> str:
    """How many seeds the shown methods have, everywhere in the record; refuses where they differ."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in [*record["cells"], *record.get("ended_in_nan", [])]:  # of a place with its seeds, or of one run
        if label(cell["method"]) in row.columns.values():
            place = found.setdefault((cell["method"], str(cell["at"])), set())
            place.update(map(str, cell["accuracy"] if "accuracy" in cell else [cell["seed"]]))
    counts = sorted({len(each) for each in found.values()})
    if len(counts) != 1:
        raise InputError(
            f"the record {row.record} has {counts} seeds in places that one row shows. Train what is missing."
        )
    return str(counts[0])


def lines(records: Path, *, readme: bool = False) -> list[str]:
    """The table; README's has fewer rows, and what to take in place of seeds and difference."""
    rows = []
    for row in ROWS:
        file = records / f"{row.record}.json"
        if file.is_file() and (row.take or not readme):
            with reading(file):
                seeds, *accuracies, gap = row_cells(row, json.loads(file.read_text(encoding="utf-8")))
            rows.append([row.name, *accuracies, row.take] if readme else [row.name, seeds, *accuracies, gap])
    if not rows:
        raise InputError(f"no record of {records} is in the table. Name docs/results/evidence.")
    head = ["test accuracy, %", *([] if readme else ["seeds"]), *ROWS[0].columns, "take" if readme else GAIN]
    rule = "|---|" + "---:|" * (len(head) - 2) + ("---|" if readme else "---:|")
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def main(argv: list[str] | None = None) -> int:
    """Write the tables into their pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--readme", type=Path, default=README)
    args = parser.parse_args(argv)
    try:
        made = {args.page: lines(args.records), args.readme: lines(args.records, readme=True)}
        texts = {page: between(page.read_text(encoding="utf-8"), "summary", made[page], page) for page in made}
        for page, text in texts.items():
            write_atomic(page, text.encode())
    except InputError as error:
        print(f"evidence_summary: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"evidence_summary: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    print(", ".join(f"{len(table) - 2} rows in {page}" for page, table in made.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
