"""Threshold-dependent batch normalisation (Eq. 4-5; Zheng et al. 2021). The channel axis is 2: x_TNC or x_TNCHW."""

import torch
from torch import Tensor

from mpd_agl.errors import InputError


def batch_moments(x_TNC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel over time, batch and space."""
    axes = [a for a in range(x_TNC.dim()) if a != 2]
    var_C, mean_C = torch.var_mean(x_TNC, dim=axes, correction=0)
    return mean_C, var_C


def tdbn(
    x_TNC: Tensor,
    gamma_C: Tensor,
    beta_C: Tensor,
    mean_C: Tensor,
    var_C: Tensor,
    *,
    v_th: Tensor | float = 0.5,
    alpha: float = 1.0,
    eps: float = 1e-5,
) -> Tensor:
    """`gamma * alpha * v_th * (x - mean) / sqrt(var + eps) + beta` per channel: the pre-synaptic input ~ N(beta, (gamma
    alpha v_th)^2).

    `v_th` is one value, or one per channel.

    >>> x_TNC = torch.randn(2, 64, 3) * 7 + 5
    >>> i_TNC = tdbn(x_TNC, torch.ones(3), torch.zeros(3), *batch_moments(x_TNC))
    >>> [round(float(i_TNC[..., c].std(correction=0)), 3) for c in range(3)]
    [0.5, 0.5, 0.5]
    """
    shape = [1, 1, -1] + [1] * (x_TNC.dim() - 3)
    gamma, beta, mean, var = (p.view(shape) for p in (gamma_C, beta_C, mean_C, var_C))
    if isinstance(v_th, Tensor) and v_th.dim():
        v_th = v_th.view(shape)
    x_hat = alpha * v_th * (x_TNC - mean) / torch.sqrt(var + eps)  # Eq. 4
    return gamma * x_hat + beta  # Eq. 5


def update_running(
    running_mean_C: Tensor, running_var_C: Tensor, mean_C: Tensor, var_C: Tensor, count: int, momentum: float
) -> tuple[Tensor, Tensor]:
    """New running statistics, as torch's batch norm makes them: the variance is kept unbiased, `var * n/(n-1)`."""
    if count < 2:
        raise InputError(
            f"batch statistics need at least 2 values per channel, got {count}. "
            "Train with a larger batch, or call net.eval() to use the running statistics."
        )
    unbiased_C = var_C * (count / (count - 1))
    return running_mean_C.lerp(mean_C, momentum), running_var_C.lerp(unbiased_C, momentum)
