"""The fused step as Triton kernels, for GPUs: `eager.py` line by line, with the T steps of a neuron in registers.

A program holds a tile of rows and channels of x_SMC, channels innermost in memory, and walks through time with it, so
that x, g and s are read or written once. v and s are computed again in the backward pass. Membrane and sums are float32
whatever the dtype of x; sums over programs are added in float64, in an order that depends on the shape alone. T over
`MOST_STEPS` runs in chunks that hand their state on.

Nothing waits for the device: tau and kappa are read by the kernels. On the `meta` device nothing is launched. With
TRITON_INTERPRET=1 in the environment before Triton is imported, the kernels run on the CPU, slowly.
"""

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mpd_agl.core import Arctan, Rectangular, Sigmoid, Surrogate, Triangular
from mpd_agl.errors import InputError
from mpd_agl.ops.step import eager

SURROGATES = (Rectangular, Triangular, Sigmoid, Arctan)
"""Those that `_bump` has. A subclass may compute anything: it has no kernel."""
MOST_STEPS = 32
"""Steps of one launch: with more, the potentials of the backward pass would not fit into registers."""
PROGRAMS = 1024
"""Programs of a launch that adds up: enough to fill a GPU, few enough that their sums are small beside x."""
CHANNELS, WARPS = 64, 4
"""Channels of a tile at most (fewer where there are fewer), and the warps that share one."""


@triton.jit
def _reset(v, v_th, SOFT: tl.constexpr):
    return tl.where(v >= v_th, v - v_th if SOFT else 0.0, v)


@triton.jit
def _bump(u, kappa, SURROGATE: tl.constexpr):
    """h(u; kappa): `core.surrogate`."""
    if SURROGATE == "rectangular":  # Eq. 6
        h = tl.where(tl.abs(u) < kappa / 2, 1 / kappa, 0.0)
    elif SURROGATE == "triangular":
        h = tl.maximum(1 - tl.abs(u) / kappa, 0.0) / kappa
    elif SURROGATE == "sigmoid":  # p (1 - p) by exp(-|4u/kappa|), which cannot overflow
        e = tl.exp(-tl.abs(u * 4 / kappa))
        h = e / ((1 + e) * (1 + e)) * 4 / kappa
    else:
        tl.static_assert(SURROGATE == "arctan", "a surrogate without a kernel")
        r = u * 3.141592653589793 / kappa
        h = 1 / (1 + r * r) / kappa
    return h


@triton.jit
def _bump_kappa(u, kappa, h):
    """dH/dkappa."""
    return tl.where(h == 0, 0.0, -(u / kappa) * h)


@triton.jit
def _channels(CHANNELS: tl.constexpr):
    """The channels of this program's tiles."""
    c = tl.arange(0, CHANNELS)
    if CHANNELS > 1:  # else there is one channel in all, and the compiler sees that rows are contiguous
        c += tl.program_id(1) * CHANNELS
    return c


