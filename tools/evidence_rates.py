"""Writes into docs/evidence.md how networks do at other learning rates, from the records of `table3` and `depth`.

    python -m tools.evidence_rates [--records docs/results/evidence] [-o docs/evidence.md]

A rule that passes larger gradients may be ahead, or behind, only because its steps are larger. So each method stands at
the protocol's rate and at others, and the methods are compared at equal rates, each at its best rate, and our rule at
the protocol's rate with MPD-AGL at the others. Differences are paired by the seeds that all have.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.evidence import OURS, PAPER
from experiments.seeds import difference, paired, points
from experiments.study import label
from tools.active_page import between
from tools.evidence_page import PAGE, RECORDS

from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic

Scores = dict[int, float]


@dataclass(frozen=True)
class Place:
    """A network on its data at several rates: the place in the page, and the records, the protocol's rate first."""

    name: str
    records: tuple[str, ...]


PLACES = (
    Place("rates", ("table3", "table3-rate", "table3-rate4", "table3-rate8")),
    Place("rates-trained", ("table3-cifar100-trained", "table3-cifar100-trained-rate")),
    Place("rates-depth", ("depth-24", "depth-24-rate-quarter", "depth-24-rate4", "depth-24-rate16")),
)


def scores(record: dict[str, Any]) -> dict[str, Scores]:
    """By method and seed the accuracy of the last epoch; a run that ended in NaN counts as guessing."""
    cells = [*record["cells"], *record.get("ended_in_nan", [])]
    if len(places := {str(cell["at"]) for cell in cells}) > 1:
        raise InputError(f"the runs of a record are of {len(places)} places. Name a record of one place.")
    found: dict[str, Scores] = {}
    for cell in cells:  # of a method with its seeds, or of one run
        by_seed = cell["accuracy"] if "accuracy" in cell else {cell["seed"]: cell["final"]["test_accuracy"]}
        found.setdefault(cell["method"], {}).update({int(s): a for s, a in by_seed.items()})
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


def lines(records: list[dict[str, Any]]) -> list[str]:
    """The accuracies by method and rate, over the seeds that all have; then the differences."""
    by_rate = {rate_of(record): scores(record) for record in records}
    if len(by_rate) < len(records):
        raise InputError(f"{len(records)} records are of {len(by_rate)} rates. Name one record for each rate.")
    usual = next(iter(by_rate))
    by_rate = dict(sorted(by_rate.items()))
    first = by_rate[usual]
    methods = [m for m in first if all(m in found for found in by_rate.values())]
    if missing := [m for m in (OURS, PAPER) if m not in methods]:
        rates = ", ".join(f"{rate:g}" for rate in by_rate)
        raise InputError(f"{missing[0]} has no runs at each of the rates {rates}. Train what is missing.")
    shared = set.intersection(*(set(found[m]) for found in by_rate.values() for m in methods))
    if not shared:
        raise InputError(f"{', '.join(methods)} share no seed at all rates. Train what is missing.")
    for rate, found in by_rate.items():
        by_rate[rate] = {m: {s: v for s, v in found[m].items() if s in shared} for m in methods}
    best = {m: max(by_rate, key=lambda rate, m=m: fmean(by_rate[rate][m].values())) for m in methods}
    columns = [f"rate {rate:g}{' (usual)' * (rate == usual)}" for rate in by_rate]
    accuracies = [[label(m), *(points([*found[m].values()]) for found in by_rate.values())] for m in methods]

    def gaps(a: str, b: str) -> list[str]:
        each = [paired(found[a], found[b]) for found in by_rate.values()]
        return [difference(d) for d in (*each, paired(by_rate[best[a]][a], by_rate[best[b]][b]))]

    rivals = [m for m in methods if m != OURS]
    told = [[f"ours minus {label(m)}", *gaps(OURS, m)] for m in rivals]
    told += [[f"{label(PAPER)} minus {label(m)}", *gaps(PAPER, m)] for m in rivals if m != PAPER]
    crossed = [difference(paired(by_rate[usual][OURS], found[PAPER])) for found in by_rate.values()]
    told.append([f"ours at {usual:g} minus {label(PAPER)} at this rate", *crossed, ""])
    return [
        *_table([f"accuracy, {len(shared)} seeds", *columns], accuracies),
        "",
        *_table(["difference", *columns, "each at its best rate"], told),
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(head) - 1)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def read(records: Path, place: Place) -> list[dict[str, Any]]:
    """Those records of a place that are there, where there are two or more, the protocol's rate among them."""
    found = []
    for file in (records / f"{name}.json" for name in place.records):
        if file.is_file():
            with reading(file):
                found.append(json.loads(file.read_text(encoding="utf-8")))
                rate_of(found[-1])  # what a file lacks is told of this file
                scores(found[-1])
    return found if len(found) > 1 and (records / f"{place.records[0]}.json").is_file() else []


def write(records: Path, page: Path) -> list[str]:
    """Fill the places that have records of two rates or more; returns their names."""
    text = page.read_text(encoding="utf-8")
    done = []
    for place in PLACES:
        if found := read(records, place):
            text = between(text, place.name, lines(found), page)
            done.append(place.name)
    if not done:
        raise InputError(f"no records of two rates are in {records}. Name docs/results/evidence.")
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
