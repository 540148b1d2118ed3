"""The methods: one network, one loop, only the neuron and the width rule differ. Adding one is adding a line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pydantic import Field
from torch import nn

from mpd_agl.core import Surrogate, gain_constants, get_surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.neuron import LIF, PLIF
from mpd_agl.nn.rivals import AtgoNeuron, TrSGNeuron, diet_neuron, mpr_neuron
from mpd_agl.nn.width import (
    AtgoWidth,
    ChainWidth,
    DeepTAGEWidth,
    FixedWidth,
    LearnableWidth,
    LSGWidth,
    MPDWidth,
    QuantileWidth,
    RelativeWidth,
    ScheduledWidth,
    SingleStepWidth,
    SlopeWidth,
    Width,
    check_scaling,
)
from mpd_agl.options import ConfigTable
from mpd_agl.plugins import load_plugins


class StartWidth(ConfigTable):
    """The option of a method whose width is a constant, or is learnt from a start."""

    kappa: float = Field(default=1.0, gt=0)
    """The width of stbp-tdbn and trainable-decay, and where psg and asgl start."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A neuron and a width rule under the name that every command takes.

    `neuron` is called with tau, v_th, surrogate, detach_reset, noise and backend, and makes a module that takes
    `(i_TNC, kappa_T)`.
    """

    name: str
    neuron: Callable[..., nn.Module]
    width: Callable[..., Width]
    about: str
    surrogate: str | Surrogate | None = None
    """A shape that belongs to the method; None leaves it to the user."""
    usual: str = "rectangular"
    """The shape where the user names none."""
    scaling: bool = False
    """Whether the method sets the surrogate's height, which it can where the shape scales with its width."""
    noise: float = 0.0
    """Share of soft outputs while training (ASGL)."""
    replaces_neuron: bool = False
    """Whether the method is its neuron, so that its width alone is not the method."""
    max_steps: int = 0
    """The most timesteps that the method trains; 0: any number."""
    options: type[ConfigTable] = ConfigTable
    """The method's own options; `width` is called with them. `create_model` and a run's `[model]` take them."""
    constants: Callable[[], Mapping[str, float]] = dict
    """Numbers of the rule that were chosen and that no field sets. Runs with other numbers are other runs."""

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
        return replace(self, width=partial(self.width, **own)) if own else self


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(
            name="stbp-tdbn",
            neuron=LIF,
            width=FixedWidth,
            options=StartWidth,
            about="fixed width, fixed decay (the paper's Vanilla)",
        ),
        Method(
            name="trainable-decay",
            neuron=PLIF,
            width=FixedWidth,
            options=StartWidth,
            about="fixed width, learnable decay",
        ),
        Method(name="lsg", neuron=PLIF, width=LSGWidth, about="2 v_th sqrt(1 + tau^2) (Lian et al. 2023)"),
        Method(name="agr", neuron=LIF, width=MPDWidth, about="Eq. 7 with a fixed decay (the paper's ablation)"),
        Method(name="mpd-agl", neuron=PLIF, width=MPDWidth, about="Eq. 7 with a learnable decay (the paper's method)"),
        Method(
            name="mpd-agl-exact",
            neuron=PLIF,
            width=lambda: MPDWidth("exact"),
            about="Eq. 7 with the exact mixture variance (ours)",
        ),
        Method(
            name="mpd-quantile", neuron=PLIF, width=QuantileWidth, about="width that holds the available share (ours)"
        ),
        Method(
            name="mpd-gain",
            neuron=PLIF,
            width=ChainWidth,
            usual="triangular",
            scaling=True,
            constants=gain_constants,
            about="width by the length of the way without a shortcut, height by the spikes' variance (ours)",
        ),
        Method(
            name="psg",
            neuron=LIF,
            width=LearnableWidth,
            options=StartWidth,
            about="a learnable width per layer (Wang et al. 2025)",
        ),
        Method(
            name="asgl",
            neuron=LIF,
            width=lambda kappa=1.0: SlopeWidth(1 / kappa),
            options=StartWidth,
            surrogate="rectangular",
            noise=0.2,
            about="learnable slope, noisy soft outputs in training (Wang et al. 2023)",
        ),
        Method(
            name="deeptage",
            neuron=LIF,
            width=DeepTAGEWidth,
            surrogate="arctan-peak",
            about="width from the norms of the potentials (Liu et al. 2025)",
        ),
        Method(
            name="ds-atgo",
            neuron=AtgoNeuron,
            width=AtgoWidth,
            replaces_neuron=True,
            about="threshold mean + std of the batch's potentials, width from it (Jiang et al. 2026)",
        ),
        Method(
            name="ds-atgo-sigma",
            neuron=partial(AtgoNeuron, form="sigma"),
            width=partial(AtgoWidth, "sigma"),
            replaces_neuron=True,
            about="ds-atgo with the width of its published code, from std (Jiang et al. 2026)",
        ),
        Method(
            name="trsg",
            neuron=TrSGNeuron,
            width=RelativeWidth,
            surrogate="rectangular",
            replaces_neuron=True,
            about="learnable threshold softplus(p), width v_th, output v_th s, soft reset (Kook et al. 2026)",
        ),
        Method(
            name="mpr",
            neuron=mpr_neuron,
            width=FixedWidth,
            surrogate="mpr",
            replaces_neuron=True,
            about="potential rectified before firing, soft reset by 1 (Guo et al. 2022)",
        ),
        Method(
            name="diet",
            neuron=diet_neuron,
            width=RelativeWidth,
            surrogate="triangular",
            replaces_neuron=True,
            about="learnable leak and threshold, surrogate of v/v_th, soft reset (Rathi and Roy 2020)",
        ),
        Method(
            name="slope-schedule",
            neuron=LIF,
            width=ScheduledWidth,
            surrogate="fast-sigmoid",
            about="slope from 1 to 100 over the training (Van den Berghe et al. 2025)",
        ),
        Method(
            name="s2nn",
            neuron=LIF,
            width=SingleStepWidth,
            surrogate="s2nn",
            max_steps=1,
            about="the surrogate of single-step networks, T = 1 (Suetake et al. 2023)",
        ),
    )
}


def register_method(method: Method) -> Method:
    """Let every command and `create_model` take a method of your own by its name.

    >>> mine = register_method(Method(name="wide", neuron=LIF, width=lambda: FixedWidth(2.0), about="twice as wide"))
    >>> get_method("wide") is mine
    True
    >>> _ = METHODS.pop("wide")
    """
    if METHODS.setdefault(method.name, method) is not method:
        raise InputError(f"there is a method {method.name!r} already. Give yours another name.")
    return method


def get_method(name: str | Method) -> Method:
    """The method of that name; a `Method` comes back as it is."""
    if isinstance(name, Method):
        return name
    if name not in METHODS:
        load_plugins()
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
