"""Losses of outputs over time. Shapes: o_TNK, T timesteps, N samples, K classes; y_N class numbers."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mpd_agl.train.config import LossConfig

Loss = Callable[[Tensor, Tensor], Tensor]


def mean_output(o_TNK: Tensor) -> Tensor:
    """The prediction: the mean over time (Eq. 9), in float32."""
    return o_TNK.float().mean(0)


def cross_entropy(o_TNK: Tensor, y_N: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of the mean output."""
    return F.cross_entropy(mean_output(o_TNK), y_N, label_smoothing=label_smoothing)


def tet(o_TNK: Tensor, y_N: Tensor, lambda_: float = 1e-3, target: float = 1.0, label_smoothing: float = 0.0) -> Tensor:
    """`(1 - lambda) * mean_t CE(o_t, y) + lambda * MSE(o, target)` (Deng et al. 2022)."""
    T, N, K = o_TNK.shape
    o = o_TNK.float()
    each = F.cross_entropy(o.reshape(T * N, K), y_N.repeat(T), label_smoothing=label_smoothing)
    return (1 - lambda_) * each + lambda_ * (o - target).square().mean()


def build_loss(config: LossConfig) -> Loss:
    """The loss that a configuration names."""
    if config.name == "tet":
        return lambda o, y: tet(o, y, config.tet_lambda, config.tet_target, config.label_smoothing)
    return lambda o, y: cross_entropy(o, y, config.label_smoothing)


def correct(o_TNK: Tensor, y_N: Tensor) -> int:
    """How many predictions are right."""
    with torch.no_grad():
        return int((mean_output(o_TNK).argmax(1) == y_N).sum())
