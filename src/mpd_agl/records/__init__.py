"""The run record and what it is made of; importable by every subpackage."""

from mpd_agl.records.files import cache_folder, canonical, explain, lock_file, sync_folder, write_atomic
from mpd_agl.records.provenance import code, hardware, peak_memory_mb, versions
from mpd_agl.records.record import RunRecord, TornRecord, read_metrics, read_record, reading

__all__ = [
    "RunRecord",
    "TornRecord",
    "cache_folder",
    "canonical",
    "code",
    "explain",
    "hardware",
    "lock_file",
    "peak_memory_mb",
    "read_metrics",
    "read_record",
    "reading",
    "sync_folder",
    "versions",
    "write_atomic",
]
