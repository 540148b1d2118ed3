"""Thin modules over `core` and `ops`: norms, neurons, width rules, the spiking block, the readout."""

from mpd_agl.nn import builtin as _builtin  # noqa: F401  (registers the methods)
from mpd_agl.nn.ann import AnnBlock
from mpd_agl.nn.block import Current, Readout, SpikingBlock, share_batch
from mpd_agl.nn.fold import StepAffine, fold, is_folded
from mpd_agl.nn.methods import METHODS, Method, get_method, register_method
from mpd_agl.nn.neuron import LIF, PLIF, Neuron, Observed
from mpd_agl.nn.norm import BatchNorm, TdBatchNorm
from mpd_agl.nn.norms import NORMS, NormKind, get_norm, register_norm
from mpd_agl.nn.potential import Affine, MeasuredMoments, Potential, PotentialSums, affines_of, predicted
from mpd_agl.nn.recompute import recompute
from mpd_agl.nn.synapse import over_time, synapse_output
from mpd_agl.nn.width import ChainWidth, FixedWidth, LSGWidth, MPDWidth, QuantileWidth, Width, set_chain, set_progress
from mpd_agl.ops import Widths
from mpd_agl.ops.conv.conv import CONV_IMPLS

__all__ = [
    "CONV_IMPLS",
    "LIF",
    "METHODS",
    "NORMS",
    "PLIF",
    "Affine",
    "AnnBlock",
    "BatchNorm",
    "ChainWidth",
    "Current",
    "FixedWidth",
    "LSGWidth",
    "MPDWidth",
    "MeasuredMoments",
    "Method",
    "Neuron",
    "NormKind",
    "Observed",
    "Potential",
    "PotentialSums",
    "QuantileWidth",
    "Readout",
    "SpikingBlock",
    "StepAffine",
    "TdBatchNorm",
    "Width",
    "Widths",
    "affines_of",
    "fold",
    "get_method",
    "get_norm",
    "is_folded",
    "over_time",
    "predicted",
    "recompute",
    "register_method",
    "register_norm",
    "set_chain",
    "set_progress",
    "share_batch",
    "synapse_output",
]
