"""tdBN and plain batch norm over time: torch's batch-norm state (weight, bias, running statistics), time-major."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.nn.called import in_backward
from mpd_agl.nn.potential import Affine
from mpd_agl.ops import LOCAL, BatchStats, NormSpec, Sync, batch_stats


class TdBatchNorm(nn.Module):
    """Threshold-dependent batch norm over time, batch and space (Eq. 4-5), for (T, N, C) and (T, N, C, H, W).

    `i = weight * alpha * v_th * (x - mean)/sqrt(var + eps) + bias`. `weight` starts at 1 and `bias` at 0, as in the
    paper.

    >>> TdBatchNorm(8)(torch.randn(2, 4, 8, 16, 16)).shape
    torch.Size([2, 4, 8, 16, 16])
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    sync: Sync = LOCAL
    """The processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(
        self, num_features: int, *, v_th: float = 0.5, alpha: float = 1.0, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        if v_th <= 0:
            raise InputError(f"v_th must be positive, got {v_th}. The paper uses 0.5.")
        if alpha <= 0:
            raise InputError(f"alpha must be positive, got {alpha}. The paper uses 1.")
        self.num_features, self.v_th, self.alpha, self.eps, self.momentum = num_features, v_th, alpha, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def spec(self) -> NormSpec:
        """The norm's values for the fused step."""
        return NormSpec(
            weight=self.weight,
            bias=self.bias,
            mean=self.running_mean,
            var=self.running_var,
            amplitude=self.alpha * self.v_th,
            eps=self.eps,
            batch_stats=self.training,
            sync=self.sync if self.training else LOCAL,
        )

    def affines(self) -> list[Affine]:
        """gamma, beta and scale, as Eq. 7 reads them."""
        return [Affine(self.weight.detach(), self.bias.detach(), self.alpha * self.v_th)]

    def check(self, x_TNC: Tensor) -> None:
        """Refuse a wrong rank, a wrong number of channels, and batch statistics of a single value."""
        C = self.num_features
        if x_TNC.dim() not in (3, 5) or x_TNC.shape[2] != C:
            raise InputError(
                f"a norm over {C} channels takes (T, N, {C}) or (T, N, {C}, H, W), got {tuple(x_TNC.shape)}."
            )
        if self.training and not self.sync.is_shared and x_TNC.numel() == C:
            raise InputError(
                "batch statistics need at least 2 values per channel, got 1. "
                "Train with a larger batch, or call net.eval() to use the running statistics."
            )

    @torch.no_grad()
    def track(self, stats: BatchStats, repeats: int = 1) -> None:
        """`core.update_running`, in place. An input of one timestep counts `repeats` times, once for each it is shown.

        NaN is refused (on a CPU). A checkpoint's second pass counts nothing.
        """
        if in_backward():
            return
        mean_C, var_C, rows = stats
        count = rows * repeats
        if mean_C.device.type == "cpu" and not torch.compiler.is_compiling():
            if not torch.isfinite(mean_C.sum() + var_C.sum()):
                raise InputError(
                    "the input of a norm holds NaN or Inf while training. Check the data and the learning rate."
                )
            if bool(torch.as_tensor(rows < 2).any()):
                raise InputError(
                    "batch statistics need at least 2 values per channel, got 1. Train with a larger batch."
                )
        # A network that was moved to bfloat16 or float16 keeps its running statistics in that type.
        self.running_mean.lerp_(mean_C.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_((var_C * (count / (count - 1))).to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)

    def affine_map(self) -> tuple[Tensor, Tensor]:
        """`scale_C, shift_C` of evaluation, `i = x * scale + shift`: what is folded into a convolution."""
        scale_C = self.weight * (self.alpha * self.v_th) * torch.rsqrt(self.running_var + self.eps)
        return scale_C, self.bias - self.running_mean * scale_C

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The normalised current; batch statistics while training, running ones in evaluation.

        An input of one timestep may be shown `num_steps` times: the running variance then counts all of them.
        """
        self.check(x_SNC)
        x_NC, repeats = x_SNC.flatten(0, 1), (num_steps or x_SNC.shape[0]) // x_SNC.shape[0]
        weight_C = self.weight * (self.alpha * self.v_th)
        # torch's CPU batch_norm has wrong gradients for a batch of one whose memory order differs from its gradient's.
        if self.training and (self.sync.is_shared or x_NC.shape[0] == 1):
            stats = batch_stats(x_SNC, self.sync)
            self.track(BatchStats(*(torch.as_tensor(a).detach() for a in stats)), repeats)
            i_SNC = core.tdbn(x_SNC, weight_C, self.bias, stats.mean_C, stats.var_C, v_th=1.0, eps=self.eps)
            return i_SNC.to(x_SNC.dtype)
        if not self.training:
            if x_NC.shape[0] == 1:
                affine = TdBatchNorm.affine_map(self)  # a subclass may multiply its own factors afterwards
                scale_C, shift_C = (a.view(-1, *[1] * (x_NC.dim() - 2)) for a in affine)
                return (x_SNC * scale_C + shift_C).to(x_SNC.dtype)
            i = F.batch_norm(x_NC, self.running_mean, self.running_var, weight_C, self.bias, False, 0.0, self.eps)
            return i.view(x_SNC.shape)
        # torch's own running update would count a repeated input once, and a checkpoint's second pass again.
        mean_C, var_C = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
        i = F.batch_norm(x_NC, mean_C, var_C, weight_C, self.bias, True, 1.0, self.eps)
        rows = x_NC.numel() // self.num_features
        self.track(BatchStats(mean_C, var_C * ((rows - 1) / rows), rows), repeats)
        return i.view(x_SNC.shape)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"{self.num_features}, v_th={self.v_th}, alpha={self.alpha}"


class BatchNorm(TdBatchNorm):
    """Plain batch norm over time, batch and space: `i = weight (x - mean)/sqrt(var + eps) + bias`, no threshold in it.

    The current is N(beta, gamma^2), so Eq. 7 holds with gamma_bar in place of gamma_bar v_th.
    """

    def __init__(self, num_features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, v_th=1.0, eps=eps, momentum=momentum)
