"""The other systems of Table 1 and the successors, as guests: they register what a stranger's package would.

Nothing of the package imports this folder; `plugins.load_plugins` calls `register` when a name is asked for that the
package itself does not have.
"""


def register() -> None:
    """Methods, norms, surrogates, gates and networks."""
    from mpd_agl.rivals import registered  # noqa: F401  (imports torch)
