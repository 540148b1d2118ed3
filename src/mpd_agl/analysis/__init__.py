"""Measurements that leave a network as it is: operations, energy, firing rates, gradient availability, moments."""

from mpd_agl.analysis.diagnose import Diagnosis, diagnose
from mpd_agl.analysis.energy import Activity, EnergyReport, LayerEnergy, energy, measure_activity
from mpd_agl.analysis.histogram import Histogram
from mpd_agl.analysis.illnesses import Finding
from mpd_agl.analysis.monitor import Monitor
from mpd_agl.analysis.operations import LayerOps, count_operations
from mpd_agl.analysis.snapshot import LayerDetail, LayerSnapshot, Snapshot

__all__ = [
    "Activity",
    "Diagnosis",
    "EnergyReport",
    "Finding",
    "Histogram",
    "LayerDetail",
    "LayerEnergy",
    "LayerOps",
    "LayerSnapshot",
    "Monitor",
    "Snapshot",
    "count_operations",
    "diagnose",
    "energy",
    "measure_activity",
]
