"""Active lists that ride on a spike tensor from the neuron to the convolutions that read it: made once, scanned never or once.

A block hands its spikes on with a `Handoff`. The first event-driven convolution that reads them scans them and leaves the lists there for
the others; it also tells the block, which from then on writes the lists in its own pass, and stops when nobody has read them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mpd_agl.kernels import Events
from mpd_agl.kernels.events import scan

_NAME = "_mpd_agl_handoff"


@dataclass
class Handoff:
    """What rides on a tensor; void once the tensor was changed in place."""

    version: int | None
    events: Events | None = None
    read: Callable[[], None] | None = None
    """Tells the block that made the tensor that its lists are read."""


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def hand_on(x: Tensor, events: Events | None, read: Callable[[], None]) -> None:
    """Let a tensor carry its lists, or the wish for them."""
    setattr(x, _NAME, Handoff(_version(x), events, read))


def carry(x: Tensor, view: Tensor) -> None:
    """Let a view carry what x carries: both share one handoff."""
    found = getattr(x, _NAME, None)
    if found is None:
        found = Handoff(_version(x))
        setattr(x, _NAME, found)
    setattr(view, _NAME, found)


def is_handed_on(x: Tensor) -> bool:
    """Whether x comes straight from a block, which lists its spikes where they are read."""
    found: Handoff | None = getattr(x, _NAME, None)
    return found is not None and found.read is not None and found.version == _version(x)


def events_of(x: Tensor) -> Events:
    """The lists of (N, C, H, W) or (N, F): those that it carries, or a scan that it carries from now on."""
    found: Handoff | None = getattr(x, _NAME, None)
    if found is None or found.version != _version(x):
        return scan(x)
    if found.read is not None:
        found.read()
    if found.events is None:
        found.events = scan(x)
    return found.events
