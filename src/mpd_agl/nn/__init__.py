"""Thin modules over `core` and `kernels`: tdBN, neurons, width rules, the spiking block, the readout."""

from mpd_agl.nn.attention import TCJA, SpikeAttention, spike_attention, tcja
from mpd_agl.nn.block import AnnBlock, Current, Readout, SpikingBlock, over_time, share_batch
from mpd_agl.nn.called import called_as_module
from mpd_agl.nn.fold import fold
from mpd_agl.nn.methods import METHODS, Method, get_method, register_method
from mpd_agl.nn.moments import Affine, MeasuredMoments, Potential, PotentialSums, affine_of, predicted
from mpd_agl.nn.mpbn import FoldedLIF, NormedPotential
from mpd_agl.nn.neuron import LIF, PLIF, Neuron, Pass
from mpd_agl.nn.norm import BatchNorm, TdBatchNorm
from mpd_agl.nn.recomputing import recompute
from mpd_agl.nn.rivals import AtgoNeuron, TrSGNeuron, diet_neuron, mpr_neuron
from mpd_agl.nn.step_norm import NORMS, TAB, TEBN, StepAffine, make_norm
from mpd_agl.nn.synapse import synapse_output
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
from mpd_agl.ops.conv.conv import CONV_IMPLS

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
    "Current",
    "DeepTAGEWidth",
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
    "called_as_module",
    "diet_neuron",
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
    "synapse_output",
    "tcja",
]
