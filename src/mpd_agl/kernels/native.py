"""The C++ kernels (native.cpp) as functions on CPU float32 tensors, and as `torch.library` operators.

The library is a plain shared object without torch or Python headers, built at install. It is loaded after torch, so that its OpenMP
symbols resolve to torch's own runtime: one thread pool, the threads of `torch.set_num_threads`.
"""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from mpd_agl.errors import InputError

SURROGATE_CODES = {"rectangular": 0, "triangular": 1, "sigmoid": 2, "arctan": 3, "arctan-peak": 4}
LEVELS = ("avx512", "avx2", "base")


class _Neuron(ctypes.Structure):
    """`struct Neuron` of native.h."""

    _fields_ = (
        ("S", ctypes.c_int64),
        ("T", ctypes.c_int64),
        ("M", ctypes.c_int64),
        ("C", ctypes.c_int64),
        ("mean", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("kappa", ctypes.c_void_p),
        ("tau", ctypes.c_float),
        ("v_th", ctypes.c_float),
        ("surrogate", ctypes.c_int),
        ("detach_reset", ctypes.c_int),
    )


@cache
def load() -> tuple[ctypes.CDLL | None, str]:
    """The library and "", or None and the reason why it is not there."""
    here = Path(__file__).parent
    found = [here / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES if (here / f"_native{suffix}").exists()]
    if not found:
        log = here / "_native_build_error.txt"
        why = f"the build said: {log.read_text().strip()}" if log.exists() else "it was not built"
        return None, f"the native library is missing ({why}); install a C++ compiler and reinstall mpd-agl"
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        return None, f"the native library does not load here ({error})"
    library.mpd_agl_level.restype = ctypes.c_char_p
    for name, count in (("moments", 5), ("forward", 4), ("backward", 8), ("normalise_grad", 8), ("probe", 3)):
        function = getattr(library, f"mpd_agl_{name}")
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * count
    library.mpd_agl_moments.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    library.mpd_agl_normalise_grad.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 4
    lists = (("scan", 2, ctypes.c_int), ("packed_size", 1, ctypes.c_int64), ("pack", 3, None), ("forward", 5, None))
    for name, count, result in (*lists, ("weight_grad", 4, None)):
        function = getattr(library, f"mpd_agl_active_{name}")
        function.restype, function.argtypes = result, [ctypes.c_void_p] * count
    for name, count in (("convolve", 5), ("weight_grad", 4)):
        function = getattr(library, f"mpd_agl_winograd_{name}")
        function.restype, function.argtypes = None, [ctypes.c_void_p] * count
    pointer = ctypes.c_void_p
    library.mpd_agl_winograd_packed_size.restype, library.mpd_agl_winograd_packed_size.argtypes = (
        ctypes.c_int64,
        [pointer],
    )
    library.mpd_agl_winograd_pack.restype = None
    library.mpd_agl_winograd_pack.argtypes = [pointer, pointer, ctypes.c_int, pointer]
    return library, ""


def level() -> str:
    """The SIMD level in use: avx512, avx2 or base."""
    return str(library().mpd_agl_level().decode())


def use_level(name: str) -> None:
    """Force a SIMD level (for tests); an error where this CPU does not have it."""
    if not library().mpd_agl_use_level(name.encode()):
        raise InputError(f"SIMD level {name!r} does not run on this CPU. Known levels: {', '.join(LEVELS)}.")


def library() -> ctypes.CDLL:
    """The library; an error that names the way out where it is not there."""
    loaded, why = load()
    if loaded is None:
        raise InputError(f"backend 'native' cannot run: {why}, or use backend='eager'.")
    return loaded


def _neuron(
    x: Tensor, num_steps: int, mean: Tensor, scale: Tensor, beta: Tensor, kappa: Tensor | None, tau: Tensor, v_th: float
) -> _Neuron:
    S, M, C = x.shape
    kappa_at = 0 if kappa is None else kappa.data_ptr()
    return _Neuron(
        S, num_steps, M, C, mean.data_ptr(), scale.data_ptr(), beta.data_ptr(), kappa_at, float(tau), v_th, 0, 0
    )


def _check(x: Tensor, *others: Tensor) -> None:
    for a in (x, *others):
        if a.dtype != torch.float32 or a.device.type != "cpu" or not a.is_contiguous():
            raise InputError(
                f"the native kernels take contiguous float32 CPU tensors, got {a.dtype} on {a.device}. Use backend='eager'."
            )


def moments(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel."""
    _check(x_SMC)
    S, M, C = x_SMC.shape
    mean_C, var_C = x_SMC.new_empty(C), x_SMC.new_empty(C)
    library().mpd_agl_moments(x_SMC.data_ptr(), S * M, C, mean_C.data_ptr(), var_C.data_ptr())
    return mean_C, var_C


def forward(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    v_th: float,
    num_steps: int,
    residual_TMC: Tensor | None,
) -> Tensor:
    """Spikes s_TMC, plus `residual_TMC` where it is given."""
    _check(x_SMC, mean_C, scale_C, beta_C, *([] if residual_TMC is None else [residual_TMC]))
    s_TMC = x_SMC.new_empty((num_steps, *x_SMC.shape[1:]))
    residual_at = None if residual_TMC is None else residual_TMC.data_ptr()
    neuron = _neuron(x_SMC, num_steps, mean_C, scale_C, beta_C, None, tau, v_th)
    library().mpd_agl_forward(ctypes.addressof(neuron), x_SMC.data_ptr(), residual_at, s_TMC.data_ptr())
    return s_TMC


def backward(
    x_SMC: Tensor,
    g_TMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    v_th: float,
    surrogate: int,
    detach_reset: bool,
    want_kappa: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `plain.backward`."""
    _check(x_SMC, g_TMC, mean_C, scale_C, beta_C, kappa_T)
    dv_SMC, dtau, dkappa_T = torch.empty_like(x_SMC), torch.empty_like(tau), torch.zeros_like(kappa_T)
    sum_dv_C, sum_dv_x_C = torch.empty_like(mean_C), torch.empty_like(mean_C)
    neuron = _neuron(x_SMC, g_TMC.shape[0], mean_C, scale_C, beta_C, kappa_T, tau, v_th)
    neuron.surrogate, neuron.detach_reset = surrogate, detach_reset
    outputs = [a.data_ptr() for a in (dv_SMC, sum_dv_C, sum_dv_x_C, dtau)]
    kappa_at = dkappa_T.data_ptr() if want_kappa else None
    library().mpd_agl_backward(ctypes.addressof(neuron), x_SMC.data_ptr(), g_TMC.data_ptr(), *outputs, kappa_at)
    return dv_SMC, sum_dv_C, sum_dv_x_C, dtau, dkappa_T


def normalise_grad_(x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor) -> None:
    """In place: dv becomes `scale (dv - m1 - (x - mean) m2)`."""
    _check(x_SMC, dv_SMC, mean_C, scale_C, m1_C, m2_C)
    S, M, C = x_SMC.shape
    vectors = [a.data_ptr() for a in (mean_C, scale_C, m1_C, m2_C)]
    library().mpd_agl_normalise_grad(x_SMC.data_ptr(), dv_SMC.data_ptr(), S * M, C, *vectors)


def probe(
    x_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, beta_C: Tensor, tau: Tensor, kappa_T: Tensor, v_th: float
) -> Tensor:
    """See `plain.probe`."""
    _check(x_SMC, mean_C, scale_C, beta_C, kappa_T)
    out = torch.empty(kappa_T.shape[0], 6, dtype=torch.float64)
    neuron = _neuron(x_SMC, kappa_T.shape[0], mean_C, scale_C, beta_C, kappa_T, tau, v_th)
    library().mpd_agl_probe(ctypes.addressof(neuron), x_SMC.data_ptr(), out.data_ptr())
    return out


# The same functions as operators, for graphs that torch.compile traces; a direct call spares their dispatch.
moments_op = torch.library.custom_op("mpd_agl::moments", moments, mutates_args=())
forward_op = torch.library.custom_op("mpd_agl::forward", forward, mutates_args=())
backward_op = torch.library.custom_op("mpd_agl::backward", backward, mutates_args=())
normalise_grad_op = torch.library.custom_op("mpd_agl::normalise_grad_", normalise_grad_, mutates_args={"dv_SMC"})


@moments_op.register_fake
def _(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    C = x_SMC.shape[2]
    return x_SMC.new_empty(C), x_SMC.new_empty(C)


@forward_op.register_fake
def _(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    v_th: float,
    num_steps: int,
    residual_TMC: Tensor | None,
) -> Tensor:
    return x_SMC.new_empty((num_steps, *x_SMC.shape[1:]))


@backward_op.register_fake
def _(
    x_SMC: Tensor,
    g_TMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau: Tensor,
    kappa_T: Tensor,
    v_th: float,
    surrogate: int,
    detach_reset: bool,
    want_kappa: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(x_SMC),
        torch.empty_like(mean_C),
        torch.empty_like(mean_C),
        torch.empty_like(tau),
        torch.empty_like(kappa_T),
    )
