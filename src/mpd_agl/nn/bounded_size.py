"""Blocks that bound the size of the gradient that they pass down (`core.bounded_size`), as autograd sees them."""

from typing import Any

import torch
from torch import Tensor

from mpd_agl.core.mpd import CHAIN_GROWTH
from mpd_agl.kernels import Replicas


class BoundedSize:
    """The two ends of one pass through a block: `begin` on what goes in, `end` on what comes out.

    `layers` is the length of the chain that the block lies on. `replicas`: processes that share the batch share the
    gradient's size too.
    """

    def __init__(self, layers: float, replicas: Replicas | None = None) -> None:
        self.growth, self.replicas = CHAIN_GROWTH ** (1 / layers), replicas
        self.received: Tensor | None = None  # the squared norm of the gradient of what came out
        self.moments: list[Tensor] = []  # count, sum and sum of squares of what went in and what came out

    def begin(self, s_in: Tensor) -> Tensor:
        """What goes in; on the way back, its gradient is made smaller if it has grown too much."""
        self._look(s_in)
        out: Tensor = _PassDown.apply(s_in, self)  # type: ignore[no-untyped-call]
        return out

    def end(self, s_out: Tensor) -> Tensor:
        """What comes out; on the way back, the size of its gradient is noted."""
        self._look(s_out)
        out: Tensor = _Receive.apply(s_out, self)  # type: ignore[no-untyped-call]
        return out

    @torch.no_grad()
    def _look(self, s: Tensor) -> None:
        total = s.sum(dtype=torch.promote_types(s.dtype, torch.float32)).double()
        self.moments.append(torch.stack([torch.full_like(total, s.numel()), total, _squared(s)]))

    def factor(self, passed: Tensor) -> Tensor:
        """What a gradient of the squared norm `passed` is multiplied by."""
        assert self.received is not None
        sums = torch.cat([*self.moments, torch.stack([self.received, passed])])
        if self.replicas is not None:
            sums = self.replicas.sum(sums)
        n_in, sum_in, square_in, n_out, sum_out, square_out, received, passed = sums.unbind(0)
        var_in = (square_in - sum_in.square() / n_in) / (n_in - 1).clamp_min(1)
        var_out = (square_out - sum_out.square() / n_out) / (n_out - 1).clamp_min(1)
        most = (received * var_out / (passed.clamp_min(1e-60) * var_in.clamp_min(1e-12))).sqrt()
        return torch.where(passed > 0, (self.growth * most).clamp_max(1), 1.0)


def _squared(x: Tensor) -> Tensor:
    """The squared norm in float64, where the square of a small norm is not 0."""
    squared: Tensor = torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32)).double().square()
    return squared


class _PassDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s_in: Tensor, bound: BoundedSize) -> Tensor:
        ctx.bound = bound
        return s_in.view_as(s_in)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        g = grads[0]
        return g * ctx.bound.factor(_squared(g)).to(g.dtype), None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s_out: Tensor, bound: BoundedSize) -> Tensor:
        ctx.bound = bound
        return s_out.view_as(s_out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.bound.received = _squared(grads[0])
        return grads[0], None
