"""Gates behind a network's last stages, by name (`create_model(attention=...)`). Adding one is registering one."""

from collections.abc import Callable

from torch import nn

from mpd_agl.errors import InputError, unknown_name
from mpd_agl.plugins import load_plugins

GATES: dict[str, Callable[[int, int], nn.Module]] = {}


def register_gate(name: str, make: Callable[[int, int], nn.Module]) -> None:
    """Let every convolutional network take a gate of your own: `make(channels, num_steps)` gives a module that takes
    spikes_TNCHW and num_steps.
    """
    if name == "none" or GATES.setdefault(name, make) is not make:
        raise InputError(f"there is a gate {name!r} already. Give yours another name.")


def get_gate(name: str) -> Callable[[int, int], nn.Module]:
    """The gate of that name."""
    if name not in GATES:
        load_plugins()
    if name not in GATES:
        raise unknown_name("attention", name, ["none", *GATES])
    return GATES[name]
