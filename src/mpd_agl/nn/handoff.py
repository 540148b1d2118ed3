"""Active lists that go with a spike tensor from the neuron to the convolutions that read it: made once, scanned never or once.

A block hands its spikes on with a `Handoff`. The first event-driven convolution that reads them scans them and leaves the lists there for
the others; it also tells the block, which from then on writes the lists in its own pass, and stops when nobody has read them.

Handoffs are kept beside the tensors and end with them. A change in place voids them; one through memory shared with numpy is not seen.
Tensors of inference mode do not count their changes, so nothing is handed on with them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakMethod

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from mpd_agl.kernels import Events
from mpd_agl.kernels.events import scan


@dataclass
class Handoff:
    """What goes with a tensor and its views."""

    events: Events | None
    values: bool
    """Whether lists keep values even where all are 1, as the block's own do where it adds to its spikes."""
    read: WeakMethod[Callable[[], None]]
    """Tells the block that made the tensor that its lists are read."""


_HANDED: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> its version then, Handoff


def hand_on(x: Tensor, events: Events | None, *, values: bool, read: Callable[[], None]) -> None:
    """Let lists, or the wish for them, go with a tensor; `read` is a method, and its object is not kept alive."""
    if not x.is_inference():
        _HANDED[x] = x._version, Handoff(events, values, WeakMethod(read))


def handed_on(x: Tensor) -> Handoff | None:
    """What came with x from a block, if x has not changed since."""
    if x.is_inference() or x not in _HANDED:
        return None
    version, found = _HANDED[x]
    return found if version == x._version else None


def carry(x: Tensor, other: Tensor) -> None:
    """Let a view or a copy of x have what was handed on with x, if anything was: both share one handoff."""
    found = handed_on(x)
    if found is not None and not other.is_inference():
        _HANDED[other] = other._version, found


def events_of(x: Tensor) -> Events:
    """The lists of (N, C, H, W) or (N, F): those that were handed on, or a scan, which is kept where x was handed on."""
    found = handed_on(x)
    if found is None:
        return scan(x)
    if (read := found.read()) is not None:
        read()
    if found.events is None:
        found.events = scan(x, values=found.values)
    return found.events
