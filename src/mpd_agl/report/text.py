"""A section as Markdown, for files beside the figures."""

from collections.abc import Sequence

from mpd_agl.report.section import PageSection, Table


def markdown(section: PageSection, figures: Sequence[str] = ()) -> str:
    """Title, sentence, figures, table, notes; the same text for the same records."""
    parts = [f"# {_cell(section.title)}", section.sentence]
    parts += [f"![{_cell(p.alt)}]({name})" for p, name in zip(section.panels, figures, strict=False)]
    if section.table is not None:
        parts.append(table(section.table))
    parts += section.notes
    return "\n\n".join(parts) + "\n"


def table(t: Table) -> str:
    """Rows as a Markdown table.

    >>> print(table(Table(("method", "%"), [["a|b", "1"]], numbers=(1,))))
    | method | % |
    |---|---:|
    | a\\|b | 1 |
    """
    rule = "|" + "|".join("---:" if i in t.numbers else "---" for i in range(len(t.head))) + "|"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in (t.head, *t.rows)]
    return "\n".join([rows[0], rule, *rows[1:]])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
