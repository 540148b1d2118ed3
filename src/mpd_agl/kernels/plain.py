"""The fused step in plain PyTorch: works on every device and dtype, and is what `torch.compile` compiles.

Shapes: x_SMC with S = T, or S = 1 when the input is the same at every step; M rows (batch and space), C channels. The current is
`i = (x - mean_C) * scale_C + beta_C`. Only x is kept from forward to backward; v and s are computed again.
"""

import torch
from torch import Tensor

from mpd_agl.core import Surrogate


def moments(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel."""
    var_C, mean_C = torch.var_mean(x_SMC.to(compute_dtype(x_SMC)), dim=(0, 1), correction=0)
    return mean_C, var_C


def compute_dtype(x: Tensor) -> torch.dtype:
    """The membrane's dtype: float32, whatever autocast made of the input; float64 stays float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def potentials(
    x_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, beta_C: Tensor, tau: Tensor, v_th: float, num_steps: int
) -> list[Tensor]:
    """v_t before reset, t = 1..T (Eq. 2-3)."""
    v_T: list[Tensor] = []
    for t in range(num_steps):
        x_MC = x_SMC[t if x_SMC.shape[0] > 1 else 0].to(mean_C.dtype)
        i_MC = (x_MC - mean_C) * scale_C + beta_C
        v_T.append(i_MC if t == 0 else tau * torch.where(v_T[-1] >= v_th, 0.0, v_T[-1]) + i_MC)
    return v_T


def forward(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    v_th: float,
    num_steps: int,
    residual_TMC: Tensor | None,
) -> Tensor:
    """Spikes s_TMC in x's dtype (0 and 1 are exact in all of them), plus `residual_TMC` where it is given (SEW-ADD)."""
    v_T = potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, num_steps)
    s_TMC = torch.stack([(v >= v_th).to(x_SMC.dtype) for v in v_T])
    return s_TMC if residual_TMC is None else s_TMC + residual_TMC


def backward(
    x_SMC: Tensor,
    g_TMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    v_th: float,
    surrogate: Surrogate,
    detach_reset: bool,
    want_kappa: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dL/di and its sums: dv_SMC (summed over time where S = 1 < T), sum dv_C, sum dv (x - mean)_C, dtau, dkappa_T.

    `ds_t = g_t - tau v_t dv_{t+1}` and `dv_t = ds_t h(v_t; kappa_t) + tau (1 - s_t) dv_{t+1}` (Eq. 12-13), from the last step back.
    """
    T = g_TMC.shape[0]
    still = x_SMC.shape[0] == 1
    v_T = potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, T)
    dv = torch.zeros_like(v_T[0])
    dtau = torch.zeros_like(tau)
    dv_T: list[Tensor] = []
    dkappa_T: list[Tensor] = []
    for t in reversed(range(T)):
        v, g = v_T[t], g_TMC[t].to(v_T[t].dtype)
        u = v - v_th
        ds = g if detach_reset else g - tau * v * dv  # Eq. 13
        kept = torch.where(u >= 0, 0.0, dv)
        dtau = dtau + (kept * v).sum()
        if want_kappa:
            dkappa_T.insert(0, (ds * surrogate.grad_kappa(u, kappa_T[t])).sum())
        dv = ds * surrogate.grad(u, kappa_T[t]) + tau * kept  # Eq. 12
        dv_T.insert(0, dv)
    dv_SMC = torch.stack(dv_T).sum(0, keepdim=True) if still else torch.stack(dv_T)
    centred_SMC = x_SMC.to(dv.dtype) - mean_C
    dkappa = torch.stack(dkappa_T) if want_kappa else torch.zeros_like(kappa_T)
    return dv_SMC, dv_SMC.sum((0, 1)), (dv_SMC * centred_SMC).sum((0, 1)), dtau, dkappa


def normalise_grad(
    x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor
) -> Tensor:
    """dL/dx through batch statistics: `scale (dv - m1 - (x - mean) m2)`."""
    return scale_C * (dv_SMC - m1_C - (x_SMC.to(dv_SMC.dtype) - mean_C) * m2_C)


def probe(
    x_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, beta_C: Tensor, tau: Tensor, kappa_T: Tensor, v_th: float
) -> Tensor:
    """What the monitors need, per step: spikes, available neurons, sum v, sum v^2, sum i, sum i^2 (float64, (T, 6))."""
    rows = []
    T = kappa_T.shape[0]
    for t, v in enumerate(potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, T)):
        x_MC = x_SMC[t if x_SMC.shape[0] > 1 else 0].to(mean_C.dtype)
        i = ((x_MC - mean_C) * scale_C + beta_C).double()
        w = v.double()
        near = (v - v_th).abs() < kappa_T[t] / 2
        rows.append(
            torch.stack([(v >= v_th).sum(), near.sum(), w.sum(), (w * w).sum(), i.sum(), (i * i).sum()]).double()
        )
    return torch.stack(rows)
