"""One self-contained HTML page from run records, and its figures as files."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mpd_agl import __version__
from mpd_agl.errors import InputError
from mpd_agl.records import write_atomic
from mpd_agl.records.progress import duration
from mpd_agl.report import draw
from mpd_agl.report.compare import comparison, differences, labels, per_setting
from mpd_agl.report.energy import energies, joule
from mpd_agl.report.layers import affine, availability, rates, widths
from mpd_agl.report.membrane import membranes
from mpd_agl.report.provenance import configuration, provenance, warned
from mpd_agl.report.runs import Run, check_comparable
from mpd_agl.report.scores import scores
from mpd_agl.report.section import PageSection, share
from mpd_agl.report.windows import windows


def sections(run: Run) -> list[PageSection]:
    """What one run's records can show, in the page's order."""
    found: list[PageSection | None] = [scores(run)]
    found += [widths(run)] if run.shows("kappa_T") else []
    found += [availability(run)] if run.shows("available_T") else []
    found += [membranes(run)] if run.shows("kappa_T", "available_T") else []
    found += [rates(run)] if run.shows("rate_T") else []
    found.append(energies(run))
    found += [affine(run)] if run.shows("gamma_bar", "beta_bar") else []
    return [s for s in found if s is not None]


def missing(run: Run) -> list[str]:
    """What the page does not show, and why."""
    out = []
    if not run.snapshots:
        why = "an ANN has no membrane" if run.method == "ann" else "the run was not monitored (monitor.every 0)"
        if run.is_own and run.record.config["monitor"]["every"]:
            why = "the monitor found no spiking layer that it knows in this network"
        out.append(f"No widths, potentials and firing rates: {why}.")
    elif not run.detailed:
        out.append("No membrane histograms: the run's snapshots hold none.")
    if run.is_own:
        out.append("No energy: operations are counted in the networks of mpd-agl, not in your own.")
    elif run.record.energy is None and run.method != "ann":
        out.append("No energy: it is measured when a run finishes.")
    return out


def build_page(runs: Sequence[Run]) -> bytes:
    """The page; the same bytes for the same records."""
    if not runs:
        raise InputError("a report needs at least one run. Name a run folder of `mpd-agl train`.")
    check_comparable(runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals.update(share=share, duration=duration, joule=joule)
    with draw.style():
        parts = [_part(i, label, run) for i, (label, run) in enumerate(zip(labels(runs), runs, strict=True), 1)]
        compared = None
        if len(runs) > 1:
            seen = windows(runs)
            compared = {
                "windows": _inline(seen, "w") if seen else None,
                "section": _inline(comparison(runs), "c"),
                "seeds": per_setting(runs),
                "differences": differences(runs),
            }
    page = environment.get_template("page.html").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs on {runs[0].record.data['name']}",
        data=runs[0].record.data["name"],
        parts=parts,
        compared=compared,
        style=Markup((Path(__file__).parent / "page.css").read_text(encoding="utf-8")),
        version=__version__,
    )
    return (page.rstrip() + "\n").encode()


def _part(number: int, label: str, run: Run) -> dict[str, Any]:
    return {
        "id": f"run-{number}",
        "label": label,
        "run": run,
        "network": run.network,
        "kind": "ANN" if run.method == "ann" else f"T\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{run.num_steps}",
        "sections": [_inline(s, f"r{number}") for s in sections(run)],
        "missing": missing(run),
        "warnings": warned(run),
        "provenance": provenance(run),
        "configuration": configuration(run),
    }


def _inline(section: PageSection, prefix: str) -> dict[str, Any]:
    figures = [Markup(draw.svg_inline(p, f"{prefix}-{p.key}")) for p in section.panels]
    return {"id": f"{prefix}-{section.key}", "section": section, "figures": figures}


def write_figures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Every panel as SVG and PDF, in a folder per run where there are several."""
    check_comparable(runs)
    written = []
    with draw.style():
        sets = [("", sections(runs[0]))] if len(runs) == 1 else [("comparison", [comparison(runs)])]
        if len(runs) > 1 and (seen := windows(runs)):
            sets[0][1].append(seen)
        if len(runs) > 1:
            sets += [(f"{i}-{slug(run.name)}", sections(run)) for i, run in enumerate(runs, 1)]
        for name, found in sets:
            into = folder / name
            try:
                into.mkdir(parents=True, exist_ok=True)
                for panel in (p for s in found for p in s.panels):
                    for suffix, data in (("svg", draw.svg_file(panel.figure)), ("pdf", draw.pdf_file(panel.figure))):
                        write_atomic(into / f"{panel.key}.{suffix}", data)
                        written.append(into / f"{panel.key}.{suffix}")
            except OSError as error:
                raise InputError(
                    f"the figures cannot be written to {into} ({error.strerror}). Choose another --figures folder."
                ) from None
    return written


def slug(name: str) -> str:
    """A name as a part of a path.

    >>> slug("<b>../a run</b>")
    'b-a-run-b'
    """
    return re.sub(r"[^A-Za-z0-9_+=-]+", "-", name).strip("-")[:60] or "run"
