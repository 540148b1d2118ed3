"""The fused step: norm, neuron and surrogate as ONE autograd function with its own backward (Eq. 2-6, 10-13).

Kept from forward to backward: the norm's input and per-channel vectors. v and s are computed again. kappa is a constant
of the backward pass: no gradient flows into gamma or tau through it; a kappa that is itself learnable gets dH/dkappa.

Shapes: x is (S, N, ...) with S = T, or S = 1 where the input is the same at every step (a static image behind the
stem). The kernels see it as x_SMC: M rows (batch and space), C channels innermost.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpd_agl import core
from mpd_agl.core import RESETS, Surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops.step.backends import Kernels, resolve
from mpd_agl.ops.step.layout import by_channel, of_current
from mpd_agl.ops.step.spec import (
    CurrentMap,
    NeuronSpec,
    NormSpec,
    StepInput,
    StepOutput,
    Widths,
    compute_dtype,
    given,
)
from mpd_agl.ops.step.sync import LOCAL, BatchStats, Sync


def fused_step(norm: NormSpec | None, neuron: NeuronSpec, step: StepInput) -> StepOutput:
    """Spikes of `lif(norm(x))` over T steps, the state after the last one, and the batch's statistics.

    Gradients reach x, the norm's weight and bias, tau, v_th, the state, the residual and, where they ask for
    one, the widths. Running statistics are read, not written. Under autocast the membrane is float32, and the spikes
    have x's dtype and memory order.

    >>> neuron = NeuronSpec(tau=0.5, v_th=0.5, reset="soft")
    >>> step = StepInput(torch.full((3, 1), 0.4), num_steps=3, widths=Widths(torch.ones(3)), want_state=True)
    >>> out = fused_step(None, neuron, step)
    >>> out.spikes.flatten(), out.state
    (tensor([0., 1., 0.]), tensor([0.4500]))
    """
    _check(norm, neuron, step)
    x, T = step.x, step.num_steps
    kernels = _kernels(neuron.backend, x)
    uniform = not any(isinstance(a, Tensor) and a.dim() for a in (neuron.tau, neuron.v_th))
    layout = of_current(x, neuron.channel_dim, uniform=uniform) if norm is None else by_channel(x.shape, 2)
    x_SMC = kernels.input(layout.rows(x))
    dtype, C = compute_dtype(x_SMC), layout.inner

    norm = norm or _identity(C, x.device)
    weight, bias, mean, var = _vectors(x, C, dtype, weight=norm.weight, bias=norm.bias, mean=norm.mean, var=norm.var)
    tau, v_th = _constants(x, C, dtype, tau=neuron.tau, v_th=neuron.v_th)
    if neuron.decay_input:  # the current (1 - tau) i: the same step behind a smaller affine map
        weight, bias = weight * (1 - tau), bias * (1 - tau)
    if norm.amplitude != 1:
        weight = weight * norm.amplitude
    stats = None
    if norm.batch_stats:
        stats = _stats(x_SMC, kernels, norm.sync)
        mean, var = stats.mean_C, stats.var_C

    soft = neuron.reset == "soft"
    continues = step.state is not None or step.want_state
    if soft or continues or not uniform or v_th.requires_grad:  # the kernels' form for any neuron
        tau, v_th = tau.expand(C).contiguous(), v_th.expand(C).contiguous()
    kappa, gain = _widths(step, dtype)
    residual = given(step.residual, lambda a: layout.rows(a).to(x_SMC.dtype))
    state = given(step.state, lambda a: layout.rows(a.unsqueeze(0))[0].to(dtype))
    rows = given(stats, lambda s: s.rows)
    call = _Call(T, norm.eps, rows, soft, neuron.detach_reset, neuron.surrogate, step.want_state, kernels, norm.sync)
    tensors = (x_SMC, weight, bias, mean, var, tau, v_th, kappa, gain, residual, state)
    s_TMC, state_MC = _Step.apply(*tensors, call)  # type: ignore[no-untyped-call]

    rest = x.shape[1:]
    state_out = given(state_MC, lambda a: layout.back(a.unsqueeze(0), rest)[0])
    return StepOutput(layout.back(s_TMC.to(x.dtype), rest), state_out, stats)


@dataclass(frozen=True)
class _Call:
    """Everything about one call that is not a tensor with a gradient."""

    num_steps: int
    eps: float
    rows: Tensor | int | None  # values per channel behind the batch's statistics; None: running ones
    soft: bool
    detach_reset: bool
    surrogate: Surrogate
    want_state: bool
    kernels: Kernels
    sync: Sync


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_SMC: Tensor,
        weight_C: Tensor,
        bias_C: Tensor,
        mean_C: Tensor,
        var_C: Tensor,
        tau: Tensor,
        v_th: Tensor,
        kappa_T: Tensor | None,
        gain_T: Tensor | None,
        residual_TMC: Tensor | None,
        state_MC: Tensor | None,
        call: _Call,
    ) -> tuple[Tensor, Tensor | None]:
        invstd_C = torch.rsqrt(var_C + call.eps)
        scale_C = weight_C * invstd_C
        ctx.save_for_backward(x_SMC, weight_C, bias_C, mean_C, invstd_C, scale_C, tau, v_th, kappa_T, gain_T, state_MC)
        ctx.call = call
        ctx.set_materialize_grads(False)
        vectors = (a.detach() for a in (scale_C, bias_C, tau, v_th))
        residual, state = (given(a, Tensor.detach) for a in (residual_TMC, state_MC))
        inputs = x_SMC.detach(), mean_C, *vectors
        found: tuple[Tensor, Tensor | None] = call.kernels.forward(
            *inputs, call.num_steps, residual, state, call.soft, call.want_state
        )
        return found

    @staticmethod
    def backward(ctx: Any, g_TMC: Tensor | None, g_state_MC: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        x_SMC, _, bias_C, mean_C, invstd_C, scale_C, tau, v_th, kappa_T, gain_T, state_MC = ctx.saved_tensors
        if kappa_T is None:
            raise InputError("a gradient was asked of a step without widths. Pass widths=Widths(kappa_T).")
        if g_TMC is None:
            g_TMC = x_SMC.new_zeros((call.num_steps, *x_SMC.shape[1:]))
        if torch.is_grad_enabled():  # create_graph
            return _wanted(ctx, _differentiable(ctx, g_TMC, g_state_MC))
        g_TMC, g_state_MC = g_TMC.contiguous(), given(g_state_MC, Tensor.contiguous)
        inputs = x_SMC, g_TMC, mean_C, scale_C, bias_C, tau, v_th, kappa_T, gain_T, state_MC, g_state_MC
        dv_SMC, sum_dv_C, sum_dv_x_C, dtau, dv_th, dkappa_T, dstate_MC = call.kernels.backward(
            *inputs, call.surrogate, call.soft, call.detach_reset, ctx.needs_input_grad[7]
        )
        dx_SMC = None
        if ctx.needs_input_grad[0] and call.rows is None:
            dx_SMC = dv_SMC.mul_(scale_C).to(x_SMC.dtype)
        elif ctx.needs_input_grad[0]:
            all_dv_C, all_dv_x_C = call.sync.sum(torch.stack([sum_dv_C, sum_dv_x_C]))
            m1_C, m2_C = all_dv_C / call.rows, invstd_C * invstd_C * all_dv_x_C / call.rows
            dx_SMC = call.kernels.normalise_grad(x_SMC, dv_SMC, mean_C, scale_C, m1_C, m2_C).to(x_SMC.dtype)
        dweight_C = sum_dv_x_C * invstd_C
        grads = dx_SMC, dweight_C, sum_dv_C, None, None, dtau, dv_th, dkappa_T, None, g_TMC, dstate_MC, None
        return _wanted(ctx, grads)


def _wanted(ctx: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """The gradients of those inputs that ask for one."""
    return tuple(g if wanted else None for g, wanted in zip(grads, ctx.needs_input_grad, strict=True))


def _differentiable(ctx: Any, g_TMC: Tensor, g_state_MC: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients by the written equations, which autograd can differentiate again."""
    call: _Call = ctx.call
    if call.sync.is_shared:
        raise InputError("create_graph=True is not computed for a batch that several processes share. Use one process.")
    # Views: where one input is a function of another (a state, or a width, of tau), autograd must not follow that way.
    saved: Any = (given(a, lambda a: a.view_as(a)) for a in ctx.saved_tensors)
    x_SMC, weight_C, bias_C, mean_C, invstd_C, _, tau, v_th, kappa_T, gain_T, state_MC = saved
    x = x_SMC.to(compute_dtype(x_SMC))
    if call.rows is not None:
        var_C, mean_C = torch.var_mean(x, dim=(0, 1), correction=0)
        invstd_C = torch.rsqrt(var_C + call.eps)
    i_TMC = ((x - mean_C) * (weight_C * invstd_C) + bias_C).expand(call.num_steps, *x.shape[1:])
    spikes, _, state = core.lif(
        i_TMC,
        tau,
        kappa_T,
        v_th=v_th,
        surrogate=call.surrogate,
        detach_reset=call.detach_reset,
        reset="soft" if call.soft else "hard",
        state=state_MC,
        gain_T=gain_T,
    )
    g_state_MC = torch.zeros_like(state) if g_state_MC is None else g_state_MC
    inputs = {0: x_SMC, 1: weight_C, 2: bias_C, 5: tau, 6: v_th, 7: kappa_T, 10: state_MC}
    wanted = {place: a for place, a in inputs.items() if ctx.needs_input_grad[place]}
    seeds = g_TMC.to(spikes.dtype), g_state_MC
    grads: dict[int, Tensor | None] = {9: g_TMC}
    if wanted:
        found = torch.autograd.grad((spikes, state), [*wanted.values()], seeds, create_graph=True, allow_unused=True)
        grads |= dict(zip(wanted, found, strict=True))
    return tuple(grads.get(place) for place in range(12))


