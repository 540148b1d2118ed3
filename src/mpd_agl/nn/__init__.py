"""Thin modules over `core` and `kernels`: tdBN, neurons, width rules, the spiking block, the readout."""

from mpd_agl.nn.block import AnnBlock, Current, Readout, SpikingBlock, over_time, share_batch
from mpd_agl.nn.event_layers import CONV_IMPLS, Choice, EventConv2d, EventLayer, EventLinear, event_layers
from mpd_agl.nn.fold import fold
from mpd_agl.nn.methods import METHODS, Method, get_method
from mpd_agl.nn.neuron import LIF, PLIF, Neuron
from mpd_agl.nn.norm import TdBatchNorm
from mpd_agl.nn.width import (
    DeepTAGEWidth,
    FixedWidth,
    LearnableWidth,
    LSGWidth,
    MPDWidth,
    QuantileWidth,
    SlopeWidth,
    Width,
    predicted_moments,
)

__all__ = [
    "CONV_IMPLS",
    "LIF",
    "METHODS",
    "PLIF",
    "AnnBlock",
    "Choice",
    "Current",
    "DeepTAGEWidth",
    "EventConv2d",
    "EventLayer",
    "EventLinear",
    "FixedWidth",
    "LSGWidth",
    "LearnableWidth",
    "MPDWidth",
    "Method",
    "Neuron",
    "QuantileWidth",
    "Readout",
    "SlopeWidth",
    "SpikingBlock",
    "TdBatchNorm",
    "Width",
    "event_layers",
    "fold",
    "get_method",
    "over_time",
    "predicted_moments",
    "share_batch",
]
