"""Weights from elsewhere: read as tensors alone, laid into a network of this package."""

from mpd_agl.interop.foreign import SOURCES, Imported, import_weights
from mpd_agl.interop.ptfile import read_tensors

__all__ = ["SOURCES", "Imported", "import_weights", "read_tensors"]
