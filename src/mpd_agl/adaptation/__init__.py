"""Existing networks of other libraries: find their spiking layers, fit scale and surrogate width, give them back."""

from mpd_agl.adaptation.adapt import Adaptation, AdaptedLayer, NotAdapted, adapt, release
from mpd_agl.adaptation.adapters import Membrane, adapter_of, register_neuron
from mpd_agl.adaptation.spike import AdaptiveSpike, adaptive_spikes

__all__ = [
    "Adaptation",
    "AdaptedLayer",
    "AdaptiveSpike",
    "Membrane",
    "NotAdapted",
    "adapt",
    "adapter_of",
    "adaptive_spikes",
    "register_neuron",
    "release",
]