def current_map(
    norm: NormSpec | None, x_SNC: Tensor, backend: str = "auto", stats: BatchStats | None = None
) -> CurrentMap | None:
    """The norm as one affine map, with the statistics that a step on this x uses, or used; None without a norm."""
    if norm is None:
        return None
    mean_C, var_C = (norm.mean, norm.var) if stats is None else stats[:2]
    if norm.batch_stats and stats is None:
        kernels = _kernels(backend, x_SNC)
        mean_C, var_C, _ = _stats(kernels.input(by_channel(x_SNC.shape, 2).rows(x_SNC)), kernels, norm.sync)
    scale_C = norm.weight * norm.amplitude * torch.rsqrt(var_C + norm.eps)
    return CurrentMap(mean_C, scale_C.detach(), norm.bias.detach())


@torch.no_grad()
def probe(
    x: Tensor, current: CurrentMap | None, neuron: NeuronSpec, kappa_T: Tensor, state: Tensor | None = None
) -> Tensor:
    """Counts and sums per timestep for monitors and width rules, (T, 6) float64: spikes, neurons inside the window,
    sums of v, v^2, i and i^2.

    `current` makes the current i from x, and `decay_input` scales only what enters v.
    """
    _check(None, neuron, StepInput(x, kappa_T.numel(), Widths(kappa_T), state=state))
    kernels = _kernels(neuron.backend, x)
    axis = neuron.channel_dim if -x.dim() <= neuron.channel_dim < x.dim() else x.dim() - 1
    layout = by_channel(x.shape, axis)
    x_SMC, C, dtype = layout.rows(x), layout.inner, compute_dtype(x)
    if current is None:
        zero_C = torch.zeros(C, dtype=dtype, device=x.device)
        current = CurrentMap(zero_C, torch.ones_like(zero_C), zero_C)
    mean, scale, bias = _vectors(x, C, dtype, **current._asdict())
    tau, v_th = (a.expand(C).contiguous() for a in _constants(x, C, dtype, tau=neuron.tau, v_th=neuron.v_th))
    state_MC = given(state, lambda a: layout.rows(a.unsqueeze(0))[0].to(dtype))
    small = 1 - tau if neuron.decay_input else torch.ones_like(tau)
    rest = (tau, v_th, kappa_T.to(dtype).contiguous(), state_MC, neuron.reset == "soft")
    sums_T6 = kernels.probe(x_SMC.to(dtype), mean, scale * small, bias * small, *rest)
    if neuron.decay_input:
        sums_T6[:, 4:] = kernels.probe(x_SMC.to(dtype), mean, scale, bias, *rest)[:, 4:]
    return sums_T6


