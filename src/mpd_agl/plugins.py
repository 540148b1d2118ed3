"""Installed packages that add surrogates, methods, networks and data sets to mpd-agl.

A plugin's pyproject.toml names a function without arguments, which registers what the package adds:

    [project.entry-points."mpd_agl.plugins"]
    mine = "my_package:register"
"""

import os
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from mpd_agl.errors import InputError

GROUP = "mpd_agl.plugins"
GUESTS = "mpd_agl.rivals"
"""The other systems, which register as a plugin does; the package works without this folder."""


_loaded: dict[str, InputError | None] = {}


def load_plugins() -> tuple[str, ...]:
    """Let every installed plugin register what it adds, once per process; the names of the plugins.

    `MPD_AGL_PLUGINS=0` in the environment leaves all of them out. A plugin that fails is named, each time that plugins
    are asked for, so that it can be mended or removed.
    """
    if GUESTS not in _loaded and find_spec(GUESTS) is not None:
        _loaded[GUESTS] = None  # first: registering asks for names
        import_module(GUESTS).register()
    if os.environ.get("MPD_AGL_PLUGINS") == "0":
        return ()
    for point in _points():
        if point.name not in _loaded:
            try:
                point.load()()
                _loaded[point.name] = None
            except Exception as error:
                _loaded[point.name] = InputError(
                    f"the plugin {point.name!r} ({point.value}) failed: {type(error).__name__}: {error}. "
                    "Mend it, uninstall it, or set MPD_AGL_PLUGINS=0 to leave plugins out."
                )
    for failure in _loaded.values():
        if failure is not None:
            raise failure
    return tuple(name for name in _loaded if name != GUESTS)


@cache
def _points() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda p: p.name))
