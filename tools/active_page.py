"""Writes the tables and the plot of docs/active.md from a record of `mpd-agl bench active`.

    python tools/active_page.py docs/results/active-table.json [-o docs/active.md]

The tables stand between marks (HTML comments) in the page. A record replaces those of the parts that it has, at its
SIMD level: AVX2 has the marks without a name, another level its own (`table-avx512`).
"""

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.active import WHAT

from benchmarks import active_layers, active_network, plot
from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic
from mpd_agl.report import draw

PAGE = Path("docs/active.md")


def read(path: Path) -> dict[str, Any]:
    """A record of `mpd-agl bench active`."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"the record {path} cannot be read ({error.strerror}). Make it with {WHAT} -o {path}."
        ) from None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("what") != WHAT:
        raise InputError(f"{path} is no record of {WHAT}. Make one with {WHAT} -o FILE.")
    return record


def write(source: Path, page: Path) -> None:
    """Replace what stands between the marks of the parts that the record has."""
    record = read(source)
    with reading(source):
        made, figure = {}, b""
        if "table" in record:
            figure = draw.svg_file(plot.speed_ups(record["table"]["cells"]))
            made[f"table{level_of(record)}"] = table_lines(record)
        if "inference" in record or "training" in record:
            made[f"network{level_of(record)}"] = network_lines(record)
    link = os.path.relpath(source, page.parent)
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page {page} cannot be read ({error.strerror}). Name {PAGE} with -o.") from None
    for name, lines in made.items():
        head = textwrap.wrap(f"{measured_on(record)} [Record]({link}).", 120, break_on_hyphens=False)
        text = between(text, name, [*head, "", *lines], page)
    if figure:
        write_atomic(page.with_name(plot_of(record)), figure)
    write_atomic(page, text.encode())


def level_of(record: dict[str, Any]) -> str:
    """What a record's marks and plot are called besides: nothing for AVX2, `-avx512` for that level."""
    simd = record["setting"]["simd"]
    return "" if simd == "avx2" else f"-{simd}"


def plot_of(record: dict[str, Any]) -> str:
    """The plot's file, beside the page."""
    return f"active-speedup{level_of(record)}.svg"


def between(text: str, name: str, lines: list[str], page: Path) -> str:
    """The text with these lines between two marks."""
    start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, found, rest = text.partition(start)
    _, also, after = rest.partition(end)
    if not found or not also:
        raise InputError(f"{page} has no marks '{start.strip()}' and '{end}'. Name {PAGE} with -o.")
    return before + start + "\n".join(lines) + "\n" + end + after


def measured_on(record: dict[str, Any]) -> str:
    """What the figures were measured with, and how quiet the machine was."""
    s, h, code = record["setting"], record["hardware"], record["code"]
    commit = (code["commit"] or "unknown")[:9] + (", files changed" if code["changed"] else "")
    quick = ", a quick look" if s["quick"] else ""
    quiet = "" if record["load_before"] is None else f", load {record['load_before']:.1f} before"
    if record.get("slowdown"):
        quiet = f", a fixed loop between rounds at most {max(record['slowdown']):.2f} times its best"
    return (
        f"{h['cpu']}, {s['threads']} threads, {s['simd']}, torch {record['versions']['torch']}, "
        f"{s['rounds']} rounds{quick}{quiet}, commit {commit}."
    )


def table_lines(record: dict[str, Any]) -> list[str]:
    """A table for each kind of work, and the plot."""
    lines = []
    for key, title in active_layers.SPEED_UPS.items():
        at, rows = active_layers.rows(record["table"]["cells"], key)
        lines += [f"**{title[0].upper()}{title[1:]}**, by the share of active inputs:", ""]
        lines += ["| channels, size, batch | " + " | ".join(f"{100 * r:g} %" for r in at) + " |"]
        lines += ["|---" * (len(at) + 1) + "|"]
        lines += [f"| {name} | " + " | ".join(shown) + " |" for name, shown in rows]
        lines.append("")
    return [*lines, f"![dense time over event-driven time, by the share of active inputs]({plot_of(record)})"]


def network_lines(record: dict[str, Any]) -> list[str]:
    """Inference and training: milliseconds, and times ours."""
    lines = []
    run = (record["rates"] or {}).get("run")
    if run:
        lines += [f"Rates: {run['model']['name']}, {run['method']}, {run['data']}, epoch {run['epoch']}.", ""]
    for part in ("inference", "training"):
        if part not in record:
            continue
        found = record[part]
        s = found["setting"]
        title = f"{part}, {s['model']}, width_mult {s['width_mult']:g}, T={s['num_steps']}, batch {s['batch']}"
        lines += [f"| {title} | ms | times ours | range |", "|---|---|---|---|"]
        for name, c in active_network.ordered(found):
            ratio = found["ratios"]["of"][name]
            low, high = ratio["range"] if ratio else (0, 0)
            shown = f"{ratio['time']:.2f} | {low:.2f} to {high:.2f}" if ratio else "outputs differ |"
            lines.append(f"| {name} | {c['ms']:.1f} | {shown} |")
        lines += ["", *(f"Left out: {name}, {why}.\n" for name, why in found["left_out"].items())]
    return lines[:-1] if lines and not lines[-1] else lines


def main(argv: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="JSON of `mpd-agl bench active -o FILE`")
    parser.add_argument("-o", "--out", type=Path, default=PAGE, help=f"the page (default {PAGE})")
    a = parser.parse_args(argv)
    try:
        write(a.record, a.out)
    except InputError as error:
        sys.exit(str(error))
    print(f"{a.out} written from {a.record}")


if __name__ == "__main__":
    main()