def _kernels(backend: str, x: Tensor) -> Kernels:
    """Those of the backend; a process may hold an empty part of a shared batch, which only eager takes."""
    return resolve(backend if x.numel() else "eager", x.device, x.dtype)


def _stats(x_SMC: Tensor, kernels: Kernels, sync: Sync) -> BatchStats:
    """The whole batch's statistics; a process with an empty part has none of its own."""
    rows = x_SMC.shape[0] * x_SMC.shape[1]
    with torch.no_grad():
        zero_C = x_SMC.new_zeros(x_SMC.shape[2], dtype=compute_dtype(x_SMC))
        return sync.stats(*(kernels.moments(x_SMC.detach()) if rows else (zero_C, zero_C)), rows)


def _identity(C: int, device: torch.device) -> NormSpec:
    """The norm that hands its input on. Four tensors of their own: torch.compile takes no tensor twice."""
    one_C = torch.ones(C, dtype=torch.float32, device=device)
    bias_C, mean_C, var_C = torch.zeros_like(one_C), torch.zeros_like(one_C), torch.ones_like(one_C)
    # The last field too: torch.compile takes no object as a field's default.
    return NormSpec(weight=one_C, bias=bias_C, mean=mean_C, var=var_C, eps=0.0, sync=LOCAL)


