"""The written equations, as pure functions on tensors: the reference that everything faster is tested against."""

from mpd_agl.core.atgo import AtgoSequence, atgo
from mpd_agl.core.lif import RESETS, along_channels, lif
from mpd_agl.core.mpd import (
    KAPPA_MIN,
    atgo_width,
    deeptage_width,
    input_moments,
    lsg_width,
    mpd_width,
    potential_moments,
    quantile_width,
)
from mpd_agl.core.surrogate import (
    MPR,
    S2NN,
    SURROGATES,
    Arctan,
    ArctanPeak,
    FastSigmoid,
    Rectangular,
    Sigmoid,
    Surrogate,
    Triangular,
    get_surrogate,
    noisy_spike,
    register_surrogate,
    spike,
)
from mpd_agl.core.tdbn import batch_moments, tdbn, update_running

__all__ = [
    "KAPPA_MIN",
    "MPR",
    "RESETS",
    "S2NN",
    "SURROGATES",
    "Arctan",
    "ArctanPeak",
    "AtgoSequence",
    "FastSigmoid",
    "Rectangular",
    "Sigmoid",
    "Surrogate",
    "Triangular",
    "along_channels",
    "atgo",
    "atgo_width",
    "batch_moments",
    "deeptage_width",
    "get_surrogate",
    "input_moments",
    "lif",
    "lsg_width",
    "mpd_width",
    "noisy_spike",
    "potential_moments",
    "quantile_width",
    "register_surrogate",
    "spike",
    "tdbn",
    "update_running",
]
