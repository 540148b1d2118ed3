"""A convolution or a linear layer whose passes are computed dense, in Winograd's form or event-driven (`rule`).

All ways compute the same function; they differ in time and in the order of additions. Other than dense is float32 on
a CPU with the native kernels. While torch.compile or torch.export traces, and under autocast, everything is dense.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops import library as lib
from mpd_agl.ops.conv import event, rule, winograd
from mpd_agl.ops.conv.event import ActiveLists
from mpd_agl.ops.conv.layout import out_size
from mpd_agl.ops.conv.rule import DENSE, Sizes, Ways

CONV_IMPLS = ("auto", "dense", "event")
"""By the rule; torch's own; event-driven wherever the kernels can."""


def checked_impl(impl: str) -> str:
    """One of `CONV_IMPLS`."""
    if impl not in CONV_IMPLS:
        raise unknown_name("conv_impl", impl, CONV_IMPLS)
    return impl


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0, impl: str = "auto"
) -> Tensor:
    """`conv2d` of (N, C, H, W), or `linear` of (N, F).

    >>> x, w = (torch.rand(2, 8, 5, 5) < 0.1).float(), torch.randn(4, 8, 3, 3)
    >>> torch.allclose(convolve(x, w, padding=1, impl="event"), torch.conv2d(x, w, padding=1), atol=1e-5)
    True
    """
    checked_impl(impl)
    if torch.compiler.is_exporting():
        return dense(x, weight, bias, stride, padding)
    sizes = None if torch.compiler.is_compiling() else _sizes(x, weight, bias, stride, padding)
    if stride > 1 and weight.shape[2:] == (1, 1) and x.device.type == "cpu":
        x, stride, padding = subsampled(x, stride, padding), 1, 0
    if sizes is None or impl == "dense" or not _kernels_take(x, weight, bias, impl):
        return dense(x, weight, bias, stride, padding)
    if impl == "event":
        return compute(x, weight, bias, stride, padding, rule.event_everywhere(sizes))
    grad = torch.is_grad_enabled() and any(a is not None and a.requires_grad for a in (x, weight, bias))
    return compute(x, weight, bias, stride, padding, rule.choose(sizes, simd=lib.level(), dtype=x.dtype, grad=grad))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, impl: str = "auto") -> Tensor:
    """`linear` of (N, F): a 1x1 convolution of one pixel."""
    return convolve(x, weight, bias, impl=impl)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """torch's own."""
    return F.linear(x, weight, bias) if weight.dim() == 2 else F.conv2d(x, weight, bias, stride, padding)


def subsampled(x: Tensor, stride: int, padding: int) -> Tensor:
    """The pixels that a strided 1x1 convolution reads, in channels_last memory.

    A convolution of them with stride 1 has the same numbers, and its backward pass is faster. That of the strided one
    writes outside its buffers in torch 2.13 on a CPU, with under 8 input channels in channels_last memory (seen on
    AVX2: crashes in 12 of 12 shapes).
    """
    x = F.pad(x, (padding,) * 4) if padding else x
    return x.permute(0, 2, 3, 1)[:, ::stride, ::stride].contiguous().permute(0, 3, 1, 2)


def compute(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, ways: Ways) -> Tensor:
    """`convolve` in these ways, which the kernels must know: see `rule.choose`."""
    lists = None
    if ways.event_below and (lists := event.scan(x, ways.event_below)) is not None:
        ways = Ways("event", ways.input_grad, "event")
    # Skipping a zero would hide that the weight it meets is NaN or infinite.
    if "event" in ways and not math.isfinite(float(weight.detach().sum())):
        ways = DENSE
    if ways._replace(event_below=0.0) == DENSE:
        return dense(x, weight, bias, stride, padding)
    y: Tensor = _Convolution.apply(x, weight, bias, stride, padding, ways, lists)  # type: ignore[no-untyped-call]
    return y


