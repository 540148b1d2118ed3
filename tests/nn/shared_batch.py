"""One process on a whole batch against ranks on parts of it: run by `test_share_batch.py` on two ranks."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from mpd_agl import core
from mpd_agl.models import create_model
from mpd_agl.nn import share_batch
from mpd_agl.ops import Replicas, batch_moments

SPLITS = ((6, 6), (7, 3), (5, 0))
"""Equal parts, unequal ones, and an empty one."""
DOUBLE, EAGER, NATIVE = (torch.float64, "eager"), (torch.float32, "eager"), (torch.float32, "native")
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("cnn8", "psg", {}),
    ("cnn8", "asgl", {}),
    ("cnn8", "deeptage", {}),
    ("resnet19", "mpd-quantile", {}),
    ("resnet19", "mpd-agl", {"block": "zheng"}),
    ("resnet19", "mpd-agl", {"ann": True}),
]
CASES = [
    *(("cnn8", "mpd-agl", {}, kind, split) for kind in (DOUBLE, EAGER, NATIVE) for split in SPLITS),
    *((*network, DOUBLE, (7, 3)) for network in OTHERS),
    *((*network, NATIVE, (7, 3)) for network in OTHERS[:3]),
]


def worst(pairs: Any) -> float:
    """The largest difference, relative where values are over 1."""
    return max(
        [float(((a - b).abs() / b.abs().clamp_min(1)).detach().max()) for a, b in pairs if a.numel()], default=0.0
    )


def network(name: str, method: str, options: dict[str, Any], dtype: torch.dtype, backend: str, split: Any) -> Any:
    torch.manual_seed(0)
    whole = create_model(name, method=method, width_mult=0.05, image_size=8, backend=backend, **options).to(dtype)
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    part = copy.deepcopy(whole)
    N, rank = sum(split), dist.get_rank()
    own = slice(sum(split[:rank]), sum(split[: rank + 1]))
    x, y = torch.randn(N, 3, 8, 8, dtype=dtype), torch.randint(0, 10, (N,))

    torch.manual_seed(1)
    expected = whole(x)
    loss = F.cross_entropy(expected.mean(0), y)
    loss.backward()
    draws = torch.get_rng_state()

    torch.manual_seed(1)
    share_batch(part, Replicas())
    output = part(x[own])
    own_loss = F.cross_entropy(output.mean(0), y[own], reduction="sum") / N
    own_loss.backward()
    all_ = Replicas()
    sums = all_.sum(torch.cat([p.grad.flatten() for p in part.parameters()]))
    sizes = [p.numel() for p in whole.parameters()]
    gradients = zip(sums.split(sizes), (p.grad.flatten() for p in whole.parameters()), strict=True)
    buffers = zip(part.buffers(), whole.buffers(), strict=True)
    return {
        "outputs": worst([(output, expected[:, own])]),
        "loss": worst([(all_.sum(own_loss), loss)]),
        "gradients": worst(gradients),
        "statistics": worst([(a, b) for a, b in buffers if a.is_floating_point()]),
        "same_draws": torch.equal(torch.get_rng_state(), draws),
    }


def moments(split: Any) -> Any:
    """The public function alone: mean, variance, count and the gradient of a function of all three."""
    torch.manual_seed(2)
    x_TNC = (torch.randn(3, sum(split), 4, dtype=torch.float64) * 7 + 100).requires_grad_()
    weight_C = torch.randn(2, 4, dtype=torch.float64)
    mean_C, var_C = core.batch_moments(x_TNC)
    (weight_C[0] * mean_C + weight_C[1] * var_C).sum().backward()
    rank = dist.get_rank()
    own = slice(sum(split[:rank]), sum(split[: rank + 1]))
    part_TNC = x_TNC.detach()[:, own].clone().requires_grad_()
    shared = batch_moments(part_TNC, Replicas())
    # each rank's loss is half of the whole: their sum is the whole
    (0.5 * (weight_C[0] * shared.mean_C + weight_C[1] * shared.var_C).sum()).backward()
    found = [(shared.mean_C, mean_C), (shared.var_C, var_C), (part_TNC.grad, x_TNC.grad[:, own])]
    return {"worst": worst(found), "count": float(shared.total)}


def check(folder: Path) -> Any:
    found = [["moments", str(split), moments(split)] for split in SPLITS]
    for name, method, options, (dtype, backend), split in CASES:
        case = f"{name} {method} {options} {split} {backend} {str(dtype).removeprefix('torch.')}"
        found.append(["network", case, network(name, method, options, dtype, backend, split)])
    return found
