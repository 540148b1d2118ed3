"""Existing networks of other libraries: find their spiking layers, fit scale and surrogate width, give them back.

The room can be called: `mpd_agl.adapt(net, batch)` is `mpd_agl.adapt.adapt(net, batch)`.
"""

import sys
from types import ModuleType
from typing import Any

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
    "adapter_of",
    "adaptive_spikes",
    "register_neuron",
    "release",
]


class _CallableRoom(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Adaptation:
        return adapt(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableRoom
