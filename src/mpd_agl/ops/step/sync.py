"""One batch held in parts by several processes: sums and batch statistics over all of them.

Each process has count, mean and M2 (the sum of squared deviations) of its own rows; they are gathered and merged (Chan
et al. 1979): parts of any size are right, an empty one included, and all processes get the same bits.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class BatchStats(NamedTuple):
    """Mean and biased variance per channel over `rows` values each, of all parts of the batch."""

    mean_C: Tensor
    var_C: Tensor
    rows: Tensor | int


class Sync:
    """The whole batch is in this process: nothing to exchange."""

    is_shared = False

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, on each of them."""
        return x

    def stats(self, mean_C: Tensor, var_C: Tensor, rows: int) -> BatchStats:
        """The whole batch's statistics from this process's own."""
        return BatchStats(mean_C, var_C, rows)

    def rand_like(self, u_NC: Tensor) -> Tensor:
        """This process's rows of the uniform numbers that one process would draw for the whole batch."""
        return torch.rand_like(u_NC)


LOCAL = Sync()


class Replicas(Sync):
    """The processes that share a batch: a process group, by default all. `nn.share_batch` gives it to the layers."""

    is_shared = True

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: object) -> "Replicas":
        return self  # a group is a connection, not a value

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, on each of them."""
        out = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, group=self.group)
        return out

    def gather(self, x: Tensor) -> Tensor:
        """Every process's tensor, stacked by rank."""
        out = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(out, x.detach(), group=self.group)
        return torch.stack(out)

    def stats(self, mean_C: Tensor, var_C: Tensor, rows: int) -> BatchStats:
        """The whole batch's statistics from this process's own, in one exchange of 2C + 1 numbers."""
        own = torch.cat([mean_C.new_full((1,), rows), mean_C, var_C * rows])
        if rows == 0:
            own = torch.zeros_like(own)
        all_ = self.gather(own)
        C = mean_C.shape[0]
        return BatchStats(*merge(all_[:, 0], all_[:, 1 : 1 + C], all_[:, 1 + C :]))

    def rand_like(self, u_NC: Tensor) -> Tensor:
        """Every process draws the whole batch's numbers, so that the generators advance alike."""
        counts = self.gather(torch.tensor([u_NC.shape[0]])).flatten().tolist()
        first = sum(counts[: dist.get_rank(self.group)])
        rest = u_NC.shape[1:]
        strides = (max(1, rest.numel()), *u_NC.stride()[1:])
        whole = u_NC.new_empty(0).new_empty_strided((sum(counts), *rest), strides).uniform_()
        return whole[first : first + u_NC.shape[0]]


def merge(count_R: Tensor, mean_RC: Tensor, m2_RC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of the union of parts.

    >>> parts = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0])
    >>> count_R = torch.tensor([3.0, 1.0])
    >>> mean_RC = torch.stack([p.mean() for p in parts])[:, None]
    >>> m2_RC = torch.stack([(p - p.mean()).square().sum() for p in parts])[:, None]
    >>> [float(a) for a in merge(count_R, mean_RC, m2_RC)], float(torch.cat(parts).var(correction=0))
    ([3.0, 3.5, 4.0], 3.5)
    """
    total = count_R.sum()
    weight_R1 = (count_R / total)[:, None]
    mean_C = (weight_R1 * mean_RC).sum(0)
    var_C = m2_RC.sum(0) / total + (weight_R1 * (mean_RC - mean_C).square()).sum(0)
    return mean_C, var_C, total


class _BatchStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RC: Tensor, sync: Sync) -> tuple[Tensor, Tensor, Tensor]:
        rows = x_RC.shape[0]
        var_C, mean_C = torch.var_mean(x_RC, 0, correction=0) if rows else (x_RC.new_zeros(x_RC.shape[1]),) * 2
        mean_C, var_C, total = sync.stats(mean_C, var_C, rows)
        total = torch.as_tensor(total, dtype=x_RC.dtype)
        ctx.save_for_backward(x_RC, mean_C, total)
        ctx.sync = sync
        ctx.mark_non_differentiable(total)
        return mean_C, var_C, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_mean_C: Tensor, g_var_C: Tensor, _: Any) -> tuple[Tensor, None]:
        x_RC, mean_C, count = ctx.saved_tensors
        g_mean_C, g_var_C = ctx.sync.sum(torch.stack([g_mean_C, g_var_C]))
        return (g_mean_C + 2 * (x_RC - mean_C) * g_var_C) / count, None


def batch_stats(x_TNC: Tensor, sync: Sync) -> BatchStats:
    """`core.batch_moments` of a batch that several processes share, differentiable on each: channels on axis 2.

    The gradient is that of the SUM of all processes' losses: weight each loss by the process's share of the samples,
    and add (not average) the parameters' gradients.
    """
    dtype = torch.float64 if x_TNC.dtype == torch.float64 else torch.float32
    x_RC = x_TNC.movedim(2, -1).flatten(0, -2).to(dtype)
    return BatchStats(*_BatchStats.apply(x_RC, sync))  # type: ignore[no-untyped-call]