class _Convolution(torch.autograd.Function):
    """Where the weight gradient is event-driven it keeps the lists and not the input.

    The lists are a byte for each float of the input where all values are 1, five bytes where values are kept; channels
    are counted up to a multiple of 8, beyond 128 to one of 128. They are saved tensors: hooks and recomputation see
    them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: int,
        padding: int,
        ways: Ways,
        lists: ActiveLists | None,
    ) -> Tensor:
        if lists is None and "event" in ways:
            lists = event.scan(x)
        kept = [x] if ctx.needs_input_grad[1] else []
        if ways.weight_grad == "event" and ctx.needs_input_grad[1]:
            assert lists is not None
            kept = lists.tensors
        ctx.save_for_backward(weight, *kept)
        ctx.geometry = x.shape, stride, padding, ways
        if ways.forward == "event":
            assert lists is not None
            return event.forward(lists, x.shape, weight, bias, stride, padding)
        if ways.forward == "winograd":
            return winograd.forward(x, weight, bias, padding)
        return dense(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *kept = ctx.saved_tensors
        shape, stride, padding, ways = ctx.geometry
        wanted = ctx.needs_input_grad[:3]
        skips = ways.weight_grad == "event"
        # Where the input is not kept, its shape and memory order are all that the input gradient needs.
        x = kept[0] if kept and not skips else _blank(shape, grad)
        if torch.is_grad_enabled():
            if skips and wanted[1]:
                raise InputError(
                    "gradients of gradients (create_graph=True) are not computed where zeros were skipped. "
                    "Use conv_impl='dense'."
                )
            return *dense_grads(x, weight, grad, stride, padding, wanted), *[None] * 4
        dx = dw = None
        if ways.input_grad == "winograd" and wanted[0]:
            dx = winograd.input_grad(weight, grad, padding)
        if skips and wanted[1]:
            dw = event.weight_grad(ActiveLists.of(kept), shape, weight, grad, stride, padding)
        elif ways.weight_grad == "winograd" and wanted[1]:
            dw = winograd.weight_grad(x, weight, grad, padding)
        left = wanted[0] and dx is None, wanted[1] and dw is None, wanted[2]
        dense_dx, dense_dw, db = dense_grads(x, weight, grad, stride, padding, left)
        return dense_dx if dx is None else dx, dense_dw if dw is None else dw, db, *[None] * 4


def _blank(shape: torch.Size, like: Tensor) -> Tensor:
    last = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=last)


def dense_grads(
    x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, ...]:
    """dL/dx, dL/dweight and dL/dbias, those that are wanted; differentiable."""
    db = grad.sum([d for d in range(grad.dim()) if d != 1]) if wanted[2] else None
    if weight.dim() == 2:
        return grad @ weight if wanted[0] else None, grad.t() @ x if wanted[1] else None, db
    if not any(wanted[:2]):
        return None, None, db
    dx, dw, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, (stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), 1, (*wanted[:2], False)
    )
    return dx, dw, db


def _kernels_take(x: Tensor, weight: Tensor, bias: Tensor | None, impl: str) -> bool:
    """Whether the native kernels can compute on these tensors."""
    if why := lib.load()[1]:
        if impl == "event":
            raise InputError(f"conv_impl 'event' cannot run: {why}, or use conv_impl='dense'.")
        return False
    if torch.is_autocast_enabled("cpu") or not x.numel():
        return False
    square = weight.dim() == 2 or weight.shape[2] == weight.shape[3]
    return square and all(a is None or (a.dtype == torch.float32 and a.device.type == "cpu") for a in (x, weight, bias))


def _sizes(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Sizes:
    """What the rule reads, or a sentence for what is no convolution."""
    if weight.dim() not in (2, 4) or x.dim() != weight.dim() or x.shape[1] != weight.shape[1]:
        raise InputError(
            "a convolution takes (N, C, H, W) with a weight (C_out, C, K, K), or (N, F) with (F_out, F), "
            f"got an input {tuple(x.shape)} and a weight {tuple(weight.shape)}."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(
            f"a weight {tuple(weight.shape)} takes a bias {tuple(weight.shape[:1])}, got {tuple(bias.shape)}."
        )
    kernel = max(weight.shape[2:], default=1)
    out = [1, 1]
    if stride >= 1 and padding >= 0 and weight.dim() == 4:
        out = [out_size(size, k, stride, padding) for size, k in zip(x.shape[2:], weight.shape[2:], strict=True)]
    if stride < 1 or padding < 0 or min(out) < 1:
        raise InputError(
            f"a kernel {tuple(weight.shape[2:])} with stride {stride} and padding {padding} does not fit an input "
            f"{tuple(x.shape)}."
        )
    return Sizes(kernel, stride, padding, weight.shape[1], weight.shape[0], *out)
