"""The other systems of Table 1 and the successors, as guests: they register what a stranger's plugin would.

Nothing below imports this folder; `mpd_agl.plugins` finds it by its name when a name is asked for that the package
itself does not have.
"""

from importlib.resources import files


def register() -> None:
    """Methods, norms, surrogates, gates, networks, objectives and presets."""
    from mpd_agl.rivals import objectives, parts
    from mpd_agl.train.presets import register_presets

    parts.register()
    objectives.register()
    register_presets(files("mpd_agl.rivals") / "presets")
