"""Installed packages that add surrogates, methods, networks and data sets to mpd-agl.

A plugin's pyproject.toml names a function without arguments, which registers what the package adds:

    [project.entry-points."mpd_agl.plugins"]
    mine = "my_package:register"
"""

import os
from functools import cache
from importlib.metadata import entry_points

from mpd_agl.errors import InputError

GROUP = "mpd_agl.plugins"


@cache
def load_plugins() -> tuple[str, ...]:
    """Let every installed plugin register what it adds, once per process; the names of the plugins.

    `MPD_AGL_PLUGINS=0` in the environment leaves all of them out. A plugin that fails is named, so that it can be mended or removed.
    """
    if os.environ.get("MPD_AGL_PLUGINS") == "0":
        return ()
    names = []
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            point.load()()
        except Exception as error:
            raise InputError(
                f"the plugin {point.name!r} ({point.value}) failed: {type(error).__name__}: {error}. "
                "Mend it, uninstall it, or set MPD_AGL_PLUGINS=0 to leave plugins out."
            ) from error
        names.append(point.name)
    return tuple(names)
