"""Weights to and from safetensors files: tensors alone, nothing that could run code."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.models.base import Network
from mpd_agl.records.files import write_atomic


def save_weights(net: nn.Module, path: str | Path) -> None:
    """Write the network's state beside and rename it: a reader sees the old file or the new one, never half."""
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in net.state_dict().items()}
    # No weight depends on `recompute`. A method or surrogate of the user's own is known by its name.
    options = vars(net.options) if isinstance(net, Network) else {}
    options = {k: getattr(v, "name", v) for k, v in options.items() if k != "recompute"}
    # One key, because safetensors writes several in no fixed order, and the same weights are to give the same bytes.
    about = {"model": getattr(net, "name", type(net).__name__), "options": options}
    write_atomic(Path(path), save(state, metadata={"mpd_agl": json.dumps(about, sort_keys=True)}))


def _model_in(metadata: dict[str, str]) -> str:
    try:
        return str(json.loads(metadata["mpd_agl"])["model"])
    except (ValueError, KeyError, TypeError):
        return "another program"


def load_weights(net: nn.Module, path: str | Path) -> None:
    """Read a safetensors file into the network; every tensor must be there with its shape, or nothing is changed."""
    source = Path(path)
    if not source.is_file():
        raise InputError(
            f"no weights at {source}: the file is not there. Give a .safetensors file written by save_weights."
        )
    try:
        with safe_open(source, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{source} is not a readable safetensors file ({error}). Give a file written by save_weights."
        ) from None
    own = net.state_dict()
    missing = [k for k in own if k not in state]
    surplus = [k for k in state if k not in own]
    differ = [k for k in own if k in state and state[k].shape != own[k].shape]
    if missing or surplus or differ:
        parts = [f"{len(missing)} tensors missing (first {missing[0]})"] if missing else []
        parts += [f"{len(surplus)} not of this network (first {surplus[0]})"] if surplus else []
        if differ:
            k = differ[0]
            parts += [f"{len(differ)} of another shape (first {k}: {tuple(state[k].shape)}, not {tuple(own[k].shape)})"]
        of = f" (it was written by {_model_in(metadata)})" if "mpd_agl" in metadata else ""
        raise InputError(
            f"{source}{of} does not fit this {getattr(net, 'name', type(net).__name__)}: {'; '.join(parts)}. "
            "Create the model with the options it was trained with."
        )
    bad = [k for k, v in state.items() if v.is_floating_point() and not torch.isfinite(v).all()]
    if bad:
        raise InputError(
            f"{source} holds NaN or Inf in {len(bad)} tensors (first {bad[0]}). Use an earlier checkpoint."
        )
    net.load_state_dict(state)
