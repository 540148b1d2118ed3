"""The run record and what it is made of; importable by every room."""

from mpd_agl.records.files import canonical, sync_folder, write_atomic
from mpd_agl.records.provenance import code, hardware, versions
from mpd_agl.records.record import RunRecord, TornRecord, read_metrics, read_record, reading, write_record

__all__ = [
    "RunRecord",
    "TornRecord",
    "canonical",
    "code",
    "hardware",
    "read_metrics",
    "read_record",
    "reading",
    "sync_folder",
    "versions",
    "write_atomic",
    "write_record",
]
