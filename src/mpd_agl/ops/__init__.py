"""The fused training step: tdBN + neuron + surrogate as one autograd function, at several speeds chosen by name."""

from mpd_agl.ops.step.backends import NAMES as BACKENDS
from mpd_agl.ops.step.backends import backends_here, resolve
from mpd_agl.ops.step.fused import moments, neuron, probe, shared_moments, tdbn_neuron
from mpd_agl.ops.step.memory import reuse_pages
from mpd_agl.ops.step.sync import Replicas, SharedMoments, batch_moments, rand_like

__all__ = [
    "BACKENDS",
    "Replicas",
    "SharedMoments",
    "backends_here",
    "batch_moments",
    "moments",
    "neuron",
    "probe",
    "rand_like",
    "resolve",
    "reuse_pages",
    "shared_moments",
    "tdbn_neuron",
]
