"""The backends of the fused step, by name: the same function at other speeds.

`eager` is plain PyTorch, `native` the C++ kernels, `triton` the GPU kernels, `compiled` the plain form through
`torch.compile`; `auto` is the best that works here. A backend never switches silently: asking for one that cannot run
is an error, and `auto` says once what it took and why.
"""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops import native
from mpd_agl.ops.step import plain

NAMES = ("auto", "native", "triton", "compiled", "eager")
LEAST_CAPABILITY = (7, 5)
"""Of the NVIDIA GPUs that the triton kernels are compiled for (Turing and newer)."""
log = logging.getLogger("mpd_agl")


Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Backend:
    """The four pieces of the fused step; signatures as in `plain`."""

    name: str
    moments: Callable[[Tensor], tuple[Tensor, Tensor]]
    forward: Callable[..., tuple[Tensor, Tensor | None]]
    backward: Callable[..., Gradients]
    normalise_grad: Callable[..., Tensor]


def _native(operators: bool) -> Backend:
    """The native kernels, called directly or as operators that a tracer can see.

    The default form has kernels of its own, which know the number of steps at compile time; a `v_th` that is a tensor
    takes the general ones. A surrogate that C++ does not have gets its backward pass from `plain`.
    """
    ops: Any = native
    moments = ops.moments_op if operators else ops.moments
    run_forward = ops.forward_op if operators else ops.forward
    run_general_forward = ops.general_forward_op if operators else ops.general_forward
    run_backward = ops.backward_op if operators else ops.backward
    run_general_backward = ops.general_backward_op if operators else ops.general_backward
    run_normalise_grad = ops.normalise_grad_op if operators else ops.normalise_grad_

    def forward(*args: Any) -> tuple[Tensor, Tensor | None]:
        *default, soft, kept_0, want_state = args
        if not isinstance(args[5], Tensor):
            return run_forward(*default), None
        s_TMC, kept_MC = run_general_forward(*default, soft, kept_0, want_state)
        return s_TMC, kept_MC if want_state else None

    def backward(*args: Any) -> Gradients:
        *tensors, v_th, surrogate, detach_reset, want_kappa, soft, kept_0, gain_T, dkept = args
        code = native.surrogate_code(surrogate)
        if code is None:
            return plain.backward(*args)
        default = (*tensors, v_th, code, detach_reset, want_kappa)
        if not isinstance(v_th, Tensor):
            return (*run_backward(*default, gain_T), None, None)
        *found, dkept_0 = run_general_backward(*default, soft, kept_0, gain_T, dkept)
        return (*found, None if kept_0 is None else dkept_0)

    def normalise_grad(x: Tensor, dv: Tensor, mean: Tensor, scale: Tensor, m1: Tensor, m2: Tensor) -> Tensor:
        run_normalise_grad(x, dv, mean, scale, m1, m2)
        return dv

    return Backend("native", moments, forward, backward, normalise_grad)


@cache
def _compiled() -> Backend:
    # one graph per layer shape and batch size: past torch's default of 8 it would fall back to eager silently
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)

    def compile_(function: Callable[..., Any]) -> Any:
        return torch.compile(function, dynamic=False)

    return Backend(
        "compiled",
        compile_(plain.moments),
        compile_(plain.forward),
        compile_(plain.backward),
        compile_(plain.normalise_grad),
    )


@cache
def _triton() -> Backend:
    from mpd_agl.ops.step import triton  # brings the package triton, which only this backend needs

    return Backend("triton", triton.moments, triton.forward, triton.backward, triton.normalise_grad)


