"""The monitor as the loop's observer: snapshots into the metrics, mean figures to the display, warnings where a layer dies."""

from typing import Any

from torch import nn

from mpd_agl.analysis import Monitor, Snapshot
from mpd_agl.runs.config import MonitorConfig
from mpd_agl.train.observe import Observation

DETAILED = 32
"""Snapshots of a run that hold histograms and every channel: metrics stay small however long it is."""


class Watch:
    """Attaches a `Monitor` for every n-th step only: no cost in between, and evaluation is never looked at."""

    def __init__(self, net: nn.Module, config: MonitorConfig, steps: int = 0) -> None:
        self.net, self.config = net, config
        self.snapshots = -(-steps // config.every)
        self._monitor: Monitor | None = None
        self._warned: set[str] = set()

    def before(self, step: int) -> None:
        """Attach, if this step's turn has come."""
        if step % self.config.every == 0:
            self._monitor = Monitor(self.net, every=1, detail=detailed(step // self.config.every, self.snapshots))

    def after(self, step: int) -> Observation | None:
        """Take the snapshot and detach."""
        if self._monitor is None:
            return None
        taken = self._monitor.step()
        self._monitor.close()
        self._monitor = None
        if taken is None:
            return None
        return Observation({"event": "monitor", **taken.to_dict()}, means(taken), self._warnings(taken))

    def state(self) -> dict[str, Any]:
        """Which warnings stand."""
        return {"warned": sorted(self._warned)}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to the warnings that stood."""
        self._warned = set(state["warned"])

    def _warnings(self, taken: Snapshot) -> list[dict[str, Any]]:
        """A layer is named once when it falls under a threshold, and again only after it has recovered."""
        found, standing = [], set()
        for layer, seen in taken.layers.items():
            for kind, values, limit, text in (
                ("silent", seen.rate_T, self.config.silent_below, "is almost silent: firing rate"),
                (
                    "unavailable",
                    seen.available_T,
                    self.config.available_below,
                    "gets little gradient: available share",
                ),
            ):
                if values and (value := mean(values)) < limit:  # a surrogate without a width has no available share
                    standing.add(f"{kind}:{layer}")
                    if f"{kind}:{layer}" not in self._warned:
                        words = f"layer {layer} {text} {100 * value:.2f} %, under {100 * limit:g} %"
                        found.append({"kind": kind, "layer": layer, "value": value, "text": words})
        self._warned = standing
        return found


class NoWatch:
    """For networks that do not spike, and for `monitor.every` 0."""

    def before(self, step: int) -> None:
        """Nothing."""

    def after(self, step: int) -> Observation | None:
        """Nothing."""
        return None

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing."""


def detailed(index: int, count: int) -> bool:
    """Whether a run's snapshot `index` of `count` is a detailed one: all of a few, else DETAILED, spread evenly, first and last included.

    >>> sum(detailed(k, 1500) for k in range(1500)), detailed(0, 1500), detailed(1499, 1500), detailed(1, 1500)
    (32, True, True, False)
    """
    if count <= DETAILED or index == 0:
        return True
    here, before = (k * (DETAILED - 1) // (count - 1) for k in (index, index - 1))
    return here != before


def mean(values: list[float]) -> float:
    """Over timesteps or layers."""
    return sum(values) / len(values)


def means(taken: Snapshot) -> dict[str, float]:
    """The two figures a person watches, over layers and timesteps."""
    layers = taken.layers.values()
    return {
        "firing": mean([mean(s.rate_T) for s in layers]),
        "gradient-available": mean([mean(s.available_T) for s in layers if s.available_T] or [0.0]),
    }


def build_watch(net: nn.Module, config: MonitorConfig, *, spiking: bool, steps: int = 0) -> Watch | NoWatch:
    """The observer of a run of so many steps."""
    return Watch(net, config, steps) if spiking and config.every else NoWatch()
