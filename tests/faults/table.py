"""The table of docs/reliability.md, written from the records alone; a row without a record says that it was not run."""

import json
from pathlib import Path
from typing import Any

from tests.faults.rows import ROWS

BEGIN, END = "<!-- from docs/results/faults -->", "<!-- end -->"


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def line(name: str, record: dict[str, Any]) -> str:
    held = f"{record['held']:,} of {record['tries']:,}"
    clock = {k: v for k, v in record["facts"].items() if k.startswith("seconds")}
    figures = "; ".join(
        [*(f"{k} {number(v)}" for k, v in record["worst"].items()), *(f"{k} {v}" for k, v in clock.items())]
    )
    commit = (record["code"]["commit"] or "unknown")[:9] + (", files changed" if record["code"]["changed"] else "")
    return (
        f"| {record['fault']} | {record['must_hold']} | {held} | {figures or '-'} | "
        f"[{record['date'][:10]}, {commit}](results/faults/{name}.json) |"
    )


def table(results: Path) -> str:
    """Rows in the order of `rows.py`, then records that others left beside them."""
    found = {p.stem: json.loads(p.read_text()) for p in sorted(results.glob("*.json"))}
    lines = ["| fault | must hold | held | worst figures | date, commit, record |", "|---|---|---|---|---|"]
    for name, row in ROWS.items():
        if name in found:
            lines.append(line(name, found.pop(name)))
        else:
            lines.append(f"| {row.fault} | {row.must_hold} | not run | - | - |")
    return "\n".join([*lines, *(line(name, record) for name, record in found.items())])


def fill(page: Path, results: Path) -> int:
    """Replace what stands between the marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}")
    return 0
