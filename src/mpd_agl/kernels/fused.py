"""tdBN + neuron + surrogate as ONE autograd function with its own backward (Eq. 2-6, 10-13).

Kept from forward to backward: the convolution's output and per-channel vectors. v and s are computed again. kappa is a constant of the
backward pass: no gradient flows into gamma or tau through it; a kappa that is itself learnable gets dH/dkappa.

Shapes: x_SNC or x_SNCHW with S = T, or S = 1 when the input is the same at every step (a static image behind the stem). Memory is
channels_last, `[T][N H W][C]`; another layout is copied into it, never misread.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mpd_agl.core import SURROGATES, Surrogate, get_surrogate
from mpd_agl.errors import InputError
from mpd_agl.kernels import native, plain
from mpd_agl.kernels.backends import Backend, resolve
from mpd_agl.kernels.sync import Replicas, SharedMoments, share_moments


@dataclass(frozen=True)
class _Step:
    """Everything about a fused step that is not a tensor."""

    num_steps: int
    v_th: float
    amplitude: float  # alpha * v_th
    eps: float
    batch_stats: bool
    surrogate: Surrogate
    detach_reset: bool
    backend: Backend
    shared: SharedMoments | None = None  # the batch's statistics, where other processes hold parts of it


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_SMC: Tensor,
        gamma_C: Tensor,
        beta_C: Tensor,
        mean_C: Tensor,
        var_C: Tensor,
        tau: Tensor,
        kappa_T: Tensor,
        residual_TMC: Tensor | None,
        step: _Step,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, residual = x_SMC.detach(), None if residual_TMC is None else residual_TMC.detach()
        if step.batch_stats and step.shared is None:
            mean_C, var_C = step.backend.moments(x)
        invstd_C = torch.rsqrt(var_C + step.eps)
        scale_C = gamma_C * step.amplitude * invstd_C
        inputs = x, mean_C, scale_C, beta_C.detach(), tau.detach(), step.v_th, step.num_steps, residual
        s_TMC = step.backend.forward(*inputs)
        ctx.save_for_backward(x_SMC, beta_C, mean_C, invstd_C, scale_C, tau, kappa_T)
        ctx.step = step
        ctx.mark_non_differentiable(mean_C, var_C)
        ctx.set_materialize_grads(False)
        return s_TMC, mean_C, var_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_TMC: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if g_TMC is None:
            return (None,) * 9
        x_SMC, beta_C, mean_C, invstd_C, scale_C, tau, kappa_T = (a.detach() for a in ctx.saved_tensors)
        step: _Step = ctx.step
        g_TMC = g_TMC.contiguous()
        dv_SMC, sum_dv_C, sum_dv_x_C, dtau, dkappa_T = step.backend.backward(
            x_SMC,
            g_TMC,
            mean_C,
            scale_C,
            beta_C,
            tau,
            kappa_T,
            step.v_th,
            step.surrogate,
            step.detach_reset,
            ctx.needs_input_grad[6],
        )
        dgamma_C = sum_dv_x_C * invstd_C * step.amplitude
        dx_SMC = None
        if ctx.needs_input_grad[0]:
            if step.batch_stats:
                count: Any = x_SMC.shape[0] * x_SMC.shape[1]
                all_dv_C, all_dv_x_C = sum_dv_C, sum_dv_x_C
                if step.shared is not None:
                    count = step.shared.total
                    all_dv_C, all_dv_x_C = step.shared.replicas.sum(torch.stack([sum_dv_C, sum_dv_x_C]))
                m1_C, m2_C = all_dv_C / count, invstd_C * invstd_C * all_dv_x_C / count
                dx_SMC = step.backend.normalise_grad(x_SMC, dv_SMC, mean_C, scale_C, m1_C, m2_C)
            else:
                dx_SMC = dv_SMC.mul_(scale_C)
            dx_SMC = dx_SMC.to(x_SMC.dtype)
        dkappa = dkappa_T if ctx.needs_input_grad[6] else None
        dresidual = g_TMC if ctx.needs_input_grad[7] else None
        return dx_SMC, dgamma_C, sum_dv_C, None, None, dtau, dkappa, dresidual, None


def _rows(x_SNC: Tensor, *, empty: bool = False) -> Tensor:
    """x as [S][rows][C]: a view of channels_last memory, a copy of any other. Only a part of a shared batch may be empty."""
    if x_SNC.numel() == 0 and not empty:
        raise InputError(f"the fused step takes at least one value, got an empty input of shape {tuple(x_SNC.shape)}.")
    if x_SNC.dim() == 3:
        return x_SNC.contiguous()
    if x_SNC.dim() == 5:
        S, N, C, H, W = x_SNC.shape
        return x_SNC.permute(0, 1, 3, 4, 2).reshape(S, N * H * W, C).contiguous()
    raise InputError(
        f"the fused step takes (T, N, C) or (T, N, C, H, W), got {x_SNC.dim()} dimensions: {tuple(x_SNC.shape)}."
    )


def _back(s_TMC: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) == 3:
        return s_TMC
    _, N, C, H, W = shape
    return s_TMC.view(s_TMC.shape[0], N, H, W, C).permute(0, 1, 4, 2, 3)


def _run(
    x_SNC: Tensor,
    gamma_C: Tensor,
    beta_C: Tensor,
    mean_C: Tensor,
    var_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    residual_TNC: Tensor | None,
    step: _Step,
) -> tuple[Tensor, Tensor, Tensor]:
    S, T = x_SNC.shape[0], step.num_steps
    if S not in (1, T) or kappa_T.shape != (T,):
        raise InputError(
            f"the fused step over {T} timesteps takes an input of {T} or 1 timesteps and {T} widths, "
            f"got an input of {S} and widths of shape {tuple(kappa_T.shape)}."
        )
    if residual_TNC is not None and residual_TNC.shape != (T, *x_SNC.shape[1:]):
        raise InputError(
            f"what is added to spikes of shape {(T, *x_SNC.shape[1:])} must have it too, got {tuple(residual_TNC.shape)}."
        )
    empty = step.shared is not None
    x_SMC = _rows(x_SNC, empty=empty)
    if step.backend.name == "native" and x_SMC.dtype != torch.float32:
        x_SMC = x_SMC.float()  # autocast: the membrane stays float32
    residual_TMC = None if residual_TNC is None else _rows(residual_TNC, empty=empty).to(x_SMC.dtype)
    dtype = plain.compute_dtype(x_SMC)
    vectors = [a.to(dtype).contiguous() for a in (gamma_C, beta_C, mean_C, var_C, tau, kappa_T)]
    s_TMC, mean, var = _Fused.apply(x_SMC, *vectors, residual_TMC, step)  # type: ignore[no-untyped-call]
    return _back(s_TMC.to(x_SNC.dtype), x_SNC.shape), mean, var


def _resolve_for(surrogate: Surrogate, backend: str, x: Tensor) -> Backend:
    """The backend, where it knows the surrogate: a user's own shape runs in PyTorch, and `native` says so."""
    if not x.numel():
        return resolve("eager", x.device, x.dtype)  # an empty part of a shared batch; there is nothing to be fast at
    if type(surrogate) in [type(known) for known in SURROGATES.values()]:
        return resolve(backend, x.device, x.dtype)
    if backend == "native":
        raise InputError(
            f"backend 'native' knows the surrogates {', '.join(SURROGATES)}, got {surrogate.name!r}. Use backend='eager' for your own."
        )
    return resolve("eager" if backend == "auto" else backend, x.device, x.dtype)


