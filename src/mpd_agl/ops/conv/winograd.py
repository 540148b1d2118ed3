"""3x3 convolutions of stride 1 in Winograd's form F(4x4, 3x3): 36 multiplications where the direct sum has 144
(winograd.cpp).

With d a tile of 6x6 inputs, g the kernel and y the tile's 4x4 outputs, y = A^T [(G g G^T) * (B^T d B)] A. Its points
are 0, 3/4, -3/4, 3/2, -3/2 and infinity: float32 errors are within 5e-6 of the largest value. The input gradient is
the same function of the kernel turned round, the weight gradient its transpose. float32 in channels_last memory on a
CPU, channels in multiples of 16; `why_not` says what is in the way elsewhere.
"""

import ctypes

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops import library as native
from mpd_agl.ops.conv.active import channels_first, floats, rows_of
from mpd_agl.ops.library import Geometry

CHANNELS = 16
MOST_WEIGHTS = 256 * 256
"""Channel pairs up to which there is a weight gradient: it keeps sums for all 36 points, which with a block of
tiles are 14 MB at 256 x 256."""


def why_not(weight: Tensor, stride: int, padding: int) -> str:
    """Why this layer has no such form; "" where it has."""
    if weight.dim() != 4 or weight.shape[2:] != (3, 3) or stride != 1 or not 0 <= padding <= 2:
        got = f"the weight is {tuple(weight.shape)} with stride {stride} and padding {padding}"
        return f"it takes 3x3 kernels of stride 1 with a padding up to 2, and {got}"
    if weight.shape[0] % CHANNELS or weight.shape[1] % CHANNELS:
        return f"it takes channels in multiples of {CHANNELS}, and the weight is {tuple(weight.shape)}"
    return ""


def _geometry(shape: torch.Size | tuple[int, ...], channels: int, padding: int) -> Geometry:
    N, C_in, H, W = shape
    return Geometry(N, H, W, C_in, H + 2 * padding - 2, W + 2 * padding - 2, channels, 3, 1, padding)


def _check(weight: Tensor, padding: int, **tensors: tuple[Tensor, tuple[int, ...]]) -> None:
    """What the kernels take for granted: the layer, dtypes, and the shapes of tensors beside those wanted."""
    if why := why_not(weight, 1, padding):
        raise InputError(f"Winograd's form cannot compute this layer: {why}. Use dense or event.")
    for name, (tensor, wanted) in {"weight": (weight, tuple(weight.shape)), **tensors}.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape != wanted or not tensor.numel():
            got = f"{tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
            raise InputError(
                f"Winograd's form takes a float32 {name} {wanted} on the CPU, got {got}. Use torch.conv2d."
            )
        if name in ("x", "gradient") and (
            tensor.dim() != 4 or min(_out(tensor, padding if name == "x" else 2 - padding)) < 1
        ):
            raise InputError(
                f"Winograd's form takes {name} as (N, C, H, W) that a 3x3 kernel with padding {padding} fits, "
                f"got {tuple(tensor.shape)}."
            )


def _out(x: Tensor, padding: int) -> list[int]:
    return [size + 2 * padding - 2 for size in x.shape[2:]]


def pack(weight: Tensor, *, turned: bool = False) -> Tensor:
    """The transform of a weight (C_out, C_in, 3, 3) for `forward`; turned, channels exchanged, for `input_grad`."""
    _check(weight, 1)
    w = weight.detach().permute((0, 2, 3, 1) if turned else (1, 2, 3, 0)).contiguous()
    g = _geometry((1, w.shape[0], 3, 3), w.shape[3], 1)
    library = native.library()
    packed = floats(library.mpd_agl_winograd_packed_size(ctypes.byref(g)))
    library.mpd_agl_winograd_pack(ctypes.byref(g), w.data_ptr(), int(turned), packed.data_ptr())
    return packed


def _convolve(x: Tensor, channels: int, packed: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    g = _geometry(x.shape, channels, padding)
    rows, y = rows_of(x), floats(g.N, g.OH, g.OW, channels)
    bias = None if bias is None else bias.detach().contiguous()
    bias_at = None if bias is None else bias.data_ptr()
    native.done(
        native.library().mpd_agl_winograd_convolve(
            ctypes.byref(g), rows.data_ptr(), packed.data_ptr(), bias_at, y.data_ptr()
        )
    )
    return channels_first(y)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, packed: Tensor | None = None) -> Tensor:
    """`conv2d(x, weight, bias, padding=padding)`.

    >>> x, w = torch.randn(2, 16, 5, 5), torch.randn(16, 16, 3, 3)
    >>> torch.allclose(forward(x, w, None, 1), torch.conv2d(x, w, padding=1), atol=1e-4)
    True
    """
    packed = pack(weight) if packed is None else packed.contiguous()
    size = native.library().mpd_agl_winograd_packed_size(
        ctypes.byref(_geometry((1, weight.shape[1], 3, 3), weight.shape[0], 1))
    )
    with_bias = {} if bias is None else {"bias": (bias, (weight.shape[0],))}
    _check(weight, padding, x=(x, (x.shape[0], weight.shape[1], *x.shape[2:])), packed=(packed, (size,)), **with_bias)
    return _convolve(x, weight.shape[0], packed, bias, padding)


def input_grad(weight: Tensor, grad: Tensor, padding: int) -> Tensor:
    """dL/dx."""
    _check(weight, padding, gradient=(grad, (grad.shape[0], weight.shape[0], *grad.shape[2:])))
    return _convolve(grad, weight.shape[1], pack(weight, turned=True), None, 2 - padding)


def weight_grad(x: Tensor, weight: Tensor, grad: Tensor, padding: int) -> Tensor:
    """dL/dweight, in the memory order of a channels_last weight."""
    _check(
        weight,
        padding,
        x=(x, (x.shape[0], weight.shape[1], *x.shape[2:])),
        gradient=(grad, (x.shape[0], weight.shape[0], *_out(x, padding))),
    )
    C_out, C_in = weight.shape[:2]
    g = _geometry(x.shape, C_out, padding)
    rows, g_rows, dw = rows_of(x), rows_of(grad), floats(C_out, 3, 3, C_in)
    native.done(
        native.library().mpd_agl_winograd_weight_grad(
            ctypes.byref(g), rows.data_ptr(), g_rows.data_ptr(), dw.data_ptr()
        )
    )
    return channels_first(dw)
