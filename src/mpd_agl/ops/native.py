"""The C++ kernels of the neuron (native.cpp, general.cpp) as functions on CPU float32 tensors, and as `torch.library`
operators.

The library is a plain shared object without torch or Python headers, built at install. It is loaded after torch, so
that its OpenMP symbols resolve to torch's own runtime: one thread pool, the threads of `torch.set_num_threads`. C++
reads what it is given, so every function here checks the dtype, the layout and each length first.
"""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpd_agl.core import Arctan, ArctanPeak, Rectangular, Sigmoid, Surrogate, Triangular
from mpd_agl.errors import InputError

LEVELS = ("avx512", "avx2", "base")
ABI_VERSION = 4
"""As in native.h: raised whenever a struct, a function's arguments or the order of the surrogates changes."""
SURROGATES: tuple[type[Surrogate], ...] = (Rectangular, Triangular, Sigmoid, Arctan, ArctanPeak)
"""The surrogates that C++ has, in its order."""


class Neuron(ctypes.Structure):
    """`struct Neuron` of native.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("S", "T", "M", "C")),
        *((name, ctypes.c_void_p) for name in ("mean", "scale", "beta", "kappa", "gain", "tau_C", "v_th_C", "kept_0")),
        *((name, ctypes.c_float) for name in ("tau", "v_th")),
        *((name, ctypes.c_int32) for name in ("surrogate", "detach_reset", "soft_reset")),
    )


class Lists(ctypes.Structure):
    """`struct ActiveLists` of event.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "C", "blocks", "cap")),
        *((name, ctypes.c_void_p) for name in ("index", "count", "ones", "value")),
    )


class Geometry(ctypes.Structure):
    """`struct Geometry` of event.h."""

    _fields_ = tuple((n, ctypes.c_int64) for n in ("N", "H", "W", "C_in", "OH", "OW", "C_out", "K", "stride", "pad"))


class Place(ctypes.Structure):
    """`struct Place` of plan.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("H", "W", "C", "border", "steps", "most")),
        ("data", ctypes.c_void_p),
    )


class PlanSynapse(ctypes.Structure):
    """`struct Synapse` of plan.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("place", "K", "stride", "pad")),
        *((name, ctypes.c_void_p) for name in ("rows", "whole", "groups", "scale")),
    )


class PlanLayer(ctypes.Structure):
    """`struct PlanLayer` of plan.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "out", "residual", "carried", "C_out", "soft_reset")),
        ("own", PlanSynapse),
        ("other", PlanSynapse),
        *((name, ctypes.c_void_p) for name in ("bias", "carried_scale", "tau", "v_th")),
    )


class Plan(ctypes.Structure):
    """`struct Plan` of plan.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("N", "T", "threads", "layers", "classes")),
        *((name, ctypes.c_void_p) for name in ("places", "layer", "index", "value", "count")),
        ("active", ctypes.POINTER(ctypes.c_int64)),
        ("scratch", ctypes.c_void_p),
        ("scratch_size", ctypes.c_int64),
        ("most_active", ctypes.c_double),
    )


STRUCTS = {
    "Neuron": Neuron,
    "ActiveLists": Lists,
    "Geometry": Geometry,
    "Place": Place,
    "PlanLayer": PlanLayer,
    "Plan": Plan,
}
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "level": (ctypes.c_char_p, []),
    "use_level": (_INT, [ctypes.c_char_p]),
    "fail_after": (None, [_SIZE]),
    "moments": (_INT, [_POINTER, _SIZE, _SIZE, _POINTER, _POINTER]),
    "forward": (_INT, [_POINTER] * 4),
    "backward": (_INT, [_POINTER] * 8),
    "normalise_grad": (_INT, [_POINTER, _POINTER, _SIZE, _SIZE, *[_POINTER] * 4]),
    "general_forward": (_INT, [_POINTER] * 5),
    "general_backward": (_INT, [_POINTER] * 11),
    "probe": (_INT, [_POINTER] * 3),
    "event_scan": (_INT, [_POINTER] * 2),
    "event_packed_size": (_SIZE, [_POINTER]),
    "event_pack": (None, [_POINTER] * 3),
    "event_forward": (_INT, [_POINTER] * 5),
    "event_weight_grad": (_INT, [_POINTER] * 4),
    "winograd_packed_size": (_SIZE, [_POINTER]),
    "winograd_pack": (None, [_POINTER, _POINTER, _INT, _POINTER]),
    "winograd_convolve": (_INT, [_POINTER] * 5),
    "winograd_weight_grad": (_INT, [_POINTER] * 4),
    "plan_block": (_SIZE, [_SIZE]),
    "plan_piece": (_SIZE, [_SIZE]),
    "plan_vnni": (_INT, []),
    "plan_lists": (_SIZE, [_POINTER, _SIZE, _POINTER]),
    "plan_scratch": (_SIZE, [_POINTER]),
    "plan_run": (None, [_POINTER, _POINTER]),
}


