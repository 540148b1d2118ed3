"""Every generator a run can draw from, as JSON: torch (CPU and the run's device), numpy and Python."""

import random
from typing import Any

import numpy as np
import torch

from mpd_agl.errors import InputError

_CPU = torch.device("cpu")


def seed_all(seed: int) -> None:
    """Seed torch (all devices), numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (users' own networks may draw from it)
    random.seed(seed)


def rng_state(device: torch.device = _CPU) -> dict[str, Any]:
    """The generators' present states; all processes of a run hold the same."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, words, following = random.getstate()
    return {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "cuda": [torch.cuda.get_rng_state(device).numpy().tobytes().hex()] if device.type == "cuda" else [],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), following],
    }


def restore_rng(state: dict[str, Any], device: torch.device = _CPU) -> None:
    """Set the generators to a saved state."""
    cuda = state["cuda"]
    if bool(cuda) != (device.type == "cuda"):
        raise InputError(
            f"the run was saved on a {'GPU' if cuda else 'CPU'} and is to continue on {device}. "
            "Resume it on a device of its own kind."
        )
    torch.set_rng_state(_bytes(state["torch"]))
    if cuda:
        torch.cuda.set_rng_state(_bytes(cuda[0]), device)
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, following = state["python"]
    random.setstate((version, tuple(words), following))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
