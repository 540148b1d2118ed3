"""Batch norms of a fused network that no kernel can take in, as where `out += identity` stands behind them.

SpikingJelly folds time into the batch, norms, and returns a view; writing into a view costs three copies in the
backward pass. Here the output is no view to autograd.
"""

import torch
from torch import Tensor, nn


class FoldedNorm:
    """What runs a norm of SpikingJelly's in multi-step mode in place of its own `forward`."""

    def __init__(self, module: nn.BatchNorm2d) -> None:
        self.module = module

    def put_in(self) -> None:
        """Replace the module's `forward`."""
        self.module.forward = self.forward  # type: ignore[method-assign, assignment]

    def take_out(self) -> None:
        """Put the class's own back."""
        del self.module.forward

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers as the module's own."""
        if x.dim() != 5 or getattr(self.module, "step_mode", "s") != "m":
            found: Tensor = type(self.module).forward(self.module, x)
            return found
        return folded_back(nn.BatchNorm2d.forward(self.module, x.flatten(0, 1)), x.shape[:2])


def folded_back(y: Tensor, lead: torch.Size) -> Tensor:
    """(T N, ...) as (T, N, ...). To autograd it is no view: nothing else holds the folded tensor."""
    out: Tensor = torch.ops.aten._unsafe_view(y, [*lead, *y.shape[1:]])
    return out


def foldable(net: nn.Module) -> list[nn.BatchNorm2d]:
    """SpikingJelly's own multi-step batch norms that still run by themselves."""
    found = []
    for module in net.modules():
        kind = type(module)
        theirs = kind.__module__.split(".")[0] == "spikingjelly" and kind.__name__ == "BatchNorm2d"
        if isinstance(module, nn.BatchNorm2d) and theirs and "forward" not in module.__dict__:
            found.append(module)
    return found


def folded_norms(net: nn.Module) -> list[FoldedNorm]:
    """What was put into a network."""
    owners = [getattr(m.__dict__.get("forward"), "__self__", None) for m in net.modules()]
    return [owner for owner in owners if isinstance(owner, FoldedNorm)]
