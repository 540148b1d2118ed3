"""The fused step in plain PyTorch: works on every device and dtype, and is what `torch.compile` compiles.

Shapes: x_SMC with S = T, or S = 1 when the input is the same at every step; M rows (batch and space), C channels. The
current is `i = (x - mean_C) * scale_C + beta_C`. Only x is kept from forward to backward; v and s are computed again.

The default form has one `tau` and a `v_th` that is a number. The general form has both as vectors (C,), and may have a
soft reset, a state to start from and to end with, and gains on the surrogate.
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


def reset(v: Tensor, v_th: Tensor | float, soft: bool) -> Tensor:
    """What a step leaves to the next: of a neuron that fired nothing (hard), or what it had above v_th (soft)."""
    return torch.where(v >= v_th, v - v_th if soft else 0.0, v)


def potentials(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    v_th: Tensor | float,
    num_steps: int,
    soft: bool = False,
    kept_0_MC: Tensor | None = None,
) -> list[Tensor]:
    """v_t before reset, t = 1..T (Eq. 2-3)."""
    v_T: list[Tensor] = []
    kept = kept_0_MC
    for t in range(num_steps):
        x_MC = x_SMC[t if x_SMC.shape[0] > 1 else 0].to(mean_C.dtype)
        i_MC = (x_MC - mean_C) * scale_C + beta_C
        v_T.append(i_MC if kept is None else tau * kept + i_MC)
        kept = reset(v_T[-1], v_th, soft) if t + 1 < num_steps else None
    return v_T


def forward(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    v_th: Tensor | float,
    num_steps: int,
    residual_TMC: Tensor | None,
    soft: bool = False,
    kept_0_MC: Tensor | None = None,
    want_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Spikes s_TMC in x's dtype, plus `residual_TMC` where it is given (SEW-ADD); and the last state if wanted."""
    v_T = potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, num_steps, soft, kept_0_MC)
    s_TMC = torch.stack([(v >= v_th).to(x_SMC.dtype) for v in v_T])
    kept_MC = reset(v_T[-1], v_th, soft) if want_state else None
    return s_TMC if residual_TMC is None else s_TMC + residual_TMC, kept_MC


def backward(
    x_SMC: Tensor,
    g_TMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    v_th: Tensor | float,
    surrogate: Surrogate,
    detach_reset: bool,
    want_kappa: bool,
    soft: bool = False,
    kept_0_MC: Tensor | None = None,
    gain_T: Tensor | None = None,
    dkept_MC: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """dL/di and its sums: dv_SMC (summed over time where S = 1 < T), sum dv_C, sum dv (x - mean)_C, dtau, dkappa_T;
    then, in the general form, dv_th_C and dkept_0_MC.

    `ds_t = g_t - tau v_t dv_{t+1}` and `dv_t = ds_t h(v_t; kappa_t) + tau (1 - s_t) dv_{t+1}` (Eq. 12-13), from the
    last step back. A soft reset has v_th in place of v_t in the first, and no (1 - s_t) in the second. `dkept_MC` is
    dL/dkept_T.
    """
    T = g_TMC.shape[0]
    still = x_SMC.shape[0] == 1
    v_T = potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, T, soft, kept_0_MC)
    dv = torch.zeros_like(v_T[0]) if dkept_MC is None else dkept_MC
    dtau = torch.zeros_like(tau)
    dv_th = torch.zeros_like(v_th) if isinstance(v_th, Tensor) else None
    dv_T: list[Tensor] = []
    dkappa_T: list[Tensor] = []

    def over_neurons(a: Tensor) -> Tensor:
        return a.sum(0) if tau.dim() else a.sum()

    for t in reversed(range(T)):
        v, g = v_T[t], g_TMC[t].to(v_T[t].dtype)
        u = v - v_th
        carried: Tensor | float = tau if t + 1 < T else 1.0  # behind the last step, dv stands for dL/dkept_T itself
        ds = g if detach_reset else g - carried * (v_th if soft else v) * dv  # Eq. 13
        if t + 1 < T:
            dtau = dtau + over_neurons(dv * reset(v, v_th, soft))
        gain = 1.0 if gain_T is None else gain_T[t]
        if want_kappa:
            dkappa_T.insert(0, (ds * (gain * surrogate.grad_kappa(u, kappa_T[t]))).sum())
        h = surrogate.grad(u, kappa_T[t])
        by_spike = ds * (h if gain_T is None else gain * h)
        if dv_th is not None:
            by_reset = torch.where(u >= 0, carried * dv, 0.0) if soft else 0.0
            dv_th = dv_th - over_neurons(by_spike + by_reset)
        dv = by_spike + carried * (dv if soft else torch.where(u >= 0, 0.0, dv))  # Eq. 12
        dv_T.insert(0, dv)
    dkept_0_MC = None
    if kept_0_MC is not None:
        dtau = dtau + over_neurons(dv * kept_0_MC)
        dkept_0_MC = tau * dv
    dv_SMC = torch.stack(dv_T).sum(0, keepdim=True) if still else torch.stack(dv_T)
    centred_SMC = x_SMC.to(dv.dtype) - mean_C
    dkappa = torch.stack(dkappa_T) if want_kappa else torch.zeros_like(kappa_T)
    return dv_SMC, dv_SMC.sum((0, 1)), (dv_SMC * centred_SMC).sum((0, 1)), dtau, dkappa, dv_th, dkept_0_MC


def normalise_grad(
    x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor
) -> Tensor:
    """dL/dx through batch statistics: `scale (dv - m1 - (x - mean) m2)`."""
    return scale_C * (dv_SMC - m1_C - (x_SMC.to(dv_SMC.dtype) - mean_C) * m2_C)


def probe(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    v_th: Tensor | float,
    soft: bool = False,
    kept_0_MC: Tensor | None = None,
) -> Tensor:
    """What the monitors need, per step: spikes, available neurons, sum v, sum v^2, sum i, sum i^2 (float64, (T, 6))."""
    rows = []
    T = kappa_T.shape[0]
    for t, v in enumerate(potentials(x_SMC, mean_C, scale_C, beta_C, tau, v_th, T, soft, kept_0_MC)):
        x_MC = x_SMC[t if x_SMC.shape[0] > 1 else 0].to(mean_C.dtype)
        i = ((x_MC - mean_C) * scale_C + beta_C).double()
        w = v.double()
        near = (v - v_th).abs() < kappa_T[t] / 2
        rows.append(
            torch.stack([(v >= v_th).sum(), near.sum(), w.sum(), (w * w).sum(), i.sum(), (i * i).sum()]).double()
        )
    return torch.stack(rows)
