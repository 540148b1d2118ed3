"""The fused step in plain PyTorch: works on every device and dtype, and is what `torch.compile` compiles.

Shapes: x_SMC with S = T, or S = 1 where the input is the same at every step; M rows (batch and space), C channels. The
current is `i = (x - mean_C) scale_C + bias_C`. Only x is kept from forward to backward; v and s are computed again.

`tau` and `v_th` are both 0-dim (one value, hard reset, from rest), or both (C,) for neurons of any form.
"""

import torch
from torch import Tensor

from mpd_agl.core import Surrogate
from mpd_agl.ops.step.spec import compute_dtype

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]
"""dv_SMC, sum dv_C, sum dv (x - mean)_C, dtau, dv_th_C, dkappa_T, dstate_MC; dv_th only for v_th (C,)."""


def moments(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel."""
    var_C, mean_C = torch.var_mean(x_SMC.to(compute_dtype(x_SMC)), dim=(0, 1), correction=0)
    return mean_C, var_C


def after_reset(v: Tensor, v_th: Tensor, soft: bool) -> Tensor:
    """What a step leaves to the next: of a neuron that fired nothing (hard), or what it had above v_th (soft)."""
    return torch.where(v >= v_th, v - v_th if soft else 0.0, v)


def potentials(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    bias_C: Tensor,
    tau: Tensor,
    v_th: Tensor,
    num_steps: int,
    state_MC: Tensor | None,
    soft: bool,
) -> list[Tensor]:
    """v_t before reset, t = 1..T (Eq. 2-3)."""
    v_T: list[Tensor] = []
    kept = state_MC
    for t in range(num_steps):
        x_MC = x_SMC[t if x_SMC.shape[0] > 1 else 0].to(mean_C.dtype)
        i_MC = (x_MC - mean_C) * scale_C + bias_C
        v_T.append(i_MC if kept is None else tau * kept + i_MC)
        kept = after_reset(v_T[-1], v_th, soft) if t + 1 < num_steps else None
    return v_T


def forward(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    bias_C: Tensor,
    tau: Tensor,
    v_th: Tensor,
    num_steps: int,
    residual_TMC: Tensor | None,
    state_MC: Tensor | None,
    soft: bool,
    want_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Spikes s_TMC in x's dtype, plus `residual_TMC` where it is given (SEW-ADD); and the last state if wanted."""
    v_T = potentials(x_SMC, mean_C, scale_C, bias_C, tau, v_th, num_steps, state_MC, soft)
    s_TMC = torch.stack([(v >= v_th).to(x_SMC.dtype) for v in v_T])
    state_MC = after_reset(v_T[-1], v_th, soft) if want_state else None
    return s_TMC if residual_TMC is None else s_TMC + residual_TMC, state_MC


def backward(
    x_SMC: Tensor,
    g_TMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    bias_C: Tensor,
    tau: Tensor,
    v_th: Tensor,
    kappa_T: Tensor,
    gain_T: Tensor,
    state_MC: Tensor | None,
    g_state_MC: Tensor | None,
    surrogate: Surrogate,
    soft: bool,
    detach_reset: bool,
    want_kappa: bool,
) -> Gradients:
    """`ds_t = g_t - tau v_t dv_{t+1}` and `dv_t = ds_t h(v_t; kappa_t) + tau (1 - s_t) dv_{t+1}` (Eq. 12-13), from the
    last step back.

    A soft reset has v_th in place of v_t in the first, and no (1 - s_t) in the second. `g_state_MC` is the gradient of
    the last state. dv is summed over time where S = 1 < T.
    """
    T = g_TMC.shape[0]
    v_T = potentials(x_SMC, mean_C, scale_C, bias_C, tau, v_th, T, state_MC, soft)
    dv = torch.zeros_like(v_T[0]) if g_state_MC is None else g_state_MC
    dtau = torch.zeros_like(tau)
    dv_th = torch.zeros_like(v_th) if v_th.dim() else None
    dv_T: list[Tensor] = []
    dkappa_T: list[Tensor] = []

    def over_neurons(a: Tensor) -> Tensor:
        return a.sum(0) if tau.dim() else a.sum()

    for t in reversed(range(T)):
        v, g = v_T[t], g_TMC[t].to(v_T[t].dtype)
        u = v - v_th
        leak: Tensor | float = tau if t + 1 < T else 1.0  # after the last step, dv is the state's own gradient
        ds = g if detach_reset else g - leak * (v_th if soft else v) * dv  # Eq. 13
        if t + 1 < T:
            dtau = dtau + over_neurons(dv * after_reset(v, v_th, soft))
        if want_kappa:
            dkappa_T.insert(0, (ds * (gain_T[t] * surrogate.grad_kappa(u, kappa_T[t]))).sum())
        by_spike = ds * (gain_T[t] * surrogate.grad(u, kappa_T[t]))
        if dv_th is not None:
            by_reset = torch.where(u >= 0, leak * dv, 0.0) if soft else 0.0
            dv_th = dv_th - over_neurons(by_spike + by_reset)
        dv = by_spike + leak * (dv if soft else torch.where(u >= 0, 0.0, dv))  # Eq. 12
        dv_T.insert(0, dv)
    dstate_MC = None
    if state_MC is not None:
        dtau = dtau + over_neurons(dv * state_MC)
        dstate_MC = tau * dv
    dv_SMC = torch.stack(dv_T).sum(0, keepdim=True) if x_SMC.shape[0] == 1 else torch.stack(dv_T)
    sum_dv_x_C = (dv_SMC * (x_SMC.to(dv.dtype) - mean_C)).sum((0, 1))
    return dv_SMC, dv_SMC.sum((0, 1)), sum_dv_x_C, dtau, dv_th, torch.stack(dkappa_T) if want_kappa else None, dstate_MC


def normalise_grad(
    x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor
) -> Tensor:
    """dL/dx through batch statistics: `scale (dv - m1 - (x - mean) m2)`."""
    return scale_C * (dv_SMC - m1_C - (x_SMC.to(dv_SMC.dtype) - mean_C) * m2_C)


def probe(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    bias_C: Tensor,
    tau: Tensor,
    v_th: Tensor,
    kappa_T: Tensor,
    state_MC: Tensor | None,
    soft: bool,
) -> Tensor:
    """Per step: spikes, neurons inside the window, sum v, sum v^2, sum i, sum i^2 (float64, (T, 6))."""
    rows = []
    T = kappa_T.shape[0]
    for t, v in enumerate(potentials(x_SMC, mean_C, scale_C, bias_C, tau, v_th, T, state_MC, soft)):
        x_MC = x_SMC[t if x_SMC.shape[0] > 1 else 0].to(mean_C.dtype)
        i, w = ((x_MC - mean_C) * scale_C + bias_C).double(), v.double()
        near = (v - v_th).abs() < kappa_T[t] / 2
        sums = (v >= v_th).sum(), near.sum(), w.sum(), (w * w).sum(), i.sum(), (i * i).sum()
        rows.append(torch.stack(sums).double())
    return torch.stack(rows)
