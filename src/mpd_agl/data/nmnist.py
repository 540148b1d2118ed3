"""N-MNIST (Orchard et al. 2015): 34x34 pixels, three saccades of about 0.1 s, one .bin file per recording.

Five bytes per event: column, row, then one bit of polarity (1 is ON) and 23 bits of microseconds, the highest first.
"""

from pathlib import Path

import numpy as np

from mpd_agl.data.recordings import check_events
from mpd_agl.data.types import EventStream
from mpd_agl.errors import InputError

SIDE = 34
MAX_BYTES = 16 << 20
FOLDERS = {"train": "Train", "test": "Test"}


def read_bin(path: Path) -> EventStream:
    """Read one recording."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes, more than a recording of N-MNIST. Get the official file."
            )
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check --data-dir.") from error
    return decode_bin(content, path)


def decode_bin(content: bytes, path: Path) -> EventStream:
    """Decode the bytes of a file; `path` is what an error calls them."""
    if len(content) % 5:
        raise InputError(f"{path} is cut short: {len(content):,} bytes are no multiple of 5. Get the recording again.")
    bytes_E5 = np.frombuffer(content, np.uint8).reshape(-1, 5)
    x_E, y_E = bytes_E5[:, 0].astype(np.uint16), bytes_E5[:, 1].astype(np.uint16)
    outside = np.flatnonzero((x_E >= SIDE) | (y_E >= SIDE))
    if len(outside):
        i = int(outside[0])
        raise InputError(
            f"{path} holds an event out of range: event {i:,} is at column {x_E[i]}, row {y_E[i]} of {SIDE}x{SIDE} "
            "pixels. "
            "Get the recording again."
        )
    tail_E3 = bytes_E5[:, 2:].astype(np.int64)
    t_E = ((tail_E3[:, 0] & 0x7F) << 16) | (tail_E3[:, 1] << 8) | tail_E3[:, 2]
    check_events(path, t_E)
    return EventStream(t_E=t_E, x_E=x_E, y_E=y_E, p_E=(bytes_E5[:, 2] >> 7).astype(np.uint8), width=SIDE, height=SIDE)


def write_bin(path: Path, events: EventStream) -> None:
    """Write events in the original format: the inverse of `read_bin`."""
    if len(events) and (events.t_E.max() >= 1 << 23 or events.t_E.min() < 0):
        raise InputError(
            f"{path}: N-MNIST keeps 23 bits of microseconds, got {events.t_E.max()} us. Shift or cut the recording."
        )
    bytes_E5 = np.empty((len(events), 5), np.uint8)
    bytes_E5[:, 0], bytes_E5[:, 1] = events.x_E, events.y_E
    bytes_E5[:, 2] = (events.p_E.astype(np.int64) << 7) | (events.t_E >> 16)
    bytes_E5[:, 3], bytes_E5[:, 4] = (events.t_E >> 8) & 0xFF, events.t_E & 0xFF
    path.write_bytes(bytes_E5.tobytes())
