"""Thin modules over `core` and `kernels`: tdBN, neurons, width rules, the spiking block, the readout."""

from mpd_agl.nn.attention import TCJA, SpikeAttention, spike_attention, tcja
from mpd_agl.nn.block import AnnBlock, Current, Readout, SpikingBlock, over_time, share_batch
from mpd_agl.nn.event_conv import CONV_IMPLS, Choice, EventConv2d, EventLayer, EventLinear, event_layers
from mpd_agl.nn.fold import fold
from mpd_agl.nn.methods import METHODS, Method, get_method, register_method
from mpd_agl.nn.moments import Affine, MeasuredMoments, Potential, PotentialSums, affine_of, predicted
from mpd_agl.nn.mpbn import FoldedLIF, NormedPotential
from mpd_agl.nn.neuron import LIF, PLIF, Neuron, Pass
from mpd_agl.nn.norm import BatchNorm, TdBatchNorm
from mpd_agl.nn.recomputing import recompute
from mpd_agl.nn.rivals import AtgoNeuron, TrSGNeuron, diet_neuron, mpr_neuron
from mpd_agl.nn.step_norm import NORMS, TAB, TEBN, StepAffine, make_norm
from mpd_agl.nn.width import (
    AtgoWidth,
    ChainWidth,
    DeepTAGEWidth,
    FixedWidth,
    LearnableWidth,
    LSGWidth,
    MPDWidth,
    QuantileWidth,
    RelativeWidth,
    ScheduledWidth,
    SingleStepWidth,
    SlopeWidth,
    Width,
    set_chain,
    set_progress,
)

__all__ = [
    "CONV_IMPLS",
    "LIF",
    "METHODS",
    "NORMS",
    "PLIF",
    "TAB",
    "TCJA",
    "TEBN",
    "Affine",
    "AnnBlock",
    "AtgoNeuron",
    "AtgoWidth",
    "BatchNorm",
    "ChainWidth",
    "Choice",
    "Current",
    "DeepTAGEWidth",
    "EventConv2d",
    "EventLayer",
    "EventLinear",
    "FixedWidth",
    "FoldedLIF",
    "LSGWidth",
    "LearnableWidth",
    "MPDWidth",
    "MeasuredMoments",
    "Method",
    "Neuron",
    "NormedPotential",
    "Pass",
    "Potential",
    "PotentialSums",
    "QuantileWidth",
    "Readout",
    "RelativeWidth",
    "ScheduledWidth",
    "SingleStepWidth",
    "SlopeWidth",
    "SpikeAttention",
    "SpikingBlock",
    "StepAffine",
    "TdBatchNorm",
    "TrSGNeuron",
    "Width",
    "affine_of",
    "diet_neuron",
    "event_layers",
    "fold",
    "get_method",
    "make_norm",
    "mpr_neuron",
    "over_time",
    "predicted",
    "recompute",
    "register_method",
    "set_chain",
    "set_progress",
    "share_batch",
    "spike_attention",
    "tcja",
]
