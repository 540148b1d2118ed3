"""MPD-AGL: spiking neural networks with surrogate gradients whose width follows the membrane potential."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("mpd-agl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
