"""Weights from other programs, read as tensors alone, and trained networks for other programs (ONNX, NIR)."""

from mpd_agl.export.nir import export_nir
from mpd_agl.export.onnx import export_onnx
from mpd_agl.export.ptfile import read_tensors
from mpd_agl.export.weight_import import SOURCES, Imported, import_weights

__all__ = ["SOURCES", "Imported", "export_nir", "export_onnx", "import_weights", "read_tensors"]
