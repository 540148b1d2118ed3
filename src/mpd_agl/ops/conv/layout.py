"""What the kernels of `event` and `winograd` share: sizes for C++, tensors as rows of channels, fresh results."""

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops.library import Geometry


def out_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """Pixels of the output along one axis."""
    return (size + 2 * padding - kernel) // stride + 1


def geometry(shape: torch.Size, weight: Tensor, stride: int, padding: int) -> Geometry:
    """The sizes of a convolution, or of a linear layer as a 1x1 convolution of one long row of pixels."""
    C_out, C_in, K = weight.shape[0], weight.shape[1], weight.shape[2] if weight.dim() == 4 else 1
    N, H, W = (shape[0], *shape[2:]) if len(shape) == 4 else (1, 1, shape[0])
    OH, OW = (out_size(size, K, stride, padding) for size in (H, W))
    return Geometry(N, H, W, C_in, OH, OW, C_out, K, stride, padding)


def floats(*shape: int) -> Tensor:
    """Memory for a kernel's result: float32 on the CPU, whatever torch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def result(shape: torch.Size, g: Geometry) -> Tensor:
    """Memory for the output of an input of that shape, channels last."""
    return floats(g.N, g.OH, g.OW, g.C_out) if len(shape) == 4 else floats(g.W, g.C_out)


def rows_of(x: Tensor) -> Tensor:
    """(N, C, H, W) or (N, F) as [rows][channels]: a view of channels_last memory, a copy of any other."""
    return x.detach().permute(0, 2, 3, 1).contiguous().flatten(0, 2) if x.dim() == 4 else x.detach().contiguous()


def channels_first(y: Tensor) -> Tensor:
    """A result in memory order as torch's (N, C, H, W); (N, F) unchanged."""
    return y.permute(0, 3, 1, 2) if y.dim() == 4 else y


def check(**tensors: tuple[Tensor, tuple[int, ...]]) -> None:
    """Refuse what C++ would misread: each tensor is float32 on the CPU, of the shape next to it, and not empty."""
    for name, (a, shape) in tensors.items():
        if a.dtype != torch.float32 or a.device.type != "cpu" or a.shape != shape or not a.numel():
            raise InputError(
                f"this convolution takes a float32 {name} {tuple(shape)} on the CPU, got {tuple(a.shape)}, {a.dtype} "
                f"on {a.device}. Use conv_impl='dense'."
            )
