"""MPD-AGL: spiking neural networks with surrogate gradients whose width follows the membrane potential."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("mpd-agl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


_NAMES = {
    "adapt": ("mpd_agl.adaptation", "adapt"),
    "release": ("mpd_agl.adaptation", "release"),
    "diagnose": ("mpd_agl.diagnosis", "diagnose"),
    "Monitor": ("mpd_agl.diagnosis", "Monitor"),
    "create_model": ("mpd_agl.models", "create_model"),
    "fit": ("mpd_agl.train.fit", "fit"),
}
"""What a user calls most, and the module that defines it."""


def __getattr__(name: str) -> Any:
    """`mpd_agl.adapt(net, batch)` and the others: torch is imported when one of them is asked for."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _NAMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """Those names too."""
    return [*globals(), *_NAMES]
