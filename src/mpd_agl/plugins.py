"""Installed packages that add surrogates, methods, networks, data sets, objectives and presets to mpd-agl.

A plugin's pyproject.toml names a function without arguments, which registers what the package adds:

    [project.entry-points."mpd_agl.plugins"]
    mine = "my_package:register"
"""

import os
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from mpd_agl.errors import InputError

GROUP = "mpd_agl.plugins"


RIVALS = "mpd_agl.rivals"
"""The package's own guests: they register as a plugin does, and may be absent."""
_loaded: dict[str, InputError | None] = {}


def load_plugins() -> tuple[str, ...]:
    """Let every installed plugin register what it adds, once per process; the names of the plugins.

    `MPD_AGL_PLUGINS=0` in the environment leaves out all but the package's own. A plugin that fails is named, each
    time that plugins are asked for, so that it can be mended or removed.
    """
    own_alone = os.environ.get("MPD_AGL_PLUGINS") == "0"
    for point in _points():
        if point.name not in _loaded and (point.value.startswith(RIVALS) or not own_alone):
            _loaded[point.name] = None  # before it runs, because what it imports may ask for plugins, too
            try:
                point.load()()
            except Exception as error:
                _loaded[point.name] = InputError(
                    f"the plugin {point.name!r} ({point.value}) failed: {type(error).__name__}: {error}. "
                    "Mend it, uninstall it, or set MPD_AGL_PLUGINS=0 to leave plugins out."
                )
    for failure in _loaded.values():
        if failure is not None:
            raise failure
    return tuple(_loaded)


@cache
def _points() -> tuple[EntryPoint, ...]:
    own = [EntryPoint("rivals", f"{RIVALS}:register", GROUP)] if find_spec(RIVALS) else []
    return (*own, *sorted(entry_points(group=GROUP), key=lambda p: p.name))
