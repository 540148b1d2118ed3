"""Writes into docs/evidence.md how ResNet-19 does at another learning rate, from the records of `table3`.

    python -m tools.evidence_rates [--records docs/results/evidence] [-o docs/evidence.md]

A rule that passes larger gradients may be ahead, or behind, only because its steps are larger. So each method stands at
the protocol's rate and at another one, and our rule at the protocol's rate beside MPD-AGL at the other. Differences are
paired by the seeds that both sides have.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.active_page import between
from tools.evidence_page import PAGE, RECORDS

from mpd_agl.errors import InputError
from mpd_agl.paper.evidence import OURS, PAPER
from mpd_agl.paper.study import label
from mpd_agl.records import reading, write_atomic
from mpd_agl.report.seeds import difference, paired, points

Scores = dict[int, float]


@dataclass(frozen=True)
class Pair:
    """One table of ResNet-19 at two rates: the records' names, and the place in the page."""

    place: str
    usual: str
    other: str


PAIRS = (
    Pair("rates", "table3", "table3-rate"),
    Pair("rates-trained", "table3-cifar100-trained", "table3-cifar100-trained-rate"),
)


def scores(record: dict[str, Any]) -> dict[str, Scores]:
    """By method and seed the accuracy of the last epoch; a run that ended in NaN counts as guessing."""
    found: dict[str, Scores] = {}
    for cell in record["cells"]:
        found.setdefault(cell["method"], {})[cell["seed"]] = cell["final"]["test_accuracy"]
    for lost in record["ended_in_nan"]:
        found.setdefault(lost["method"], {}).update({int(s): a for s, a in lost["accuracy"].items()})
    return found


def rate_of(record: dict[str, Any]) -> float:
    """The learning rate that all runs of a record share.

    >>> rate_of({"cells": [{"config": {"optim": {"lr": 0.2}}}, {"config": {"optim": {"lr": 0.2}}}]})
    0.2
    """
    rates = {float(cell["config"]["optim"]["lr"]) for cell in record["cells"]}
    if len(rates) != 1:
        raise InputError(f"the runs of a record have the rates {sorted(rates)}. Name a record with one.")
    return rates.pop()


def lines(usual: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """A row per method, its accuracies at both rates, over the seeds that both have; then our rule's differences."""
    rates = rate_of(usual), rate_of(other)
    first, second = scores(usual), scores(other)
    methods = [m for m in first if m in second]
    if missing := [m for m in (OURS, PAPER) if m not in methods]:
        raise InputError(
            f"{missing[0]} has no runs at both rates, {rates[0]:g} and {rates[1]:g}. Train what is missing."
        )
    rows = []
    for method in methods:
        seeds = sorted(first[method].keys() & second[method].keys())
        both = [points([found[method][s] for s in seeds]) for found in (first, second)]
        rows.append([label(method), str(len(seeds)), *both, difference(paired(second[method], first[method]))])
    head = ["method", "seeds", *(f"rate {rate:g}" for rate in rates), f"at {rates[1]:g} minus at {rates[0]:g}"]
    gaps = [
        (f"ours minus MPD-AGL, both at {rates[0]:g}", first[OURS], first[PAPER]),
        (f"ours minus MPD-AGL, both at {rates[1]:g}", second[OURS], second[PAPER]),
        (f"ours at {rates[0]:g} minus MPD-AGL at {rates[1]:g}", first[OURS], second[PAPER]),
        (f"ours at {rates[1]:g} minus MPD-AGL at {rates[0]:g}", second[OURS], first[PAPER]),
    ]
    shared = set.intersection(*(set(found[method]) for found in (first, second) for method in (OURS, PAPER)))
    told = [[name, difference(paired(_only(a, shared), _only(b, shared)))] for name, a, b in gaps]
    return [
        f"| {' | '.join(head)} |",
        "|---|" + "---:|" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"| difference, {len(shared)} seeds | points |",
        "|---|---:|",
        *(f"| {' | '.join(row)} |" for row in told),
    ]


def _only(found: Scores, seeds: Any) -> Scores:
    return {s: v for s, v in found.items() if s in seeds}


def write(records: Path, page: Path) -> list[str]:
    """Fill the places whose two records are there; returns their names."""
    text = page.read_text(encoding="utf-8")
    done = []
    for pair in PAIRS:
        files = [records / f"{name}.json" for name in (pair.usual, pair.other)]
        if not all(file.is_file() for file in files):
            continue
        found = []
        for file in files:
            with reading(file):
                found.append(json.loads(file.read_text(encoding="utf-8")))
                rate_of(found[-1])  # what a file lacks is told of this file
                scores(found[-1])
        text = between(text, pair.place, lines(*found), page)
        done.append(pair.place)
    if not done:
        raise InputError(f"no pair of records with two rates is in {records}. Name docs/results/evidence.")
    write_atomic(page, text.encode())
    return done


def main(argv: list[str] | None = None) -> int:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("-o", "--out", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    try:
        print(f"{args.out}: {', '.join(write(args.records, args.out))}")
    except InputError as error:
        print(f"evidence_rates: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"evidence_rates: {error.filename}: {error.strerror}. Name another file.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
