"""The table of docs/reliability.md, written from the records alone; a row without a record says that it was not run."""

import json
import textwrap
from pathlib import Path
from typing import Any

from tests.faults.rows import ROWS

BEGIN, END = "<!-- from docs/results/faults -->", "<!-- end -->"


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def entry(name: str, record: dict[str, Any]) -> str:
    held = f"**{record['held']:,} of {record['tries']:,}**"
    clock = {k: v for k, v in record["facts"].items() if k.startswith("seconds")}
    figures = "; ".join(
        [*(f"{k} {number(v)}" for k, v in record["worst"].items()), *(f"{k} {v}" for k, v in clock.items())]
    )
    commit = (record["code"]["commit"] or "unknown")[:9] + (", files changed" if record["code"]["changed"] else "")
    worst = f" Worst: {figures}." if figures else ""
    link = f"[{record['date'][:10]}, {commit}](results/faults/{name}.json)"
    return _wrapped(f"- {record['fault']}: {record['must_hold']}. Held {held}.{worst} {link}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def table(results: Path) -> str:
    """Rows in the order of `rows.py`, then records that others left beside them."""
    found = {p.stem: json.loads(p.read_text()) for p in sorted(results.glob("*.json"))}
    entries = []
    for name, row in ROWS.items():
        if name in found:
            entries.append(entry(name, found.pop(name)))
        else:
            entries.append(_wrapped(f"- {row.fault}: {row.must_hold}. Not run."))
    return "\n".join([*entries, *(entry(name, record) for name, record in found.items())])


def fill(page: Path, results: Path) -> int:
    """Replace what stands between the marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}")
    return 0
