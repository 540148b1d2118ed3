"""AEDAT 2.0 files of a DVS128, as jAER writes them, and CIFAR10-DVS, which consists of them.

After lines that begin with `#`, the first of them `#!AER-DAT2.0`, each event is two big-endian int32: an address and
a time in microseconds. In the address of a DVS128

    bit 0       polarity, 0 for ON and 1 for OFF
    bits 1-7    127 - x
    bits 8-14   y, counted from the bottom
    bit 15      a special event (a pulse on the camera's plug), not a pixel's: left out here

The sign of the polarity and the mirrored x are those of jAER's own DVS128 class and of its Matlab scripts;
iniVation's description of the format says 1 for ON, which does not hold for files that jAER wrote. Recordings of
CIFAR10-DVS stand upright once rows and columns change places: published loaders agree on column = 127 - bits 8-14 and
row = 127 - bits 1-7, and so does `read_cifar10dvs`.
"""

from pathlib import Path

import numpy as np

from mpd_agl.data.recordings import check_events
from mpd_agl.data.types import EventStream
from mpd_agl.errors import InputError

SIDE = 128
VERSION = b"#!AER-DAT2.0"
MAX_BYTES = 256 << 20


def read_aedat(path: Path, *, transpose: bool = False) -> EventStream:
    """Read one recording: columns from the left, rows from the top, as jAER shows it. `transpose` exchanges the two."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes, more than a recording of CIFAR10-DVS. Get the official "
                "file."
            )
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check --data-dir.") from error
    return decode_aedat(content, path, transpose=transpose)


def decode_aedat(content: bytes, path: Path, *, transpose: bool = False) -> EventStream:
    """Decode the bytes of a file; `path` is what an error calls them."""
    if not content.startswith(VERSION):
        got = content[:14].split(b"\r")[0].split(b"\n")[0]
        raise InputError(
            f"{path} is no AEDAT 2.0 file: it begins with {got!r}, not {VERSION!r}. Get the official file."
        )
    start = 0
    while content[start : start + 1] == b"#":  # an address cannot begin with '#': its first two bytes are 0
        end = content.find(b"\n", start)
        if end < 0:
            raise InputError(f"{path} ends within its header. Get the recording again.")
        start = end + 1
    size = len(content) - start
    if size % 8:
        raise InputError(
            f"{path} is cut short: {size:,} bytes of events are no multiple of 8. Get the recording again."
        )
    words_E2 = np.frombuffer(content, ">i4", offset=start).reshape(-1, 2)
    address_E = words_E2[:, 0].astype(np.int64)
    outside = np.flatnonzero(address_E >> 16)
    if len(outside):
        i = int(outside[0])
        raise InputError(
            f"{path} holds an event out of range: event {i:,} has the address {address_E[i] & 0xFFFFFFFF:#010x}, a "
            "DVS128 has 16 bits. "
            "Get the recording again."
        )
    t_E = words_E2[:, 1].astype(np.int64)
    pixel_E = (address_E >> 15) == 0
    address_E, t_E = address_E[pixel_E], t_E[pixel_E]
    check_events(path, t_E)
    column_E = (SIDE - 1 - ((address_E >> 1) & 0x7F)).astype(np.uint16)
    row_E = (SIDE - 1 - ((address_E >> 8) & 0x7F)).astype(np.uint16)
    if transpose:
        column_E, row_E = row_E, column_E
    p_E = (1 - (address_E & 1)).astype(np.uint8)
    return EventStream(t_E=t_E, x_E=column_E, y_E=row_E, p_E=p_E, width=SIDE, height=SIDE)


def read_cifar10dvs(path: Path) -> EventStream:
    """Read one recording of CIFAR10-DVS, upright."""
    return read_aedat(path, transpose=True)


def write_aedat(path: Path, events: EventStream, *, transpose: bool = False) -> None:
    """Write events as jAER would: the inverse of `read_aedat`."""
    column_E, row_E = (events.y_E, events.x_E) if transpose else (events.x_E, events.y_E)
    if (events.width, events.height) != (SIDE, SIDE):
        raise InputError(f"a DVS128 has 128x128 pixels, got {events.width}x{events.height}. Resize the events first.")
    words_E2 = np.empty((len(events), 2), ">i4")
    words_E2[:, 0] = (
        ((SIDE - 1 - row_E.astype(np.int64)) << 8)
        | ((SIDE - 1 - column_E.astype(np.int64)) << 1)
        | (1 - events.p_E.astype(np.int64))
    )
    words_E2[:, 1] = events.t_E
    lines = (
        VERSION,
        b"# This is a raw AE data file - do not edit",
        b"# Data format is int32 address, int32 timestamp (8 bytes total)",
    )
    path.write_bytes(b"".join(line + b"\r\n" for line in lines) + words_E2.tobytes())
