"""Histograms of the membrane potential at each timestep, over a fixed range around the threshold."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mpd_agl.ops.step import plain

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
    """Counts of potentials: those below the range, in each bin, and above."""
    low, high = reach(v_th)
    place = ((v - low) * (BINS / (high - low))).floor()
    place = place[~place.isnan()].clamp(-1, BINS).long() + 1
    return torch.bincount(place, minlength=BINS + 2)


@torch.no_grad()
def histogram(
    x_SNC: Tensor, mean_C: Tensor, scale_C: Tensor, beta_C: Tensor, tau: Tensor, *, v_th: float, num_steps: int
) -> Histogram:
    """Count the potentials v_t before reset, t = 1..T, that the current `i = (x - mean) scale + beta` causes.

    >>> x_TNC = torch.tensor([[[-9.0, 0.51]], [[9.0, 0.4]]])
    >>> h = histogram(x_TNC, torch.zeros(2), torch.ones(2), torch.zeros(2), torch.tensor(0.5), v_th=0.5, num_steps=2)
    >>> h.low, h.high, [[(b, n) for b, n in enumerate(count_B) if n] for count_B in h.count_TB]
    (-2.0, 3.0, [[(0, 1), (33, 1)], [(31, 1), (65, 1)]])
    """
    samples = counted_samples(x_SNC[0, 0].numel(), x_SNC.shape[1])
    x_SMC = x_SNC[:, :samples].movedim(2, -1).flatten(1, -2)
    dtype = plain.compute_dtype(x_SMC)
    mean_C, scale_C, beta_C, tau = (a.detach().to(dtype) for a in (mean_C, scale_C, beta_C, tau))
    v_T = plain.potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, num_steps)
    return Histogram(*reach(v_th), [count(v_MC, v_th).tolist() for v_MC in v_T], samples)
