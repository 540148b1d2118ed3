"""MPD-AGL: spiking neural networks with surrogate gradients whose width follows the membrane potential."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("mpd-agl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """`mpd_agl.adapt(net, batch)`, `release(net)`, `fit(net, data, ...)`: torch is imported when they are asked for."""
    if name == "fit":
        return import_module("mpd_agl.runs.fit").fit
    if name not in ("adapt", "release"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = import_module("mpd_agl.adapt")
    return room if name == "adapt" else room.release
