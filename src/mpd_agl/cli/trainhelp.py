"""`mpd-agl train --help`, made from the typed configuration: every field, its type, its text, its default."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, get_args

from mpd_agl.cli.options import FLAGS, VALUES
from mpd_agl.train.config import RunConfig
from mpd_agl.train.resolve import fields_of, flatten, list_presets, toml_value

EXIT_CODES = (
    "0 finished; 2 bad input, or a run that cannot go on; 75 stopped by Ctrl-C or SIGTERM and saved, continue with "
    "--resume; 76 another process of the run is gone, see mpd-agl launch; 130 ended at once by a second Ctrl-C."
)
KINDS = {int: "INT", float: "FLOAT", bool: "BOOL", str: "TEXT", tuple[str, ...]: "TEXT ..."}


def help_text(preset: Mapping[str, Any]) -> str:
    """The text; a preset's values stand in the place of the defaults."""
    own = {f"--{name} {kind}": text for name, (kind, text) in VALUES.items()} | {f"--{n}": t for n, t in FLAGS.items()}
    parts = [
        "usage: mpd-agl train --preset NAME [OPTIONS]\n",
        _fill("Train a network. The configuration is the preset's, then the file's, then what the command line says.")
        + "\n",
        _rows("options", own),
    ]
    defaults, shown = flatten(preset), fields_of()
    sections = dict.fromkeys(name.rpartition(".")[0] for name in shown)
    for section in sections:
        rows = {}
        for name, info in shown.items():
            if name.rpartition(".")[0] == section:
                kind = KINDS.get(info.annotation) or "|".join(get_args(info.annotation))
                default = f"(default: {toml_value(defaults.get(name, info.default))})"
                rows[f"--{name.replace('_', '-')} {kind}"] = f"{info.description or ''} {default}".strip()
        about = RunConfig.model_fields[section].annotation.__doc__ if section else RunConfig.__doc__
        parts.append(_rows(f"{section or 'run'}: {(about or '').rstrip('.')}", rows))
    parts += [_rows("presets", list_presets()), f"exit codes\n{_fill(EXIT_CODES, '  ')}\n"]
    return "\n".join(parts)


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
