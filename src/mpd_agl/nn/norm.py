"""tdBN as a module: torch's batch-norm state (weight, bias, running statistics) with the threshold in the scale."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl import core, ops
from mpd_agl.errors import InputError


class TdBatchNorm(nn.Module):
    """Threshold-dependent batch norm over time, batch and space (Eq. 4-5), for (T, N, C) and (T, N, C, H, W).

    `i = weight * alpha * v_th * (x - mean)/sqrt(var + eps) + bias`. `weight` starts at 1 and `bias` at 0, as in the
    paper.

    >>> TdBatchNorm(8)(torch.randn(2, 4, 8, 16, 16)).shape
    torch.Size([2, 4, 8, 16, 16])
    """

    per_step = False
    """Whether the affine step differs from timestep to timestep, so that the norm is built for one T."""
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    replicas: ops.Replicas | None = None
    """Processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(
        self, num_features: int, *, v_th: float = 0.5, alpha: float = 1.0, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        if v_th <= 0:
            raise InputError(f"v_th must be positive, got {v_th}. The paper uses 0.5.")
        self.num_features, self.v_th, self.alpha, self.eps, self.momentum = num_features, v_th, alpha, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def check(self, x_TNC: Tensor) -> None:
        """Refuse a wrong rank, a wrong number of channels, and batch statistics of a single value."""
        if x_TNC.dim() not in (3, 5) or x_TNC.shape[2] != self.num_features:
            raise InputError(
                f"tdBN over {self.num_features} channels takes (T, N, {self.num_features}) or (T, N, "
                f"{self.num_features}, H, W), "
                f"got {tuple(x_TNC.shape)}."
            )
        if self.training and self.replicas is None and x_TNC.numel() == x_TNC.shape[2]:
            raise InputError(
                "batch statistics need at least 2 values per channel, got 1. "
                "Train with a larger batch, or call net.eval() to use the running statistics."
            )

    @torch.no_grad()
    def track(self, mean_C: Tensor, var_C: Tensor, count: int | Tensor) -> None:
        """`core.update_running`, in place: from a batch's moments over `count` values per channel; NaN is refused (on a
        CPU).
        """
        looks = mean_C.device.type == "cpu" and not torch.compiler.is_compiling()
        if looks and not torch.isfinite(mean_C.sum() + var_C.sum()):
            raise InputError(
                "the input of a tdBN layer holds NaN or Inf while training. Check the data and the learning rate."
            )
        if looks and bool(torch.as_tensor(count < 2).any()):
            raise InputError("batch statistics need at least 2 values per channel, got 1. Train with a larger batch.")
        # A network that was moved to bfloat16 or float16 keeps its running statistics in that type.
        self.running_mean.lerp_(mean_C.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_((var_C * (count / (count - 1))).to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)

    def affine(self) -> tuple[Tensor, Tensor]:
        """`scale_C, shift_C` of evaluation, `i = x * scale + shift`: what is folded into a convolution."""
        scale_C = self.weight * (self.alpha * self.v_th) * torch.rsqrt(self.running_var + self.eps)
        return scale_C, self.bias - self.running_mean * scale_C

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The normalised current; batch statistics while training, running ones in evaluation.

        An input of one timestep may stand for `num_steps` equal ones: the running variance then counts all of them.
        """
        self.check(x_SNC)
        if self.training and self.replicas is not None:
            mean_C, var_C, count, _ = ops.batch_moments(x_SNC, self.replicas)
            self.track(mean_C.detach(), var_C.detach(), count * ((num_steps or 1) // x_SNC.shape[0] or 1))
            i_SNC = core.tdbn(
                x_SNC, self.weight, self.bias, mean_C, var_C, v_th=self.v_th, alpha=self.alpha, eps=self.eps
            )
            return i_SNC.to(x_SNC.dtype)
        steps = 1 if num_steps is None else num_steps // x_SNC.shape[0]
        repeated = self.training and steps > 1
        # autograd keeps what it is given, so where the variance is corrected below torch updates a copy.
        mean_C, var_C = self.running_mean, self.running_var
        kept = (mean_C.clone(), var_C.clone()) if repeated else (mean_C, var_C)
        i = F.batch_norm(
            x_SNC.flatten(0, 1),
            *kept,
            self.weight * (self.alpha * self.v_th),
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        if self.training:
            self.num_batches_tracked.add_(1)
        if repeated:
            self._count_all_steps(*kept, x_SNC.numel() // x_SNC.shape[2], steps)
        return i.view(x_SNC.shape)

    @torch.no_grad()
    def _count_all_steps(self, mean_C: Tensor, var_C: Tensor, rows: int, steps: int) -> None:
        """torch made the variance of `rows` values per channel unbiased; the batch has them `steps` times."""
        correction = (rows - 1) / rows * (rows * steps) / (rows * steps - 1)
        kept_C = (1 - self.momentum) * self.running_var
        self.running_mean.copy_(mean_C)
        self.running_var.copy_(kept_C + (var_C - kept_C) * correction)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"{self.num_features}, v_th={self.v_th}, alpha={self.alpha}"


class BatchNorm(TdBatchNorm):
    """Plain batch norm over time, batch and space: `i = weight (x - mean)/sqrt(var + eps) + bias`, no threshold in it.

    The current is N(beta, gamma^2), so Eq. 7 holds with gamma_bar in place of gamma_bar v_th.
    """

    def __init__(self, num_features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, v_th=1.0, eps=eps, momentum=momentum)
