"""The kernels of a device against the written equations (`core`, float64 on the CPU): spikes, statistics, gradients.

It is the check that the repository's tests make, in a form that the installed package can run where the GPU is.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mpd_agl.core import SURROGATES, batch_moments, lif, tdbn
from mpd_agl.ops import backends_here, tdbn_neuron

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""The largest difference over the largest value, of gradients that are stored in that dtype."""
NAMES = ("x", "gamma", "beta", "tau", "kappa")
CLEAR = 1e-4
"""Distance of every potential from the threshold and from the surrogates' edges: rounding decides nothing."""


def reference(leaves: list[Tensor], surrogate: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Spikes, potentials and moments by `core`."""
    x, gamma, beta, tau, kappa = leaves
    x_T = x.expand(len(kappa), *x.shape[1:])
    mean, var = batch_moments(x_T)
    s, v = lif(tdbn(x_T, gamma, beta, mean, var, v_th=0.5), tau, kappa, v_th=0.5, surrogate=surrogate)
    return s, v, mean, var


def make_leaves(T: int, S: int, N: int, C: int, dtype: torch.dtype) -> list[Tensor]:
    """x, gamma, beta, tau and kappa in float64, with x representable in `dtype` and every potential clear of edges."""
    g = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return (2 * torch.randn(S, N, C, 3, 2, generator=g) + 3).to(dtype).double()

    x, kappa = draw(), torch.linspace(0.7, 1.3, T, dtype=torch.float64)
    gamma = 1 + 0.3 * torch.randn(C, generator=g).double()
    leaves = [x, gamma, 0.2 * torch.randn(C, generator=g).double(), torch.tensor(0.3, dtype=torch.float64), kappa]
    for _ in range(300):
        u = (reference(leaves, "rectangular")[1] - 0.5).abs()
        k = kappa.view(T, 1, 1, 1, 1)
        near = ((u < CLEAR) | ((u - k / 2).abs() < CLEAR) | ((u - k).abs() < CLEAR)).any(0, keepdim=True)
        if not near.any():
            return leaves
        leaves[0] = torch.where(near, draw(), leaves[0])
    raise AssertionError("no input is clear of every edge")


def _far(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().cpu().double(), want.detach()
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))


def check(backend: str, device: str, dtype: str, surrogate: str, T: int, S: int, N: int, C: int) -> dict[str, Any]:
    """One case: spikes that differ, and the largest relative difference of each gradient and of the statistics."""
    kind = getattr(torch, dtype)
    leaves = make_leaves(T, S, N, C, kind)
    want = [a.clone().requires_grad_() for a in leaves]
    got = [a.float().to(device) for a in leaves]
    got[0] = got[0].to(kind)
    got = [a.requires_grad_() for a in got]
    g = (1 + 0.5 * torch.randn(T, N, C, 3, 2, generator=torch.Generator().manual_seed(1))).to(kind)
    s0, _, mean0, var0 = reference(want, surrogate)
    tensors: Any = (*got[:3], torch.zeros(C, device=device), torch.ones(C, device=device), *got[3:])
    options: dict[str, Any] = {"surrogate": surrogate, "backend": backend, "num_steps": T, "batch_stats": True}
    s1, mean1, var1 = tdbn_neuron(*tensors, **options)
    found = torch.autograd.grad(s1, got, g.to(device))
    far = {n: _far(a, b) for n, a, b in zip(NAMES, found, torch.autograd.grad(s0, want, g.double()), strict=True)}
    far |= {"mean": _far(mean1, mean0), "var": _far(var1, var0)}
    differ = int((s1.detach().cpu().double() != s0.detach()).sum())
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
                rows.append({"backend": backend, "case": list(case), "agrees": False, "error": reason})
    return rows
