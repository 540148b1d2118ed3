"""Synapses: convolutions and linear layers on sequences, with time folded into the batch."""

from torch import Tensor, nn

from mpd_agl.errors import InputError


def over_time(module: nn.Module, x_TNC: Tensor) -> Tensor:
    """Apply a module that knows no time: T is folded into the batch, one call for all steps."""
    y: Tensor = module(x_TNC.flatten(0, 1))
    return y.view(*x_TNC.shape[:2], *y.shape[1:])


def out_features(synapse: nn.Module) -> int:
    """Channels that a convolution or a linear layer gives."""
    if isinstance(synapse, nn.Conv2d):
        return synapse.out_channels
    if isinstance(synapse, nn.Linear):
        return synapse.out_features
    raise InputError(f"a synapse must be nn.Conv2d or nn.Linear, got {type(synapse).__name__}.")


def is_plain(layer: nn.Module) -> bool:
    """Whether `ops.conv` computes this layer."""
    return False


def layer_output(layer: nn.Module, x_NC: Tensor, impl: str) -> Tensor:
    """The output of a linear layer."""
    found: Tensor = type(layer).forward(layer, x_NC)  # type: ignore[arg-type]
    return found
