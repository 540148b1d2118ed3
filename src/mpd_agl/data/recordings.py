"""Recordings of event cameras on disk: one file per recording, one folder per class.

AEDAT 2.0, as jAER writes it for a DVS128, and CIFAR10-DVS, which consists of such files. After lines that begin with
`#`, the first of them `#!AER-DAT2.0`, each event is two big-endian int32: an address and a time in microseconds.

    bit 0       polarity, 0 for ON and 1 for OFF
    bits 1-7    127 - x
    bits 8-14   y, counted from the bottom
    bit 15      a special event (a pulse on the camera's plug), not a pixel's; the reader leaves it out

The sign of the polarity and the mirrored x are those of jAER's own DVS128 class and of its Matlab scripts. iniVation's
description of the format says 1 for ON, which does not hold for files that jAER wrote. Recordings of CIFAR10-DVS stand
upright once rows and columns change places: published loaders agree on column = 127 - bits 8-14 and
row = 127 - bits 1-7, and so does `read_cifar10dvs`.

N-MNIST (Orchard et al. 2015), `.bin`: 34x34 pixels, five bytes per event: column, row, then one bit of polarity (1 is
ON) and 23 bits of microseconds, the highest first.

NumPy: an .npy file with a structured array of the fields t, x, y, p, or an .npz file with such an array or with four
arrays of these names, and with `width` and `height` of the sensor if wanted.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.events import check_events
from mpd_agl.data.fileset import unreadable
from mpd_agl.data.types import EventStream
from mpd_agl.errors import InputError

DVS128, NMNIST = 128, 34
"""Height and width of the two sensors."""
AEDAT_VERSION = b"#!AER-DAT2.0"
MAX_BYTES = 256 << 20


def by_number(path: Path) -> tuple[int, str]:
    """Sort key: the last number in the name, so that 2 comes before 10."""
    numbers = re.findall(r"\d+", path.stem)
    return (int(numbers[-1][:18]) if numbers else -1, path.name)


def read_bytes(path: Path) -> bytes:
    """The content of a recording."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(
                f"{path} has {size:,} bytes, more than a recording can have. Check data_dir (--data.data-dir)."
            )
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def read_aedat(path: Path, *, transpose: bool = False) -> EventStream:
    """Read one recording: columns from the left, rows from the top, as jAER shows it. `transpose` exchanges the two."""
    return decode_aedat(read_bytes(path), path, transpose=transpose)


def decode_aedat(content: bytes, path: Path, *, transpose: bool = False) -> EventStream:
    """Decode the bytes of an AEDAT 2.0 file; `path` is what an error calls them."""
    if not content.startswith(AEDAT_VERSION):
        got = content[:14].split(b"\r")[0].split(b"\n")[0]
        raise InputError(
            f"{path} is no AEDAT 2.0 file: it begins with {got!r}, not {AEDAT_VERSION!r}. Get the official file."
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
            "DVS128 has 16 bits. Get the recording again."
        )
    pixel_E = (address_E >> 15) == 0
    address_E, t_E = address_E[pixel_E], words_E2[:, 1].astype(np.int64)[pixel_E]
    column_E = (DVS128 - 1 - ((address_E >> 1) & 0x7F)).astype(np.uint16)
    row_E = (DVS128 - 1 - ((address_E >> 8) & 0x7F)).astype(np.uint16)
    if transpose:
        column_E, row_E = row_E, column_E
    p_E = (1 - (address_E & 1)).astype(np.uint8)
    events = EventStream(t_E=t_E, x_E=column_E, y_E=row_E, p_E=p_E, width=DVS128, height=DVS128)
    check_events(events, str(path))
    return events


def read_cifar10dvs(path: Path) -> EventStream:
    """Read one recording of CIFAR10-DVS, upright."""
    return read_aedat(path, transpose=True)


def read_bin(path: Path) -> EventStream:
    """Read one recording of N-MNIST."""
    return decode_bin(read_bytes(path), path)


def decode_bin(content: bytes, path: Path) -> EventStream:
    """Decode the bytes of an N-MNIST file; `path` is what an error calls them."""
    if len(content) % 5:
        raise InputError(f"{path} is cut short: {len(content):,} bytes are no multiple of 5. Get the recording again.")
    bytes_E5 = np.frombuffer(content, np.uint8).reshape(-1, 5)
    tail_E3 = bytes_E5[:, 2:].astype(np.int64)
    events = EventStream(
        t_E=((tail_E3[:, 0] & 0x7F) << 16) | (tail_E3[:, 1] << 8) | tail_E3[:, 2],
        x_E=bytes_E5[:, 0].astype(np.uint16),
        y_E=bytes_E5[:, 1].astype(np.uint16),
        p_E=(bytes_E5[:, 2] >> 7).astype(np.uint8),
        width=NMNIST,
        height=NMNIST,
    )
    check_events(events, str(path))
    return events


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, or of an .npy file under the name ''. Nothing in them can run code."""
    try:
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                # Mapping a file refuses a header that claims more than the file holds, before memory is taken.
                return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
            file.seek(0)
            with np.load(file, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
    except Exception as error:  # a damaged file can raise nearly anything
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).partition("\n")[0]
        raise InputError(
            f"{path} is no readable file of NumPy arrays ({reason[:80]}). Save it again with np.save or np.savez."
        ) from error


def read_numpy(path: Path, sensor: Sequence[int] | None = None) -> EventStream:
    """Read one recording saved by NumPy. `sensor` is (width, height), where the file does not hold them."""
    fields = load_arrays(path)
    given = [int(fields.pop(name).flat[0]) if name in fields else 0 for name in ("width", "height")]
    if len(fields) == 1 and (names := next(iter(fields.values())).dtype.names):
        (events_E,) = fields.values()
        fields = {name: events_E[name] for name in names}
    if not {"t", "x", "y", "p"} <= fields.keys():
        got = ", ".join(sorted(filter(None, fields))) or "one array without fields"
        raise InputError(f"{path} holds {got}, and a recording is t, x, y and p. Save the events under these names.")
    value: dict[str, NDArray[np.int64]] = {}
    for name in ("t", "x", "y", "p"):
        if fields[name].dtype.kind not in "iub" or fields[name].ndim != 1:
            raise InputError(
                f"{name} in {path} must be one integer per event, got {fields[name].dtype} of shape "
                f"{fields[name].shape}. Save whole microseconds and pixels."
            )
        value[name] = fields[name].astype(np.int64)
    if len(value["p"]) and value["p"].min() == -1:
        value["p"] = (value["p"] + 1) // 2  # OFF as -1 becomes 0
    for name in ("x", "y", "p"):
        if len(value[name]) and not 0 <= value[name].min() <= value[name].max() < (2 if name == "p" else 1 << 16):
            raise InputError(
                f"{name} in {path} lies from {value[name].min()} to {value[name].max()}. Columns and rows count from "
                "0, and a polarity is 0 or 1, or -1 or 1."
            )
    width, height = (
        given[i] or (sensor[i] if sensor else int(value[name].max(initial=0)) + 1) for i, name in enumerate("xy")
    )
    events = EventStream(
        t_E=value["t"],
        x_E=value["x"].astype(np.uint16),
        y_E=value["y"].astype(np.uint16),
        p_E=value["p"].astype(np.uint8),
        width=width,
        height=height,
    )
    check_events(events, str(path))
    return events
