"""The methods: one network, one loop, only the neuron and the width rule differ. Adding one is registering one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature

from pydantic import Field
from torch import nn

from mpd_agl.core import Surrogate, get_surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.width import Width, check_scaling
from mpd_agl.options import ConfigTable
from mpd_agl.plugins import load_plugins


class StartWidth(ConfigTable):
    """The option of a method whose width is a constant, or is learnt from a start."""

    kappa: float = Field(default=1.0, gt=0)
    """The width of methods that keep it, and where a learnt width starts."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A neuron and a width rule under the name that every command takes."""

    name: str
    neuron: Callable[..., nn.Module]
    """Makes the `Neuron`; called with those of tau, v_th, surrogate, detach_reset and backend that are not at their
    defaults, and with the method's options that it has a parameter for."""
    width: Callable[..., Width]
    """Makes the rule; called with the method's options that it has a parameter for."""
    about: str
    surrogate: str | Surrogate | None = None
    """A shape that belongs to the method; None leaves it to the user."""
    usual: str = "rectangular"
    """The shape where the user names none."""
    scaling: bool = False
    """Whether the method sets the surrogate's height, which it can where the shape scales with its width."""
    replaces_neuron: bool = False
    """Whether the method is its neuron, so that its width alone is not the method."""
    max_steps: int = 0
    """The most timesteps that the method trains; 0: any number."""
    options: type[ConfigTable] = ConfigTable
    """The method's own options, which `create_model` and a run's `[model]` take."""
    constants: Callable[[], Mapping[str, float]] = dict
    """Numbers of the rule that were chosen and that no option sets. Runs with other numbers are other runs."""

    def surrogate_with(self, asked: str | Surrogate | None) -> Surrogate:
        """The method's own surrogate, or else the one that was asked for; asking for another than the method's own is
        refused.
        """
        own = None if self.surrogate is None else get_surrogate(self.surrogate)
        found = None if asked is None else get_surrogate(asked)
        if own is not None and found is not None and found != own:
            raise InputError(
                f"method {self.name!r} has its own surrogate {own.name!r}, got surrogate={found.name!r}. Leave it out."
            )
        if self.scaling and found is not None:
            check_scaling(found)
        return own or found or get_surrogate(self.usual)

    def with_options(self, values: object) -> "Method":
        """The method with its own options taken from an object that has them as attributes."""
        own = {name: getattr(values, name) for name in self.options.model_fields if hasattr(values, name)}
        of_width = {name: value for name, value in own.items() if name in signature(self.width).parameters}
        of_neuron = {name: value for name, value in own.items() if name not in of_width}
        width = partial(self.width, **of_width) if of_width else self.width
        return replace(self, width=width, neuron=partial(self.neuron, **of_neuron) if of_neuron else self.neuron)


METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Let every command and `create_model` take a method of your own by its name.

    >>> from mpd_agl.nn import LIF, FixedWidth
    >>> mine = register_method(Method(name="wide", neuron=LIF, width=lambda: FixedWidth(2.0), about="twice as wide"))
    >>> get_method("wide") is mine
    True
    >>> _ = METHODS.pop("wide")
    """
    if METHODS.setdefault(method.name, method) is not method:
        raise InputError(f"there is a method {method.name!r} already. Give yours another name.")
    return method


def get_method(name: str | Method) -> Method:
    """The method of that name; a `Method` is returned unchanged."""
    if isinstance(name, Method):
        return name
    if name not in METHODS:
        load_plugins()
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
