"""A reader for the pickle files of CIFAR's python archives: the only place in this package that touches pickle.

It builds arrays of numbers, strings, bytes, numbers, lists, tuples and dicts, and nothing else. A pickle is a small
program; before it runs, each of its instructions is compared with the list of those that plain data needs. While it
runs, the five names that a NumPy array is pickled under lead to inert stand-ins of this file, and any other name ends
the reading. NumPy's own reconstruction never runs.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpd_agl.errors import InputError

MAX_BYTES = 512 << 20
MAX_TUPLES = 24
MAX_DEPTH = 8
# What plain containers, numbers, text and one array need. No INST, OBJ, NEWOBJ, EXT, PERSID, BINPERSID and no sets.
# fmt: off
ALLOWED = frozenset((
    "PROTO", "STOP", "FRAME", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET",
    "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1",
    "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_LIST",
    "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
))
# fmt: on
_NUMBERS = frozenset(("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8", "b1"))


class _DType:
    """Stands in for numpy.dtype: remembers the code, and the byte order that the state brings."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "?"
        self.order = order.decode("ascii", "replace") if isinstance(order, bytes) else order

    def real(self) -> np.dtype[Any]:
        if not isinstance(self.code, str) or self.code not in _NUMBERS or self.order not in ("<", ">", "|", "="):
            raise ValueError(f"an array of type {self.code!r}")
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)  # type: ignore[arg-type]


class _Array:
    """Stands in for numpy.ndarray while the pickle runs; `real` checks the pieces and makes the array."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def real(self) -> NDArray[Any]:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array without content")
        _, shape, dtype, fortran, content = self.state
        if not isinstance(dtype, _DType) or not isinstance(content, bytes | bytearray) or not isinstance(shape, tuple):
            raise ValueError("an array of something else than numbers")
        if not all(isinstance(n, int) and 0 <= n < 1 << 40 for n in shape) or len(shape) > 8:
            raise ValueError("an array of impossible shape")
        kind = dtype.real()
        if math.prod(shape) * kind.itemsize != len(content):
            raise ValueError("an array whose bytes do not fill its shape")
        array = np.frombuffer(bytes(content), kind).reshape(shape, order="F" if fortran else "C")
        return np.ascontiguousarray(array)


class _Sealed:
    """A callable without attributes: an instruction that sets state on it ends the reading."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("the instruction BUILD on a function")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """Protocol 5 pickles an array as a buffer, a type, a shape and an order."""
    array = _Array()
    array.state = (1, shape, dtype, order in ("F", b"F"), content)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    """Python 3 writes bytes in protocol 2 as text and a codec."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("the name _codecs.encode with other arguments than bytes need")
    return text.encode("latin1")


_STANDINS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(f"{module}.multiarray", "_reconstruct"): _Sealed(_reconstruct) for module in ("numpy.core", "numpy._core")},
    **{(f"{module}.numeric", "_frombuffer"): _Sealed(_frombuffer) for module in ("numpy.core", "numpy._core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _Sealed(_encode),
}


class _Reader(pickle.Unpickler):
    """Runs a pickle whose every global name is one of the stand-ins."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STANDINS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the name {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a reference to another file")


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of plain data. Keys and texts that Python 2 wrote come back as bytes.

    Anything but plain data is refused before it can run, with one sentence that names the file.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes, more than any CIFAR file. Get the official file."
            )
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Check --data-dir.") from error
    return plain_from_bytes(content, str(path))


def plain_from_bytes(content: bytes, name: str) -> Any:
    """The same for bytes at hand; `name` is what an error calls them."""
    try:
        _inspect(content)
        raw = _Reader(io.BytesIO(content), encoding="bytes").load()
        return _plain(raw, {}, 0)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        text = str(error)
        if text.startswith(("the name", "the instruction", "a reference")):
            raise InputError(
                f"{name} carries code or foreign objects ({text}) and was not run. Get the official CIFAR archive."
            ) from error
        raise InputError(f"{name} is damaged: it is no complete pickle ({text[:80]}). Get the file again.") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = str(error).strip().rstrip(".")[:80] or type(error).__name__
        raise InputError(f"{name} is damaged or not plain data ({reason}). Get the file again.") from error


def _inspect(content: bytes) -> None:
    """Walk the instructions without running them; refuse those that plain data does not need."""
    tuples = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in ALLOWED:
            raise pickle.UnpicklingError(f"the instruction {opcode.name}")
        if opcode.name == "GLOBAL" and tuple(str(argument).split(" ", 1)) not in _STANDINS:
            raise pickle.UnpicklingError(f"the name {str(argument).replace(' ', '.')[:60]}")
        # The memo is an array: a lone large index would make it as large.
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > 2 * count + 1024:
            raise ValueError(f"memo index {argument}")
        # Tuples may be keys, and the hash of tuples that share tuples takes exponential time.
        tuples += opcode.name.startswith("TUPLE")
        if tuples > MAX_TUPLES:
            raise ValueError(f"more than {MAX_TUPLES} tuples")


def _plain(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """The value with stand-ins replaced by arrays; refuses what is not plain data."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if id(value) in seen:
        return seen[id(value)]
    result: Any
    if isinstance(value, bytearray):
        result = bytes(value)
    elif isinstance(value, _Array):
        result = value.real()
    elif isinstance(value, list):
        result = [_plain(v, seen, depth + 1) for v in value]
    elif isinstance(value, tuple):
        result = tuple(_plain(v, seen, depth + 1) for v in value)
    elif isinstance(value, dict):
        if not all(isinstance(k, str | bytes | int) for k in value):
            raise ValueError("a dict with strange keys")
        result = {k: _plain(v, seen, depth + 1) for k, v in value.items()}
    else:
        raise ValueError(f"an object of type {type(value).__name__.strip('_')}")
    seen[id(value)] = result
    return result
