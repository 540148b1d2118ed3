"""The fused step in C++ (native.cpp, general.cpp), on CPU float32 tensors; signatures as in `eager`.

Each function is also an operator of `torch.library`, so that `torch.compile` traces through it; a direct call spares
the operator's dispatch.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError
from mpd_agl.ops.library import SURROGATES, Neuron, at, done, library
from mpd_agl.ops.step import eager

P = ParamSpec("P")
R = TypeVar("R")


def _operator(fake: Callable[P, Any], *, mutates: tuple[str, ...] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function an operator while `torch.compile` traces; `fake` gives the shapes of its results."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        op = torch.library.custom_op(f"mpd_agl::{function.__name__.strip('_')}", function, mutates_args=mutates)
        op.register_fake(fake)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            found: R = (op if torch.compiler.is_compiling() else function)(*args, **kwargs)
            return found

        return call

    return wrap


def surrogate_code(surrogate: Surrogate) -> int | None:
    """The surrogate's number in C++, None where C++ does not have it. A subclass may compute anything: it has none."""
    return SURROGATES.index(type(surrogate)) if type(surrogate) in SURROGATES else None


def _check(**tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Refuse what C++ would misread: each tensor must be contiguous float32 on the CPU, in the shape next to it."""
    for name, (a, shape) in tensors.items():
        if a is None:
            continue
        if a.dtype != torch.float32 or a.device.type != "cpu" or a.shape != shape or not a.is_contiguous():
            got = f"{tuple(a.shape)}, {a.dtype} on {a.device}" + ("" if a.is_contiguous() else ", not contiguous")
            raise InputError(
                f"the native kernels take {name} as a contiguous float32 CPU tensor of shape {tuple(shape)}, "
                f"got {got}. Use backend='eager'."
            )


def _sizes(x_SMC: Tensor, num_steps: int | None = None) -> torch.Size:
    """S, M and C of an input that the kernels can read."""
    if x_SMC.dim() != 3 or not x_SMC.numel() or (num_steps is not None and x_SMC.shape[0] not in (1, num_steps)):
        steps = "S" if num_steps is None else f"{num_steps} or 1"
        raise InputError(
            f"the native kernels take a filled input ({steps}, rows, channels), got {tuple(x_SMC.shape)}. "
            "Use backend='eager'."
        )
    return x_SMC.shape


def _neuron(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    bias_C: Tensor,
    tau: Tensor,
    v_th: Tensor,
    num_steps: int,
    state_MC: Tensor | None,
    soft: bool,
    any_form: bool = False,
) -> Neuron:
    """The struct of a call, with everything that it points to checked; `any_form`: it needs the kernels of any form."""
    S, M, C = _sizes(x_SMC, num_steps)
    constants = (C,) if tau.dim() else ()
    if not constants and (soft or any_form or state_MC is not None):
        raise InputError(
            "the native kernels take tau and v_th per channel for a soft reset, a state or a probe, got one of each."
        )
    _check(x=(x_SMC, (S, M, C)), mean=(mean_C, (C,)), scale=(scale_C, (C,)), bias=(bias_C, (C,)))
    _check(tau=(tau, constants), v_th=(v_th, constants), state=(state_MC, (M, C)))
    neuron = Neuron(S=S, T=num_steps, M=M, C=C, state=at(state_MC), soft_reset=soft)
    neuron.mean, neuron.scale, neuron.beta = mean_C.data_ptr(), scale_C.data_ptr(), bias_C.data_ptr()
    if constants:
        neuron.tau_C, neuron.v_th_C = tau.data_ptr(), v_th.data_ptr()
    else:
        neuron.tau, neuron.v_th = float(tau), float(v_th)
    return neuron


@_operator(lambda x_SMC: (x_SMC.new_empty(x_SMC.shape[2]), x_SMC.new_empty(x_SMC.shape[2])))
def moments(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel."""
    S, M, C = _sizes(x_SMC)
    _check(x=(x_SMC, (S, M, C)))
    mean_C, var_C = x_SMC.new_empty(C), x_SMC.new_empty(C)
    done(library().mpd_agl_moments(x_SMC.data_ptr(), S * M, C, mean_C.data_ptr(), var_C.data_ptr()))
    return mean_C, var_C


def _empty_forward(
    x_SMC: Tensor,
    mean_C: Any,
    scale_C: Any,
    bias_C: Any,
    tau: Any,
    v_th: Any,
    num_steps: int,
    residual_TMC: Any,
    state_MC: Any,
    soft: Any,
    want_state: bool,
) -> tuple[Tensor, Tensor]:
    rest = x_SMC.shape[1:]
    return x_SMC.new_empty((num_steps, *rest)), x_SMC.new_empty(rest if want_state else (0,))


@_operator(_empty_forward)
def _forward(
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
) -> tuple[Tensor, Tensor]:
    neuron = _neuron(x_SMC, mean_C, scale_C, bias_C, tau, v_th, num_steps, state_MC, soft, any_form=want_state)
    _check(residual=(residual_TMC, (num_steps, *x_SMC.shape[1:])))
    s_TMC, state_out = _empty_forward(
        x_SMC, mean_C, scale_C, bias_C, tau, v_th, num_steps, residual_TMC, state_MC, soft, want_state
    )
    to = s_TMC.data_ptr(), at(state_out) if want_state else None
    done(library().mpd_agl_forward(ctypes.addressof(neuron), x_SMC.data_ptr(), at(residual_TMC), *to))
    return s_TMC, state_out


def forward(*args: Any) -> tuple[Tensor, Tensor | None]:
    """See `eager.forward`."""
    s_TMC, state_MC = _forward(*args)
    return s_TMC, state_MC if args[-1] else None


def _empty_backward(
    x_SMC: Tensor,
    g_TMC: Any,
    mean_C: Tensor,
    scale_C: Any,
    bias_C: Any,
    tau: Tensor,
    v_th: Tensor,
    kappa_T: Tensor,
    gain_T: Any,
    state_MC: Tensor | None,
    g_state_MC: Any,
    surrogate: Any,
    soft: Any,
    detach_reset: Any,
    want_kappa: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    nothing = x_SMC.new_empty((0,))
    dkappa_T = torch.empty_like(kappa_T) if want_kappa else nothing
    dstate_MC = nothing.clone() if state_MC is None else torch.empty_like(state_MC)
    dv_th = torch.empty_like(v_th) if v_th.dim() else nothing.clone()
    sums = torch.empty_like(mean_C), torch.empty_like(mean_C)
    return torch.empty_like(x_SMC), *sums, torch.empty_like(tau), dv_th, dkappa_T, dstate_MC


@_operator(_empty_backward)
def _backward(
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
    surrogate: int,
    soft: bool,
    detach_reset: bool,
    want_kappa: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    T, rest = kappa_T.numel(), x_SMC.shape[1:]
    any_form = g_state_MC is not None
    neuron = _neuron(x_SMC, mean_C, scale_C, bias_C, tau, v_th, T, state_MC, soft, any_form)
    _check(gradient=(g_TMC, (T, *rest)), state_gradient=(g_state_MC, rest), kappa=(kappa_T, (T,)), gain=(gain_T, (T,)))
    neuron.kappa, neuron.gain = kappa_T.data_ptr(), gain_T.data_ptr()
    neuron.surrogate, neuron.detach_reset = surrogate, detach_reset
    found = _empty_backward(
        x_SMC,
        g_TMC,
        mean_C,
        scale_C,
        bias_C,
        tau,
        v_th,
        kappa_T,
        gain_T,
        state_MC,
        g_state_MC,
        *(None,) * 3,
        want_kappa,
    )
    *sums, dkappa_T, dstate_MC = found
    to = [a.data_ptr() for a in sums]
    to_options = at(dkappa_T if want_kappa else None), at(None if state_MC is None else dstate_MC)
    inputs = x_SMC.data_ptr(), g_TMC.data_ptr(), at(g_state_MC)
    done(library().mpd_agl_backward(ctypes.addressof(neuron), *inputs, *to, *to_options))
    return found


def backward(*args: Any) -> eager.Gradients:
    """See `eager.backward`, which runs for a surrogate that C++ does not have."""
    *tensors, surrogate, soft, detach_reset, want_kappa = args
    code = surrogate_code(surrogate)
    if code is None:
        return eager.backward(*args)
    flags = (code, soft, detach_reset, want_kappa)
    found = _backward(*tensors, *flags)  # type: ignore[call-arg]
    dv, sum_dv, sum_dv_x, dtau, dv_th, dkappa, dstate = found
    has_state = tensors[9] is not None
    return (
        *(dv, sum_dv, sum_dv_x, dtau),
        dv_th if tensors[6].dim() else None,
        dkappa if want_kappa else None,
        dstate if has_state else None,
    )


@_operator(lambda x_SMC, dv_SMC, mean_C, scale_C, m1_C, m2_C: None, mutates=("dv_SMC",))
def _normalise_grad(x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor) -> None:
    S, M, C = _sizes(x_SMC)
    _check(x=(x_SMC, (S, M, C)), dv=(dv_SMC, (S, M, C)), mean=(mean_C, (C,)), scale=(scale_C, (C,)))
    _check(m1=(m1_C, (C,)), m2=(m2_C, (C,)))
    vectors = [a.data_ptr() for a in (mean_C, scale_C, m1_C, m2_C)]
    done(library().mpd_agl_normalise_grad(x_SMC.data_ptr(), dv_SMC.data_ptr(), S * M, C, *vectors))


def normalise_grad(
    x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor
) -> Tensor:
    """See `eager.normalise_grad`; in place."""
    _normalise_grad(x_SMC, dv_SMC, mean_C, scale_C, m1_C, m2_C)
    return dv_SMC


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
    """See `eager.probe`."""
    T = kappa_T.numel()
    neuron = _neuron(x_SMC, mean_C, scale_C, bias_C, tau, v_th, T, state_MC, soft, any_form=True)
    _check(kappa=(kappa_T, (T,)))
    neuron.kappa = kappa_T.data_ptr()
    out_T6 = torch.empty(T, 6, dtype=torch.float64, device="cpu")
    done(library().mpd_agl_probe(ctypes.addressof(neuron), x_SMC.data_ptr(), out_T6.data_ptr()))
    return out_T6
