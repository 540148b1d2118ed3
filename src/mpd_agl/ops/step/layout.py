"""A sequence as the kernels see it: [S][rows][C] with channels innermost; and its way back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mpd_agl.errors import InputError


@dataclass(frozen=True)
class Layout:
    """How a sequence becomes [S][rows][inner], and in which memory order it comes back."""

    axes: tuple[int, ...]
    """The axes behind time, outermost first."""
    inner: int
    """The length of the innermost axis."""
    axes_back: tuple[int, ...]
    """The axes of what comes back, outermost first."""

    def rows(self, x: Tensor) -> Tensor:
        """A sequence as [S][rows][inner]: a view where the axes have this order in memory, else a copy."""
        return _rows(x, self.axes, self.inner)

    def back(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """[T][rows][inner] as a sequence of that shape behind time: a view where the orders agree."""
        x = _sequence(rows, self.axes, shape)
        if self.axes_back == self.axes:
            return x
        return _sequence(_rows(x, self.axes_back, shape[self.axes_back[-1] - 1]), self.axes_back, shape)


def _rows(x: Tensor, axes: tuple[int, ...], inner: int) -> Tensor:
    return x.permute(0, *axes).reshape(x.shape[0], -1, inner).contiguous()


def _sequence(rows: Tensor, axes: tuple[int, ...], shape: torch.Size) -> Tensor:
    x = rows.view(rows.shape[0], *(shape[a - 1] for a in axes))
    return x.permute(0, *(1 + a for a in sorted(range(len(axes)), key=axes.__getitem__)))


def by_channel(shape: torch.Size, channel_dim: int) -> Layout:
    """Channels innermost: a view of channels_last memory, a copy of any other."""
    axis = channel_dim % len(shape) if -len(shape) <= channel_dim < len(shape) else 0
    if axis < 1:
        raise InputError(
            f"channel_dim={channel_dim} is no axis behind time of an input {tuple(shape)}. "
            "Take one from 1 on; -1 is the last."
        )
    axes = (*(a for a in range(1, len(shape)) if a != axis), axis)
    return Layout(axes, shape[axis], axes)


def of_current(x: Tensor, channel_dim: int, *, uniform: bool) -> Layout:
    """Of a neuron's current: the spikes come back in its memory order.

    Neurons that are all alike (`uniform`) need no channels and run on the memory in its own order, without a copy.
    """
    if torch.compiler.is_compiling():  # a traced graph may have sizes that are not known yet: no decision by strides
        return by_channel(x.shape, min(2, x.dim() - 1) if uniform else channel_dim)
    own = _memory_order(x)
    if not uniform:
        layout = by_channel(x.shape, channel_dim)
        return Layout(layout.axes, layout.inner, own)
    last = channel_dim % x.dim() if -x.dim() <= channel_dim < x.dim() else 0
    return Layout(own, x.shape[last] if own[-1] == last else 1, own)


def _memory_order(x: Tensor) -> tuple[int, ...]:
    """The axes behind time as each timestep has them in memory; their own order where memory has gaps or time is not
    outermost.
    """
    shape, strides = x.shape, x.stride()
    axes = sorted(range(1, x.dim()), key=lambda a: (-strides[a], a))
    expected = 1
    for a in (*reversed(axes), 0):
        if shape[a] > 1 and strides[a] != expected:
            return tuple(range(1, x.dim()))
        expected *= shape[a]
    return tuple(axes)
