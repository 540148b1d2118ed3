"""Sums of a layer's potentials at each timestep: what calibration, running moments and monitors read.

Shapes: T timesteps; sums_T7 has the columns of `ops.probe` (spikes, neurons within the width, v, v^2, i, i^2) and the
number of values.
"""

import math

import torch
from torch import Tensor, nn

from mpd_agl.nn import PotentialSums
from mpd_agl.ops import CurrentMap


def longer(sums_TK: Tensor, num_steps: int) -> Tensor:
    """Zeros for the timesteps that are missing."""
    return nn.functional.pad(sums_TK, (0, 0, 0, max(0, num_steps - len(sums_TK))))


def added(a_TK: Tensor | None, b_TK: Tensor) -> Tensor:
    """The sum of two tables; one may have more timesteps."""
    if a_TK is None:
        return b_TK
    T = max(len(a_TK), len(b_TK))
    return longer(a_TK, T) + longer(b_TK, T)


def currents(x_SNC: Tensor, current: CurrentMap | None, num_steps: int, channel_dim: int = 2) -> Tensor:
    """The current of all T steps, (T, N, ...), behind a norm that is one affine map."""
    if current is not None:
        shape = [1] * x_SNC.dim()
        shape[channel_dim] = -1
        mean, scale, bias = (a.view(shape) for a in current)
        x_SNC = (x_SNC - mean) * scale + bias
    return x_SNC.expand(num_steps, *x_SNC.shape[1:])


class StepSums:
    """Sums over all passes and uses of one layer."""

    def __init__(self) -> None:
        self.sums_T7: Tensor | None = None

    @torch.no_grad()
    def add(self, t: int, sums_T6: Tensor, values: int) -> None:
        """The sums of some timesteps, t being the first of them."""
        rows = nn.functional.pad(sums_T6.double(), (0, 1), value=values)
        self.sums_T7 = added(self.sums_T7, nn.functional.pad(rows, (0, 0, t, 0)))

    @torch.no_grad()
    def add_step(self, t: int, u: Tensor, s: Tensor, v_th: Tensor | float, kappa: Tensor | float | None = None) -> None:
        """One timestep of a neuron that shows `u = v - v_th` and its spikes."""
        var, mean = torch.var_mean(u.to(torch.promote_types(u.dtype, torch.float32)), correction=0)
        mean, n = mean.double() + v_th, u.numel()
        zero = mean.new_zeros(())
        near = zero if kappa is None else (u.abs() < kappa / 2).sum()
        row = ((s != 0).sum(), near, mean * n, (var.double() + mean * mean) * n, zero, zero)
        self.add(t, torch.stack([r.double() for r in row])[None], n)

    @property
    def table_T7(self) -> Tensor:
        """The sums; without any, no timesteps."""
        return torch.zeros(0, 7, dtype=torch.float64) if self.sums_T7 is None else self.sums_T7

    @property
    def num_steps(self) -> int:
        """Timesteps that were seen."""
        return len(self.table_T7)

    def potentials(self) -> PotentialSums:
        """The sums of v and v^2, each timestep brought to the number of values of the first."""
        weight_T = self.table_T7[0, 6] / self.table_T7[:, 6]
        sum_T, square_T = (weight_T * self.table_T7[:, k] for k in (2, 3))
        return PotentialSums(int(self.table_T7[0, 6]), sum_T, square_T)

    def _share(self, column: int) -> float:
        sums_7 = self.table_T7.sum(0)
        return float(sums_7[column] / sums_7[6].clamp_min(1))

    @property
    def rate(self) -> float:
        """Share of neurons that fire at a step."""
        return self._share(0)

    @property
    def available(self) -> float:
        """Share of neurons whose potential lies within the width."""
        return self._share(1)

    @property
    def mean(self) -> float:
        """Mean of v over all steps."""
        return self._share(2)

    @property
    def std(self) -> float:
        """Standard deviation of v over all steps."""
        return math.sqrt(max(self._share(3) - self.mean**2, 0.0))
