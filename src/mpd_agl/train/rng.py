"""Every generator a run can draw from, as JSON: torch (each device), numpy and Python."""

import random
from typing import Any

import numpy as np
import torch

from mpd_agl.errors import InputError


def seed_all(seed: int) -> None:
    """Seed torch (all devices), numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (users' own networks may draw from it)
    random.seed(seed)


def rng_state() -> dict[str, Any]:
    """The generators as they stand."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, words, following = random.getstate()
    return {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [s.numpy().tobytes().hex() for s in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), following],
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Set the generators to a saved state."""
    cuda = state["cuda"]
    if len(cuda) != (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise InputError(
            f"the run was saved with {len(cuda)} GPUs and this machine has another number. Resume it where it ran."
        )
    torch.set_rng_state(_bytes(state["torch"]))
    if cuda:
        torch.cuda.set_rng_state_all([_bytes(s) for s in cuda])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, following = state["python"]
    random.setstate((version, tuple(words), following))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
