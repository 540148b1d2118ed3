"""Norms whose affine step differs from timestep to timestep: TEBN and TAB, and what folding leaves of them.

Both are built for a number of timesteps and refuse another. Their width rule has moments of its own for each step:
`affine_TC` gives gamma and beta, and Theorem 2 adds up the steps (`nn.moments.predicted`).

Shapes: x is (S, N, C) or (S, N, C, H, W), with S = T, or S = 1 where one input stands for all T.
"""

import torch
from torch import Tensor, nn

from mpd_agl import ops
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.norm import BatchNorm, TdBatchNorm

NORMS = ("tdbn", "bn", "tebn", "tab", "mpbn")
"""Names that `SpikingBlock(norm=...)` and `create_model(norm=...)` take."""


def make_norm(
    name: str, channels: int, *, v_th: float, alpha: float = 1.0, num_steps: int | None = None
) -> TdBatchNorm:
    """The norm of that name behind a synapse. MPBN has a plain one here, and its second on the neuron's potential."""
    if name not in NORMS:
        raise unknown_name("norm", name, NORMS)
    if name == "tdbn":
        return TdBatchNorm(channels, v_th=v_th, alpha=alpha)
    if name in ("bn", "mpbn"):
        return BatchNorm(channels)
    if num_steps is None:
        raise InputError(f"norm {name!r} has parameters for every timestep and needs num_steps=T, got none.")
    return TEBN(channels, num_steps) if name == "tebn" else TAB(channels, num_steps)


def _steps(norm: nn.Module, x_SNC: Tensor, num_steps: int | None, built_for: int) -> int:
    """T, or a sentence where it is another than the norm was built for."""
    T = x_SNC.shape[0] if num_steps is None else num_steps
    if built_for != T:
        raise InputError(
            f"{type(norm).__name__} was built for {built_for} timesteps and has parameters for each, got {T}. "
            f"Create the model with num_steps={T}, or use norm='tdbn' or 'bn', which take any number."
        )
    return T


def by_step(values_TC: Tensor, dim: int) -> Tensor:
    """(T,) or (T, C) shaped to multiply a (T, N, C, ...) of that many axes."""
    T, *C = values_TC.shape
    return values_TC.view(T, 1, *(C or [1]), *[1] * (dim - 3))


class TEBN(BatchNorm):
    """Temporal effective batch norm (Duan et al., NeurIPS 2022).

    `i_t = p_t (gamma (x_t - mean)/sqrt(var + eps) + beta)`. The statistics are over time, batch and
    space together, the learnable `p_t` (here `scale`) starts at 1.
    """

    per_step = True

    def __init__(self, num_features: int, num_steps: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        self.num_steps = num_steps
        self.scale = nn.Parameter(torch.ones(num_steps))

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents of all T steps."""
        _steps(self, x_SNC, num_steps, self.num_steps)
        return super().forward(x_SNC, num_steps) * by_step(self.scale, x_SNC.dim())

    def affine_TC(self) -> tuple[Tensor, Tensor]:
        """gamma and beta of each step's current."""
        return self.scale[:, None] * self.weight, self.scale[:, None] * self.bias

    def affine(self) -> tuple[Tensor, Tensor]:
        """`scale_TC, shift_TC` of evaluation."""
        scale_C, shift_C = super().affine()
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

    per_step = True

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
        T = _steps(self, x_SNC, num_steps, self.num_steps)
        mean_TC, var_TC = self.running_mean, self.running_var
        if self.training:
            mean_SC, var_SC, rows = self._moments(x_SNC)
            mean_TC, var_TC = prefix_moments(mean_SC.expand(T, -1), var_SC.expand(T, -1))
            count_T1 = rows * torch.arange(1, T + 1, device=x_SNC.device)[:, None]
            self.track(mean_TC.detach(), var_TC.detach(), count_T1)
        square_T1 = self.scale.square()[:, None]
        scale_TC = square_T1 * self.weight * torch.rsqrt(var_TC + self.eps)
        mean, scale, beta = (by_step(a, x_SNC.dim()) for a in (mean_TC, scale_TC, square_T1 * self.bias))
        i_TNC = (x_SNC - mean) * scale + beta
        return i_TNC.to(x_SNC.dtype)

    def _moments(self, x_SNC: Tensor) -> tuple[Tensor, Tensor, Tensor | int]:
        """Mean and variance of each step and channel, and the number of values behind them."""
        S, _, C = x_SNC.shape[:3]
        if self.replicas is not None:  # steps beside channels: the parts of the batch are merged for each
            x_1NC = x_SNC.transpose(0, 1).flatten(1, 2).unsqueeze(0)
            mean, var, total, _ = ops.batch_moments(x_1NC, self.replicas)
            return mean.view(S, C), var.view(S, C), total
        x = x_SNC.to(torch.promote_types(x_SNC.dtype, torch.float32))
        var_SC, mean_SC = torch.var_mean(x, dim=[a for a in range(x.dim()) if a not in (0, 2)], correction=0)
        return mean_SC, var_SC, x.numel() // (S * C)

    def affine_TC(self) -> tuple[Tensor, Tensor]:
        """gamma and beta of each step's current."""
        square_T1 = self.scale.square()[:, None]
        return square_T1 * self.weight, square_T1 * self.bias

    def affine(self) -> tuple[Tensor, Tensor]:
        """`scale_TC, shift_TC` of evaluation."""
        gamma_TC, beta_TC = self.affine_TC()
        scale_TC = gamma_TC * torch.rsqrt(self.running_var + self.eps)
        return scale_TC, beta_TC - self.running_mean * scale_TC


class StepAffine(nn.Module):
    """TEBN or TAB in evaluation: `i_t = x_t scale_t + shift_t`. One set of weights cannot hold the scales of T steps,
    so folding leaves this behind the synapse."""

    per_step = True
    scale_TC: Tensor
    shift_TC: Tensor

    def __init__(self, scale_TC: Tensor, shift_TC: Tensor) -> None:
        super().__init__()
        self.num_steps = scale_TC.shape[0]
        self.register_buffer("scale_TC", scale_TC.detach().clone())
        self.register_buffer("shift_TC", shift_TC.detach().clone())

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents of all T steps."""
        _steps(self, x_SNC, num_steps, self.num_steps)
        return x_SNC * by_step(self.scale_TC, x_SNC.dim()) + by_step(self.shift_TC, x_SNC.dim())