def tdbn_neuron(
    x_SNC: Tensor,
    gamma_C: Tensor,
    beta_C: Tensor,
    running_mean_C: Tensor,
    running_var_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    *,
    num_steps: int,
    batch_stats: bool,
    residual_TNC: Tensor | None = None,
    v_th: float = 0.5,
    alpha: float = 1.0,
    eps: float = 1e-5,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    backend: str = "auto",
    shared: SharedMoments | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Spikes of `lif(tdbn(x))`, and the batch's mean_C and (biased) var_C where `batch_stats`, else the running ones.

    Gradients reach x, gamma, beta, tau and, where it asks for one, kappa_T. Running statistics are read, not written: the caller updates
    them from the returned moments. `residual_TNC` is added to the spikes in the same pass (SEW-ADD). Under autocast the membrane is float32
    and the spikes come back in x's dtype. Where other processes hold parts of the batch, `shared` has its statistics (`shared_moments`).
    """
    shape = get_surrogate(surrogate)
    resolved = _resolve_for(shape, backend, x_SNC)
    step = _Step(num_steps, v_th, alpha * v_th, eps, batch_stats, shape, detach_reset, resolved, shared)
    if shared is not None:
        running_mean_C, running_var_C = shared.mean_C, shared.var_C
    return _run(x_SNC, gamma_C, beta_C, running_mean_C, running_var_C, tau, kappa_T, residual_TNC, step)


def neuron(
    i_SNC: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    *,
    num_steps: int,
    residual_TNC: Tensor | None = None,
    v_th: float = 0.5,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Spikes of `lif(i)` alone: the same function with an identity in place of tdBN."""
    shape = get_surrogate(surrogate)
    resolved = _resolve_for(shape, backend, i_SNC)
    step = _Step(num_steps, v_th, 1.0, 0.0, False, shape, detach_reset, resolved)
    C = i_SNC.shape[2]
    one_C, zero_C = i_SNC.new_ones(C, dtype=torch.float32), i_SNC.new_zeros(C, dtype=torch.float32)
    return _run(i_SNC, one_C, zero_C, zero_C, one_C, tau, kappa_T, residual_TNC, step)[0]


def moments(x_SNC: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel, as the fused step takes them."""
    resolved = resolve(backend, x_SNC.device, x_SNC.dtype)
    x_SMC = _rows(x_SNC)
    return resolved.moments(x_SMC.float() if resolved.name == "native" else x_SMC)


@torch.no_grad()
def shared_moments(x_SNC: Tensor, replicas: Replicas, *, backend: str = "auto") -> SharedMoments:
    """`moments` over all processes' parts of the batch, for the fused step's `shared`."""
    rows = x_SNC.numel() // x_SNC.shape[2]
    if rows:
        mean_C, var_C = moments(x_SNC, backend=backend)
    else:
        mean_C = var_C = x_SNC.new_zeros(x_SNC.shape[2], dtype=plain.compute_dtype(x_SNC))
    return share_moments(mean_C, var_C, rows, replicas)


@torch.no_grad()
def probe(
    x_SNC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    *,
    v_th: float = 0.5,
    backend: str = "auto",
) -> Tensor:
    """Counts and sums per timestep for the monitors, (T, 6) float64: spikes, available, sum v, sum v^2, sum i, sum i^2."""
    resolved = resolve(backend, x_SNC.device, x_SNC.dtype)
    x_SMC = _rows(x_SNC, empty=True)  # sums of nothing are 0
    x_SMC = x_SMC.to(plain.compute_dtype(x_SMC))
    mean, scale, beta, tau_, kappa = (
        a.detach().to(x_SMC.dtype).contiguous() for a in (mean_C, scale_C, beta_C, tau, kappa_T)
    )
    run = native.probe if resolved.name == "native" and x_SMC.numel() else plain.probe
    return run(x_SMC, mean, scale, beta, tau_, kappa, v_th)
