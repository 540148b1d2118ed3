"""The kernels of a device against the written equations (`core`, float64 on the CPU): spikes, statistics, gradients.

It is the check that the repository's tests make, in a form that runs where the GPU is.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.equivalence import potentials
from mpd_agl.core import SURROGATES
from mpd_agl.nn import SpikingBlock, TdBatchNorm
from mpd_agl.ops import backends_here

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""The largest difference over the largest value, of gradients that are stored in that dtype."""
CLEAR = 1e-4
"""Distance of every potential from the threshold and from the surrogates' edges: rounding decides nothing."""


class PassOn(nn.Conv2d):
    """A synapse whose output is its input: the block's current is known to the last bit."""

    def forward(self, x: Tensor) -> Tensor:
        """The input."""
        return x


def make_block(surrogate: str, C: int, backend: str) -> SpikingBlock:
    """A block whose synapse passes its input on, with a gamma and a beta of its own in every channel."""
    norm = TdBatchNorm(C)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        norm.weight.add_(0.3 * torch.randn(C, generator=g))
        norm.bias.add_(0.2 * torch.randn(C, generator=g))
    return SpikingBlock(PassOn(C, C, 1, bias=False), method="mpd-agl", norm=norm, surrogate=surrogate, backend=backend)


def clear_input(block: SpikingBlock, T: int, S: int, N: int, C: int, dtype: torch.dtype) -> Tensor:
    """x_SNC in float64, representable in `dtype`, with every potential clear of edges."""
    g = torch.Generator().manual_seed(1)

    def draw() -> Tensor:
        return (2 * torch.randn(S, N, C, 3, 2, generator=g) + 3).to(dtype).double()

    x_SNC = draw()
    for _ in range(300):
        with torch.no_grad():
            u_TNC = (potentials(block, x_SNC, T) - block.neuron.v_th).abs()
            k_T = block.kappa(T).view(T, 1, 1, 1, 1)
        near = ((u_TNC < CLEAR) | ((u_TNC - k_T / 2).abs() < CLEAR) | ((u_TNC - k_T).abs() < CLEAR)).any(0, True)
        if not near.any():
            return x_SNC
        x_SNC = torch.where(near, draw(), x_SNC)
    raise AssertionError("no input is clear of every edge")


def run(block: SpikingBlock, x_SNC: Tensor, T: int) -> dict[str, Tensor]:
    """Spikes, statistics and gradients of a training step with a fixed gradient from above."""
    x_SNC = x_SNC.clone().requires_grad_()
    s_TNC = block.train()(x_SNC, num_steps=T)
    g_TNC = 1 + 0.5 * torch.randn(s_TNC.shape, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    s_TNC.backward(g_TNC.to(s_TNC))
    found = {"spikes": s_TNC.detach(), "x": x_SNC.grad, **{n: p.grad for n, p in block.named_parameters()}}
    assert block.norm is not None
    found |= {"mean": block.norm.running_mean, "var": block.norm.running_var}
    return {name: value.cpu().double() for name, value in found.items() if value is not None}


def check(backend: str, device: str, dtype: str, surrogate: str, T: int, S: int, N: int, C: int) -> dict[str, Any]:
    """One case: spikes that differ, and the largest relative difference of each gradient and statistic."""
    kind = getattr(torch, dtype)
    reference = make_block(surrogate, C, "eager").double()
    x_SNC = clear_input(reference, T, S, N, C, kind)
    want = run(reference, x_SNC, T)
    got = run(make_block(surrogate, C, backend).to(device), x_SNC.to(kind).to(device), T)
    differ = int((got.pop("spikes") != want.pop("spikes")).sum())
    far = {n: float((got[n] - want[n]).abs().max() / want[n].abs().max().clamp_min(1e-30)) for n in want}
    limits = {n: TOLERANCE[dtype] if n == "x" else TOLERANCE["float32"] for n in far}
    agrees = not differ and all(far[n] < limits[n] for n in far)
    case = {"backend": backend, "dtype": dtype, "surrogate": surrogate, "T": T, "S": S, "N": N, "C": C}
    return {**case, "agrees": agrees, "spikes_differ": differ, "far": far}


def cases(small: bool) -> Iterator[tuple[str, str, int, int, int, int]]:
    """dtype, surrogate, T, S, N and C, at awkward sizes."""
    for surrogate in SURROGATES:
        yield "float32", surrogate, 3, 3, 7, 5
    for dtype in ("bfloat16", "float16"):
        yield dtype, "rectangular", 4, 1, 7, 16
    if not small:
        for dtype in TOLERANCE:
            for T, S in ((1, 1), (2, 2), (6, 6), (10, 10), (32, 32), (40, 40), (6, 1)):
                yield dtype, "triangular", T, S, 7, 5
            yield dtype, "rectangular", 4, 4, 300, 128
            yield dtype, "arctan", 2, 2, 2, 300


def check_all(device: str, small: bool) -> list[dict[str, Any]]:
    """Every case on every backend that runs there; one that fails is a row with its error."""
    rows: list[dict[str, Any]] = []
    for backend, why in backends_here(device).items():
        if why or (backend == "compiled" and small):
            continue
        for case in cases(small or backend == "compiled"):
            try:
                rows.append(check(backend, device, *case))
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                rows.append({"backend": backend, "dtype": case[0], "agrees": False, "error": reason})
    return rows
