"""Event-driven convolution on a CPU: zeros are skipped, and time follows the spikes. The same function as `conv2d`,
forward and backward.

An input becomes its active lists once (`ActiveLists`: per pixel the channels that are not zero), and these serve every
convolution that reads it and, in training, its weight gradient. The input's own gradient is dense and stays torch's.
float32 in channels_last memory; for other dtypes and devices `why_not` says what is in the way, and the caller takes
the dense convolution.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops import library as native
from mpd_agl.ops.library import Geometry, Lists

BLOCK = 128
MOST_KERNEL = 5


@dataclass(frozen=True)
class ActiveLists:
    """The active channels of each row (pixel): indices in slots, blocks of 128 channels apart, and their values.

    Channels that are 1 come first, ascending, then the others, ascending; `ones` and `value` are None where all are 1.
    An odd list ends with an index to a row of zeros.
    """

    channels: int
    index: Tensor
    """(rows, blocks, slot), uint8."""
    count: Tensor
    """(rows, blocks), uint8."""
    ones: Tensor | None
    """(rows, blocks), uint8: the indices before this even place stand for values of 1."""
    value: Tensor | None
    """(rows, blocks, slot), float32, from `ones` on."""

    @property
    def rate(self) -> float:
        """Share of values that are not zero."""
        return float(self.count.sum(dtype=torch.int64)) / (self.count.shape[0] * self.channels)

    def check(self, rows: int, channels: int) -> None:
        """Refuse lists whose slots are not those of an input of so many rows and channels."""
        blocks, cap = _slots(channels)
        wanted = {
            "index": (rows, blocks, cap),
            "count": (rows, blocks),
            "ones": (rows, blocks),
            "value": (rows, blocks, cap),
        }
        for name, shape in wanted.items():
            a: Tensor | None = getattr(self, name)
            if a is None and name in ("ones", "value") and self.ones is self.value:
                continue
            dtype = torch.float32 if name == "value" else torch.uint8
            if a is None or a.shape != shape or a.dtype != dtype or a.device.type != "cpu" or not a.is_contiguous():
                got = "none" if a is None else f"{tuple(a.shape)}, {a.dtype} on {a.device}"
                raise InputError(
                    f"active lists of {rows} rows of {channels} channels have a contiguous {dtype} {name} of shape "
                    f"{shape}, got {got}. Leave them out, or take scan(x)."
                )

    def struct(self) -> Lists:
        """For the native calls; valid while this object lives."""
        rows, blocks, cap = self.index.shape
        ones, value = (None if a is None else a.data_ptr() for a in (self.ones, self.value))
        return Lists(rows, self.channels, blocks, cap, self.index.data_ptr(), self.count.data_ptr(), ones, value)


def floats(*shape: int) -> Tensor:
    """Room for the kernels' results: float32 on the CPU, whatever torch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _slots(channels: int) -> tuple[int, int]:
    """Blocks of channels, and the places in each block's slot."""
    return -(-channels // BLOCK), BLOCK if channels >= BLOCK else -(-channels // 8) * 8


def _empty_lists(rows: int, channels: int, values: bool) -> ActiveLists:
    """Slots to be filled."""
    blocks, cap = _slots(channels)
    index, count = (
        torch.empty(*shape, dtype=torch.uint8, device="cpu") for shape in ((rows, blocks, cap), (rows, blocks))
    )
    ones, value = (torch.empty_like(count), floats(rows, blocks, cap)) if values else (None, None)
    return ActiveLists(channels, index, count, ones, value)


def why_not(x: Tensor) -> str:
    """Why there is no event-driven convolution for this input; "" where there is."""
    if x.device.type != "cpu":
        return f"it runs on a CPU, and the input is on {x.device.type}"
    if x.dtype != torch.float32:
        return f"it computes in float32, and the input is {x.dtype}"
    return str(_missing())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _missing() -> str:
    return native.load()[1]


def rows_of(x: Tensor) -> Tensor:
    """(N, C, H, W) or (N, F) as [rows][channels]: a view of channels_last memory, a copy of any other."""
    return x.detach().permute(0, 2, 3, 1).contiguous().flatten(0, 2) if x.dim() == 4 else x.detach().contiguous()


def scan(x: Tensor) -> ActiveLists:
    """The lists of (N, C, H, W) or (N, F). Their values are kept only where not all of them are 1.

    >>> scan(torch.tensor([[0.0, 1.0, 0.0, 1.0]])).index[0, 0, :2].tolist()
    [1, 3]
    """
    why = why_not(x) or ("" if x.dim() in (2, 4) and x.numel() else f"it is empty or of another rank, {tuple(x.shape)}")
    if why:
        raise InputError(f"no active lists for this input: {why}. Use conv_impl='dense'.")
    x_RC = rows_of(x)
    library, rows, channels = native.library(), *x_RC.shape
    lists = _empty_lists(rows, channels, values=False)
    if library.mpd_agl_active_scan(x_RC.data_ptr(), ctypes.byref(lists.struct())):
        lists = _empty_lists(rows, channels, values=True)
        library.mpd_agl_active_scan(x_RC.data_ptr(), ctypes.byref(lists.struct()))
    return lists


def _geometry(shape: torch.Size, weight: Tensor, stride: int, padding: int) -> Geometry:
    C_out, K = weight.shape[0], weight.shape[2] if weight.dim() == 4 else 1
    N, C_in, H, W = shape if len(shape) == 4 else (shape[0], shape[1], 1, 1)
    if K == 1 and stride == 1 and padding == 0:  # pixels do not mix: one long row
        N, H, W = 1, 1, N * H * W
    OH, OW = ((size + 2 * padding - K) // stride + 1 for size in (H, W))
    return Geometry(N, H, W, C_in, OH, OW, C_out, K, stride, padding)


def _out_shape(shape: torch.Size, weight: Tensor, stride: int, padding: int) -> tuple[int, ...]:
    """Of the result in memory order: channels last."""
    if len(shape) == 2:
        return shape[0], weight.shape[0]
    OH, OW = ((size + 2 * padding - weight.shape[2]) // stride + 1 for size in shape[2:])
    return shape[0], OH, OW, weight.shape[0]


def check(
    shape: torch.Size,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    lists: ActiveLists | None = None,
) -> None:
    """What the kernels take for granted, for an input of that shape."""
    if weight.dim() not in (2, 4) or len(shape) != weight.dim():
        raise InputError(
            "the event-driven convolution takes (N, C, H, W) with a weight (C_out, C, K, K), "
            f"or (N, F) with (F_out, F), got an input {tuple(shape)} and a weight {tuple(weight.shape)}."
        )
    for name, a in (("weight", weight), ("bias", bias)):
        if a is not None and (a.dtype != torch.float32 or a.device.type != "cpu"):
            raise InputError(
                f"the event-driven convolution takes a float32 {name} on the CPU, got {a.dtype} on {a.device}. "
                "Use conv_impl='dense'."
            )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(
            f"a weight {tuple(weight.shape)} takes a bias {tuple(weight.shape[:1])}, got {tuple(bias.shape)}."
        )
    if shape[1] != weight.shape[1]:
        raise InputError(f"a weight {tuple(weight.shape)} takes {weight.shape[1]} channels, got {tuple(shape)}.")
    if weight.dim() == 4 and (weight.shape[2] != weight.shape[3] or weight.shape[2] > MOST_KERNEL):
        raise InputError(
            f"the event-driven convolution takes square kernels up to {MOST_KERNEL} x {MOST_KERNEL}, "
            f"got {tuple(weight.shape[2:])}."
        )
    if stride < 1 or padding < 0 or min(_out_shape(shape, weight, stride, padding)) < 1:
        raise InputError(
            f"a kernel {tuple(weight.shape[2:])} with stride {stride} and padding {padding} does not fit an input "
            f"{tuple(shape)}."
        )
    if lists is not None:
        rows = shape.numel() // shape[1]
        if (lists.count.shape[0], lists.channels) != (rows, shape[1]):
            raise InputError(
                f"lists of {lists.count.shape[0]} rows of {lists.channels} channels are not those of an input "
                f"{tuple(shape)}. Leave them out, or take scan(x)."
            )
        lists.check(rows, shape[1])


def channels_first(y: Tensor) -> Tensor:
    """A result in memory order as torch's (N, C, H, W); (N, F) as it is."""
    return y.permute(0, 3, 1, 2) if y.dim() == 4 else y


def _weight_geometry(weight: Tensor) -> Geometry:
    K = weight.shape[2] if weight.dim() == 4 else 1
    return Geometry(1, K, K, weight.shape[1], 1, 1, weight.shape[0], K, 1, 0)


def pack(weight: Tensor) -> Tensor:
    """A weight in the order in which the forward kernel reads it; keep it where the weight does not change."""
    check(torch.Size((1, *weight.shape[1:])), weight, None, 1, 0)
    w = weight.detach().permute(0, 2, 3, 1).contiguous() if weight.dim() == 4 else weight.detach().contiguous()
    g, library = _weight_geometry(weight), native.library()
    packed = floats(library.mpd_agl_active_packed_size(ctypes.byref(g)))
    library.mpd_agl_active_pack(ctypes.byref(g), w.data_ptr(), packed.data_ptr())
    return packed


def forward(
    lists: ActiveLists,
    shape: torch.Size,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    packed: Tensor | None = None,
) -> Tensor:
    """The convolution (or linear layer) of the lists of an input of that shape."""
    check(shape, weight, bias, stride, padding, lists)
    packed = pack(weight) if packed is None else packed
    size = native.library().mpd_agl_active_packed_size(ctypes.byref(_weight_geometry(weight)))
    if (
        packed.shape != (size,)
        or packed.dtype != torch.float32
        or packed.device.type != "cpu"
        or packed.stride() != (1,)
    ):
        raise InputError(
            f"a packed weight {tuple(weight.shape)} holds {size} contiguous float32 values, got {tuple(packed.shape)}, "
            f"{packed.dtype} on {packed.device}. Take pack(weight), at the SIMD level in use."
        )
    y = floats(*_out_shape(shape, weight, stride, padding))
    g = _geometry(shape, weight, stride, padding)
    bias = None if bias is None else bias.detach().contiguous()
    bias_at = None if bias is None else bias.data_ptr()
    native.done(
        native.library().mpd_agl_active_forward(
            ctypes.byref(g), ctypes.byref(lists.struct()), packed.data_ptr(), bias_at, y.data_ptr()
        )
    )
    return channels_first(y)


def weight_grad(
    lists: ActiveLists, shape: torch.Size, weight: Tensor, grad: Tensor, stride: int, padding: int
) -> Tensor:
    """dL/dweight, in the memory order of a channels_last weight."""
    check(shape, weight, None, stride, padding, lists)
    N, *space, C = _out_shape(shape, weight, stride, padding)
    if grad.shape != (N, C, *space) or grad.dtype != torch.float32 or grad.device.type != "cpu":
        raise InputError(
            f"the event-driven weight gradient takes a float32 gradient {(N, C, *space)} on the CPU, "
            f"got {tuple(grad.shape)}, {grad.dtype} on {grad.device}."
        )
    g_rows = rows_of(grad)
    C_out, C_in = weight.shape[:2]
    dw = floats(C_out, *weight.shape[2:], C_in)
    g = _geometry(shape, weight, stride, padding)
    native.done(
        native.library().mpd_agl_active_weight_grad(
            ctypes.byref(g), ctypes.byref(lists.struct()), g_rows.data_ptr(), dw.data_ptr()
        )
    )
    return channels_first(dw)


def input_grad(shape: torch.Size, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    """dL/dx: dense, torch's own."""
    dx: Tensor
    if len(shape) == 2:
        return grad @ weight
    # torch 2.13 writes outside its buffers for few channels: see models.base.SubsampledConv.
    if weight.shape[2] == 1 and stride > 1:
        N, C, H, W = shape
        dx = grad.new_zeros((N, H + 2 * padding, W + 2 * padding, C)).permute(0, 3, 1, 2)
        dx[:, :, ::stride, ::stride] = torch.conv2d(grad, weight.transpose(0, 1))
        return dx[:, :, padding : padding + H, padding : padding + W]
    stand_in = grad.new_empty(1).expand(shape)  # only its shape counts
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        grad, stand_in, weight, None, (stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), 1, (True, False, False)
    )
    return found[0]


# As operators, for graphs that torch.compile traces; they scan by themselves.


@torch.library.custom_op("mpd_agl::event_conv", mutates_args=())
def conv_op(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """See `convolution.conv`."""
    return forward(scan(x), x.shape, weight, bias, stride, padding)


@torch.library.custom_op("mpd_agl::event_weight_grad", mutates_args=())
def weight_grad_op(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    """See `weight_grad`."""
    return weight_grad(scan(x), x.shape, weight, grad, stride, padding)


@conv_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    return channels_first(x.new_empty(_out_shape(x.shape, weight, stride, padding)))


@weight_grad_op.register_fake
def _(x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    return channels_first(weight.new_empty((weight.shape[0], *weight.shape[2:], weight.shape[1])))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight)


def _grads(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx = input_grad(x.shape, weight, grad, ctx.stride, ctx.padding) if ctx.needs_input_grad[0] else None
    dw = weight_grad_op(x, weight, grad, ctx.stride, ctx.padding) if ctx.needs_input_grad[1] else None
    db = grad.sum([d for d in range(grad.dim()) if d != 1]) if ctx.needs_input_grad[2] else None
    return dx, dw, db, None, None


conv_op.register_autograd(_grads, setup_context=_save)
