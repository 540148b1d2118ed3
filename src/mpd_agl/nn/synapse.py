"""The output of a block's synapse: by `ops.conv` where the module is a plain layer, else by calling the module."""

from torch import Tensor, nn

from mpd_agl.nn.called import called_as_module
from mpd_agl.ops.conv.conv import convolve, linear


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


def synapse_output(synapse: nn.Module, x_NC: Tensor, impl: str) -> Tensor:
    """The output of a block's synapse, T folded into the batch. Only torch's own classes are computed by `ops.conv`."""
    if type(synapse) in (nn.Conv2d, nn.Linear) and is_plain(synapse) and not called_as_module(synapse):
        return layer_output(synapse, x_NC, impl)  # type: ignore[arg-type]
    y: Tensor = synapse(x_NC)
    return y
