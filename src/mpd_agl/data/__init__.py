"""Data sets: published ones, files of your own, and those that a plugin registers.

from mpd_agl.data import load_dataset
train = load_dataset("folder", "train", data_dir="flowers", image_size=48)
"""

from mpd_agl.data.arrays import as_array_set
from mpd_agl.data.load import load_dataset
from mpd_agl.data.options import FrameOptions, ImageOptions, SplitOptions
from mpd_agl.data.registry import register_dataset
from mpd_agl.data.types import ArraySet, DataSet, EventStream, FrameConfig, LoadOptions

__all__ = [
    "ArraySet",
    "DataSet",
    "EventStream",
    "FrameConfig",
    "ImageOptions",
    "LoadOptions",
    "SplitOptions",
    "as_array_set",
    "load_dataset",
    "register_dataset",
]
