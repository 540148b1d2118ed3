"""Files that are whole or not there: written beside, synced to the disk, renamed."""

import json
import os
from pathlib import Path
from typing import Any


def canonical(value: Any) -> bytes:
    """A value as JSON in one spelling only: sorted keys, one space, a newline at the end. NaN is refused."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sync_folder(folder: Path) -> None:
    """Make names in a folder last: a rename survives a power cut only when its folder is synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file: a reader sees the old content or the new one, never half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    try:
        write_synced(beside, data)
        os.replace(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)
