"""docs/events.md from a record: its tables between the marks, and the plot beside the page."""

import json
import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mpd_agl.bench import active_layers, active_network
from mpd_agl.bench.active import WHAT
from mpd_agl.errors import InputError
from mpd_agl.records import reading, write_atomic
from mpd_agl.report import draw

PLOT = "events-speedup.svg"


def read(path: Path) -> dict[str, Any]:
    """A record of `mpd-agl bench events`."""
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


def write_docs(source: Path, page: Path) -> None:
    """Replace what stands between the marks of the parts that the record has."""
    record = read(source)
    with reading(source):
        made, plot = {}, b""
        if "table" in record:
            made["table"], plot = table_lines(record), draw.svg_file(figure(record["table"]["cells"]))
        if "inference" in record or "training" in record:
            made["network"] = network_lines(record)
    link = os.path.relpath(source, page.parent)
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page {page} cannot be read ({error.strerror}). Name docs/events.md with -o.") from None
    for name, lines in made.items():
        text = between(text, name, [f"{where(record)} [Record]({link}).", "", *lines], page)
    if plot:
        write_atomic(page.with_name(PLOT), plot)
    write_atomic(page, text.encode())


def between(text: str, name: str, lines: list[str], page: Path) -> str:
    """The text with these lines between two marks."""
    start, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, found, rest = text.partition(start)
    _, also, after = rest.partition(end)
    if not found or not also:
        raise InputError(f"{page} has no marks '{start.strip()}' and '{end}'. Name docs/events.md with -o.")
    return before + start + "\n".join(lines) + "\n" + end + after


def where(record: dict[str, Any]) -> str:
    """What the figures were measured with."""
    s, h, code = record["setting"], record["hardware"], record["code"]
    commit = (code["commit"] or "unknown")[:9] + (", files changed" if code["changed"] else "")
    quick = ", a quick look" if s["quick"] else ""
    load = "" if record["load_before"] is None else f", load {record['load_before']:.1f} before"
    return (
        f"{h['cpu']}, {s['threads']} threads, {s['simd']}, torch {record['versions']['torch']}, "
        f"{s['rounds']} rounds{quick}{load}, commit {commit}."
    )


def table_lines(record: dict[str, Any]) -> list[str]:
    """A table for each kind of work, and the plot."""
    lines = []
    for key, title in active_layers.SPEED_UPS.items():
        at, rows = active_layers.rows(record["table"]["cells"], key)
        lines += [f"| {title} | " + " | ".join(f"{100 * r:g} % active" for r in at) + " |"]
        lines += ["|---" * (len(at) + 1) + "|"]
        lines += [f"| {name} | " + " | ".join(shown) + " |" for name, shown in rows]
        lines.append("")
    return [*lines, f"![dense time over event-driven time, by the share of active inputs]({PLOT})"]


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
        title = f"{part}, {s['model']}, width {s['width_mult']:g}, T={s['num_steps']}, batch {s['batch']}"
        lines += [f"| {title} | ms | times ours | range |", "|---|---|---|---|"]
        for name, c in active_network.ordered(found):
            ratio = found["ratios"]["of"][name]
            low, high = ratio["range"] if ratio else (0, 0)
            shown = f"{ratio['time']:.2f} | {low:.2f} to {high:.2f}" if ratio else "outputs differ |"
            lines.append(f"| {name} | {c['ms']:.1f} | {shown} |")
        lines += ["", *(f"Left out: {name}, {why}.\n" for name, why in found["left_out"].items())]
    return lines[:-1] if lines and not lines[-1] else lines


def figure(cells: list[dict[str, Any]]) -> Figure:
    """Forward speed-up over the share of active inputs, a curve per shape."""
    with draw.style():
        made, (axes,) = draw.new(height=3.0)
        shapes = dict.fromkeys((c["channels"], c["size"]) for c in cells)
        for colour, (channels, size) in zip(draw.COLOURS, shapes, strict=False):
            here = [c for c in cells if (c["channels"], c["size"]) == (channels, size) and c["speed_up"] is not None]
            here.sort(key=lambda c: float(c["rate"]))
            x, y = [c["rate"] for c in here], [c["speed_up"] for c in here]
            draw.line(axes, x, y, color=colour, label=f"{channels} channels, {size}x{size}")
        axes.axhline(1, color=draw.SOFT, linewidth=0.8)
        draw.percent(axes.xaxis)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("inputs that are not zero")
        axes.set_title("Dense time / event-driven time, forward")
        draw.legend(made, axes, 3)
    return made
