"""Weights from other programs, read as tensors alone, and trained networks for other programs (ONNX, NIR)."""

from mpd_agl.interop.nir import export_nir
from mpd_agl.interop.onnx import export_onnx
from mpd_agl.interop.ptfile import read_tensors
from mpd_agl.interop.weight_import import SOURCES, Imported, import_weights

__all__ = ["SOURCES", "Imported", "export_nir", "export_onnx", "import_weights", "read_tensors"]
