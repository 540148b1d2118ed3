"""Writes the tables of docs/evidence.md from the records of `mpd-agl reproduce`.

    python -m tools.evidence_page [--records docs/results/evidence] [-o docs/evidence.md]

Each study's record FILE.json (depth, stress, table3, ridge, descent, or a slice of one under its own name) fills the
place between its marks in the page. A mark without a record stays as it is, and so does a record without a mark.
"""

import argparse
import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from tools.active_page import between

from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic

QUOTED = re.compile(r"paper, (.+) \(quoted\)")  # stands beside the column of the same data
SIMD = {"avx2": "AVX2", "avx512": "AVX-512"}
PAGE, RECORDS = Path("docs/evidence.md"), Path("docs/results/evidence")


def lines_of(record: dict[str, Any], link: str, picture: str | None) -> list[str]:
    """The table of a record, the picture, what the runs were made with, and the command."""
    head, rows = record["table"]["head"], record["table"]["rows"]
    filled = [k for k in range(len(head)) if any(row[k] for row in rows)]  # a slice leaves columns empty
    kept = {head[k] for k in filled}
    filled = [k for k in filled if (m := QUOTED.fullmatch(head[k])) is None or m[1] in kept]
    head, rows = [head[k] for k in filled], [[row[k] for k in filled] for row in rows]
    numbers = [all(not row[k] or row[k][0] in "-+0123456789" for row in rows) for k in range(len(head))]
    rule = "|" + "|".join("---:" if right else "---" for right in numbers) + "|"
    table = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    code, hardware = (record.get(k) or [cell[k] for cell in record["cells"]] for k in ("code", "hardware"))
    commits = sorted({str(c.get("commit"))[:9] + "+" * bool(c.get("changed")) for c in code})
    cpus = sorted({" with ".join(filter(None, (str(h.get("cpu")), SIMD.get(h.get("simd"))))) for h in hardware})
    told = f"Commit {', '.join(commits)}; {'; '.join(cpus)}. [Record]({link})."
    if any(c.endswith("+") for c in commits):
        told += " + marks a tree with changes that were not committed."
    notes = textwrap.wrap(" ".join([*record["notes"], told]), 120, break_on_hyphens=False, break_long_words=False)
    command = record.get("command", f"mpd-agl reproduce {record['study']}")
    shown = [] if picture is None else [f"![The runs of `{record['study']}`]({picture})", ""]
    return [
        *textwrap.wrap(record["sentence"], 120, break_on_hyphens=False),
        "",
        *shown,
        table[0],
        rule,
        *table[1:],
        "",
        *accuracies(record),
        *differences(record),
        *notes,
        "",
        "```bash",
        *textwrap.wrap(command, 112, break_on_hyphens=False, break_long_words=False, subsequent_indent="    "),
        "```",
    ]


def accuracies(record: dict[str, Any]) -> list[str]:
    """Of a stress test the accuracy of each method at each place; the other studies' tables have them already."""
    if record["study"] != "stress":
        return []
    head = record["details"]["head"]
    rows = [dict(zip(head, row, strict=True)) for row in record["details"]["rows"]]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    places: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        places.setdefault((row["factor"], row["value"], row["data"]), {})[row["method"]] = row["accuracy, last epoch"]
    shown = [("factor", "value", "data", *methods)]
    shown += [(*place, *(found.get(m, "") for m in methods)) for place, found in places.items()]
    table = [f"| {' | '.join(row)} |" for row in shown]
    return ["Accuracies:", "", table[0], "|---|---|---|" + "---:|" * len(methods), *table[1:], ""]


OURS, FIXED, PAPER = "mpd-gain (ours) minus this", "minus STBP-tdBN", "MPD-AGL"


def differences(record: dict[str, Any]) -> list[str]:
    """Our rule minus each other method, and MPD-AGL minus the fixed width, at every place; nothing without seeds."""
    details = record.get("details") or {"head": [], "rows": []}
    if OURS not in details["head"] or not any("[" in row[-1] for row in details["rows"]):
        return []
    head, at = details["head"], details["head"].index("method")
    places = [k for k, name in enumerate(head) if name != "method" and k < head.index("accuracy, last epoch")]
    rows = []
    for row in details["rows"]:
        gaps = {f"ours minus {row[at]}": row[head.index(OURS)]}
        if row[at] == PAPER:
            gaps[f"{PAPER} minus STBP-tdBN"] = row[head.index(FIXED)]
        rows += [[*(row[k] for k in places), name, gap] for name, gap in gaps.items() if gap]
    shown = [f"| {' | '.join(row)} |" for row in ([*(head[k] for k in places), "difference", "points"], *rows)]
    rule = "|" + "---|" * (len(places) + 1) + "---:|"
    return ["Paired differences, with their 95 % intervals:", "", shown[0], rule, *shown[1:], ""]


def continued(lines: list[str]) -> list[str]:
    """A command over several lines ends each but its last with a backslash."""
    first, last = lines.index("```bash") + 1, len(lines) - 2
    return [line + " \\" if first <= k < last else line for k, line in enumerate(lines)]


def write(records: Path, page: Path) -> list[str]:
    """Fill the page's marks from the records that are there; returns their names."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page {page} cannot be read ({error.strerror}). Name {PAGE} with -o.") from None
    done = []
    for file in sorted(records.glob("*.json")):
        if f"<!-- {file.stem}: " not in text:
            continue
        with reading(file):
            record = json.loads(file.read_text(encoding="utf-8"))
            picture = file.with_suffix(".png")
            shown = os.path.relpath(picture, page.parent) if picture.exists() else None
            made = continued(lines_of(record, os.path.relpath(file, page.parent), shown))
        text = between(text, file.stem, made, page)
        done.append(file.stem)
    write_atomic(page, text.encode())
    return done


def main(argv: list[str] | None = None) -> int:
    """Write the page, say which records it holds."""
    parser = argparse.ArgumentParser(description="write the tables of docs/evidence.md from records")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("-o", "--out", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    try:
        print(f"{args.out}: {', '.join(write(args.records, args.out)) or 'no record has a mark'}")
    except InputError as error:
        print(f"evidence_page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
