"""One process on a whole batch against ranks on parts of it: run by `test_share_batch.py` on two ranks."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl import core
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, Potential, Width, Widths, share_batch
from mpd_agl.ops import Replicas, batch_stats

SPLITS = ((6, 6), (7, 3), (5, 0))
"""Equal parts, unequal ones, and an empty one."""


class Case(NamedTuple):
    """A network that takes (N, 3, 8, 8), and how the batch is split."""

    make: Callable[[], nn.Module]
    dtype: torch.dtype = torch.float64
    split: tuple[int, int] = (7, 3)


def network(name: str, method: str, backend: str = "auto", **options: Any) -> Callable[[], nn.Module]:
    return partial(create_model, name, method=method, width_mult=0.05, image_size=8, backend=backend, **options)


def growing() -> nn.Module:
    """Weights that let gradients grow, so that their bound acts."""
    net = create_model("plain", method="mpd-gain", depth=8, image_size=8)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.add_(0.05 * ("synapse" in name))
    return net


class FromBatch(Width):
    needs = "batch"

    def forward(self, potential: Potential) -> Widths:
        sums = potential.sums()
        assert sums is not None
        return Widths(2 * sums.moments()[1].sqrt())


class Measuring(nn.Module):
    """Lone neurons, which measure moments and read the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(192, 6), nn.Linear(6, 10)
        self.measures, self.reads = LIF(method="mpd-agl"), LIF(width=FromBatch())

    def forward(self, x_NCHW: Tensor) -> Tensor:
        i_TNF = self.first(x_NCHW.flatten(1)) * torch.tensor([1.0, 0.5]).view(2, 1, 1)
        return self.reads(self.second(self.measures(i_TNF)))


CASES = {
    **{
        f"cnn8 {dtype} {backend} {split}": Case(network("cnn8", "mpd-agl", backend), dtype, split)
        for dtype, backend in ((torch.float64, "eager"), (torch.float32, "eager"), (torch.float32, "native"))
        for split in SPLITS
    },
    "bounded gradients": Case(growing),
    "bounded gradients, native": Case(growing, torch.float32),
    "quantile": Case(network("resnet19", "mpd-quantile")),
    "zheng": Case(network("resnet19", "mpd-agl", block="zheng")),
    "ann": Case(network("resnet19", "mpd-agl", ann=True)),
    "measuring": Case(Measuring),
}


def worst(pairs: Any) -> float:
    """The largest difference, relative where values are over 1."""
    return max(
        [float(((a - b).abs() / b.abs().clamp_min(1)).detach().max()) for a, b in pairs if a.numel()], default=0.0
    )


def compared(case: Case) -> dict[str, Any]:
    """The largest differences of a training step, and whether random generators advanced alike."""
    torch.manual_seed(0)
    whole = case.make().to(case.dtype)
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    part = copy.deepcopy(whole)
    N, rank = sum(case.split), dist.get_rank()
    own = slice(sum(case.split[:rank]), sum(case.split[: rank + 1]))
    x, y = torch.randn(N, 3, 8, 8, dtype=case.dtype), torch.randint(0, 10, (N,))

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


def moments(split: Sequence[int]) -> dict[str, float]:
    """The public function alone: mean, variance, count and the gradient of a function of all three."""
    torch.manual_seed(2)
    x_TNC = (torch.randn(3, sum(split), 4, dtype=torch.float64) * 7 + 100).requires_grad_()
    weight_C = torch.randn(2, 4, dtype=torch.float64)
    mean_C, var_C = core.batch_moments(x_TNC)
    (weight_C[0] * mean_C + weight_C[1] * var_C).sum().backward()
    rank = dist.get_rank()
    own = slice(sum(split[:rank]), sum(split[: rank + 1]))
    part_TNC = x_TNC.detach()[:, own].clone().requires_grad_()
    shared = batch_stats(part_TNC, Replicas())
    # each rank's loss is half of the whole: their sum is the whole
    (0.5 * (weight_C[0] * shared.mean_C + weight_C[1] * shared.var_C).sum()).backward()
    found = [(shared.mean_C, mean_C), (shared.var_C, var_C), (part_TNC.grad, x_TNC.grad[:, own])]
    return {"worst": worst(found), "count": float(shared.rows)}


def check(folder: Path) -> Any:
    return {"moments": [moments(split) for split in SPLITS], "networks": checked(CASES)}


def checked(cases: dict[str, Case]) -> dict[str, Any]:
    return {name: {**compared(case), "dtype": str(case.dtype)} for name, case in cases.items()}


def assert_same(results: dict[str, Any]) -> None:
    """Each case's differences are those of rounding."""
    for case, result in results.items():
        assert result["same_draws"], case
        tolerance = 1e-12 if result["dtype"] == "torch.float64" else 1e-5
        for what in ("outputs", "loss", "gradients", "statistics"):
            assert result[what] < tolerance, (case, what, result[what])
