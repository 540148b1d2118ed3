"""The methods of the paper and of this project, registered by name."""

from mpd_agl.core import gain_constants
from mpd_agl.nn.methods import Method, StartWidth, register_method
from mpd_agl.nn.neuron import LIF, PLIF
from mpd_agl.nn.width import ChainWidth, FixedWidth, LSGWidth, MPDWidth, QuantileWidth


def _exact() -> MPDWidth:
    return MPDWidth("exact")


def _paper() -> MPDWidth:
    return MPDWidth()


def _chain() -> ChainWidth:
    return ChainWidth()


for _method in (
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
    Method(name="agr", neuron=LIF, width=_paper, about="Eq. 7 with a fixed decay (the paper's ablation)"),
    Method(name="mpd-agl", neuron=PLIF, width=_paper, about="Eq. 7 with a learnable decay (the paper's method)"),
    Method(name="mpd-agl-exact", neuron=PLIF, width=_exact, about="Eq. 7 with the exact mixture variance"),
    Method(name="mpd-quantile", neuron=PLIF, width=QuantileWidth, about="the width that holds a share of the neurons"),
    Method(
        name="mpd-gain",
        neuron=PLIF,
        width=_chain,
        usual="triangular",
        scaling=True,
        constants=gain_constants,
        about="width by the length of the way without a shortcut, height by the spikes' variance",
    ),
):
    register_method(_method)
