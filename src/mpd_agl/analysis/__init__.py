"""Measurements that leave a network as it is: operations, energy, firing rates, gradient availability, moments."""

from mpd_agl.analysis.energy import Activity, EnergyReport, LayerEnergy, energy, measure_activity
from mpd_agl.analysis.histogram import Histogram
from mpd_agl.analysis.monitor import LayerDetail, LayerSnapshot, Monitor, Snapshot
from mpd_agl.analysis.operations import LayerOps, count_operations

__all__ = [
    "Activity",
    "EnergyReport",
    "Histogram",
    "LayerDetail",
    "LayerEnergy",
    "LayerOps",
    "LayerSnapshot",
    "Monitor",
    "Snapshot",
    "count_operations",
    "energy",
    "measure_activity",
]
