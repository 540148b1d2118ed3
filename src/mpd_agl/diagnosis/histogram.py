"""Histograms of the membrane potential at each timestep, over a fixed range around the threshold."""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 64
REACH = 5.0
"""The range is v_th +- REACH * v_th, five standard deviations of an untrained current: -2 to 3 at v_th = 0.5."""
MOST_VALUES = 2**17
"""Values that are counted per timestep: a part of the batch is enough for a picture, and cheap."""


@dataclass(frozen=True)
class Histogram:
    """Counts per timestep: values under `low`, then `BINS` equal bins, then values from `high` on; NaN is left out."""

    low: float
    high: float
    count_TB: list[list[int]]
    samples: int
    """How many samples were counted, from the start of the batch."""


def reach(v_th: float) -> tuple[float, float]:
    """The range of a histogram."""
    return v_th * (1 - REACH), v_th * (1 + REACH)


def counted_samples(values_per_sample: int, samples: int) -> int:
    """How many samples of a batch are counted."""
    return max(1, min(samples, MOST_VALUES // max(values_per_sample, 1)))


@torch.no_grad()
def count(v: Tensor, v_th: float) -> Tensor:
    """Counts of potentials: those below the range, in each bin, and above.

    >>> counts_B = count(torch.tensor([-9.0, 0.51, 9.0, torch.nan]), v_th=0.5)
    >>> reach(0.5), {b: n for b, n in enumerate(counts_B.tolist()) if n}
    ((-2.0, 3.0), {0: 1, 33: 1, 65: 1})
    """
    low, high = reach(v_th)
    place = ((v - low) * (BINS / (high - low))).floor()
    place = place[~place.isnan()].clamp(-1, BINS).long() + 1
    return torch.bincount(place, minlength=BINS + 2)
