"""Losses of outputs over time. Shapes: o_TNK, T timesteps, N samples, K classes; y_N class numbers."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

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


def distillation(o_NK: Tensor, wanted_NK: Tensor, temperature: float = 3.0) -> Tensor:
    """`T^2 KL(softmax(wanted/T), softmax(o/T))`, the mean over samples (Hinton et al. 2015)."""
    log_p, q = F.log_softmax(o_NK / temperature, 1), F.softmax(wanted_NK / temperature, 1)
    return F.kl_div(log_p, q, reduction="batchmean") * temperature**2


@torch.no_grad()
def correct(o_TNK: Tensor, y_N: Tensor) -> Tensor:
    """How many predictions are right, on the outputs' device."""
    return (mean_output(o_TNK).argmax(1) == y_N).sum()
