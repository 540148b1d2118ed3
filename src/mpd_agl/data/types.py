"""What data is, once it is read: one uint8 array per split, or a stream of events.

Shapes: N samples, T frames, H height, W width, C channels, E events. Arrays are channels-last on disk, so a batch becomes a
channels_last tensor without a copy.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class ArraySet:
    """One split of a data set, ready to train on: `x` is uint8 images_NHWC or event frames_NTHWC, often memory-mapped.

    `provenance` holds what a run record must say about the data: source, sha256 of the decoded pixels, whether the set is partial and,
    for events, frame mode, slicing, split rule and split hash.
    """

    name: str
    split: str
    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, kw_only=True)
class EventStream:
    """One event-camera recording, in time order: microseconds, column, row (0 at the top), polarity (1 is ON)."""

    t_E: NDArray[np.int64]
    x_E: NDArray[np.uint16]
    y_E: NDArray[np.uint16]
    p_E: NDArray[np.uint8]
    width: int
    height: int

    def __len__(self) -> int:
        return len(self.t_E)


@dataclass(frozen=True, kw_only=True)
class FrameConfig:
    """How events become frames; every field is part of a result's provenance."""

    num_steps: int = 10
    """T: number of frames."""
    slicing: str = "count"
    """`count`: slices of equally many events; `time`: slices of equal duration."""
    mode: str = "count"
    """`count`: events per pixel (saturating at 255); `binary`: 1 where there was any."""
    size: int = 48
    """Height and width of the frames after resizing."""