def _vectors(x: Tensor, C: int, dtype: torch.dtype, **vectors: Tensor) -> list[Tensor]:
    """Per-channel vectors in the membrane's dtype, each checked."""
    for name, a in vectors.items():
        if a.shape != (C,):
            raise InputError(
                f"{name} must hold one value per channel, ({C},), for an input {tuple(x.shape)}, got {tuple(a.shape)}."
            )
    return [a.to(x.device, dtype).contiguous() for a in vectors.values()]


def _constants(x: Tensor, C: int, dtype: torch.dtype, **constants: Tensor | float) -> list[Tensor]:
    """One value, or one per channel, as tensors on x's device; a number is written there without a copy."""
    out = []
    for name, value in constants.items():
        if not isinstance(value, Tensor):
            out.append(torch.full((), value, dtype=dtype, device=x.device))
        elif value.dim() == 0:
            out.append(value.to(x.device, dtype))
        else:
            out += _vectors(x, C, dtype, **{name: value})
    return out


def _widths(step: StepInput, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """kappa_T and gain_T in the membrane's dtype, each checked."""
    if step.widths is None:
        return None, None
    kappa_T, gain_T = step.widths
    gain_T = torch.ones_like(kappa_T) if gain_T is None else gain_T
    for a in (kappa_T, gain_T):
        if a.shape != (step.num_steps,):
            raise InputError(
                f"widths hold one value per timestep, ({step.num_steps},), got {tuple(a.shape)}. "
                "A width rule returns Widths(kappa_T) or Widths(kappa_T, gain_T)."
            )
    # A width that is not finite makes every gradient NaN, also where no neuron is inside.
    gain_T = (gain_T + 0 * kappa_T).detach()
    return kappa_T.to(dtype).contiguous(), gain_T.to(dtype).contiguous()


def _check(norm: NormSpec | None, neuron: NeuronSpec, step: StepInput) -> None:
    """Every shape that does not depend on channels."""
    x, T = step.x, step.num_steps
    rest = x.shape[1:]
    if x.dim() < 2 or not x.is_floating_point():
        raise InputError(
            f"a neuron takes floating-point currents (T, N, ...), got {tuple(x.shape)}, {x.dtype}. "
            "Time is the first axis; for one timestep use neuron.step(i, state)."
        )
    if T < 1 or x.shape[0] not in (1, T):
        raise InputError(
            f"a neuron over {T} timesteps takes an input of {max(T, 1)} timesteps, or of 1 that is the same at each, "
            f"got {tuple(x.shape)}. Use num_steps=2, as the paper does."
        )
    if neuron.reset not in RESETS:
        raise unknown_name("reset", neuron.reset, RESETS)
    if norm is not None and neuron.channel_dim != 2:
        raise InputError(
            f"behind a norm the channels are on axis 2, got channel_dim={neuron.channel_dim}. Leave it out."
        )
    for name, a, shape in (("residual", step.residual, (T, *rest)), ("state", step.state, tuple(rest))):
        if a is not None and a.shape != shape:
            raise InputError(f"the {name} of a step on {tuple(x.shape)} has the shape {shape}, got {tuple(a.shape)}.")
