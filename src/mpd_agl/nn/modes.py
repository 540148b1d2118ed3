"""The training mode of a network, for a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode; afterwards each has its own mode again."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
