"""Numbers on pages and the records that hold them: `docs/numbers.toml` says which is which.

    [[claim]]
    pages = ["README.md"]
    text = "MPD-AGL {:.1f} % (standard deviation {:.2f})"
    file = "demo-seeds/mpd-agl-seed*.json"
    values = [
        {path = "final/test_accuracy", of = "mean", times = 100},
        {path = "final/test_accuracy", of = "std", times = 100},
    ]

Files are those of docs/results; a value may have one of its own. A claim's text is made from its records and must stand
on each of its pages. On a page of `complete` every number that looks like a result (a decimal, a percentage, a ratio)
is part of a claim, of a part that a tool writes, or of an exemption that says why.
"""

import json
import re
import statistics
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools import cure

ROOT = Path(__file__).parent.parent.parent
NUMBER = re.compile(r"(?<![\w.#-])[-+]?\d[\d,]*\.\d+|(?<![\w.#-])\d[\d,.]*(?= ?%)|(?<![\w.#-])\d[\d,.]*(?=x\b)")
HIDDEN = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
MADE = re.compile(r"<!-- [\w-]+: begin -->.*?<!-- [\w-]+: end -->", re.DOTALL)


def declared() -> dict[str, Any]:
    """The claims and exemptions."""
    return tomllib.loads((ROOT / "docs/numbers.toml").read_text(encoding="utf-8"))


def value_of(source: dict[str, Any]) -> list[float]:
    """The numbers that a source names: of one file, or of all that a pattern names, in the order of their names."""
    if "cure" in source:
        record = json.loads((ROOT / "docs/results/adapt/cure.json").read_text(encoding="utf-8"))
        found = next(row[source["column"]] for row in cure.rows(record) if row["name"] == source["cure"])
    else:
        paths = sorted((ROOT / "docs/results").glob(source["file"]))
        if not paths:
            raise AssertionError(f"no record {source['file']}")
        records = [json.loads(p.read_text(encoding="utf-8")) for p in paths]
        found = [v for record in records for v in _all(record, source["path"])]
        if "over" in source:  # round by round
            below = [v for record in records for v in _all(record, source["over"])]
            found = [a / b for a, b in zip(found, below, strict=True)]
    found = [source.get("times", 1) * float(v) for v in found]
    kind = source.get("of", "each")
    if kind == "each":
        return found
    reduce = {"mean": statistics.mean, "std": statistics.stdev, "max": max, "min": min, "median": statistics.median}
    return [float(reduce[kind](found))]


def _all(value: Any, path: str) -> list[Any]:
    """What stands at a path; a * in it stands for every row, a | for a slash in a name."""
    parts = [part.replace("|", "/") for part in path.split("/")]
    if "*" not in parts:
        found = _at(value, parts)
        return found if isinstance(found, list) else [found]
    star = parts.index("*")
    value = _at(value, parts[:star])
    return [_at(row, parts[star + 1 :]) for row in (value.values() if isinstance(value, dict) else value)]


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(value, str):
            return _numbers(value)[int(part)]
        value = _row(value, part) if isinstance(value, list) else value[part]
    return _numbers(value)[0] if isinstance(value, str) else value


def _numbers(cell: str) -> list[str]:
    """The numbers in a cell of a table."""
    return re.findall(r"[-+]?\d+(?:\.\d+)?", cell)


def _row(rows: list[Any], part: str) -> Any:
    """By number, by `key=value&key=value`, or by a table's first cell."""
    if part.isdigit():
        return rows[int(part)]
    wanted = [pair.partition("=") for pair in part.split("&")]
    for row in rows:
        if isinstance(row, dict) and all(str(row.get(key)) == value for key, _, value in wanted):
            return row
        if isinstance(row, list) and row[0] == part:
            return row
    raise KeyError(part)


def text_of(claim: dict[str, Any]) -> str:
    """A claim's text with its records' numbers."""
    numbers = [v for source in claim["values"] for v in value_of({"file": claim.get("file"), **source})]
    return str(claim["text"].format(*numbers))


def flat(text: str) -> str:
    """Text without its line breaks: a sentence may be wrapped anywhere."""
    return " ".join(text.split())


def uncovered(page: str, text: str, claims: Iterable[dict[str, Any]], exempt: Iterable[dict[str, Any]]) -> list[str]:
    """Numbers that look like results and stand in no claim, no part made by a tool and no exemption."""
    rest = flat(HIDDEN.sub(" ", MADE.sub(" ", text)))
    for claim in claims:
        if page in claim["pages"]:
            rest = rest.replace(flat(HIDDEN.sub(" ", text_of(claim))), " ")
    for one in exempt:
        if page in one["pages"] or "*" in one["pages"]:
            rest = re.sub("|".join(one["text"]), " ", rest)
    return [f"...{rest[max(0, m.start() - 40) : m.end() + 12]}..." for m in NUMBER.finditer(rest)]
