"""Fused operators, a folder each: `step` (norm, neuron and surrogate), `conv` (spikes in), `plan` (inference)."""

from mpd_agl.ops.memory import reuse_pages
from mpd_agl.ops.step.backends import BACKENDS, backends_here, resolve
from mpd_agl.ops.step.fused import current_map, fused_step, probe
from mpd_agl.ops.step.spec import CurrentMap, NeuronSpec, NormSpec, StepDetails, StepInput, StepOutput, Widths
from mpd_agl.ops.step.sync import LOCAL, BatchStats, Replicas, Sync, batch_stats

__all__ = [
    "BACKENDS",
    "LOCAL",
    "BatchStats",
    "CurrentMap",
    "NeuronSpec",
    "NormSpec",
    "Replicas",
    "StepDetails",
    "StepInput",
    "StepOutput",
    "Sync",
    "Widths",
    "backends_here",
    "batch_stats",
    "current_map",
    "fused_step",
    "probe",
    "resolve",
    "reuse_pages",
]
