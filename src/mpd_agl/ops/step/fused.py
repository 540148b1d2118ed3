"""tdBN + neuron + surrogate as ONE autograd function with its own backward (Eq. 2-6, 10-13).

Kept from forward to backward: the convolution's output and per-channel vectors. v and s are computed again. kappa is a
constant of the backward pass: no gradient flows into gamma or tau through it; a kappa that is itself learnable gets
dH/dkappa.

Shapes: x is (S, ...) with S = T, or S = 1 when the input is the same at every step (a static image behind the stem),
and one channel axis. The kernels see it as [S][rows][C], channels innermost: a view of channels_last memory, a copy of
any other, never misread. Neurons that are all alike need no channels: they run on the memory as it lies.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mpd_agl.core import RESETS, Surrogate, get_surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops import native
from mpd_agl.ops.step import plain
from mpd_agl.ops.step.backends import Backend, resolve
from mpd_agl.ops.step.sync import Replicas, SharedMoments, share_moments


@dataclass(frozen=True)
class _Step:
    """Everything about a fused step that is not a tensor."""

    num_steps: int
    v_th: float | None  # None: the general form, which has it as a vector
    amplitude: float  # alpha * v_th
    eps: float
    batch_stats: bool
    surrogate: Surrogate
    detach_reset: bool
    soft: bool
    want_state: bool
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
        v_th_C: Tensor | None,
        kept_0_MC: Tensor | None,
        gain_T: Tensor | None,
        step: _Step,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        x, residual, v_th, kept_0 = (
            None if a is None else a.detach() for a in (x_SMC, residual_TMC, v_th_C, kept_0_MC)
        )
        if step.batch_stats and step.shared is None:
            mean_C, var_C = step.backend.moments(x_SMC.detach())
        invstd_C = torch.rsqrt(var_C + step.eps)
        scale_C = gamma_C * step.amplitude * invstd_C
        inputs = x, mean_C, scale_C, beta_C.detach(), tau.detach(), step.v_th if v_th is None else v_th
        s_TMC, kept_MC = step.backend.forward(*inputs, step.num_steps, residual, step.soft, kept_0, step.want_state)
        ctx.save_for_backward(x_SMC, beta_C, mean_C, invstd_C, scale_C, tau, kappa_T, v_th_C, kept_0_MC, gain_T)
        ctx.step = step
        ctx.mark_non_differentiable(mean_C, var_C)
        ctx.set_materialize_grads(False)
        return s_TMC, mean_C, var_C, kept_MC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g_TMC, _, _, dkept_MC = grads
        if g_TMC is None and dkept_MC is None:
            return (None,) * 12
        saved: Any = (None if a is None else a.detach() for a in ctx.saved_tensors)
        x_SMC, beta_C, mean_C, invstd_C, scale_C, tau, kappa_T, v_th_C, kept_0_MC, gain_T = saved
        step: _Step = ctx.step
        if g_TMC is None:
            g_TMC = x_SMC.new_zeros((step.num_steps, *x_SMC.shape[1:]))
        g_TMC = g_TMC.contiguous()
        dv_SMC, sum_dv_C, sum_dv_x_C, dtau, dkappa_T, dv_th_C, dkept_0_MC = step.backend.backward(
            x_SMC,
            g_TMC,
            mean_C,
            scale_C,
            beta_C,
            tau,
            kappa_T,
            step.v_th if v_th_C is None else v_th_C,
            step.surrogate,
            step.detach_reset,
            ctx.needs_input_grad[6],
            step.soft,
            kept_0_MC,
            gain_T,
            None if dkept_MC is None else dkept_MC.contiguous(),
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
        return dx_SMC, dgamma_C, sum_dv_C, None, None, dtau, dkappa, dresidual, dv_th_C, dkept_0_MC, None, None


@dataclass(frozen=True)
class _Layout:
    """How a sequence becomes [T][rows][inner]: its axes behind time, outermost first, and the innermost length."""

    axes: tuple[int, ...]
    inner: int

    def rows(self, x: Tensor) -> Tensor:
        """A sequence as [T][rows][inner]: a view where the axes lie so in memory, else a copy."""
        return x.permute(0, *self.axes).reshape(x.shape[0], -1, self.inner).contiguous()

    def back(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """[T][rows][inner] as a sequence of that shape behind time: a view."""
        back = rows.view(rows.shape[0], *(shape[a - 1] for a in self.axes))
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return back.permute(0, *(1 + a for a in order))


def _channel_axis(shape: torch.Size, channel_dim: int) -> int:
    """The channel axis as a positive number; an error where the sequence has no such axis behind time."""
    axis = channel_dim + len(shape) if channel_dim < 0 else channel_dim
    if not 1 <= axis < len(shape):
        raise InputError(
            f"channel_dim={channel_dim} is no axis behind time of an input {tuple(shape)}. "
            "Take one from 1 on; -1 is the last."
        )
    return axis


def _by_channel(shape: torch.Size, channel_dim: int) -> _Layout:
    """Channels innermost."""
    axis = _channel_axis(shape, channel_dim)
    return _Layout((*(a for a in range(1, len(shape)) if a != axis), axis), shape[axis])


def _as_it_lies(x: Tensor, channel_dim: int) -> _Layout:
    """The axes as each timestep lies in memory; in their own order where there are gaps or time is not outermost."""
    shape, strides = x.shape, x.stride()
    axes = sorted(range(1, x.dim()), key=lambda a: (-strides[a], a))
    expected = 1
    for a in reversed(axes):
        if shape[a] > 1 and strides[a] != expected:
            axes = list(range(1, x.dim()))
            break
        expected *= shape[a]
    else:
        if shape[0] > 1 and strides[0] != expected:
            axes = list(range(1, x.dim()))
    last = channel_dim % x.dim() if -x.dim() <= channel_dim < x.dim() else 0
    return _Layout(tuple(axes), shape[last] if axes and axes[-1] == last else 1)


@dataclass(frozen=True)
class _Neuron:
    """The neuron's part of a call, as its caller gave it; `run` checks it."""

    tau: Tensor | float
    kappa_T: Tensor
    num_steps: int
    residual: Tensor | None
    v_th: Tensor | float
    surrogate: str | Surrogate
    detach_reset: bool
    reset: str
    decay_input: bool
    kept_0: Tensor | None
    return_state: bool
    gain_T: Tensor | None
    channel_dim: int
    backend: str

    @property
    def is_uniform(self) -> bool:
        """Whether all neurons are alike, so that no channel axis is needed."""
        return not any(isinstance(a, Tensor) and a.dim() for a in (self.tau, self.v_th))

    @property
    def is_default(self) -> bool:
        """Whether the kernels of the default form compute it."""
        plain_reset = self.reset == "hard" and self.kept_0 is None and not self.return_state
        return self.is_uniform and plain_reset and not isinstance(self.v_th, Tensor)

    def check(self, x: Tensor) -> None:
        """Every shape that does not depend on channels."""
        S, T, rest = x.shape[0] if x.dim() else 0, self.num_steps, x.shape[1:]
        if x.dim() < 2 or not x.is_floating_point():
            raise InputError(
                f"a neuron takes floating-point currents (T, N, ...), got {tuple(x.shape)}, {x.dtype}. "
                "Time is the first axis."
            )
        if T < 1 or S not in (1, T) or self.kappa_T.shape != (T,):
            raise InputError(
                f"the fused step over {T} timesteps takes an input of {T} or 1 timesteps and {T} widths, "
                f"got an input of {S} and widths of shape {tuple(self.kappa_T.shape)}."
            )
        if self.reset not in RESETS:
            raise unknown_name("reset", self.reset, RESETS)
        if self.residual is not None and self.residual.shape != (T, *rest):
            raise InputError(
                f"what is added to spikes of shape {(T, *rest)} must have it too, got {tuple(self.residual.shape)}."
            )
        if self.kept_0 is not None and self.kept_0.shape != rest:
            raise InputError(
                f"kept_0 must have the shape of one timestep, {tuple(rest)}, got {tuple(self.kept_0.shape)}."
            )
        if self.gain_T is not None and self.gain_T.shape != (T,):
            raise InputError(f"gain_T must hold one factor per timestep, ({T},), got {tuple(self.gain_T.shape)}.")


