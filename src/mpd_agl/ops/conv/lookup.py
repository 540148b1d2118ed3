"""Convolutions of small whole numbers by looking sums up (lookup.cpp): spikes, SEW-ADD sums, quarters behind a pool.

Four inputs of one bit have 16 patterns, so the sum of their four weights is one of 16: a table holds them all, and one
addition stands for four multiply-adds, however many inputs are active. Numbers of more bits take a pass per bit. The
weight gradient does the same with four pixels of the output's gradient. An input becomes its bits once (`Bits`), a
32nd of its floats per bit; they serve the forward pass and, in training, the weight gradient. float32 on a CPU,
channels in multiples of 16; `why_not` says what is in the way elsewhere.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops import library as native
from mpd_agl.ops.conv.active import channels_first, check, floats, rows_of
from mpd_agl.ops.library import Geometry

CHANNELS = 16
MOST_PLANES = 4
MOST_WEIGHTS = 256 * 256
"""Channel pairs up to which tables of sums, four times the weight, are worth their memory."""
SCALES = (1.0, 0.25)
"""Inputs are whole numbers times one of these: spikes and their sums; means over 2x2 of them."""


@dataclass(frozen=True)
class Bits:
    """An input's bits for one padding: (planes, values), a channel per bit; x is `scale` times the number they give."""

    planes: Tensor
    """(planes, size of a plane), int16 that are read as uint16."""
    scale: float


def why_not(weight: Tensor, stride: int) -> str:
    """Why this layer's sums cannot be looked up; "" where they can."""
    if weight.dim() != 4 or tuple(weight.shape[2:]) not in ((1, 1), (3, 3)) or stride not in (1, 2):
        got = f"the weight is {tuple(weight.shape)} with stride {stride}"
        return f"it takes 1x1 and 3x3 kernels of stride 1 or 2, and {got}"
    if weight.shape[0] % CHANNELS or weight.shape[1] % CHANNELS:
        return f"it takes channels in multiples of {CHANNELS}, and the weight is {tuple(weight.shape)}"
    if weight.shape[0] * weight.shape[1] > MOST_WEIGHTS:
        return f"it takes up to {MOST_WEIGHTS} pairs of channels, and the weight is {tuple(weight.shape)}"
    return ""


def _geometry(shape: torch.Size, weight: Tensor, stride: int, padding: int) -> Geometry:
    N, C_in, H, W = shape
    C_out, K = weight.shape[0], weight.shape[2]
    OH, OW = ((size + 2 * padding - K) // stride + 1 for size in (H, W))
    return Geometry(N, H, W, C_in, OH, OW, C_out, K, stride, padding)


def _check(shape: torch.Size, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> None:
    if why := why_not(weight, stride):
        raise InputError(f"this layer's sums cannot be looked up: {why}. Use dense or event.")
    check(shape, weight, bias, stride, padding)


def scan(x: Tensor, weight: Tensor, stride: int, padding: int) -> Bits | None:
    """The bits of (N, C, H, W) for this layer; None where x holds other numbers.

    >>> x = torch.ones(1, 16, 3, 3)
    >>> found = scan(x, torch.zeros(16, 16, 3, 3), 1, 1)
    >>> (found.planes.shape[0], found.scale), scan(x / 3, torch.zeros(16, 16, 3, 3), 1, 1)
    ((1, 1.0), None)
    """
    _check(x.shape, weight, None, stride, padding)
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise InputError(f"bits are made of float32 on the CPU, got {x.dtype} on {x.device}. Use conv_impl='dense'.")
    g, library, rows = _geometry(x.shape, weight, stride, padding), native.library(), rows_of(x)
    size = library.mpd_agl_lookup_plane_size(ctypes.byref(g))
    bits = torch.empty(MOST_PLANES, size, dtype=torch.int16, device="cpu")
    for scale in SCALES:
        found = library.mpd_agl_lookup_scan(ctypes.byref(g), rows.data_ptr(), 1 / scale, bits.data_ptr())
        if found >= 0:
            planes = max(1, found.bit_length())
            return Bits(bits if planes == MOST_PLANES else bits[:planes].clone(), scale)
    return None


def _bits_at(bits: Bits, g: Geometry) -> tuple[int, int, float]:
    """What the kernels take; bits of another layer or shape are refused."""
    size, planes = native.library().mpd_agl_lookup_plane_size(ctypes.byref(g)), bits.planes
    if planes.dim() != 2 or planes.shape[1] != size or planes.dtype != torch.int16 or not planes.is_contiguous():
        raise InputError(
            f"bits of this layer's input have the shape (planes, {size}), got {tuple(planes.shape)}. Take scan(x)."
        )
    return planes.data_ptr(), planes.shape[0], bits.scale


def pack(weight: Tensor) -> Tensor:
    """The sums of each four input channels; keep them where the weight does not change."""
    C_out, C_in, K = weight.shape[:3]
    _check(torch.Size((1, C_in, K, K)), weight, None, 1, 0)
    g, library = Geometry(1, K, K, C_in, 1, 1, C_out, K, 1, 0), native.library()
    packed = floats(library.mpd_agl_lookup_packed_size(ctypes.byref(g)))
    w = weight.detach().permute(1, 2, 3, 0).contiguous()
    library.mpd_agl_lookup_pack(ctypes.byref(g), w.data_ptr(), packed.data_ptr())
    return packed


def forward(
    bits: Bits,
    shape: torch.Size,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    packed: Tensor | None = None,
) -> Tensor:
    """`conv2d` of the bits of an input of that shape."""
    _check(shape, weight, bias, stride, padding)
    g, library = _geometry(shape, weight, stride, padding), native.library()
    packed = pack(weight) if packed is None else packed
    size = library.mpd_agl_lookup_packed_size(ctypes.byref(g))
    if packed.shape != (size,) or packed.dtype != torch.float32 or packed.stride() != (1,):
        raise InputError(f"the sums of this weight are {size} floats, got {tuple(packed.shape)}. Take pack(weight).")
    bias = None if bias is None else bias.detach().contiguous()
    y = floats(g.N, g.OH, g.OW, g.C_out)
    at = None if bias is None else bias.data_ptr()
    native.done(
        library.mpd_agl_lookup_forward(ctypes.byref(g), *_bits_at(bits, g), packed.data_ptr(), at, y.data_ptr())
    )
    return channels_first(y)


def weight_grad(bits: Bits, shape: torch.Size, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    """dL/dweight, in the memory order of a channels_last weight."""
    _check(shape, weight, None, stride, padding)
    g = _geometry(shape, weight, stride, padding)
    if grad.shape != (g.N, g.C_out, g.OH, g.OW) or grad.dtype != torch.float32 or grad.device.type != "cpu":
        raise InputError(
            f"the weight gradient takes a float32 gradient {(g.N, g.C_out, g.OH, g.OW)} on the CPU, "
            f"got {tuple(grad.shape)}, {grad.dtype} on {grad.device}."
        )
    rows, dw = rows_of(grad), floats(g.C_out, g.K, g.K, g.C_in)
    native.done(
        native.library().mpd_agl_lookup_weight_grad(ctypes.byref(g), *_bits_at(bits, g), rows.data_ptr(), dw.data_ptr())
    )
    return channels_first(dw)
