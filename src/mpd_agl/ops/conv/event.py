"""Event-driven convolution on a CPU: zeros are skipped, and the time follows the share of active inputs.

An input becomes its active lists (`ActiveLists`: per pixel the channels that are not zero). They serve the forward pass
and the weight gradient; in training they are kept for the backward pass in place of the input. The input gradient has
no such form: its own input, dL/dy, has no zeros.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from mpd_agl.errors import InputError
from mpd_agl.ops import library as lib
from mpd_agl.ops.conv.layout import channels_first, check, floats, geometry, result, rows_of
from mpd_agl.ops.library import Lists

BLOCK = 128
LARGEST_KERNEL = 5


@dataclass(frozen=True)
class ActiveLists:
    """The active channels of each row (pixel): indices in slots, blocks of 128 channels apart, and their values.

    Channels that are 1 come first, ascending, then the others, ascending; `ones` and `value` are None where all are 1.
    An odd list ends with an index to a row of zeros.
    """

    index: Tensor
    """(rows, blocks, slot), uint8."""
    count: Tensor
    """(rows, blocks), uint8."""
    ones: Tensor | None
    """(rows, blocks), uint8: the indices before this even place have values of 1."""
    value: Tensor | None
    """(rows, blocks, slot), float32, from `ones` on."""

    @staticmethod
    def empty(rows: int, channels: int, *, values: bool) -> "ActiveLists":
        """Slots to be filled."""
        blocks, slot = _slots(channels)
        index = torch.empty(rows, blocks, slot, dtype=torch.uint8, device="cpu")
        count = torch.empty(rows, blocks, dtype=torch.uint8, device="cpu")
        ones, value = (torch.empty_like(count), floats(rows, blocks, slot)) if values else (None, None)
        return ActiveLists(index, count, ones, value)

    @staticmethod
    def of(tensors: list[Tensor]) -> "ActiveLists":
        """The inverse of `tensors`."""
        return ActiveLists(*tensors, *[None] * (4 - len(tensors)))

    @property
    def tensors(self) -> list[Tensor]:
        """Two, or four where values are kept."""
        return [a for a in (self.index, self.count, self.ones, self.value) if a is not None]

    def struct(self, rows: int, channels: int) -> Lists:
        """For the native calls, valid while this object lives; lists of another input are refused."""
        wanted = ActiveLists.empty(0, channels, values=self.value is not None)
        for a, like in zip(self.tensors, wanted.tensors, strict=True):
            shape = (rows, *like.shape[1:])
            if a.shape != shape or a.dtype != like.dtype or a.device.type != "cpu" or not a.is_contiguous():
                raise InputError(
                    f"active lists of {rows} rows of {channels} channels have a contiguous {like.dtype} tensor of "
                    f"shape {shape}, got {tuple(a.shape)}, {a.dtype} on {a.device}. Take scan(x)."
                )
        ones, value = (None if a is None else a.data_ptr() for a in (self.ones, self.value))
        blocks, slot = self.index.shape[1:]
        return Lists(rows, channels, blocks, slot, self.index.data_ptr(), self.count.data_ptr(), ones, value)


def _slots(channels: int) -> tuple[int, int]:
    """Blocks of channels, and the places in each block's slot."""
    return -(-channels // BLOCK), BLOCK if channels >= BLOCK else -(-channels // 8) * 8


def scan(x: Tensor, most_active: float = 1.0) -> ActiveLists | None:
    """The lists of (N, C, H, W) or (N, F); None where more than that share of its values is active.

    >>> scan(torch.tensor([[0.0, 1.0, 0.0, 1.0]])).index[0, 0, :2].tolist()
    [1, 3]
    """
    check(x=(x, tuple(x.shape)))
    x_RC = rows_of(x)
    library, rows, channels = lib.library(), *x_RC.shape
    lists = ActiveLists.empty(rows, channels, values=False)
    has_values = library.mpd_agl_event_scan(x_RC.data_ptr(), ctypes.byref(lists.struct(rows, channels)))
    if most_active < 1 and int(lists.count.sum(dtype=torch.int64)) > most_active * x.numel():
        return None
    if has_values:
        lists = ActiveLists.empty(rows, channels, values=True)
        library.mpd_agl_event_scan(x_RC.data_ptr(), ctypes.byref(lists.struct(rows, channels)))
    return lists


def forward(
    lists: ActiveLists, shape: torch.Size, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    """The convolution (or linear layer) of the lists of an input of that shape."""
    check(weight=(weight, tuple(weight.shape)), **({} if bias is None else {"bias": (bias, (weight.shape[0],))}))
    g, library = geometry(shape, weight, stride, padding), lib.library()
    w, y = rows_of(weight), result(shape, g)
    packed = floats(library.mpd_agl_event_packed_size(ctypes.byref(g)))
    library.mpd_agl_event_pack(ctypes.byref(g), w.data_ptr(), packed.data_ptr())
    bias = None if bias is None else bias.detach().contiguous()
    pointers = packed.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr()
    lib.done(
        library.mpd_agl_event_forward(ctypes.byref(g), ctypes.byref(lists.struct(g.N * g.H * g.W, g.C_in)), *pointers)
    )
    return channels_first(y)


def weight_grad(
    lists: ActiveLists, shape: torch.Size, weight: Tensor, grad: Tensor, stride: int, padding: int
) -> Tensor:
    """dL/dweight, in the memory order of a channels_last weight."""
    g = geometry(shape, weight, stride, padding)
    check(gradient=(grad, tuple(channels_first(result(shape, g)).shape)))
    rows, dw = rows_of(grad), floats(g.C_out, *weight.shape[2:], g.C_in)
    lib.done(
        lib.library().mpd_agl_event_weight_grad(
            ctypes.byref(g), ctypes.byref(lists.struct(g.N * g.H * g.W, g.C_in)), rows.data_ptr(), dw.data_ptr()
        )
    )
    return channels_first(dw)
