"""Looking at a network without touching it: operations, energy, firing rates, gradient availability, moments."""

from mpd_agl.analysis.diagnose import Diagnosis, Finding, diagnose
from mpd_agl.analysis.energy import Activity, EnergyReport, LayerEnergy, energy, measure_activity
from mpd_agl.analysis.histogram import Histogram
from mpd_agl.analysis.monitor import LayerDetail, LayerSnapshot, Monitor, Snapshot
from mpd_agl.analysis.operations import LayerOps, count_operations

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
