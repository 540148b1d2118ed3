"""Norms whose affine step differs from timestep to timestep: TEBN and TAB.

Both are built for a number of timesteps and refuse another. Their width rule has moments of its own for each step:
`affines` gives gamma and beta as (T, C), and Theorem 2 adds up the steps (`nn.potential.predicted`).

Shapes: x is (S, N, C) or (S, N, C, H, W), with S = T, or S = 1 where one input is shown at all T.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.nn import Affine, BatchNorm, TdBatchNorm
from mpd_agl.nn.fold import built_for_steps
from mpd_agl.ops import BatchStats, batch_stats


def tebn(channels: int, *, num_steps: int | None, **_: Any) -> "TEBN":
    """As `SpikingBlock(norm="tebn")` makes it."""
    return TEBN(channels, _given("tebn", num_steps))


def tab(channels: int, *, num_steps: int | None, **_: Any) -> "TAB":
    """As `SpikingBlock(norm="tab")` makes it."""
    return TAB(channels, _given("tab", num_steps))


def _given(name: str, num_steps: int | None) -> int:
    if num_steps is None:
        raise InputError(f"norm {name!r} has parameters for every timestep and needs num_steps=T, got none.")
    return num_steps


def by_step(values_TC: Tensor, dim: int) -> Tensor:
    """(T,) or (T, C) shaped to multiply a (T, N, C, ...) of that many axes."""
    T, *C = values_TC.shape
    return values_TC.view(T, 1, *(C or [1]), *[1] * (dim - 3))


class TEBN(BatchNorm):
    """Temporal effective batch norm (Duan et al., NeurIPS 2022).

    `i_t = p_t (gamma (x_t - mean)/sqrt(var + eps) + beta)`. The statistics are over time, batch and
    space together, the learnable `p_t` (here `scale`) starts at 1.
    """

    tied_to_steps = True
    multiplies_per_step = True

    def __init__(self, num_features: int, num_steps: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.num_steps = num_steps
        self.scale = nn.Parameter(torch.ones(num_steps))

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents of all T steps."""
        built_for_steps(self, x_SNC, num_steps)
        return super().forward(x_SNC, num_steps) * by_step(self.scale, x_SNC.dim())

    def affines(self) -> list[Affine]:
        """gamma and beta of each step's current."""
        scale_T1 = self.scale.detach()[:, None]
        return [Affine(scale_T1 * self.weight.detach(), scale_T1 * self.bias.detach(), 1.0)]

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """`scale_TC, shift_TC` of evaluation."""
        scale_C, shift_C = super().affine_map()
        return self.scale[:, None] * scale_C, self.scale[:, None] * shift_C


def prefix_moments(mean_TC: Tensor, var_TC: Tensor) -> tuple[Tensor, Tensor]:
    """Moments over the steps 1..t together, from each step's own over equally many values.

    `M_t = mean_{j<=t} m_j` and `V_t = mean_{j<=t} (v_j + (m_j - M_t)^2)`: no pass over the input for every prefix.

    >>> prefix_moments(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]]))
    (tensor([[0.],
            [1.]]), tensor([[1.],
            [3.]]))
    """
    T = mean_TC.shape[0]
    count_T1 = torch.arange(1, T + 1, dtype=mean_TC.dtype, device=mean_TC.device)[:, None]
    prefix_TC = mean_TC.cumsum(0) / count_T1
    within_TT1 = torch.ones(T, T, dtype=mean_TC.dtype, device=mean_TC.device).tril()[:, :, None]
    between_TC = ((mean_TC[None] - prefix_TC[:, None]).square() * within_TT1).sum(1)
    return prefix_TC, (var_TC.cumsum(0) + between_TC) / count_T1


class TAB(TdBatchNorm):
    """Temporal accumulated batch norm (Jiang et al., ICLR 2024): step t is normalised over the steps 1..t.

    `i_t = p_t^2 (gamma_t (x_t - M_t)/sqrt(V_t + eps) + beta_t)` with mean M_t and variance V_t over batch, space and
    the steps up to t. Every step has its own gamma, beta and running statistics; `p_t` (here `scale`) starts at 1.
    """

    tied_to_steps = True
    multiplies_per_step = True

    def __init__(self, num_features: int, num_steps: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, v_th=1.0, eps=eps, momentum=momentum)
        self.num_steps = num_steps
        self.scale = nn.Parameter(torch.ones(num_steps))
        for name in ("weight", "bias"):
            setattr(self, name, nn.Parameter(getattr(self, name).detach().repeat(num_steps, 1)))
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, getattr(self, name).repeat(num_steps, 1))

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents of all T steps."""
        self.check(x_SNC)
        T = built_for_steps(self, x_SNC, num_steps)
        mean_TC, var_TC = self.running_mean, self.running_var
        if self.training:
            mean_SC, var_SC, rows = self._moments(x_SNC)
            mean_TC, var_TC = prefix_moments(mean_SC.expand(T, -1), var_SC.expand(T, -1))
            count_T1 = rows * torch.arange(1, T + 1, device=var_TC.device, dtype=var_TC.dtype)[:, None]
            self.track(BatchStats(mean_TC.detach(), var_TC.detach(), count_T1))
        square_T1 = self.scale.square()[:, None]
        scale_TC = square_T1 * self.weight * torch.rsqrt(var_TC + self.eps)
        mean, scale, beta = (by_step(a, x_SNC.dim()) for a in (mean_TC, scale_TC, square_T1 * self.bias))
        i_TNC = (x_SNC - mean) * scale + beta
        return i_TNC.to(x_SNC.dtype)

    def _moments(self, x_SNC: Tensor) -> tuple[Tensor, Tensor, Tensor | int]:
        """Mean and variance of each step and channel, and the number of values behind them."""
        S, _, C = x_SNC.shape[:3]
        if self.sync.is_shared:  # steps next to channels: the parts of the batch are merged for each
            x_1NC = x_SNC.transpose(0, 1).flatten(1, 2).unsqueeze(0)
            mean, var, total = batch_stats(x_1NC, self.sync)
            return mean.view(S, C), var.view(S, C), total
        x = x_SNC.to(torch.promote_types(x_SNC.dtype, torch.float32))
        var_SC, mean_SC = torch.var_mean(x, dim=[a for a in range(x.dim()) if a not in (0, 2)], correction=0)
        return mean_SC, var_SC, x.numel() // (S * C)

    def affines(self) -> list[Affine]:
        """gamma and beta of each step's current."""
        square_T1 = self.scale.detach().square()[:, None]
        return [Affine(square_T1 * self.weight.detach(), square_T1 * self.bias.detach(), 1.0)]

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """`scale_TC, shift_TC` of evaluation."""
        square_T1 = self.scale.square()[:, None]
        scale_TC = square_T1 * self.weight * torch.rsqrt(self.running_var + self.eps)
        return scale_TC, square_T1 * self.bias - self.running_mean * scale_TC
