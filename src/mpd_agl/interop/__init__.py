"""Weights from elsewhere: read as tensors alone, laid into a network of this package."""

from mpd_agl.interop.ptfile import read_tensors
from mpd_agl.interop.weight_import import SOURCES, Imported, import_weights

__all__ = ["SOURCES", "Imported", "import_weights", "read_tensors"]
