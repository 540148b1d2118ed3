"""The one place that knows where names of 0.2 and of this tree differ; imported beside either of them."""

from importlib import import_module
from typing import Any

from torch import Tensor, nn

NEW = False
"""Whether the tree beside is the new one; set by `worker.py`."""

METHODS = {"mp-init": {"trsg": "mp-init-trsg"}}
"""0.2's option `start` by its value: what each method is called that has such a start of its own."""
GONE = ("gamma_start", "leak")
"""Options of 0.2 that no preset set to anything but their defaults."""
BLOCKS_GONE = ("conv_impl",)
"""Options of a network that a block of its own does not have: its synapse is what the caller passes."""

STATE_CALLS = ("with_state", "forward_with_state", "call_with_state", "carry")
"""Methods of a block that could be the call that takes and returns a state; 0.2's is `block(x, state=...)`."""

MOVED = {
    "": [""],
    "core": ["core", "rivals"],
    "nn": ["nn", "rivals", "ops", "ops.conv"],
    "models": ["models", "rivals", "ops.plan"],
    "adapt": ["adaptation", "adapt"],
    "analysis": ["diagnosis", "analysis"],
    "data": ["data"],
    "interop": ["export", "interop"],
    "report": ["report"],
    "kernels": ["ops", "ops.step", "ops.conv", "nn", "kernels"],
}
"""0.2's public subpackages, and where a name of theirs may be now, in the order of looking."""

REGISTRIES = {"METHODS": "nn", "MODELS": "models", "SURROGATES": "core"}
"""Registries whose names a user writes, each with its subpackage in 0.2."""


def find(name: str, old: str) -> Any:
    """A name of 0.2's subpackage `old`, wherever it is now; None where it is nowhere."""
    for place in dict.fromkeys([old, *MOVED.get(old, [])]):
        try:
            found = getattr(import_module(f"mpd_agl.{place}".rstrip(".")), name, None)
        except ModuleNotFoundError:
            continue
        if found is not None:
            return found
    return None


def options(given: dict[str, Any], gone: tuple[str, ...] = GONE) -> dict[str, Any]:
    """0.2's options as the tree beside takes them."""
    if not NEW:
        return given
    found = {name: value for name, value in given.items() if name not in gone}
    start = found.pop("start", "rest")
    return found if start == "rest" else found | {"method": METHODS[start][found["method"]]}


def block_options(given: dict[str, Any]) -> dict[str, Any]:
    """The same of `SpikingBlock`."""
    return options(given, (*GONE, *BLOCKS_GONE))


def network(name: str, **given: Any) -> nn.Module:
    """`create_model` with 0.2's names of options."""
    made: nn.Module = import_module("mpd_agl.models").create_model(name, **options(given))
    return made


def step(block: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Spikes and the state that the next call starts from."""
    for name in STATE_CALLS:
        if hasattr(block, name):
            spikes, state, *_ = getattr(block, name)(x, state=state)
            return spikes, state
    spikes, state = block(x, state=state)
    return spikes, state


def share(net: nn.Module) -> None:
    """Statistics over all processes of the default group from here on."""
    find("share_batch", "nn")(net, find("Replicas", "kernels")())
