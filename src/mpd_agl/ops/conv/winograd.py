"""3x3 convolutions of stride 1 in Winograd's form F(4x4, 3x3): 36 multiplications where the direct sum has 144
(winograd.cpp).

With d a tile of 6x6 inputs, g the kernel and y the tile's 4x4 outputs, y = A^T [(G g G^T) * (B^T d B)] A. Its points
are 0, 3/4, -3/4, 3/2, -3/2 and infinity: float32 errors are within 5e-6 of the largest value. The input gradient is
the same function of the kernel turned by 180 degrees, the weight gradient its transpose.
"""

import ctypes

from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops import library as lib
from mpd_agl.ops.conv.layout import channels_first, check, floats, geometry, out_size, rows_of
from mpd_agl.ops.library import Geometry

CHANNELS = 16
"""Channels are multiples of this."""


def knows(weight_shape: tuple[int, ...], stride: int, padding: int) -> bool:
    """Whether a layer has this form."""
    C_out, C_in, *kernel = weight_shape
    return kernel == [3, 3] and stride == 1 and 0 <= padding <= 2 and C_out % CHANNELS == 0 and C_in % CHANNELS == 0


def _check(weight: Tensor, padding: int, **tensors: tuple[Tensor, tuple[int, ...]]) -> None:
    if not knows(tuple(weight.shape), 1, padding):
        raise InputError(f"Winograd's form does not know a weight {tuple(weight.shape)} with padding {padding}.")
    check(weight=(weight, tuple(weight.shape)), **tensors)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, *, turned: bool) -> Tensor:
    """The convolution; `turned`: with the kernel turned by 180 degrees, and its channels exchanged."""
    (N, C, H, W), C_out, library = x.shape, weight.shape[1 if turned else 0], lib.library()
    g = Geometry(N, H, W, C, *(out_size(size, 3, 1, padding) for size in (H, W)), C_out, 3, 1, padding)
    w, packed = rows_of(weight), floats(library.mpd_agl_winograd_packed_size(ctypes.byref(g)))
    library.mpd_agl_winograd_pack(ctypes.byref(g), w.data_ptr(), int(turned), packed.data_ptr())
    rows, y = rows_of(x), floats(N, g.OH, g.OW, C_out)
    bias = None if bias is None else bias.detach().contiguous()
    pointers = packed.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr()
    lib.done(library.mpd_agl_winograd_convolve(ctypes.byref(g), rows.data_ptr(), *pointers))
    return channels_first(y)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """`conv2d(x, weight, bias, padding=padding)`.

    >>> x, w = torch.randn(2, 16, 5, 5), torch.randn(16, 16, 3, 3)
    >>> torch.allclose(forward(x, w, None, 1), torch.conv2d(x, w, padding=1), atol=1e-4)
    True
    """
    given = {} if bias is None else {"bias": (bias, (weight.shape[0],))}
    _check(weight, padding, x=(x, (x.shape[0], weight.shape[1], *x.shape[2:])), **given)
    return _convolve(x, weight, bias, padding, turned=False)


def input_grad(weight: Tensor, grad: Tensor, padding: int) -> Tensor:
    """dL/dx."""
    _check(weight, padding, gradient=(grad, (grad.shape[0], weight.shape[0], *grad.shape[2:])))
    return _convolve(grad, weight, None, 2 - padding, turned=True)


def weight_grad(x: Tensor, weight: Tensor, grad: Tensor, padding: int) -> Tensor:
    """dL/dweight, in the memory order of a channels_last weight."""
    g = geometry(x.shape, weight, 1, padding)
    _check(weight, padding, x=(x, (g.N, g.C_in, g.H, g.W)), gradient=(grad, (g.N, g.C_out, g.OH, g.OW)))
    rows, g_rows, dw = rows_of(x), rows_of(grad), floats(g.C_out, 3, 3, g.C_in)
    lib.done(
        lib.library().mpd_agl_winograd_weight_grad(ctypes.byref(g), rows.data_ptr(), g_rows.data_ptr(), dw.data_ptr())
    )
    return channels_first(dw)
