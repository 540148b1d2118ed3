"""What the documentation site adds to docs/: pages made of the repository's own files.

CONTRIBUTING, CHANGELOG and each example become pages, and links to files outside docs/ lead to them, so that the site
needs no forge.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


FOLDERS = tuple(f"results/{p.name}" for p in sorted((ROOT / "docs/results").iterdir()) if p.is_dir())
"""Folders of records that pages may link to: each becomes a list of its files."""


def listing(folder: str) -> str:
    """The files of a folder under docs/ as a page."""
    names = sorted(p.name for p in (ROOT / "docs" / folder).iterdir() if p.is_file())
    return "\n".join([f"# Records: {folder}", "", *(f"- [{name}]({name})" for name in names)]) + "\n"


def examples() -> dict[str, str]:
    """Every example by its path in the repository, with its page."""
    found = sorted((ROOT / "examples").glob("*.py"))
    return {f"examples/{path.name}": f"examples/{path.stem}.md" for path in found}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of docs/."""
    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items() if page != "index.md"}
    rows = ["# Examples", "", "Each runs by itself: `python examples/NAME.py`.", ""]
    for name, page in examples().items():
        code = (ROOT / name).read_text(encoding="utf-8")
        title = " ".join(code.partition('"""')[2].partition('"""')[0].split("\n\n")[0].split())
        made[page] = f"# {Path(name).name}\n\n```python\n{code}```\n"
        rows.append(f"- [{Path(name).name}]({page}): {title.partition(': python')[0]}")
    made["examples.md"] = "\n".join(rows) + "\n"
    made |= {f"{folder}/index.md": listing(folder) for folder in FOLDERS}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to the repository's files lead to their pages, and name the rest as code."""
    at = page.file.src_uri
    here = posixpath.dirname(at)
    moved = {v: k for k, v in PAGES.items()} | {v: k for k, v in examples().items()}
    # Where the text is in the repository: docs/x.md, or the file that a page was made of.
    origin = posixpath.dirname(moved[at]) if at in moved and at != "index.md" else posixpath.join("docs", here)
    known = PAGES | examples()

    def lead(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(origin, target))
        if path.startswith("docs/") and (ROOT / path).is_file():
            return f"]({posixpath.relpath(path, posixpath.join('docs', here) if here else 'docs')}{anchor})"
        if path.removeprefix("docs/") in FOLDERS:
            return f"]({posixpath.relpath(path.removeprefix('docs/') + '/index.md', here or '.')})"
        if path in known:
            return f"]({posixpath.relpath(known[path], here or '.')})"
        if (ROOT / path).exists() and not path.startswith("docs/"):
            return f']({posixpath.relpath("contributing.md", here or ".")} "{path} of the repository")'
        return match[0]

    return LINK.sub(lead, markdown)
