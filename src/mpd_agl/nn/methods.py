"""The methods: one network, one loop, only the neuron and the width rule differ. Adding one is adding a line."""

from collections.abc import Callable
from dataclasses import dataclass

from mpd_agl.errors import unknown_name
from mpd_agl.nn.neuron import LIF, PLIF
from mpd_agl.nn.width import (
    DeepTAGEWidth,
    FixedWidth,
    LearnableWidth,
    LSGWidth,
    MPDWidth,
    QuantileWidth,
    SlopeWidth,
    Width,
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A neuron and a width rule under the name that every command takes."""

    name: str
    neuron: type[LIF] | type[PLIF]
    width: Callable[[], Width]
    about: str
    surrogate: str | None = None
    """A shape that belongs to the method; None leaves it to the user."""
    noise: float = 0.0
    """Share of soft outputs while training (ASGL)."""


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(
            name="stbp-tdbn", neuron=LIF, width=FixedWidth, about="fixed width 1, fixed decay (the paper's Vanilla)"
        ),
        Method(name="trainable-decay", neuron=PLIF, width=FixedWidth, about="fixed width 1, learnable decay"),
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
        Method(name="psg", neuron=LIF, width=LearnableWidth, about="a learnable width per layer (Wang et al. 2025)"),
        Method(
            name="asgl",
            neuron=LIF,
            width=SlopeWidth,
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
    )
}


def get_method(name: str | Method) -> Method:
    """The method of that name; a `Method` comes back as it is."""
    if isinstance(name, Method):
        return name
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
