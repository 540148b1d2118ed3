"""Existing networks of other libraries: find their spiking layers, fit scale and surrogate width, give them back."""

from mpd_agl.adapt.adapt import Adaptation, AdaptedLayer, NotAdapted, adapt, release
from mpd_agl.adapt.adapters import Membrane, adapter_of, register_neuron
from mpd_agl.adapt.spike import AdaptiveSpike, adaptive_spikes

__all__ = [
    "Adaptation",
    "AdaptedLayer",
    "AdaptiveSpike",
    "Membrane",
    "NotAdapted",
    "adapt",
    "adaptive_spikes",
    "adapter_of",
    "register_neuron",
    "release",
]
