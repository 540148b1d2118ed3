"""Events to frames: T slices of a recording, the events of each counted per pixel and polarity.

The resize rule: an event at column x of a sensor of width W lands in column `floor(x*size/W)`, rows alike. Every
event lands in exactly one pixel, so the counts of the frames add up to the number of events (until a pixel passes
255), whatever the sizes. An interpolation of the full-size frames, as is common, would turn counts into fractions
when shrinking (128 to 48) and invent events when growing (34 to 48); here a growing leaves some rows and columns
empty instead: choose `size` at most the sensor's.

Shapes: E events, T frames, H = W = size, C = 2: channel 0 is OFF (darker), channel 1 is ON (brighter).
"""

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.types import EventStream, FrameConfig
from mpd_agl.errors import InputError


def check_events(events: EventStream, name: str = "the recording") -> None:
    """Refuse a recording that is empty, leaves its sensor, runs backwards or has a polarity other than 0 and 1.

    `name` is what an error calls the recording, usually its file.
    """
    if len(events) == 0:
        raise InputError(f"{name} holds no event: it is empty or cut off. Get the recording again.")
    lengths = {len(events.t_E), len(events.x_E), len(events.y_E), len(events.p_E)}
    if len(lengths) != 1:
        raise InputError(
            f"the fields of {name} differ in length, got {sorted(lengths)}. Each event needs t, x, y and p."
        )
    for field, value_E, limit in (
        ("x", events.x_E, events.width),
        ("y", events.y_E, events.height),
        ("polarity", events.p_E, 2),
    ):
        if value_E.min() < 0 or value_E.max() >= limit:
            at = int(np.argmax((value_E < 0) | (value_E >= limit)))
            raise InputError(
                f"{name} is damaged or of another sensor: event {at:,} has {field} {int(value_E[at])}, "
                f"out of range 0 to {limit - 1}. Get the recording again."
            )
    backwards = np.flatnonzero(np.diff(events.t_E) < 0)
    if len(backwards):
        at = int(backwards[0]) + 1
        raise InputError(
            f"{name} is out of order: event {at:,} is at {int(events.t_E[at])} us, the one before at "
            f"{int(events.t_E[at - 1])} us. Sort the events by time, or get the recording again."
        )


def slice_of_event(t_E: NDArray[np.int64], num_steps: int, slicing: str) -> NDArray[np.int64]:
    """Give the frame each event falls into.

    `count`: T slices of equally many events (sizes differ by at most one). `time`: T slices of equal duration from
    the first to the last event; the last event belongs to the last slice, and a slice may be empty.
    """
    if slicing == "count":
        return np.arange(len(t_E)) * num_steps // len(t_E)
    elapsed_E = t_E - t_E[0]
    slice_E: NDArray[np.int64] = elapsed_E * num_steps // (int(elapsed_E[-1]) + 1)
    return slice_E


def to_frames(events: EventStream, config: FrameConfig) -> NDArray[np.uint8]:
    """Turn a recording into frames_THWC with C = 2 (0 OFF, 1 ON); counts saturate at 255.

    >>> events = EventStream(t_E=np.array([0, 5]), x_E=np.array([0, 3], np.uint16), y_E=np.array([1, 2], np.uint16),
    ...                      p_E=np.array([1, 0], np.uint8), width=4, height=4)
    >>> frames = to_frames(events, FrameConfig(num_steps=2, size=2))
    >>> frames.shape, int(frames[0, 0, 0, 1]), int(frames[1, 1, 1, 0]), int(frames.sum())
    ((2, 2, 2, 2), 1, 1, 2)
    """
    check_events(events)
    T, size = config.num_steps, config.size
    x_E = events.x_E.astype(np.int64) * size // events.width
    y_E = events.y_E.astype(np.int64) * size // events.height
    t_E = slice_of_event(events.t_E.astype(np.int64, copy=False), T, config.slicing)
    cell_E = ((t_E * size + y_E) * size + x_E) * 2 + events.p_E
    count = np.bincount(cell_E, minlength=T * size * size * 2)
    limit = 1 if config.mode == "binary" else 255
    return np.minimum(count, limit).astype(np.uint8).reshape(T, size, size, 2)
