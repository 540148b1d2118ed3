"""The C++ library as Python sees it: its structs, its functions, and how it is loaded.

It is a plain shared object without torch or Python headers, built at install. It is loaded after torch, so that its
OpenMP symbols resolve to torch's own runtime: one thread pool, the threads of `torch.set_num_threads`. C++ reads what
it is given, so whoever calls a function checks the dtype, the layout and each length first (`step/native.py`,
`conv/`, `plan/`).
"""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from torch import Tensor

from mpd_agl.core import Arctan, Rectangular, Sigmoid, Surrogate, Triangular
from mpd_agl.errors import InputError

LEVELS = ("avx512", "avx2", "base")
ABI_VERSION = 5
"""As in native.h: raised whenever a struct, a function's arguments or the order of the surrogates changes."""
SURROGATES: tuple[type[Surrogate], ...] = (Rectangular, Triangular, Sigmoid, Arctan)
"""The surrogates that C++ has, in its order."""


class Neuron(ctypes.Structure):
    """`struct Neuron` of native.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("S", "T", "M", "C")),
        *((name, ctypes.c_void_p) for name in ("mean", "scale", "beta", "kappa", "gain", "tau_C", "v_th_C", "state")),
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
    "forward": (_INT, [_POINTER] * 5),
    "backward": (_INT, [_POINTER] * 11),
    "normalise_grad": (_INT, [_POINTER, _POINTER, _SIZE, _SIZE, *[_POINTER] * 4]),
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


def at(a: Tensor | None) -> int | None:
    """A tensor's address; null for None."""
    return None if a is None else a.data_ptr()
