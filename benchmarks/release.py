"""The contender `release`: a training step of another installation of mpd_agl, by its public names alone.

Its process imports torch, this file and that installation, and nothing of this tree's package. The contenders of this
tree take their inputs and their step from here, so that both do the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.models import create_model


def build(workload: dict[str, Any]) -> Callable[[], float]:
    """A training step of the workload's network from its seed."""
    torch.manual_seed(0)
    given = {field: workload[field] for field in ("width_mult", "num_steps", "method")}
    size = {"image_size": workload["image_size"]} if workload["image_size"] else {}
    net = create_model(workload["model"], **given, **size).train()
    x, y = make_inputs(net.options, workload["batch"], workload["num_steps"])
    return training_step(net, x, y)


def make_inputs(options: Any, batch: int, num_steps: int) -> tuple[Tensor, Tensor]:
    """Images in channels_last, or for event data a frame per timestep, and labels."""
    generator = torch.Generator().manual_seed(1)
    has_frames, size = options.in_channels == 2, options.image_size
    shape = (*([num_steps] if has_frames else []), batch, options.in_channels, size, size)
    x = torch.randn(shape, generator=generator)
    y = torch.randint(0, options.num_classes, (batch,), generator=generator)
    return (x if has_frames else x.contiguous(memory_format=torch.channels_last)), y


def training_step(
    net: nn.Module, x: Tensor, y: Tensor, after: Callable[[nn.Module], None] = lambda net: None
) -> Callable[[], float]:
    """Forward, loss, backward, update; `after` a step, neurons with a state of their own go back to rest."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x).mean(0), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after(net)
        return float(loss.detach())

    return step
