"""A `.pt` file as named tensors, and nothing else.

`torch.load(weights_only=True)` runs no code, but a hostile file can still make it hang or fill the memory. So this
file looks first: the zip must be uncompressed and hold no more than its own size, and its pickle must not nest
deeply, because hashing a tuple of tuples that share tuples takes exponential time. A caller compares a tensor's shape
before it computes with it: a stride of 0 makes a few bytes look like terabytes.
"""

import pickle
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpd_agl.errors import InputError

MAX_DEPTH = 24
MAX_PICKLE = 64 << 20
KEYS = ("net", "model", "state_dict", "model_state_dict", "module")
"""Where programs keep the network's state within what they save."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The network's state in a file that `torch.save` wrote: a state_dict, or a dict that holds one."""
    _inspect(path)
    try:
        raw = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        text = str(error).partition("Please file an issue")[0].split("GLOBAL ")[-1].split("\n")[0].strip()
        raise InputError(
            f"{path} holds more than tensors ({text[:120]}) and was not loaded. "
            "Save the network's state_dict alone with torch.save."
        ) from None
    except Exception as error:  # a damaged file can raise nearly anything
        reason = (str(error).strip().partition("\n")[0] or type(error).__name__)[:120]
        raise InputError(
            f"{path} is damaged or was not written by torch.save ({reason}). Get the file again."
        ) from None
    for _ in range(MAX_DEPTH):  # a dict may hold itself
        if isinstance(raw, Mapping) and not any(isinstance(v, Tensor) for v in raw.values()):
            raw = next((raw[k] for k in KEYS if isinstance(raw.get(k), Mapping)), None)
    found = {k: v for k, v in raw.items() if isinstance(v, Tensor)} if isinstance(raw, Mapping) else {}
    if not found or not all(isinstance(k, str) for k in found):
        raise InputError(
            f"{path} holds no state_dict, neither at the top nor under {', '.join(KEYS)}. "
            "Save net.state_dict() with torch.save."
        )
    odd = [k for k, v in found.items() if v.layout != torch.strided or v.is_quantized or v.device.type != "cpu"]
    if odd:
        raise InputError(f"{path}: {odd[0][:80]!r} is no plain tensor. Save dense, unquantized weights.")
    return found


def _inspect(path: Path) -> None:
    """Refuse what cannot be a file of tensors before torch builds anything from it."""
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as pack:
            members = pack.infolist()
            if any(m.compress_type != zipfile.ZIP_STORED for m in members):
                raise InputError(
                    f"{path} is a compressed archive, which torch.save does not write. Get the file again."
                )
            if sum(m.file_size for m in members) > size:
                raise InputError(f"{path} claims to hold more than its {size:,} bytes. Get the file again.")
            pickles = [m for m in members if m.filename.endswith("/data.pkl") or m.filename == "data.pkl"]
            if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE:
                raise InputError(
                    f"{path} is no file of torch.save: it has no single data.pkl. Give a .pt or .pth file."
                )
            _check_depth(pack.read(pickles[0]))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}. Check the path.") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        raise InputError(
            f"{path} is no zip file as torch.save writes since version 1.6. "
            "Load and save it again with a newer torch where it came from."
        ) from None
    except (ValueError, IndexError, KeyError, UnicodeError, TypeError):
        raise InputError(f"{path} is damaged: its data.pkl is no pickle. Get the file again.") from None


def _check_depth(content: bytes) -> None:
    """Walk the pickle's instructions without running them, and keep how deep each value on the stack is nested."""
    mark = -1
    stack: list[int] = []
    memo: dict[Any, int] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name == "MARK":
            stack.append(mark)
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name.endswith("PUT"):
            memo[int(argument or 0)] = stack[-1]
        elif name.endswith("GET"):
            stack.append(memo[int(argument or 0)])
        else:
            used = []
            plain = [o for o in opcode.stack_before if o not in (pickletools.markobject, pickletools.stackslice)]
            if pickletools.markobject in opcode.stack_before:
                while stack[-1] != mark:
                    used.append(stack.pop())
                stack.pop()
            used += [stack.pop() for _ in plain]
            grows = name not in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "BUILD", "POP", "STOP")
            depth = max(used, default=0) + (1 if grows and used else 0)
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
            stack += [depth] * len(opcode.stack_after)
