"""Recipes by name: TOML files in this package's folder `presets`, and in those that plugins add."""

import tomllib
from importlib.abc import Traversable
from importlib.resources import files
from typing import Any

from mpd_agl.errors import unknown_name
from mpd_agl.plugins import load_plugins

FOLDERS: list[Traversable] = [files("mpd_agl") / "presets"]


def register_presets(folder: Traversable) -> None:
    """Let `--preset` take the TOML files of a folder by their names, e.g. `importlib.resources.files(...)` of yours."""
    if folder not in FOLDERS:
        FOLDERS.append(folder)


def list_presets() -> dict[str, str]:
    """All recipes, each with the first line of its file's comment."""
    load_plugins()
    found = {
        e.name.removesuffix(".toml"): e for folder in FOLDERS for e in folder.iterdir() if e.name.endswith(".toml")
    }
    return {name: found[name].read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name in sorted(found)}


def read_preset(name: str) -> dict[str, Any]:
    """A preset's table."""
    known = [] if _find(name) else list_presets()  # which asks the plugins
    if (file := _find(name)) is None:
        raise unknown_name("preset", name, known)
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _find(name: str) -> Traversable | None:
    return next((entry for folder in FOLDERS for entry in folder.iterdir() if entry.name == f"{name}.toml"), None)
