"""Blocks that bound the size of the gradient that they pass down (`core.bounded_size`), as autograd sees them."""

from collections.abc import Callable

import torch
from torch import Tensor

from mpd_agl.core.mpd import bound_factor
from mpd_agl.ops import Sync


def bounded_gradient(run: Callable[[Tensor], Tensor], s_in: Tensor, max_growth: float, sync: Sync) -> Tensor:
    """`run(s_in)`, whose gradient by s_in is made smaller where its size has grown by more than `max_growth`.

    Processes that share the batch share the gradient's size.
    """
    bound = _Bound(max_growth, sync)
    bounded: Tensor = bound.end(run(bound.begin(s_in)))
    return bounded


class _Bound:
    """The two ends of one pass. Both stay outside of what `torch.compile` traces, which would drop their hooks."""

    def __init__(self, max_growth: float, sync: Sync) -> None:
        self.max_growth, self.sync = max_growth, sync
        self.moments: list[Tensor] = []  # count, sum and sum of squares of what went in and what came out
        self.received: Tensor | None = None  # the squared norm of the gradient of what came out

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(self, s_in: Tensor) -> Tensor:
        """What goes in."""
        self._record(s_in)
        own = s_in.view_as(s_in)  # others may read s_in, and their gradients are not this block's
        own.register_hook(self._pass_down)  # type: ignore[no-untyped-call]
        return own

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def end(self, s_out: Tensor) -> Tensor:
        """What comes out."""
        self._record(s_out)
        if s_out.grad_fn is not None:  # on the node, not on the tensor, which may be changed in place later on
            place = s_out.output_nr
            s_out.grad_fn.register_prehook(lambda grads: self._receive(grads[place]))
        return s_out

    @torch.no_grad()
    def _record(self, s: Tensor) -> None:
        total = s.sum(dtype=torch.promote_types(s.dtype, torch.float32)).double()
        self.moments.append(torch.stack([torch.full_like(total, s.numel()), total, _squared(s)]))

    def _receive(self, g_out: Tensor | None) -> None:
        self.received = None if g_out is None else _squared(g_out)

    def _pass_down(self, g_in: Tensor) -> Tensor:
        if self.received is None:
            return g_in
        sums = self.sync.sum(torch.cat([*self.moments, torch.stack([self.received, _squared(g_in)])]))
        n_in, sum_in, square_in, n_out, sum_out, square_out, received, passed = sums.unbind(0)
        var_in = (square_in - sum_in.square() / n_in) / (n_in - 1).clamp_min(1)
        var_out = (square_out - sum_out.square() / n_out) / (n_out - 1).clamp_min(1)
        std_in, std_out = var_in.clamp_min(0).sqrt(), var_out.clamp_min(0).sqrt()
        factor = bound_factor(passed.sqrt(), received.sqrt(), std_in, std_out, self.max_growth)
        return g_in * factor.to(g_in.dtype)


def _squared(x: Tensor) -> Tensor:
    """The squared norm in float64, where the square of a small norm is not 0."""
    squared: Tensor = torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32)).double().square()
    return squared
