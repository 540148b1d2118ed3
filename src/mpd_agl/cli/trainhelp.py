"""`mpd-agl train --help`, made from the typed configuration: every field, its type, its text, its default."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, get_args

from mpd_agl.cli.options import FLAGS, VALUES
from mpd_agl.models import MODELS
from mpd_agl.nn import METHODS
from mpd_agl.options import ConfigTable, flatten
from mpd_agl.train.config import RunConfig
from mpd_agl.train.objective import OBJECTIVES
from mpd_agl.train.presets import list_presets
from mpd_agl.train.resolve import registries, toml_value

EXIT_CODES = (
    "0 finished; 2 bad input, or a run that cannot continue; 75 stopped by Ctrl-C or SIGTERM and saved, continue with "
    "--resume; 76 another process of the run is gone, see mpd-agl launch; 130 ended at once by a second Ctrl-C."
)
KINDS: dict[Any, str] = {int: "INT", float: "FLOAT", bool: "BOOL", str: "TEXT", tuple[str, ...]: "TEXT ..."}


def help_text(preset: Mapping[str, Any]) -> str:
    """The text; a preset's values are shown in place of the defaults."""
    own = {f"--{name} {kind}": text for name, (kind, text) in VALUES.items()} | {f"--{n}": t for n, t in FLAGS.items()}
    parts = [
        "usage: mpd-agl train --preset NAME [OPTIONS]\n",
        _fill("Train a network. The configuration is the preset's, then the file's, then what the command line says.")
        + "\n",
        _rows("options", own),
    ]
    defaults = flatten(preset)
    sections: dict[str, type[ConfigTable]] = {"": RunConfig}
    sections |= {n: type(v) for n, v in RunConfig() if isinstance(v, ConfigTable)}
    for section, table in sections.items():
        title = f"{section or 'run'}: {(table.__doc__ or '').rstrip('.')}"
        parts.append(_rows(title, _options(table, section, defaults)))
        for path, registry in registries().items():
            having: dict[tuple[str, str], list[str]] = {}
            for name, options in registry.entries.items() if registry.section == section else ():
                for row in _options(options, section, defaults).items():
                    having.setdefault(row, []).append(name)
            rows: dict[str, str] = {}
            for (option, text), names in having.items():
                rows[option] = f"{rows.get(option, '')} [{', '.join(names)}] {text}".strip()
            parts += [_rows(f"{section}: options of one {path} or some", rows)] if rows else []
    abouts: dict[str, Mapping[str, Any]] = {"methods": METHODS, "networks": MODELS, "losses": OBJECTIVES}
    parts += [_rows(title, {n: e.about for n, e in known.items()}) for title, known in abouts.items()]
    parts += [_rows("presets", list_presets()), f"exit codes\n{_fill(EXIT_CODES, '  ')}\n"]
    return "\n".join(parts)


def _options(table: type[ConfigTable], section: str, defaults: Mapping[str, Any]) -> dict[str, str]:
    """The rows of a table's options."""
    rows = {}
    for name, info in table.model_fields.items():
        path, kind = f"{section}.{name}".lstrip("."), info.annotation
        if isinstance(kind, type) and issubclass(kind, ConfigTable):
            continue
        words = KINDS.get(kind) or "|".join(word for word in get_args(kind) if isinstance(word, str)) or "TEXT"
        default = f"(default: {toml_value(defaults.get(path, info.default))})"
        rows[f"--{path.replace('_', '-')} {words}"] = f"{info.description or ''} {default}".strip()
    return rows


def _fill(text: str, indent: str = "") -> str:
    width = min(140, shutil.get_terminal_size().columns)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def _rows(title: str, rows: Mapping[str, str]) -> str:
    """A table of two columns; a long left cell takes a line of its own."""
    width, left = min(140, shutil.get_terminal_size().columns), 30
    lines = [title]
    for name, text in rows.items():
        body = textwrap.wrap(text, max(30, width - left - 2)) or [""]
        if len(name) + 2 > left:
            lines.append(f"  {name}")
        else:
            lines.append(f"  {name:{left}}{body.pop(0)}")
        lines += [" " * (left + 2) + line for line in body]
    return "\n".join(lines) + "\n"
