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
from mpd_agl.ops.step.layout import Layout, by_channel, in_memory_order
from mpd_agl.ops.step.spec import CurrentMap, NeuronSpec, NormSpec, StepInput, StepOutput, Widths, compute_dtype
from mpd_agl.ops.step.sync import BatchStats, Sync


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
    # A process may hold an empty part of a shared batch, which the kernels do not take.
    kernels = resolve(neuron.backend if x.numel() else "eager", x.device, x.dtype)
    layout, layout_out = _layouts(norm, neuron, x)
    x_SMC = kernels.input(layout.rows(x))
    dtype, C = compute_dtype(x_SMC), layout.inner

    norm = _identity(C, x.device) if norm is None else norm
    weight, bias, mean, var = _vectors(x, C, dtype, weight=norm.weight, bias=norm.bias, mean=norm.mean, var=norm.var)
    tau, v_th = _vectors(x, (C, 1), dtype, tau=neuron.tau, v_th=neuron.v_th)
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
    if soft or continues or tau.dim() or v_th.dim() or v_th.requires_grad:  # the kernels' form for any neuron
        tau, v_th = tau.expand(C).contiguous(), v_th.expand(C).contiguous()
    kappa, gain = (None, None) if step.widths is None else (_steps(a, T, dtype) for a in step.widths)
    residual = None if step.residual is None else layout.rows(step.residual).to(x_SMC.dtype)
    state = None if step.state is None else layout.rows(step.state.unsqueeze(0))[0].to(dtype)
    rows = stats.rows if stats is not None else 0
    call = _Call(T, norm.eps, rows, soft, neuron.detach_reset, neuron.surrogate, step.want_state, kernels, norm.sync)
    tensors = (x_SMC, weight, bias, mean, var, tau, v_th, kappa, gain, residual, state)
    s_TMC, state_MC = _Step.apply(*tensors, call)  # type: ignore[no-untyped-call]

    spikes = layout.back(s_TMC.to(x.dtype), x.shape[1:])
    state_out = None if state_MC is None else layout.back(state_MC.unsqueeze(0), x.shape[1:])[0]
    if layout_out.axes != layout.axes:  # the channels were moved for the kernels: back into the input's memory order
        spikes = layout_out.back(layout_out.rows(spikes), x.shape[1:])
        if state_out is not None:
            state_out = layout_out.back(layout_out.rows(state_out.unsqueeze(0)), x.shape[1:])[0]
    return StepOutput(spikes, state_out, stats)


