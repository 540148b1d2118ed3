"""A part of the page: a title, one sentence that says what to see, panels, perhaps a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mpd_agl.report.draw import Panel


@dataclass(frozen=True)
class Table:
    """Rows of text; the first row is the head. A column of numbers is set to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


@dataclass(frozen=True)
class PageSection:
    """What the page's template and the figure files are made from."""

    key: str
    title: str
    sentence: str
    panels: list[Panel]
    table: Table | None = None
    notes: list[str] = field(default_factory=list)
    small: bool = False
    """Panels of which more fit into a row."""
    wide: bool = False
    """One panel that needs the page's whole width."""
    details: Table | None = None
    """A longer table behind the notes; in the Markdown alone."""


def share(value: float, digits: int = 1) -> str:
    """A share as a percentage, its sign kept on the line.

    >>> share(0.4772).replace("\\N{NO-BREAK SPACE}", " "), share(0.964, 2).split()
    ('47.7 %', ['96.40', '%'])
    """
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)