def _difference(library: ctypes.CDLL) -> str:
    """Where the library is not the one that this file describes; "" where it is."""
    if not hasattr(library, "mpd_agl_abi_version"):
        return "it has no version number"
    if (version := library.mpd_agl_abi_version()) != ABI_VERSION:
        return f"its version is {version}, and this package's {ABI_VERSION}"
    library.mpd_agl_size_of.restype, library.mpd_agl_size_of.argtypes = _SIZE, [ctypes.c_char_p]
    for name, struct in STRUCTS.items():
        if (size := library.mpd_agl_size_of(name.encode())) != ctypes.sizeof(struct):
            return f"its struct {name} has {size} bytes, and this package's {ctypes.sizeof(struct)}"
    library.mpd_agl_surrogates.restype = ctypes.c_char_p
    names = " ".join(surrogate.name for surrogate in SURROGATES)
    if (there := library.mpd_agl_surrogates().decode()) != names:
        return f"its surrogates are {there}, and this package's {names}"
    missing = [name for name in _FUNCTIONS if not hasattr(library, f"mpd_agl_{name}")]
    return f"it has no function {missing[0]}" if missing else ""


@cache
def load() -> tuple[ctypes.CDLL | None, str]:
    """The library, at the best SIMD level of this CPU, and ""; or None and the reason why it cannot be used."""
    here = Path(__file__).parent
    found = [here / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES if (here / f"_native{suffix}").exists()]
    if not found:
        log = here / "_native_build_error.txt"
        why = f"the build said: {log.read_text().strip()}" if log.exists() else "it was not built"
        return None, f"the native library is missing ({why}); install a C++ compiler and reinstall mpd-agl"
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        return None, f"the native library does not load here ({error}); reinstall mpd-agl"
    if difference := _difference(library):
        return None, f"the native library does not load here ({difference}); reinstall mpd-agl"
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"mpd_agl_{name}")
        function.restype, function.argtypes = result, arguments
    library.mpd_agl_use_level(None)
    return library, ""


def library() -> ctypes.CDLL:
    """The library; an error that names the way out where it is not there."""
    loaded, why = load()
    if loaded is None:
        raise InputError(f"backend 'native' cannot run: {why}, or use backend='eager'.")
    return loaded


def level() -> str:
    """The SIMD level in use: avx512, avx2 or base."""
    return str(library().mpd_agl_level().decode())


def use_level(name: str) -> None:
    """Force a SIMD level (for tests); an error where this CPU does not have it."""
    if not library().mpd_agl_use_level(name.encode()):
        raise InputError(f"SIMD level {name!r} does not run on this CPU. Known levels: {', '.join(LEVELS)}.")


def done(code: int) -> None:
    """Raise what a kernel's return value says."""
    if code:
        raise MemoryError("the native kernels got no memory for their sums. Use a smaller batch, or backend='eager'.")


def surrogate_code(surrogate: Surrogate) -> int | None:
    """The surrogate's number in C++, None where C++ does not have it. A subclass may compute anything: it has none."""
    return SURROGATES.index(type(surrogate)) if type(surrogate) in SURROGATES else None


