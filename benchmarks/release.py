"""The contender `release`: a training step of another installation of mpd_agl, by its public names alone.

Its process imports torch, this file and that installation, and nothing of this tree's package.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from mpd_agl.models import create_model


def build(workload: dict[str, Any]) -> Callable[[], float]:
    """A training step with the same seed, inputs and optimizer as `contenders.build` has."""
    torch.manual_seed(0)
    given = {field: workload[field] for field in ("width_mult", "num_steps", "method")}
    size = {"image_size": workload["image_size"]} if workload["image_size"] else {}
    net: Any = create_model(workload["model"], **given, **size).train()
    o, generator = net.options, torch.Generator().manual_seed(1)
    shape = (workload["batch"], o.in_channels, o.image_size, o.image_size)
    if o.in_channels == 2:  # event frames, a frame per timestep
        x = torch.randn((workload["num_steps"], *shape), generator=generator)
    else:
        x = torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, o.num_classes, (workload["batch"],), generator=generator)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x).mean(0), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    return step
