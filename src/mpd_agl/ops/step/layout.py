"""A sequence as the kernels see it: [S][rows][C] with channels innermost; and its way back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mpd_agl.errors import InputError


@dataclass(frozen=True)
class Layout:
    """How a sequence becomes [S][rows][inner]: its axes behind time, outermost first, and the innermost length."""

    axes: tuple[int, ...]
    inner: int

    def rows(self, x: Tensor) -> Tensor:
        """A sequence as [S][rows][inner]: a view where the axes have this order in memory, else a copy."""
        return x.permute(0, *self.axes).reshape(x.shape[0], -1, self.inner).contiguous()

    def back(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """[T][rows][inner] as a sequence of that shape behind time: a view."""
        back = rows.view(rows.shape[0], *(shape[a - 1] for a in self.axes))
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return back.permute(0, *(1 + a for a in order))


def by_channel(shape: torch.Size, channel_dim: int) -> Layout:
    """Channels innermost: a view of channels_last memory, a copy of any other."""
    axis = channel_dim + len(shape) if channel_dim < 0 else channel_dim
    if not 1 <= axis < len(shape):
        raise InputError(
            f"channel_dim={channel_dim} is no axis behind time of an input {tuple(shape)}. "
            "Take one from 1 on; -1 is the last."
        )
    return Layout((*(a for a in range(1, len(shape)) if a != axis), axis), shape[axis])


def in_memory_order(x: Tensor, channel_dim: int) -> Layout:
    """The axes in the order of each timestep's memory: no copy. Only for neurons that are all alike.

    The axes keep their own order where memory has gaps or time is not outermost.
    """
    shape, strides = x.shape, x.stride()
    axes = sorted(range(1, x.dim()), key=lambda a: (-strides[a], a))
    expected = 1
    for a in (*reversed(axes), 0):
        if shape[a] > 1 and strides[a] != expected:
            axes = list(range(1, x.dim()))
            break
        expected *= shape[a]
    last = channel_dim % x.dim() if -x.dim() <= channel_dim < x.dim() else 0
    return Layout(tuple(axes), shape[last] if axes and axes[-1] == last else 1)
