"""The recipes that come with the package: one TOML file each."""

import tomllib
from importlib.resources import files
from typing import Any

from mpd_agl.errors import unknown_name


def list_presets() -> dict[str, str]:
    """Names, each with the first line of its file's comment."""
    folder = files("mpd_agl") / "presets"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name.removesuffix(".toml")):
        if entry.name.endswith(".toml"):
            found[entry.name.removesuffix(".toml")] = entry.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return found


def read_preset(name: str) -> dict[str, Any]:
    """A preset's table."""
    known = list_presets()
    if name not in known:
        raise unknown_name("preset", name, known)
    return tomllib.loads((files("mpd_agl") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))
