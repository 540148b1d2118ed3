"""Inputs for the kernel tests, and the reference: `core`, in float64, by plain autograd."""

from dataclasses import dataclass

import torch

from mpd_agl.core import batch_moments, lif, tdbn

V_TH = 0.5
TOLERANCE = 1e-5
"""One tolerance everywhere: largest difference over the largest value, float32 against float64."""


@dataclass
class Case:
    """Leaves in float64 and the gradient that comes from above."""

    x: torch.Tensor
    gamma: torch.Tensor
    beta: torch.Tensor
    tau: torch.Tensor
    kappa: torch.Tensor
    g: torch.Tensor

    @property
    def T(self):
        return len(self.kappa)

    def leaves(self, dtype):
        leaves = (self.x, self.gamma, self.beta, self.tau, self.kappa)
        return [a.detach().clone().to(dtype).requires_grad_() for a in leaves]


def reference(x, gamma, beta, tau, kappa, surrogate="rectangular", detach_reset=False, stats=None):
    x_T = x.expand(len(kappa), *x.shape[1:])
    mean, var = batch_moments(x_T) if stats is None else stats
    s, v = lif(
        tdbn(x_T, gamma, beta, mean, var, v_th=V_TH),
        tau,
        kappa,
        v_th=V_TH,
        surrogate=surrogate,
        detach_reset=detach_reset,
    )
    return s, v, mean, var


def make_case(T, S, N=7, C=5, space=(3, 4), seed=0, clear=1e-4):
    """Random leaves, with x redrawn until every potential is clear of the threshold and of the intervals' edges."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    x = 2 * normal(S, N, C, *space) + 3
    gamma, beta = 1 + 0.3 * normal(C), 0.2 * normal(C)
    tau = torch.tensor(0.3, dtype=torch.float64)
    kappa = torch.linspace(0.7, 1.3, T, dtype=torch.float64)
    for _ in range(200):
        _, v, _, _ = reference(x, gamma, beta, tau, kappa)
        u = (v - V_TH).abs()
        k = kappa.view(T, *[1] * (v.dim() - 1))
        near = (u < clear) | ((u - k / 2).abs() < clear) | ((u - k).abs() < clear)
        near_S = near.any(0, keepdim=True).expand(x.shape) if S > 1 or T > 1 else near
        if not near_S.any():
            return Case(x, gamma, beta, tau, kappa, 1 + 0.5 * normal(T, N, C, *space))  # sums of g do not cancel
        x = torch.where(near_S, 2 * normal(*x.shape) + 3, x)
    raise AssertionError("no clear case found")


def difference(got, want):
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))
