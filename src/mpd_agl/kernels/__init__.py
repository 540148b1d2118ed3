"""The fused training step: tdBN + neuron + surrogate as one autograd function, in three speeds chosen by name."""

from mpd_agl.kernels.backends import NAMES as BACKENDS
from mpd_agl.kernels.backends import backends_here, resolve
from mpd_agl.kernels.events import Events, empty_events
from mpd_agl.kernels.fused import moments, neuron, probe, tdbn_neuron
from mpd_agl.kernels.memory import reuse_pages

__all__ = [
    "BACKENDS",
    "Events",
    "backends_here",
    "empty_events",
    "moments",
    "neuron",
    "probe",
    "resolve",
    "reuse_pages",
    "tdbn_neuron",
]
