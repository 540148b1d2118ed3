"""Sets the examples in docstrings as code on the documentation site: Markdown would take >>> for a quotation."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts every run of example lines between fences, and indented formulas too stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Example lines are those from >>> to the next empty line."""
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>>") and not inside:
            out += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line)
    return "\n".join(out + (["```"] if inside else []))