def _vectors(x: Tensor, C: int, vectors: dict[str, Tensor], *, scalars: bool = False) -> list[Tensor]:
    """Per-channel vectors in the membrane's dtype, each checked; `scalars` lets one value stand for all channels."""
    for name, a in vectors.items():
        if a.shape != (C,) and not (scalars and a.dim() == 0):
            one = "one value or " if scalars else ""
            raise InputError(
                f"{name} must hold {one}one value per channel, ({C},), for an input {tuple(x.shape)}, "
                f"got {tuple(a.shape)}."
            )
    return [a.to(plain.compute_dtype(x)).contiguous() for a in vectors.values()]


def _run(
    x: Tensor,
    vectors_C: tuple[Tensor, Tensor, Tensor, Tensor],
    norm: tuple[float, float, bool],
    neuron: _Neuron,
    layout: _Layout,
    shared: SharedMoments | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Spikes, mean_C, var_C and kept_T (None where it is not wanted).

    `vectors_C` are gamma, beta, mean, variance; `norm` is amplitude, eps, and whether to take the batch's statistics.
    """
    if not x.numel() and shared is None:
        raise InputError(f"the fused step takes at least one value, got an empty input of shape {tuple(x.shape)}.")
    # An empty part of a shared batch has nothing to be fast at.
    backend = resolve(neuron.backend if x.numel() else "eager", x.device, x.dtype)
    x_SMC = layout.rows(x)
    if backend.name == "native" and x_SMC.dtype != torch.float32:
        x_SMC = x_SMC.float()  # autocast: the membrane stays float32
    dtype, C = plain.compute_dtype(x_SMC), layout.inner
    names = ("gamma", "beta", "running_mean", "running_var")
    gamma, beta, mean, var = _vectors(x, C, dict(zip(names, vectors_C, strict=True)))
    per_channel = {"tau": torch.as_tensor(neuron.tau, dtype=dtype, device=x.device)}
    if not neuron.is_default:
        per_channel["v_th"] = torch.as_tensor(neuron.v_th, dtype=dtype, device=x.device)
    tau, *v_th = _vectors(x, C, per_channel, scalars=True)
    if (
        neuron.decay_input
    ):  # (1 - tau) i: the same step behind a smaller affine map, through which autograd finds its part of dtau
        gamma, beta = gamma * (1 - tau), beta * (1 - tau)
    if v_th:
        tau, v_th = tau.expand(C).contiguous(), [v_th[0].expand(C).contiguous()]
    amplitude, eps, batch_stats = norm
    step = _Step(
        neuron.num_steps,
        None if v_th else float(neuron.v_th),
        amplitude,
        eps,
        batch_stats,
        get_surrogate(neuron.surrogate),
        neuron.detach_reset,
        neuron.reset == "soft",
        neuron.return_state,
        backend,
        shared,
    )
    kappa, gain = (None if a is None else a.to(dtype).contiguous() for a in (neuron.kappa_T, neuron.gain_T))
    residual = None if neuron.residual is None else layout.rows(neuron.residual).to(x_SMC.dtype)
    kept_0 = None if neuron.kept_0 is None else layout.rows(neuron.kept_0.unsqueeze(0))[0].to(dtype)
    s_TMC, mean, var, kept = _Fused.apply(  # type: ignore[no-untyped-call]
        x_SMC, gamma, beta, mean, var, tau, kappa, residual, v_th[0] if v_th else None, kept_0, gain, step
    )
    rest = x.shape[1:]
    s = layout.back(s_TMC.to(x.dtype), rest)
    return s, mean, var, None if kept is None else layout.back(kept.unsqueeze(0), rest)[0]


def tdbn_neuron(
    x_SNC: Tensor,
    gamma_C: Tensor,
    beta_C: Tensor,
    running_mean_C: Tensor,
    running_var_C: Tensor,
    tau: Tensor | float,
    kappa_T: Tensor,
    *,
    num_steps: int,
    batch_stats: bool,
    residual: Tensor | None = None,
    v_th: Tensor | float = 0.5,
    norm_v_th: Tensor | float | None = None,
    alpha: float = 1.0,
    eps: float = 1e-5,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    reset: str = "hard",
    decay_input: bool = False,
    kept_0: Tensor | None = None,
    return_state: bool = False,
    gain_T: Tensor | None = None,
    channel_dim: int = 2,
    backend: str = "auto",
    shared: SharedMoments | None = None,
) -> tuple[Tensor, ...]:
    """Spikes of `lif(tdbn(x))`, and the batch's mean_C and (biased) var_C where `batch_stats`, else the running ones.

    The neuron's options are those of `core.lif`; with `return_state` kept_T comes back too. tdBN scales to `alpha *
    norm_v_th`, which is `alpha * v_th` where it is left out; a norm without that factor has `norm_v_th=1`. Gradients
    reach x, gamma, beta, tau, v_th, kept_0, the residual and, where it asks for one, kappa_T. Running statistics are
    read, not written: the caller updates them from the returned moments. `residual` is added to the spikes in the same
    pass (SEW-ADD). Under autocast the membrane is float32 and the spikes come back in x's dtype, in channels_last
    memory. Where other processes hold parts of the batch, `shared` has its statistics (`shared_moments`).
    """
    neuron = _Neuron(
        tau,
        kappa_T,
        num_steps,
        residual,
        v_th,
        surrogate,
        detach_reset,
        reset,
        decay_input,
        kept_0,
        return_state,
        gain_T,
        channel_dim,
        backend,
    )
    neuron.check(x_SNC)
    layout = _by_channel(x_SNC.shape, channel_dim)
    if shared is not None:
        running_mean_C, running_var_C = shared.mean_C, shared.var_C
    norm_v_th = v_th if norm_v_th is None else norm_v_th
    amplitude = alpha
    if isinstance(norm_v_th, Tensor):
        (scale_to,) = _vectors(x_SNC, layout.inner, {"norm_v_th": norm_v_th}, scalars=True)
        gamma_C = gamma_C * scale_to  # Eq. 4: a gradient reaches this v_th
    else:
        amplitude = alpha * norm_v_th
    vectors = gamma_C, beta_C, running_mean_C, running_var_C
    s, mean_C, var_C, kept = _run(x_SNC, vectors, (amplitude, eps, batch_stats), neuron, layout, shared)
    return (s, mean_C, var_C) if kept is None else (s, mean_C, var_C, kept)


def neuron(
    i: Tensor,
    tau: Tensor | float,
    kappa_T: Tensor,
    *,
    num_steps: int,
    residual: Tensor | None = None,
    v_th: Tensor | float = 0.5,
    surrogate: str | Surrogate = "rectangular",
    detach_reset: bool = False,
    reset: str = "hard",
    decay_input: bool = False,
    kept_0: Tensor | None = None,
    return_state: bool = False,
    gain_T: Tensor | None = None,
    channel_dim: int = 2,
    backend: str = "auto",
) -> Any:
    """Spikes of `core.lif(i)` alone, (T, ...) of any rank from 2 on; with `return_state` the pair of spikes and kept_T.

    Where tau and v_th are one value each, the channel axis does not matter, and the kernel runs on the memory as it
    lies; per channel, a layout whose channels are not innermost is copied. The spikes come back in the layout of i.

    >>> s, kept = neuron(torch.full((3, 1), 0.4), 0.5, torch.ones(3), num_steps=3, reset="soft", return_state=True)
    >>> s.flatten(), kept
    (tensor([0., 1., 0.]), tensor([0.4500]))
    """
    call = _Neuron(
        tau,
        kappa_T,
        num_steps,
        residual,
        v_th,
        surrogate,
        detach_reset,
        reset,
        decay_input,
        kept_0,
        return_state,
        gain_T,
        channel_dim,
        backend,
    )
    call.check(i)
    # A traced graph may have sizes that are not known yet, so it takes no decision by strides.
    lies = _by_channel(i.shape, min(2, i.dim() - 1)) if torch.compiler.is_compiling() else _as_it_lies(i, channel_dim)
    layout = lies if call.is_uniform else _by_channel(i.shape, channel_dim)
    one_C = torch.ones(layout.inner, dtype=torch.float32, device=i.device)
    # Four tensors of their own: torch.compile takes no tensor twice.
    vectors = one_C, torch.zeros_like(one_C), torch.zeros_like(one_C), torch.ones_like(one_C)
    s, _, _, kept = _run(i, vectors, (1.0, 0.0, False), call, layout)
    if layout.axes != lies.axes and not torch.compiler.is_compiling():
        s = lies.back(lies.rows(s), i.shape[1:])
        kept = None if kept is None else lies.back(lies.rows(kept.unsqueeze(0)), i.shape[1:])[0]
    return s if kept is None else (s, kept)


def moments(x_SNC: Tensor, *, channel_dim: int = 2, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel, as the fused step takes them."""
    if not x_SNC.numel():
        raise InputError(f"the fused step takes at least one value, got an empty input of shape {tuple(x_SNC.shape)}.")
    resolved = resolve(backend, x_SNC.device, x_SNC.dtype)
    x_SMC = _by_channel(x_SNC.shape, channel_dim).rows(x_SNC)
    return resolved.moments(x_SMC.float() if resolved.name == "native" else x_SMC)


@torch.no_grad()
def shared_moments(x_SNC: Tensor, replicas: Replicas, *, channel_dim: int = 2, backend: str = "auto") -> SharedMoments:
    """`moments` over all processes' parts of the batch, for the fused step's `shared`."""
    C = x_SNC.shape[_channel_axis(x_SNC.shape, channel_dim)]
    rows = x_SNC.numel() // C
    if rows:
        mean_C, var_C = moments(x_SNC, channel_dim=channel_dim, backend=backend)
    else:
        mean_C = var_C = x_SNC.new_zeros(C, dtype=plain.compute_dtype(x_SNC))
    return share_moments(mean_C, var_C, rows, replicas)


@torch.no_grad()
def probe(
    x_SNC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor | float,
    kappa_T: Tensor,
    *,
    v_th: Tensor | float = 0.5,
    reset: str = "hard",
    decay_input: bool = False,
    kept_0: Tensor | None = None,
    channel_dim: int = 2,
    backend: str = "auto",
) -> Tensor:
    """Counts and sums per timestep for the monitors, (T, 6) float64: spikes, available, sum v, sum v^2, sum i, sum i^2.

    `i = (x - mean_C) scale_C + beta_C` is the current before `decay_input` scales it. The options are those of
    `core.lif`.
    """
    T = kappa_T.shape[0] if kappa_T.dim() == 1 else 0
    _Neuron(
        tau, kappa_T, T, None, v_th, "rectangular", False, reset, False, kept_0, False, None, channel_dim, backend
    ).check(x_SNC)
    resolved = resolve(backend, x_SNC.device, x_SNC.dtype)
    layout = _by_channel(x_SNC.shape, channel_dim)
    x_SMC, C = layout.rows(x_SNC), layout.inner
    dtype = plain.compute_dtype(x_SMC)
    x_SMC = x_SMC.to(dtype)
    mean, scale, beta = _vectors(x_SNC, C, {"mean": mean_C, "scale": scale_C, "beta": beta_C})
    both = {"tau": tau, "v_th": v_th}
    both_C = {name: torch.as_tensor(a, dtype=dtype, device=x_SNC.device) for name, a in both.items()}
    tau_C, v_th_C = (a.expand(C).contiguous() for a in _vectors(x_SNC, C, both_C, scalars=True))
    kappa = kappa_T.to(dtype).contiguous()
    kept = None if kept_0 is None else layout.rows(kept_0.unsqueeze(0))[0].to(dtype)
    run = native.probe if resolved.name == "native" and x_SMC.numel() else plain.probe  # sums of nothing are 0
    if not decay_input:
        return run(x_SMC, mean, scale, beta, tau_C, kappa, v_th_C, reset == "soft", kept)
    small = 1 - tau_C
    sums_T6 = run(x_SMC, mean, scale * small, beta * small, tau_C, kappa, v_th_C, reset == "soft", kept)
    sums_T6[:, 4:] = run(x_SMC, mean, scale, beta, tau_C, kappa, v_th_C)[:, 4:]
    return sums_T6
