"""The monitor as the loop's observer: snapshots for metrics.jsonl, figures for people, warnings of dying layers."""

from typing import Any

from torch import nn

from mpd_agl.diagnosis import Monitor, Snapshot
from mpd_agl.errors import InputError
from mpd_agl.train.observe import Observation

SILENT_BELOW = 0.001
"""Warn where a layer's firing rate falls under this."""
AVAILABLE_BELOW = 0.05
"""Warn where a layer's share of gradient-available neurons falls under this."""
DETAILED = 32
"""Snapshots of a run that hold histograms and every channel: metrics stay small however long it is."""


def can_watch(net: nn.Module) -> bool:
    """Whether the network has a spiking layer that the monitor knows; another one trains unwatched."""
    try:
        Monitor(net, every=1).close()
    except InputError:
        return False
    return True


class Watch:
    """Attaches a `Monitor` for every n-th training step; it costs nothing in between, and never sees an evaluation."""

    def __init__(self, net: nn.Module, every: int, steps: int = 0) -> None:
        self.net, self.every = net, every
        self.snapshots = -(-steps // every)
        self._monitor: Monitor | None = None
        self._warned: set[str] = set()

    def before(self, step: int) -> bool:
        """Attach, if this step's turn has come."""
        if step % self.every == 0:
            self._monitor = Monitor(self.net, every=1, detail=detailed(step // self.every, self.snapshots))
        return self._monitor is not None

    def after(self, step: int) -> Observation | None:
        """Take the snapshot and detach."""
        if self._monitor is None:
            return None
        taken = self._monitor.step()
        self._monitor.close()
        self._monitor = None
        if taken is None:
            return None
        return Observation({"log": "monitor", **taken.to_dict()}, means(taken), self._warnings(taken))

    def state(self) -> dict[str, Any]:
        """The warnings in force."""
        return {"warned": sorted(self._warned)}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to the warnings in force then."""
        self._warned = set(state["warned"])

    def _warnings(self, taken: Snapshot) -> list[dict[str, Any]]:
        """A layer is named once when it falls under a threshold, and again only after it has recovered."""
        found, standing = [], set()
        for layer, seen in taken.layers.items():
            silent = (mean(seen.rate_T), SILENT_BELOW, "is almost silent: firing rate")
            unavailable = (mean(seen.available_T), AVAILABLE_BELOW, "gets little gradient: available share")
            for kind, (value, limit, text) in {"silent": silent, "unavailable": unavailable}.items():
                if value is not None and value < limit:
                    standing.add(f"{kind}:{layer}")
                    if f"{kind}:{layer}" not in self._warned:
                        words = f"layer {layer} {text} {100 * value:.2f} %, under {100 * limit:g} %"
                        found.append({"kind": kind, "layer": layer, "value": value, "limit": limit, "text": words})
        self._warned = standing
        return found


def detailed(index: int, count: int) -> bool:
    """Whether a run's snapshot `index` of `count` is a detailed one.

    All of a few are; of many it is DETAILED ones, spread evenly, first and last included.

    >>> sum(detailed(k, 1500) for k in range(1500)), detailed(0, 1500), detailed(1499, 1500), detailed(1, 1500)
    (32, True, True, False)
    """
    if count <= DETAILED or index == 0:
        return True
    here, before = (k * (DETAILED - 1) // (count - 1) for k in (index, index - 1))
    return here != before


def mean(values: list[float]) -> float | None:
    """Over timesteps or layers; None of no values, as of the widths of a surrogate that has none."""
    return sum(values) / len(values) if values else None


def means(taken: Snapshot) -> dict[str, float]:
    """The two figures a person watches, over layers and timesteps."""
    layers = taken.layers.values()
    lists = {"firing": [s.rate_T for s in layers], "gradient-available": [s.available_T for s in layers]}
    found = {
        name: mean([m for values in of_layers if (m := mean(values)) is not None]) for name, of_layers in lists.items()
    }
    return {name: value for name, value in found.items() if value is not None}