@triton.jit
def _place(tile, c, rows, C, ROWS: tl.constexpr):
    """Where a tile begins, its offsets from there, and which of them are inside x."""
    first = tl.cast(tile, tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    return first * C, r[:, None] * C + c[None, :], (first + r < rows)[:, None] & (c < C)[None, :]


@triton.jit
def _constants(mean, scale, beta, tau, v_th, c, C, GENERAL: tl.constexpr):
    """Per channel; or one tau and one v_th for all."""
    mean_C = tl.load(mean + c, c < C, other=0.0)[None, :]
    scale_C = tl.load(scale + c, c < C, other=0.0)[None, :]
    beta_C = tl.load(beta + c, c < C, other=0.0)[None, :]
    if GENERAL:
        tau_C = tl.load(tau + c, c < C, other=0.0)[None, :]
        v_th_C = tl.load(v_th + c, c < C, other=0.0)[None, :]
    else:
        tau_C, v_th_C = tl.load(tau), tl.load(v_th)
    return mean_C, scale_C, beta_C, tau_C, v_th_C


@triton.jit
def _forward(
    x,
    mean,
    scale,
    beta,
    tau,
    v_th,
    residual,
    state,
    s,
    state_out,
    M,
    C,
    step,  # values of one timestep, M * C
    T: tl.constexpr,
    STILL: tl.constexpr,  # one timestep serves all
    GENERAL: tl.constexpr,  # tau and v_th per channel
    SOFT: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    c = _channels(CHANNELS)
    first, at, inside = _place(tl.program_id(0), c, M, C, ROWS)
    mean_C, scale_C, beta_C, tau_C, v_th_C = _constants(mean, scale, beta, tau, v_th, c, C, GENERAL)
    x, first_s = x + first, first
    if state is not None:
        kept = tl.load(state + first + at, inside, other=0.0)
    for t in tl.static_range(T):
        if t == 0 or not STILL:
            i = (tl.load(x + at, inside, other=0.0).to(tl.float32) - mean_C) * scale_C + beta_C
            x += step
        if t == 0 and state is None:
            v = i
        else:
            v = tau_C * kept + i  # Eq. 2
        kept = _reset(v, v_th_C, SOFT)
        if s is not None:
            fired = tl.where(v >= v_th_C, 1.0, 0.0)  # Eq. 3
            if residual is not None:
                fired += tl.load(residual + first_s + at, inside, other=0.0).to(tl.float32)
            tl.store(s + first_s + at, fired.to(s.dtype.element_ty), inside)
            first_s += step
    if state_out is not None:
        tl.store(state_out + first + at, kept, inside)


@triton.jit
def _backward(
    x,
    g,
    mean,
    scale,
    beta,
    tau,
    v_th,
    kappa,
    gain,
    state,
    g_state,
    dv_out,
    dstate,
    sums,  # per program: sum dv, sum dv (x - mean), dtau and, in the general form, dv_th, each per channel
    dkappa,  # per program: one value per timestep
    M,
    C,
    step,
    tiles,
    T: tl.constexpr,
    STILL: tl.constexpr,
    GENERAL: tl.constexpr,
    SOFT: tl.constexpr,
    SURROGATE: tl.constexpr,
    DETACH_RESET: tl.constexpr,
    KEEP_X: tl.constexpr,  # in registers; else it is read again, from the cache
    STEPS: tl.constexpr,  # T as a power of 2
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    zero = tl.zeros((ROWS, CHANNELS), tl.float32)
    sum_dv, sum_dv_x, sum_tau, sum_v_th = zero, zero, zero, zero
    sum_kappa = tl.zeros((STEPS,), tl.float32)
    c = _channels(CHANNELS)
    mean_C, scale_C, beta_C, tau_C, v_th_C = _constants(mean, scale, beta, tau, v_th, c, C, GENERAL)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first, at, inside = _place(tile, c, M, C, ROWS)
        x_at, g_at, out_at = x + first, g + first, dv_out + first
        v_T, x_T = (), ()
        if state is not None:
            kept = tl.load(state + first + at, inside, other=0.0)
        for t in tl.static_range(T):
            if t == 0 or not STILL:
                x_t = tl.load(x_at + at, inside, other=0.0)
                i = (x_t.to(tl.float32) - mean_C) * scale_C + beta_C
            if t == 0 and state is None:
                v = i
            else:
                v = tau_C * kept + i
            kept = _reset(v, v_th_C, SOFT)
            v_T, x_T = v_T + (v,), x_T + (x_t,)  # noqa: RUF005 (Triton's language has no *)
            if t + 1 < T:
                g_at += step
                if not STILL:
                    x_at += step
                    out_at += step
        dv = zero
        if g_state is not None:
            dv = tl.load(g_state + first + at, inside, other=0.0)
        dv_S = zero
        for t in tl.static_range(T - 1, -1, -1):
            v, k = v_T[t], tl.load(kappa + t)
            u = v - v_th_C
            ds = tl.load(g_at + at, inside, other=0.0).to(tl.float32)
            g_at -= step
            leak = dv if t + 1 == T else tau_C * dv  # after the last step, dv is the gradient of the state itself
            if not DETACH_RESET:
                ds -= (v_th_C if SOFT else v) * leak  # Eq. 13
            if t + 1 < T:
                sum_tau += dv * _reset(v, v_th_C, SOFT)
            h = _bump(u, k, SURROGATE)
            weighed = ds * tl.load(gain + t)
            if dkappa is not None:
                each = tl.where(inside, weighed * _bump_kappa(u, k, h), 0.0)
                sum_kappa += tl.where(tl.arange(0, STEPS) == t, tl.sum(each), 0.0)
            by_spike = weighed * h
            if GENERAL:
                sum_v_th -= by_spike
                if SOFT:
                    sum_v_th -= tl.where(u >= 0, leak, 0.0)
            dv = by_spike + (leak if SOFT else tl.where(u >= 0, 0.0, leak))  # Eq. 12
            dv = tl.where(inside, dv, 0.0)
            if STILL:
                dv_S += dv
            else:
                x_t = x_T[t] if KEEP_X else tl.load(x_at + at, inside, other=0.0)
                sum_dv += dv
                sum_dv_x += dv * (x_t.to(tl.float32) - mean_C)
                tl.store(out_at + at, dv.to(dv_out.dtype.element_ty), inside)
                x_at -= step
                out_at -= step
        if STILL:
            sum_dv += dv_S
            sum_dv_x += dv_S * (x_T[0].to(tl.float32) - mean_C)
            tl.store(out_at + at, dv_S.to(dv_out.dtype.element_ty), inside)
        if state is not None:
            sum_tau += dv * tl.load(state + first + at, inside, other=0.0)
            tl.store(dstate + first + at, tau_C * dv, inside)
    own = tl.program_id(0) * C * (4 if GENERAL else 3) + c
    tl.store(sums + own, tl.sum(sum_dv, 0), c < C)
    tl.store(sums + own + C, tl.sum(sum_dv_x, 0), c < C)
    tl.store(sums + own + 2 * C, tl.sum(sum_tau, 0), c < C)
    if GENERAL:
        tl.store(sums + own + 3 * C, tl.sum(sum_v_th, 0), c < C)
    if dkappa is not None:
        t_own = tl.arange(0, STEPS)
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(dkappa + program * T + t_own, sum_kappa, t_own < T)


@triton.jit
def _normalise_grad(x, dv, mean, scale, m1, m2, rows, C, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    c = _channels(CHANNELS)
    first, at, inside = _place(tl.program_id(0), c, rows, C, ROWS)
    mean_C, scale_C = tl.load(mean + c, c < C, other=0.0), tl.load(scale + c, c < C, other=0.0)
    m1_C, m2_C = tl.load(m1 + c, c < C, other=0.0), tl.load(m2 + c, c < C, other=0.0)
    centred = tl.load(x + first + at, inside, other=0.0).to(tl.float32) - mean_C[None, :]
    d = tl.load(dv + first + at, inside, other=0.0).to(tl.float32)
    dx = scale_C[None, :] * (d - m1_C[None, :] - centred * m2_C[None, :])
    tl.store(dv + first + at, dx.to(dv.dtype.element_ty), inside)


@triton.jit
def _moments(x, parts, rows, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Per program and channel: count, mean and M2 (the sum of squared deviations), which do not cancel (Welford)."""
    count, mean = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    m2 = tl.zeros((ROWS, CHANNELS), tl.float32)
    c = _channels(CHANNELS)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first, at, inside = _place(tile, c, rows, C, ROWS)
        value = tl.load(x + first + at, inside, other=0.0).to(tl.float32)
        count += tl.where(inside, 1.0, 0.0)
        off = tl.where(inside, value - mean, 0.0)
        mean += off / tl.maximum(count, 1.0)
        m2 += off * (value - mean)
    count_C = tl.sum(count, 0)
    mean_C = tl.sum(count * mean, 0) / tl.maximum(count_C, 1.0)
    m2_C = tl.sum(m2 + count * (mean - mean_C[None, :]) * (mean - mean_C[None, :]), 0)
    own = parts + tl.program_id(0) * 3 * C + c
    tl.store(own, count_C, c < C)
    tl.store(own + C, mean_C, c < C)
    tl.store(own + 2 * C, m2_C, c < C)


@triton.jit
def _merge_moments(parts, mean, var, C, count, programs, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The union of all programs' parts (Chan et al. 1979), in float64."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    all_mean, all_m2 = tl.zeros((CHANNELS,), tl.float64), tl.zeros((CHANNELS,), tl.float64)
    for begin in range(0, programs, ROWS):
        p = begin + tl.arange(0, ROWS)[:, None]
        inside = (p < programs) & (c < C)[None, :]
        own = parts + p * 3 * C + c[None, :]
        n = tl.load(own, inside, other=0.0).to(tl.float64)
        all_mean += tl.sum(n * tl.load(own + C, inside, other=0.0).to(tl.float64), 0)
    all_mean /= count
    for begin in range(0, programs, ROWS):
        p = begin + tl.arange(0, ROWS)[:, None]
        inside = (p < programs) & (c < C)[None, :]
        own = parts + p * 3 * C + c[None, :]
        n = tl.load(own, inside, other=0.0).to(tl.float64)
        off = tl.load(own + C, inside, other=0.0).to(tl.float64) - all_mean[None, :]
        all_m2 += tl.sum(tl.load(own + 2 * C, inside, other=0.0).to(tl.float64) + n * off * off, 0)
    tl.store(mean + c, all_mean.to(tl.float32), c < C)
    tl.store(var + c, (all_m2 / count).to(tl.float32), c < C)


@triton.jit
def _add_up(parts, total, columns, programs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Each column's sum over the programs, in float64."""
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.zeros((COLUMNS,), tl.float64)
    for begin in range(0, programs, ROWS):
        p = begin + tl.arange(0, ROWS)[:, None]
        inside = (p < programs) & (c < columns)[None, :]
        found += tl.sum(tl.load(parts + p * columns + c[None, :], inside, other=0.0).to(tl.float64), 0)
    tl.store(total + c, found.to(tl.float32), c < columns)


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check(x_SMC: Tensor, **tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Refuse what a kernel would misread: each tensor must be contiguous, on x's device, in the shape beside it."""
    for name, (a, shape) in {"x": (x_SMC, x_SMC.shape), **tensors}.items():
        if a is None:
            continue
        if a.device != x_SMC.device:
            raise InputError(
                f"the triton kernels take every tensor on one device, got x on {x_SMC.device} and {name} on "
                f"{a.device}. Move it: {name}.to({str(x_SMC.device)!r})."
            )
        if a.dtype not in _DTYPES or a.shape != shape or not a.is_contiguous():
            got = f"{tuple(a.shape)}, {a.dtype}" + ("" if a.is_contiguous() else ", not contiguous")
            raise InputError(
                f"the triton kernels take {name} as a contiguous float32, bfloat16 or float16 tensor of shape "
                f"{tuple(shape)}, got {got}. Use backend='eager'."
            )


def compile_options(kernel: Any, amd: bool) -> dict[str, Any]:
    """How a kernel is compiled.

    NVIDIA's assembler saves registers for occupancy, and spilled two forms of the forward kernel on 9.0 to do so. A
    bound that the kernel does not reach makes it take what is needed.
    """
    bound = {"maxnreg": 128} if kernel is _forward and not amd else {}
    return {"num_warps": WARPS, "enable_fp_fusion": True, **bound}


def _launch(kernel: Any, grid: tuple[int, ...], x: Tensor, *args: Any, **constants: Any) -> None:
    """Run a kernel on x's GPU; on the meta device there is nothing to compute."""
    if x.device.type == "meta":
        return
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        kernel[grid](x, *args, **constants, **compile_options(kernel, amd=bool(torch.version.hip)))


def tile_of(C: int, values: int) -> dict[str, int]:
    """Rows and channels of a tile of about so many values."""
    channels = min(CHANNELS, triton.next_power_of_2(C))
    return {"ROWS": max(1, values // channels), "CHANNELS": channels}


def values_of(dtype: torch.dtype, num_steps: int = 1, general: bool = False) -> int:
    """Values of a tile: 16 bytes of x for each thread, fewer where the potentials of T steps must stay in registers."""
    steps = int(triton.next_power_of_2(num_steps)) * (2 if general else 1)
    return min(16 // dtype.itemsize, max(1 if general else 2, 32 // steps)) * 32 * WARPS


def keeps_x(values: int, num_steps: int) -> bool:
    """Whether a thread of the backward pass keeps x in registers beside the potentials."""
    return num_steps * values // (32 * WARPS) <= 32


def _grid(rows: int, C: int, tile: dict[str, int], *, adds_up: bool) -> tuple[int, int, int]:
    """Programs over rows and channels, and the tiles of rows that they share."""
    tiles, across = -(-rows // tile["ROWS"]), -(-C // tile["CHANNELS"])
    return min(tiles, max(1, PROGRAMS // across)) if adds_up else tiles, across, tiles


def _totals(parts: Tensor) -> Tensor:
    """The sum over programs (P, ...), float32."""
    P, columns = parts.shape[0], parts[0].numel()
    total = parts.new_empty(parts.shape[1:])
    _launch(_add_up, (-(-columns // CHANNELS),), parts, total, columns, P, ROWS=16, COLUMNS=CHANNELS)
    return total


def moments(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    """See `eager.moments`."""
    _check(x_SMC)
    rows, C = x_SMC.shape[0] * x_SMC.shape[1], x_SMC.shape[2]
    tile = tile_of(C, values_of(x_SMC.dtype))
    down, across, tiles = _grid(rows, C, tile, adds_up=True)
    parts = x_SMC.new_empty((down, 3, C), dtype=torch.float32)
    mean_C, var_C = (parts.new_empty(C) for _ in range(2))
    _launch(_moments, (down, across), x_SMC, parts, rows, C, tiles, **tile)
    columns = {"ROWS": 16, "CHANNELS": CHANNELS}
    _launch(_merge_moments, (-(-C // CHANNELS),), parts, mean_C, var_C, C, rows, down, **columns)
    return mean_C, var_C


def _run_forward(
    x_SMC: Tensor,
    vectors: tuple[Tensor, ...],
    num_steps: int,
    residual_TMC: Tensor | None,
    soft: bool,
    state_MC: Tensor | None,
    s_TMC: Tensor | None,
    state_out_MC: Tensor | None,
) -> None:
    """One launch over at most `MOST_STEPS` steps; `vectors` are mean, scale, bias, tau, v_th."""
    S, M, C = x_SMC.shape
    tile = tile_of(C, values_of(x_SMC.dtype))
    down, across, _ = _grid(M, C, tile, adds_up=False)
    inputs = (*vectors, residual_TMC, state_MC, s_TMC, state_out_MC, M, C, M * C)
    kind = {"T": num_steps, "STILL": S == 1, "GENERAL": vectors[-1].dim() == 1, "SOFT": soft}
    _launch(_forward, (down, across), x_SMC, *inputs, **kind, **tile)


def _part(a: Tensor | None, begin: int, end: int) -> Any:
    """Those steps of a sequence; one step serves all."""
    return a if a is None or a.shape[0] == 1 else a[begin:end]


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
    """See `eager.forward`."""
    rest = x_SMC.shape[1:]
    vectors, state = (mean_C, scale_C, bias_C, tau, v_th), state_MC
    _check_inputs(x_SMC, vectors, num_steps, state_MC)
    _check(x_SMC, residual=(residual_TMC, (num_steps, *rest)))
    s_TMC = x_SMC.new_empty((num_steps, *rest))
    for begin in range(0, num_steps, MOST_STEPS):
        end = min(begin + MOST_STEPS, num_steps)
        after = x_SMC.new_empty(rest, dtype=torch.float32) if want_state or end < num_steps else None
        x, residual, s = (_part(a, begin, end) for a in (x_SMC, residual_TMC, s_TMC))
        _run_forward(x, vectors, end - begin, residual, soft, state, s, after)
        state = after
    return s_TMC, state if want_state else None


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
) -> eager.Gradients:
    """See `eager.backward`, which also runs for a surrogate that has no kernel. dv_SMC has x's dtype."""
    vectors = (mean_C, scale_C, bias_C, tau, v_th)
    if type(surrogate) not in SURROGATES:
        tensors = (x_SMC, g_TMC, *vectors, kappa_T, gain_T, state_MC, g_state_MC)
        return eager.backward(*tensors, surrogate, soft, detach_reset, want_kappa)
    T, (S, M, C) = g_TMC.shape[0], x_SMC.shape
    _check_inputs(x_SMC, vectors, T, state_MC)
    _check(x_SMC, gradient=(g_TMC, (T, M, C)), kappa=(kappa_T, (T,)), gain=(gain_T, (T,)), g_state=(g_state_MC, (M, C)))
    starts = list(range(0, T, MOST_STEPS))
    states = [state_MC]  # that each chunk begins with
    for begin in starts[:-1]:
        states.append(x_SMC.new_empty((M, C), dtype=torch.float32))
        x = _part(x_SMC, begin, begin + MOST_STEPS)
        _run_forward(x, vectors, MOST_STEPS, None, soft, states[-2], None, states[-1])
    general, still = v_th.dim() == 1, S == 1
    found, dkappas, dvs, g_state = [], [], [], g_state_MC
    dv_TMC = torch.empty_like(x_SMC)
    for begin, state in zip(reversed(starts), reversed(states), strict=True):
        end = min(begin + MOST_STEPS, T)
        steps = end - begin
        values = values_of(x_SMC.dtype, steps, general)
        tile = tile_of(C, values)
        down, across, tiles = _grid(M, C, tile, adds_up=True)
        sums = x_SMC.new_empty((down, 4 if general else 3, C), dtype=torch.float32)
        by_step = sums.new_empty((down * across, steps)) if want_kappa else None
        dv = torch.empty_like(x_SMC) if still and begin else dv_TMC
        dstate = None if state is None else torch.empty_like(state)
        x, g, dv, kappa, gain = (_part(a, begin, end) for a in (x_SMC, g_TMC, dv, kappa_T, gain_T))
        tensors = (g, *vectors, kappa, gain, state, g_state, dv, dstate, sums, by_step)
        neuron = {"T": steps, "STILL": still, "GENERAL": general, "SOFT": soft, "SURROGATE": surrogate.name}
        kind = {"DETACH_RESET": detach_reset, "KEEP_X": keeps_x(values, steps)}
        steps_2 = triton.next_power_of_2(steps)
        _launch(_backward, (down, across), x, *tensors, M, C, M * C, tiles, **neuron, **kind, STEPS=steps_2, **tile)
        found.append(_totals(sums))
        dvs.append(dv)
        dkappas.append(None if by_step is None else _totals(by_step))
        g_state = dstate
    sums_KC = found[0] if len(found) == 1 else torch.stack(found).sum(0)
    dv_SMC = dv_TMC if not still or len(dvs) == 1 else torch.stack(dvs).float().sum(0)
    dtau = sums_KC[2] if tau.dim() else sums_KC[2].sum()
    dkappa_T = torch.cat([a for a in dkappas[::-1] if a is not None]) if want_kappa else None
    dstate_MC = None if state_MC is None else g_state
    return dv_SMC, sums_KC[0], sums_KC[1], dtau, sums_KC[3] if general else None, dkappa_T, dstate_MC


def normalise_grad(
    x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor
) -> Tensor:
    """See `eager.normalise_grad`; in place."""
    rows, C = x_SMC.shape[0] * x_SMC.shape[1], x_SMC.shape[2]
    vectors = {"mean": mean_C, "scale": scale_C, "m1": m1_C, "m2": m2_C}
    _check(x_SMC, dv=(dv_SMC, x_SMC.shape), **{name: (a, (C,)) for name, a in vectors.items()})
    tile = tile_of(C, values_of(x_SMC.dtype))
    down, across, _ = _grid(rows, C, tile, adds_up=False)
    _launch(_normalise_grad, (down, across), x_SMC, dv_SMC, *vectors.values(), rows, C, **tile)
    return dv_SMC


def _check_inputs(x_SMC: Tensor, vectors: tuple[Tensor, ...], num_steps: int, state_MC: Tensor | None) -> None:
    """What forward and backward share."""
    if x_SMC.dim() != 3 or x_SMC.shape[0] not in (1, num_steps) or not x_SMC.numel():
        raise InputError(
            f"the triton kernels take a filled input ({num_steps} or 1, rows, channels) over {num_steps} steps, "
            f"got {tuple(x_SMC.shape)}. Use backend='eager'."
        )
    C = x_SMC.shape[2]
    constants = (C,) if vectors[-1].dim() else ()
    mean, scale, bias, tau, v_th = vectors
    _check(x_SMC, mean=(mean, (C,)), scale=(scale, (C,)), bias=(bias, (C,)), state=(state_MC, x_SMC.shape[1:]))
    _check(x_SMC, tau=(tau, constants), v_th=(v_th, constants))
