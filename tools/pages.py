"""Writes figures into pages from records, by name; `--check` says which figures differ from their records.

    python -m tools.pages [--check] [PAGE ...]        default: README.md and every page under docs

A page that shows figures ends with a comment that names them, a line each (two spaces continue a line):

    <!-- records
    demo = results/demo-seeds/mpd-agl-seed*.json final/test_accuracy; mean; x100
    table3 = results/table3.json table; columns 0 1 4; rows 0 2
    -->

Files are relative to docs. A key is a path of names and row numbers: `*` takes all, `key=value&key=value` a row, %2F is
a slash in a name; in a text, a part takes the number at that place. In the page `98.1<!--=demo-->` is a figure, which
keeps its number of decimals, and `<!--=table3-->` on a line of its own begins a table, which ends at a blank line.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DEFINITIONS = re.compile(r"<!-- records\n(.*?)-->", re.DOTALL)
FIGURE = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?)<!--=([\w-]+)-->")
TABLE = re.compile(r"^<!--=([\w-]+)-->\n(?:\|.*\n)*", re.MULTILINE)
MARK = re.compile(r"<!--=([\w-]+)-->")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
REDUCE: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.mean,
    "std": statistics.stdev,
    "median": statistics.median,
    "min": min,
    "max": max,
}


def definitions(text: str) -> dict[str, str]:
    """What a page's names mean."""
    found = DEFINITIONS.search(text)
    pairs = [line.partition(" = ") for line in found[1].replace("\n  ", " ").splitlines()] if found else []
    return {name: source for name, _, source in pairs}


def values_at(value: Any, parts: list[str]) -> list[Any]:
    """Everything at a path of a record."""
    if not parts:
        return [NUMBER.findall(value)[0] if isinstance(value, str) else value]
    part, rest = parts[0], parts[1:]
    if part == "*":
        rows = value.values() if isinstance(value, dict) else value
        return [found for row in rows for found in values_at(row, rest)]
    if isinstance(value, str):
        return values_at(float(NUMBER.findall(value)[int(part)]), rest)
    if isinstance(value, dict):
        return values_at(value[part], rest)
    if "=" in part:
        wanted = [pair.partition("=")[::2] for pair in part.split("&")]
        return values_at(next(row for row in value if all(str(row[_key(row, k)]) == v for k, v in wanted)), rest)
    return values_at(value[int(part)], rest)


def _key(row: Any, name: str) -> Any:
    """A column's number in a row of a table, a name in a record."""
    return int(name) if isinstance(row, list) else name


def read(source: str, docs: Path) -> tuple[list[Any], list[str]]:
    """A definition's values and its options."""
    place, *options = source.split("; ")
    pattern, _, key = place.partition(" ")
    files = sorted(docs.glob(pattern)) if "*" in pattern else [docs / pattern]
    parts = [part.replace("%2F", "/") for part in key.split("/")]
    every = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [found for record in every for found in values_at(record, parts)], options


def figure(source: str, docs: Path, like: str) -> str:
    """A definition's number, written as `like` is."""
    found, options = read(source, docs)
    numbers = [float(v) for v in found]
    for option in options:
        if option.startswith("x"):
            numbers = [float(option[1:]) * v for v in numbers]
        else:
            numbers = [float(REDUCE[option](numbers))]
    [number] = numbers
    mantissa = like.partition("e")[0]
    decimals = len(mantissa.partition(".")[2])
    kind = "e" if "e" in like else "f"
    sign, comma = "+" if like.startswith("+") else "", "," if abs(number) >= 1000 and kind == "f" else ""
    return f"{number:{sign}{comma}.{decimals}{kind}}"


def table(source: str, docs: Path) -> str:
    """A record's `head` and `rows` as Markdown; `columns` and `rows` choose by number."""
    [found], options = read(source, docs)
    chosen = {kind: [int(n) for n in numbers.split()] for kind, _, numbers in (o.partition(" ") for o in options)}
    rows = [found["rows"][i] for i in chosen.get("rows", range(len(found["rows"])))]
    columns = chosen.get("columns", range(len(found["head"])))
    lines = [[str(row[i]).replace("|", "\\|") for i in columns] for row in (found["head"], *rows)]
    lines.insert(1, ["---" for _ in columns])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(text: str, docs: Path) -> str:
    """The page with its records' figures."""
    known = definitions(text)

    def write_figure(match: re.Match[str]) -> str:
        return f"{figure(known[match[2]], docs, match[1])}<!--={match[2]}-->"

    def write_table(match: re.Match[str]) -> str:
        return f"<!--={match[1]}-->\n{table(known[match[1]], docs)}"

    return TABLE.sub(write_table, FIGURE.sub(write_figure, text))


def unused(text: str) -> list[str]:
    """Names that a page defines or marks, and that are neither a figure nor a table."""
    shown = {m[2] for m in FIGURE.finditer(text)} | {m[1] for m in TABLE.finditer(text)}
    return [name for name in dict.fromkeys([*definitions(text), *MARK.findall(text)]) if name not in shown]


def main(argv: list[str] | None = None) -> int:
    """Fill or check the pages; 1 where a page differs from its records."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    p.add_argument("--check", action="store_true", help="change nothing")
    a = p.parse_args(argv)
    differ = []
    for page in a.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        try:
            new = filled(text, ROOT / "docs")
        except (KeyError, IndexError, ValueError, OSError, StopIteration, TypeError) as error:
            print(f"{page}: {type(error).__name__} {error}", file=sys.stderr)
            return 2
        old_lines, new_lines = text.splitlines(), new.splitlines()
        differ += [f"{page}: {line}" for line in new_lines if line not in old_lines] if new != text else []
        differ += [f"{page}: {name} is not shown" for name in unused(text)]
        if new != text and not a.check:
            page.write_text(new, encoding="utf-8")
    print("\n".join(differ) or "every figure is its record's")
    return int(bool(differ) and a.check)


if __name__ == "__main__":
    sys.exit(main())
