"""Measurements that leave a network as it is: operations, energy, firing rates, gradient availability, moments."""

from mpd_agl.diagnosis.checks import Finding
from mpd_agl.diagnosis.diagnose import Diagnosis, diagnose
from mpd_agl.diagnosis.energy import Activity, EnergyReport, LayerEnergy, energy, measure_activity
from mpd_agl.diagnosis.histogram import Histogram
from mpd_agl.diagnosis.monitor import Monitor
from mpd_agl.diagnosis.operations import LayerOps, count_operations
from mpd_agl.diagnosis.snapshot import LayerDetail, LayerSnapshot, Snapshot

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