def _check(**tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Refuse what C++ would misread: each tensor must be contiguous float32 on the CPU, in the shape beside it."""
    for name, (a, shape) in tensors.items():
        if a is None:
            continue
        if a.dtype != torch.float32 or a.device.type != "cpu" or a.shape != shape or not a.is_contiguous():
            got = f"{tuple(a.shape)}, {a.dtype} on {a.device}" + ("" if a.is_contiguous() else ", not contiguous")
            raise InputError(
                f"the native kernels take {name} as a contiguous float32 CPU tensor of shape {tuple(shape)}, "
                f"got {got}. Use backend='eager'."
            )


def _check_input(x_SMC: Tensor, num_steps: int) -> tuple[int, int, int]:
    """M, C and the steps T of an input of T steps, or of one that stands for all."""
    if x_SMC.dim() != 3 or x_SMC.shape[0] not in (1, num_steps) or not x_SMC.numel():
        raise InputError(
            f"the native kernels take a filled input ({num_steps} or 1, rows, channels) over {num_steps} steps, "
            f"got {tuple(x_SMC.shape)}. Use backend='eager'."
        )
    return num_steps, x_SMC.shape[1], x_SMC.shape[2]


def _at(a: Tensor | None) -> int | None:
    return None if a is None else a.data_ptr()


def moments(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel."""
    _check_input(x_SMC, x_SMC.shape[0])
    _check(x=(x_SMC, x_SMC.shape))
    S, M, C = x_SMC.shape
    mean_C, var_C = x_SMC.new_empty(C), x_SMC.new_empty(C)
    done(library().mpd_agl_moments(x_SMC.data_ptr(), S * M, C, mean_C.data_ptr(), var_C.data_ptr()))
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
    """Spikes s_TMC of the default form (hard reset, one tau and v_th, from rest), plus `residual_TMC` if given."""
    T, M, C = _check_input(x_SMC, num_steps)
    _check(x=(x_SMC, x_SMC.shape), mean=(mean_C, (C,)), scale=(scale_C, (C,)), beta=(beta_C, (C,)), tau=(tau, ()))
    _check(residual=(residual_TMC, (T, M, C)))
    s_TMC = x_SMC.new_empty((T, M, C))
    neuron = Neuron(S=x_SMC.shape[0], T=T, M=M, C=C, tau=float(tau), v_th=v_th)
    neuron.mean, neuron.scale, neuron.beta = mean_C.data_ptr(), scale_C.data_ptr(), beta_C.data_ptr()
    done(library().mpd_agl_forward(ctypes.addressof(neuron), x_SMC.data_ptr(), _at(residual_TMC), s_TMC.data_ptr()))
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
    gain_T: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`plain.backward` of the default form; `surrogate` is its `surrogate_code`."""
    T, M, C = _check_input(x_SMC, g_TMC.shape[0])
    _check(x=(x_SMC, x_SMC.shape), mean=(mean_C, (C,)), scale=(scale_C, (C,)), beta=(beta_C, (C,)), tau=(tau, ()))
    _check(gradient=(g_TMC, (T, M, C)), kappa=(kappa_T, (T,)), gain=(gain_T, (T,)))
    dv_SMC, dtau, dkappa_T = torch.empty_like(x_SMC), torch.empty_like(tau), torch.zeros_like(kappa_T)
    sum_dv_C, sum_dv_x_C = torch.empty_like(mean_C), torch.empty_like(mean_C)
    neuron = Neuron(S=x_SMC.shape[0], T=T, M=M, C=C, tau=float(tau), v_th=v_th, kappa=kappa_T.data_ptr())
    neuron.mean, neuron.scale, neuron.beta = mean_C.data_ptr(), scale_C.data_ptr(), beta_C.data_ptr()
    neuron.surrogate, neuron.detach_reset, neuron.gain = surrogate, detach_reset, _at(gain_T)
    outputs = [a.data_ptr() for a in (dv_SMC, sum_dv_C, sum_dv_x_C, dtau)]
    kappa_at = dkappa_T.data_ptr() if want_kappa else None
    done(library().mpd_agl_backward(ctypes.addressof(neuron), x_SMC.data_ptr(), g_TMC.data_ptr(), *outputs, kappa_at))
    return dv_SMC, sum_dv_C, sum_dv_x_C, dtau, dkappa_T


def _general(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau_C: Tensor,
    v_th_C: Tensor,
    num_steps: int,
    soft: bool,
    kept_0_MC: Tensor | None,
    kappa_T: Tensor | None = None,
    gain_T: Tensor | None = None,
) -> Neuron:
    """The struct of a general neuron, with everything that it points to checked."""
    T, M, C = _check_input(x_SMC, num_steps)
    _check(x=(x_SMC, x_SMC.shape), mean=(mean_C, (C,)), scale=(scale_C, (C,)), beta=(beta_C, (C,)))
    _check(
        tau=(tau_C, (C,)), v_th=(v_th_C, (C,)), kept_0=(kept_0_MC, (M, C)), kappa=(kappa_T, (T,)), gain=(gain_T, (T,))
    )
    neuron = Neuron(S=x_SMC.shape[0], T=T, M=M, C=C, kappa=_at(kappa_T), gain=_at(gain_T), kept_0=_at(kept_0_MC))
    neuron.mean, neuron.scale, neuron.beta = mean_C.data_ptr(), scale_C.data_ptr(), beta_C.data_ptr()
    neuron.tau_C, neuron.v_th_C, neuron.soft_reset = tau_C.data_ptr(), v_th_C.data_ptr(), soft
    return neuron


def general_forward(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau_C: Tensor,
    v_th_C: Tensor,
    num_steps: int,
    residual_TMC: Tensor | None,
    soft: bool,
    kept_0_MC: Tensor | None,
    want_state: bool,
) -> tuple[Tensor, Tensor]:
    """`plain.forward` of any form; the state that it returns is empty where it is not wanted."""
    neuron = _general(x_SMC, mean_C, scale_C, beta_C, tau_C, v_th_C, num_steps, soft, kept_0_MC)
    shape = (num_steps, *x_SMC.shape[1:])
    _check(residual=(residual_TMC, shape))
    s_TMC, kept_MC = x_SMC.new_empty(shape), x_SMC.new_empty(shape[1:] if want_state else (0,))
    kept_at = kept_MC.data_ptr() if want_state else None
    done(
        library().mpd_agl_general_forward(
            ctypes.addressof(neuron), x_SMC.data_ptr(), _at(residual_TMC), s_TMC.data_ptr(), kept_at
        )
    )
    return s_TMC, kept_MC


def general_backward(
    x_SMC: Tensor,
    g_TMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau_C: Tensor,
    kappa_T: Tensor,
    v_th_C: Tensor,
    surrogate: int,
    detach_reset: bool,
    want_kappa: bool,
    soft: bool,
    kept_0_MC: Tensor | None,
    gain_T: Tensor | None,
    dkept_MC: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`plain.backward` of any form; dL/dkept_0 is empty where the neurons started at rest."""
    neuron = _general(x_SMC, mean_C, scale_C, beta_C, tau_C, v_th_C, g_TMC.shape[0], soft, kept_0_MC, kappa_T, gain_T)
    rest = x_SMC.shape[1:]
    _check(gradient=(g_TMC, (kappa_T.shape[0], *rest)), gradient_of_the_state=(dkept_MC, rest))
    neuron.surrogate, neuron.detach_reset = surrogate, detach_reset
    dv_SMC, dkappa_T = torch.empty_like(x_SMC), torch.zeros_like(kappa_T)
    sum_dv_C, sum_dv_x_C, dtau_C, dv_th_C = (torch.empty_like(mean_C) for _ in range(4))
    dkept_0_MC = x_SMC.new_empty((0,) if kept_0_MC is None else rest)
    outputs = [a.data_ptr() for a in (dv_SMC, sum_dv_C, sum_dv_x_C, dtau_C, dv_th_C)]
    kappa_at, kept_0_at = (
        dkappa_T.data_ptr() if want_kappa else None,
        None if kept_0_MC is None else dkept_0_MC.data_ptr(),
    )
    inputs = [_at(a) for a in (x_SMC, g_TMC, dkept_MC)]
    done(library().mpd_agl_general_backward(ctypes.addressof(neuron), *inputs, *outputs, kappa_at, kept_0_at))
    return dv_SMC, sum_dv_C, sum_dv_x_C, dtau_C, dkappa_T, dv_th_C, dkept_0_MC


def normalise_grad_(x_SMC: Tensor, dv_SMC: Tensor, mean_C: Tensor, scale_C: Tensor, m1_C: Tensor, m2_C: Tensor) -> None:
    """In place: dv becomes `scale (dv - m1 - (x - mean) m2)`."""
    _check_input(x_SMC, x_SMC.shape[0])
    S, M, C = x_SMC.shape
    _check(x=(x_SMC, (S, M, C)), dv=(dv_SMC, (S, M, C)), mean=(mean_C, (C,)), scale=(scale_C, (C,)))
    _check(m1=(m1_C, (C,)), m2=(m2_C, (C,)))
    vectors = [a.data_ptr() for a in (mean_C, scale_C, m1_C, m2_C)]
    done(library().mpd_agl_normalise_grad(x_SMC.data_ptr(), dv_SMC.data_ptr(), S * M, C, *vectors))


def probe(
    x_SMC: Tensor,
    mean_C: Tensor,
    scale_C: Tensor,
    beta_C: Tensor,
    tau_C: Tensor,
    kappa_T: Tensor,
    v_th_C: Tensor,
    soft: bool = False,
    kept_0_MC: Tensor | None = None,
) -> Tensor:
    """See `plain.probe`."""
    T = kappa_T.shape[0]
    neuron = _general(x_SMC, mean_C, scale_C, beta_C, tau_C, v_th_C, T, soft, kept_0_MC, kappa_T)
    out_T6 = torch.empty(T, 6, dtype=torch.float64, device="cpu")
    done(library().mpd_agl_probe(ctypes.addressof(neuron), x_SMC.data_ptr(), out_T6.data_ptr()))
    return out_T6


# The same functions as operators, for graphs that torch.compile traces; a direct call spares their dispatch.
moments_op = torch.library.custom_op("mpd_agl::moments", moments, mutates_args=())
forward_op = torch.library.custom_op("mpd_agl::forward", forward, mutates_args=())
backward_op = torch.library.custom_op("mpd_agl::backward", backward, mutates_args=())
general_forward_op = torch.library.custom_op("mpd_agl::general_forward", general_forward, mutates_args=())
general_backward_op = torch.library.custom_op("mpd_agl::general_backward", general_backward, mutates_args=())
normalise_grad_op = torch.library.custom_op("mpd_agl::normalise_grad_", normalise_grad_, mutates_args={"dv_SMC"})


@moments_op.register_fake
def _(x_SMC: Tensor) -> tuple[Tensor, Tensor]:
    C = x_SMC.shape[2]
    return x_SMC.new_empty(C), x_SMC.new_empty(C)


@forward_op.register_fake
def _(
    x_SMC: Tensor, mean_C: Any, scale_C: Any, beta_C: Any, tau: Any, v_th: Any, num_steps: int, residual_TMC: Any
) -> Tensor:
    return x_SMC.new_empty((num_steps, *x_SMC.shape[1:]))


@backward_op.register_fake
def _(
    x_SMC: Tensor,
    g_TMC: Any,
    mean_C: Tensor,
    scale_C: Any,
    beta_C: Any,
    tau: Tensor,
    kappa_T: Tensor,
    v_th: Any,
    surrogate: Any,
    detach_reset: Any,
    want_kappa: Any,
    gain_T: Any = None,
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(a) for a in (x_SMC, mean_C, mean_C, tau, kappa_T))


@general_forward_op.register_fake
def _(
    x_SMC: Tensor,
    mean_C: Any,
    scale_C: Any,
    beta_C: Any,
    tau_C: Any,
    v_th_C: Any,
    num_steps: int,
    residual_TMC: Any,
    soft: Any,
    kept_0_MC: Any,
    want_state: bool,
) -> tuple[Tensor, Tensor]:
    rest = x_SMC.shape[1:]
    return x_SMC.new_empty((num_steps, *rest)), x_SMC.new_empty(rest if want_state else (0,))


@general_backward_op.register_fake
def _(
    x_SMC: Tensor,
    g_TMC: Any,
    mean_C: Tensor,
    scale_C: Any,
    beta_C: Any,
    tau_C: Any,
    kappa_T: Tensor,
    v_th_C: Any,
    surrogate: Any,
    detach_reset: Any,
    want_kappa: Any,
    soft: Any,
    kept_0_MC: Tensor | None,
    gain_T: Any,
    dkept_MC: Any,
) -> tuple[Tensor, ...]:
    outputs = (torch.empty_like(a) for a in (x_SMC, mean_C, mean_C, mean_C, kappa_T, mean_C))
    return *outputs, x_SMC.new_empty((0,) if kept_0_MC is None else x_SMC.shape[1:])