def _no_triton(device_type: str, dtype: torch.dtype) -> str:
    """Why the triton kernels cannot run; a small one is tried, which tells of old drivers and missing compilers."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the triton kernels take float32, bfloat16 and float16, and the input is {str(dtype)[6:]}"
    if find_spec("triton") is None:
        return "the package triton is not installed; pip install 'mpd-agl[triton]' (Linux)"
    if device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the triton kernels run on a GPU, and the input is on cpu (TRITON_INTERPRET=1 interprets them, slowly)"
    if device_type not in ("cpu", "cuda", "meta"):
        return f"the triton kernels run on a GPU of NVIDIA or AMD, and the input is on {device_type}"
    try:
        if device_type == "cuda" and not torch.version.hip:
            capability = torch.cuda.get_device_capability()
            if capability < LEAST_CAPABILITY:
                least, here = (".".join(map(str, a)) for a in (LEAST_CAPABILITY, capability))
                return f"the triton kernels need a GPU of compute capability {least} or newer, and this one has {here}"
        ones = torch.ones(2, 1, 4, device=device_type)
        one_C = ones[0, 0]
        spikes, _ = _triton().forward(ones, 0 * one_C, one_C, 0 * one_C, one_C[0], 0.5, 2, None)
        if device_type != "meta" and not torch.equal(spikes, ones):
            return "a small triton kernel gives wrong results here; update the GPU's driver"
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return f"a small triton kernel does not run here ({reason}); update the GPU's driver, and install a C compiler"
    return ""


_EAGER = Backend("eager", plain.moments, plain.forward, plain.backward, plain.normalise_grad)
_NATIVE, _NATIVE_OPERATORS = _native(operators=False), _native(operators=True)


@cache
def why_not(name: str, device_type: str, dtype: torch.dtype) -> str:
    """Why a backend cannot run on that device and dtype; "" where it can."""
    if name == "native":
        if device_type != "cpu":
            return f"the native kernels run on a CPU, and the input is on {device_type}"
        if dtype == torch.float64:
            return "the native kernels compute in float32, and the input is float64"
        return native.load()[1]
    if name == "triton":
        return _no_triton(device_type, dtype)
    if name == "compiled":
        if device_type == "meta":
            return "torch.compile has nothing to compile for the meta device"
        if device_type == "cuda" and find_spec("triton") is None:
            return "torch.compile needs the triton package on this device"
        if device_type == "cpu" and not shutil.which(os.environ.get("CXX", "g++")) and not shutil.which("clang++"):
            return "torch.compile needs a C++ compiler at run time, and none is on the PATH"
    return ""


@cache
def _auto(device_type: str, dtype: torch.dtype) -> str:
    if dtype == torch.float64:
        return "eager"  # for checking gradients; nobody trains in it
    order = ("native", "compiled", "eager") if device_type == "cpu" else ("triton", "compiled", "eager")
    reasons = {name: why_not(name, device_type, dtype) for name in order}
    name = next(n for n in order if not reasons[n])
    skipped = "; ".join(f"not {n}: {why}" for n, why in reasons.items() if why)
    detail = f" ({native.level()})" if name == "native" else ""
    if name == order[0]:
        log.info("backend auto: %s%s on %s, the fastest here", name, detail, device_type)
    else:
        log.warning("backend auto: %s on %s (%s)", name, device_type, skipped)
    return name


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def resolved_name(name: str, device_type: str, dtype: torch.dtype) -> str:
    """`auto` as the name of what runs; an error that names the way out where the backend cannot run."""
    if name == "auto":
        name = _auto(device_type, dtype)
    elif name not in NAMES:
        raise unknown_name("backend", name, NAMES)
    if why := why_not(name, device_type, dtype):
        raise InputError(f"backend {name!r} cannot run: {why}. Use backend='eager', which works everywhere, or 'auto'.")
    return name


def resolve(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    """The backend that runs for that name, device and dtype."""
    if torch.compiler.is_exporting():
        return _EAGER  # an exported graph holds plain operators, so that every runtime can read it
    name = resolved_name(name, device.type, dtype)
    if name == "native":
        return _NATIVE_OPERATORS if torch.compiler.is_compiling() else _NATIVE
    if name == "triton" and not torch.compiler.is_compiling():  # a traced graph holds the plain form, to be compiled
        return _triton()
    return _EAGER if name == "eager" or torch.compiler.is_compiling() else _compiled()


def backends_here(device: str = "cpu") -> dict[str, str]:
    """Each backend's name and why it cannot run here ("" where it can), for `mpd-agl info` and run records."""
    return {name: why_not(name, torch.device(device).type, torch.float32) for name in NAMES[1:]}
