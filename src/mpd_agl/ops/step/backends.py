"""The implementations of the fused step, by name: one function at several speeds.

`eager` is plain PyTorch, `native` the C++ kernels, `triton` the GPU kernels; `auto` is the fastest that works here. A
backend never switches silently: asking for one that cannot run is an error, and `auto` logs once what it took and why.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.ops import library
from mpd_agl.ops.step import eager, native

BACKENDS = ("auto", "native", "triton", "eager")
LEAST_CAPABILITY = (7, 5)
"""Of the NVIDIA GPUs that the triton kernels are compiled for (Turing and newer)."""
log = logging.getLogger("mpd_agl")


@dataclass(frozen=True)
class Kernels:
    """One implementation: functions on flat tensors, with the signatures of `eager`."""

    name: str
    moments: Callable[[Tensor], tuple[Tensor, Tensor]]
    forward: Callable[..., tuple[Tensor, Tensor | None]]
    backward: Callable[..., eager.Gradients]
    normalise_grad: Callable[..., Tensor]
    probe: Callable[..., Tensor]
    input: Callable[[Tensor], Tensor] = lambda x: x
    """What the implementation makes of its input before anything else: the native one takes float32 alone."""


EAGER = Kernels("eager", eager.moments, eager.forward, eager.backward, eager.normalise_grad, eager.probe)
NATIVE = Kernels(
    "native", native.moments, native.forward, native.backward, native.normalise_grad, native.probe, Tensor.float
)


@cache
def _triton() -> Kernels:
    from mpd_agl.ops.step import triton  # brings the package triton, which only this backend needs

    return Kernels("triton", triton.moments, triton.forward, triton.backward, triton.normalise_grad, eager.probe)


def _triton_unavailable(device_type: str, dtype: torch.dtype) -> str:
    """Why the triton kernels cannot run; a small one is tried, which finds old drivers and missing compilers."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the triton kernels take float32, bfloat16 and float16, and the input is {str(dtype)[6:]}"
    if find_spec("triton") is None:
        return "the package triton is not installed; pip install triton (Linux)"
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
        one_C, half = ones[0, 0], torch.full((), 0.5, device=device_type)
        spikes, _ = _triton().forward(ones, 0 * one_C, one_C, 0 * one_C, half, half, 2, None, None, False, False)
        if device_type != "meta" and not torch.equal(spikes, ones):
            return "a small triton kernel gives wrong results here; update the GPU's driver"
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return f"a small triton kernel does not run here ({reason}); update the GPU's driver, and install a C compiler"
    return ""


@cache
def unavailable_reason(name: str, device_type: str, dtype: torch.dtype) -> str:
    """Why a backend cannot run on that device and dtype; "" where it can."""
    if name == "native":
        if device_type != "cpu":
            return f"the native kernels run on a CPU, and the input is on {device_type}"
        if dtype == torch.float64:
            return "the native kernels compute in float32, and the input is float64"
        return library.load()[1]
    return _triton_unavailable(device_type, dtype) if name == "triton" else ""


@cache
def _auto(device_type: str, dtype: torch.dtype) -> str:
    if dtype == torch.float64:
        return "eager"  # for checking gradients
    best = "native" if device_type == "cpu" else "triton"
    if reason := unavailable_reason(best, device_type, dtype):
        log.warning("backend auto: eager on %s (not %s: %s)", device_type, best, reason)
        return "eager"
    detail = f" ({library.level()})" if best == "native" else ""
    log.info("backend auto: %s%s on %s, the fastest here", best, detail, device_type)
    return best


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def resolved_name(name: str, device_type: str, dtype: torch.dtype) -> str:
    """`auto` as the name of what runs; an error that names the way out where the backend cannot run."""
    if name == "auto":
        return _auto(device_type, dtype)
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if reason := unavailable_reason(name, device_type, dtype):
        raise InputError(
            f"backend {name!r} cannot run: {reason}. Use backend='eager', which works everywhere, or 'auto'."
        )
    return name


def resolve(name: str, device: torch.device, dtype: torch.dtype) -> Kernels:
    """The kernels that run for that name, device and dtype."""
    if torch.compiler.is_exporting():
        return EAGER  # an exported graph holds plain operators, so that every runtime can read it
    name = resolved_name(name, device.type, dtype)
    if name == "native":
        return NATIVE
    # A traced graph holds the plain form, which the compiler fuses itself.
    return _triton() if name == "triton" and not torch.compiler.is_compiling() else EAGER


def backends_here(device: str = "cpu") -> dict[str, str]:
    """Each backend's name and why it cannot run here ("" where it can), for `mpd-agl info` and run records."""
    return {name: unavailable_reason(name, torch.device(device).type, torch.float32) for name in BACKENDS[1:]}
