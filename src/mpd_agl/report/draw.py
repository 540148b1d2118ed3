"""Figures: one style, the same bytes for the same data, as SVG for the page and as SVG and PDF files for a paper.

A panel is small enough for a phone's width; a wide screen lays several side by side. In the page inks are style-sheet
variables, so that a panel follows the page's light or dark colours; in the files they are plain colours.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, SOFT, GRID = "#1d2026", "#6c737d", "#d5d9df"
VARIABLES = {INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--grid)"}
COLOURS = ("#2f80c2", "#d9622b", "#2a9d76", "#b0579c", "#bd9117", "#6c6fd1", "#c8435a", "#7b8794")
"""Readable on white and on near-black; colour-blind readers can tell them apart in this order."""
DEPTH = LinearSegmentedColormap.from_list("depth", ["#2f80c2", "#7a6fd0", "#c2549a", "#e0662f", "#cf9b16"])
WIDTH, HEIGHT = 4.3, 2.75

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mpd-agl",
    "svg.image_inline": True,
    "pdf.fonttype": 42,
    "font.size": 8.5,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 1.5,
    "legend.columnspacing": 1.2,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Panel:
    """One figure: its key names the file, `alt` describes it to a reader who cannot see it."""

    key: str
    alt: str
    figure: Figure


@contextmanager
def style() -> Iterator[None]:
    """This module's style, whatever the user's matplotlibrc says. The browser draws letters that the font lacks."""
    with warnings.catch_warnings(), matplotlib.style.context(["default", STYLE]):
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        warnings.filterwarnings("ignore", message=".*constrained_layout not applied.*")
        yield


def new(rows: int = 1, height: float = HEIGHT, width: float = WIDTH, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of a panel's width, with its axes from top to bottom."""
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, 1, squeeze=False, **options)
    return figure, [row[0] for row in axes]


def plain(text: str) -> str:
    """A name unchanged: matplotlib would read $...$ as a formula."""
    return text.replace("\\", "\\\\").replace("$", r"\$")


def layer_names(names: Sequence[str]) -> list[str]:
    """Names for an axis; those of a deep network are shortened.

    >>> layer_names(["stem", *(f"stage1.block{i}.shortcut" for i in range(1, 13))])[:2]
    ['stem', 's1.b1.short']
    """
    out = [plain(n) for n in names]
    if len(out) <= 12:
        return out
    return [re.sub(r"\b(?:(s)tage|(b)lock)(?=\d)", r"\1\2", n).replace("shortcut", "short") for n in out]


def layer_rows(axes: Axes, names: Sequence[str]) -> None:
    """A row per layer, the first on top."""
    axes.set_yticks(range(len(names)), layer_names(names))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def line(axes: Axes, x: Sequence[float], y: Sequence[float], **options: Any) -> None:
    """A curve; few points are marked."""
    if len(x) <= 25 and "marker" not in options:
        options |= {"marker": "o", "markersize": 2.6}
    axes.plot(x, y, **options)


def percent(axis: Any) -> None:
    """Shares as percentages."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")


def epochs(axes: Axes, end: float, start: float = 0) -> None:
    """The axis of training time."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    margin = 0.02 * (end - start) or 0.5
    axes.set_xlim(start - margin, end + margin)


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Under the axes, so that it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(handles)))


def depth_colours(count: int) -> list[str]:
    """From the first layer to the last."""
    return [to_hex(DEPTH(i / max(1, count - 1))) for i in range(count)]


def _settle(figure: Figure) -> None:
    """Lay the figure out once; matplotlib would do it again for every file."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def _file(figure: Figure, kind: str, metadata: Sequence[str], **options: Any) -> bytes:
    """The figure as a file without the metadata that would differ from day to day."""
    out = BytesIO()
    with style():
        _settle(figure)
        figure.savefig(out, format=kind, metadata=dict.fromkeys(metadata), **options)
    return out.getvalue()


def svg_file(figure: Figure) -> bytes:
    """A file for a paper."""
    return _file(figure, "svg", ("Date", "Creator"))


def pdf_file(figure: Figure) -> bytes:
    """A file for a paper."""
    return _file(figure, "pdf", ("CreationDate", "Creator", "Producer"))


def png_file(figure: Figure) -> bytes:
    """A picture on white."""
    return _file(figure, "png", ("Software",), dpi=160, facecolor="white")


_OUTSIDE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>\s*|<!--.*?-->\s*", re.DOTALL)


def svg_inline(panel: Panel, prefix: str) -> str:
    """The panel as an element of the page: its own ids, the page's inks, nothing that names an address."""
    text = _OUTSIDE.sub("", svg_file(panel.figure).decode())
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-").replace('xlink:href="#', f'xlink:href="#{prefix}-')
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return f'<svg {box[0]} role="img" aria-label="{_attribute(panel.alt)}">{body.strip()}'


def _attribute(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text