@dataclass(frozen=True)
class _Call:
    """Everything about one call that is not a tensor with a gradient."""

    num_steps: int
    eps: float
    rows: Tensor | int  # values per channel behind the batch's statistics; 0: running ones
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
        x, bias, tau, v_th, residual, state = (
            None if a is None else a.detach() for a in (x_SMC, bias_C, tau, v_th, residual_TMC, state_MC)
        )
        inputs = x, mean_C, scale_C.detach(), bias, tau, v_th
        found: tuple[Tensor, Tensor | None] = call.kernels.forward(
            *inputs, call.num_steps, residual, state, call.soft, call.want_state
        )
        return found

    @staticmethod
    def backward(ctx: Any, g_TMC: Tensor | None, g_state_MC: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        if g_TMC is None and g_state_MC is None:
            return (None,) * 12
        x_SMC, _, bias_C, mean_C, invstd_C, scale_C, tau, v_th, kappa_T, gain_T, state_MC = ctx.saved_tensors
        if kappa_T is None:
            raise InputError("a gradient was asked of a step without widths. Pass widths=Widths(kappa_T).")
        if g_TMC is None:
            g_TMC = x_SMC.new_zeros((call.num_steps, *x_SMC.shape[1:]))
        if torch.is_grad_enabled():  # create_graph
            return _differentiable(ctx, g_TMC, g_state_MC)
        g_TMC = g_TMC.contiguous()
        g_state_MC = None if g_state_MC is None else g_state_MC.contiguous()
        want_kappa = ctx.needs_input_grad[7]
        inputs = x_SMC, g_TMC, mean_C, scale_C, bias_C, tau, v_th, kappa_T, gain_T, state_MC, g_state_MC
        dv_SMC, sum_dv_C, sum_dv_x_C, dtau, dv_th, dkappa_T, dstate_MC = call.kernels.backward(
            *inputs, call.surrogate, call.soft, call.detach_reset, want_kappa
        )
        dweight_C = sum_dv_x_C * invstd_C
        dx_SMC = None
        if ctx.needs_input_grad[0] and isinstance(call.rows, int) and call.rows == 0:
            dx_SMC = dv_SMC.mul_(scale_C).to(x_SMC.dtype)
        elif ctx.needs_input_grad[0]:
            all_dv_C, all_dv_x_C = call.sync.sum(torch.stack([sum_dv_C, sum_dv_x_C]))
            m1_C, m2_C = all_dv_C / call.rows, invstd_C * invstd_C * all_dv_x_C / call.rows
            dx_SMC = call.kernels.normalise_grad(x_SMC, dv_SMC, mean_C, scale_C, m1_C, m2_C).to(x_SMC.dtype)
        dresidual = g_TMC if ctx.needs_input_grad[9] else None
        dkappa = dkappa_T if want_kappa else None
        return dx_SMC, dweight_C, sum_dv_C, None, None, dtau, dv_th, dkappa, None, dresidual, dstate_MC, None


def _differentiable(ctx: Any, g_TMC: Tensor, g_state_MC: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients by the written equations, which autograd can differentiate again."""
    call: _Call = ctx.call
    if call.sync.is_shared:
        raise InputError("create_graph=True is not computed for a batch that several processes share. Use one process.")
    x_SMC, weight_C, bias_C, mean_C, invstd_C, _, tau, v_th, kappa_T, gain_T, state_MC = ctx.saved_tensors
    places = (0, 1, 2, 5, 6, 7, 10)
    # Views: where one input is a function of another (a state, or a width, of tau), autograd must not follow that way.
    inputs = [None if a is None else a.view_as(a) for a in (x_SMC, weight_C, bias_C, tau, v_th, kappa_T, state_MC)]
    x_SMC, weight_C, bias_C, tau, v_th, kappa_T, state_MC = inputs
    x = x_SMC.to(compute_dtype(x_SMC))
    if call.rows:
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
    pairs = [(spikes, g_TMC.to(spikes.dtype))] + ([] if g_state_MC is None else [(state, g_state_MC)])
    wanted = [(p, a) for p, a in zip(places, inputs, strict=True) if ctx.needs_input_grad[p] and a is not None]
    outputs, seeds = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, [a for _, a in wanted], seeds, create_graph=True, allow_unused=True)
    grads: list[Tensor | None] = [None] * 12
    for (place, _), grad in zip(wanted, found, strict=True):
        grads[place] = grad
    grads[9] = g_TMC if ctx.needs_input_grad[9] else None
    return tuple(grads)


def current_map(norm: NormSpec | None, x_SNC: Tensor, backend: str = "auto") -> CurrentMap | None:
    """The norm as one affine map, with the statistics that a step on this x uses; None without a norm."""
    if norm is None:
        return None
    mean_C, var_C = norm.mean, norm.var
    if norm.batch_stats:
        kernels = resolve(backend if x_SNC.numel() else "eager", x_SNC.device, x_SNC.dtype)
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
    T = kappa_T.shape[0] if kappa_T.dim() == 1 else 0
    _check(None, neuron, StepInput(x, T, Widths(kappa_T), state=state))
    kernels = resolve(neuron.backend if x.numel() else "eager", x.device, x.dtype)
    axis = neuron.channel_dim if -x.dim() <= neuron.channel_dim < x.dim() else x.dim() - 1
    layout = by_channel(x.shape, axis)
    x_SMC, C = layout.rows(x), layout.inner
    dtype = compute_dtype(x_SMC)
    x_SMC = x_SMC.to(dtype)
    if current is None:
        zero_C = torch.zeros(C, dtype=dtype, device=x.device)
        current = CurrentMap(zero_C, torch.ones_like(zero_C), zero_C)
    mean, scale, bias = _vectors(x, C, dtype, **current._asdict())
    tau, v_th = (a.expand(C).contiguous() for a in _vectors(x, (C, 1), dtype, tau=neuron.tau, v_th=neuron.v_th))
    state_MC = None if state is None else layout.rows(state.unsqueeze(0))[0].to(dtype)
    soft, kappa = neuron.reset == "soft", kappa_T.to(dtype).contiguous()
    if not neuron.decay_input:
        return kernels.probe(x_SMC, mean, scale, bias, tau, v_th, kappa, state_MC, soft)
    small = 1 - tau
    sums_T6 = kernels.probe(x_SMC, mean, scale * small, bias * small, tau, v_th, kappa, state_MC, soft)
    sums_T6[:, 4:] = kernels.probe(x_SMC, mean, scale, bias, tau, v_th, kappa, None, False)[:, 4:]
    return sums_T6


def _stats(x_SMC: Tensor, kernels: Kernels, sync: Sync) -> BatchStats:
    """The whole batch's statistics; a process with an empty part has none of its own."""
    rows = x_SMC.shape[0] * x_SMC.shape[1]
    with torch.no_grad():
        zero_C = x_SMC.new_zeros(x_SMC.shape[2], dtype=compute_dtype(x_SMC))
        return sync.stats(*(kernels.moments(x_SMC.detach()) if rows else (zero_C, zero_C)), rows)


def _layouts(norm: NormSpec | None, neuron: NeuronSpec, x: Tensor) -> tuple[Layout, Layout]:
    """The layout for the kernels, and that of the spikes: channels innermost behind a norm, else x's own."""
    if norm is not None:
        layout = by_channel(x.shape, neuron.channel_dim)
        return layout, layout
    uniform = not any(isinstance(a, Tensor) and a.dim() for a in (neuron.tau, neuron.v_th))
    if torch.compiler.is_compiling():  # a traced graph may have sizes that are not known yet: no decision by strides
        layout = by_channel(x.shape, min(2, x.dim() - 1) if uniform else neuron.channel_dim)
        return layout, layout
    own = in_memory_order(x, neuron.channel_dim)
    return (own if uniform else by_channel(x.shape, neuron.channel_dim)), own


def _identity(C: int, device: torch.device) -> NormSpec:
    """The norm that hands its input on. Four tensors of their own: torch.compile takes no tensor twice."""
    one_C = torch.ones(C, dtype=torch.float32, device=device)
    zeros = torch.zeros_like(one_C), torch.zeros_like(one_C)
    return NormSpec(weight=one_C, bias=zeros[0], mean=zeros[1], var=torch.ones_like(one_C), eps=0.0)


def _vectors(x: Tensor, size: int | tuple[int, int], dtype: torch.dtype, **vectors: Tensor | float) -> list[Tensor]:
    """Per-channel vectors in the membrane's dtype, each checked; a size (C, 1) lets one value serve all channels."""
    C, scalars = size if isinstance(size, tuple) else (size, 0)
    out = []
    for name, value in vectors.items():
        a = (
            value.to(x.device, dtype)
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=dtype, device=x.device)
        )
        if a.shape != (C,) and not (scalars and a.dim() == 0):
            one = "one value or " if scalars else ""
            raise InputError(
                f"{name} must hold {one}one value per channel, ({C},), for an input {tuple(x.shape)}, "
                f"got {tuple(a.shape)}."
            )
        out.append(a.contiguous())
    return out


def _steps(values_T: Tensor | None, num_steps: int, dtype: torch.dtype) -> Tensor | None:
    """Widths or gains, one per timestep."""
    if values_T is not None and values_T.shape != (num_steps,):
        raise InputError(
            f"widths hold one value per timestep, ({num_steps},), got {tuple(values_T.shape)}. "
            "A width rule returns Widths(kappa_T) or Widths(kappa_T, gain_T)."
        )
    return None if values_T is None else values_T.to(dtype).contiguous()


def _check(norm: NormSpec | None, neuron: NeuronSpec, step: StepInput) -> None:
    """Every shape that does not depend on channels."""
    x, T = step.x, step.num_steps
    S, rest = x.shape[0] if x.dim() else 0, x.shape[1:]
    if x.dim() < 2 or not x.is_floating_point():
        raise InputError(
            f"a neuron takes floating-point currents (T, N, ...), got {tuple(x.shape)}, {x.dtype}. "
            "Time is the first axis; for one timestep use neuron.step(i, state)."
        )
    if T < 1 or S not in (1, T):
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
