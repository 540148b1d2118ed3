"""Systems that the paper's method is compared with: guests, registered as a stranger's plugin would be.

Nothing below imports this package; `mpd_agl.plugins` finds it by its name.
"""

from importlib.resources import files

from mpd_agl.rivals import objectives
from mpd_agl.train.presets import register_presets


def register() -> None:
    """Add everything to the registries."""
    objectives.register()
    register_presets(files("mpd_agl.rivals") / "presets")
