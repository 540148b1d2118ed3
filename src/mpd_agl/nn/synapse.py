"""Synapses: convolutions and linear layers on sequences, with time folded into the batch."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.nn.called import called_as_module
from mpd_agl.ops.conv.conv import convolve, linear


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


def input_shape(synapse: nn.Module | None, s_SNC: Tensor) -> tuple[int | str, ...]:
    """The axes behind time and batch that a synapse takes; H and W, and without a synapse also C, are free."""
    if isinstance(synapse, nn.Linear):
        return (synapse.in_features,)
    if isinstance(synapse, nn.Conv2d):
        return (synapse.in_channels, *(s_SNC.shape[3:] if s_SNC.dim() == 5 else ("H", "W")))
    return tuple(s_SNC.shape[2:]) if s_SNC.dim() in (3, 5) else ("C", "H", "W")


def is_plain(layer: nn.Module) -> bool:
    """Whether `ops.conv` computes this layer: no groups, no dilation, zeros around it, the same along both axes."""
    if not isinstance(layer, nn.Conv2d):
        return isinstance(layer, nn.Linear)
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        return False
    return layer.groups == 1 and layer.dilation == (1, 1) and all(a[0] == a[1] for a in (layer.stride, layer.padding))


def layer_output(layer: nn.Conv2d | nn.Linear, x_NC: Tensor, impl: str) -> Tensor:
    """The output of a layer that `is_plain`, from its parameters; `impl` is one of `CONV_IMPLS`."""
    if isinstance(layer, nn.Linear):
        return linear(x_NC, layer.weight, layer.bias, impl=impl)
    stride, padding = layer.stride[0], int(layer.padding[0])
    return convolve(x_NC, layer.weight, layer.bias, stride=stride, padding=padding, impl=impl)


def synapse_output(synapse: nn.Module | None, x_SNC: Tensor, impl: str) -> Tensor:
    """The output of a block's synapse, T folded into the batch; None hands its input on.

    Only torch's own classes are computed by `ops.conv`; other modules are called.
    """
    return x_SNC if synapse is None else over_time(partial(_output, synapse, impl=impl), x_SNC)


def _output(synapse: nn.Module, x_NC: Tensor, impl: str) -> Tensor:
    if type(synapse) in (nn.Conv2d, nn.Linear) and is_plain(synapse) and not called_as_module(synapse):
        return layer_output(synapse, x_NC, impl)  # type: ignore[arg-type]
    y: Tensor = synapse(x_NC)
    return y
