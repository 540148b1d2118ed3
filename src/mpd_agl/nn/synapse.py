"""Synapses: convolutions and linear layers on sequences, with time folded into the batch."""

from collections.abc import Callable

from torch import Tensor, nn

from mpd_agl.errors import InputError


def over_time(module: Callable[[Tensor], Tensor], x_TNC: Tensor) -> Tensor:
    """Apply a module or function that knows no time: T is folded into the batch, one call for all steps."""
    y: Tensor = module(x_TNC.flatten(0, 1))
    return y.view(*x_TNC.shape[:2], *y.shape[1:])


def out_features(synapse: nn.Module) -> int:
    """Channels that a convolution or a linear layer gives."""
    if isinstance(synapse, nn.Conv2d):
        return synapse.out_channels
    if isinstance(synapse, nn.Linear):
        return synapse.out_features
    raise InputError(f"a synapse must be nn.Conv2d or nn.Linear, got {type(synapse).__name__}.")


def input_shape(synapse: nn.Module | None, s_SNC: Tensor) -> tuple[int, ...]:
    """The axes behind time and batch that a synapse takes; H and W, and without a synapse also C, are free."""
    if isinstance(synapse, nn.Linear):
        return (synapse.in_features,)
    if isinstance(synapse, nn.Conv2d):
        return (synapse.in_channels, *(s_SNC.shape[3:] if s_SNC.dim() == 5 else (-1, -1)))
    return tuple(s_SNC.shape[2:]) if s_SNC.dim() in (3, 5) else (-1,)
