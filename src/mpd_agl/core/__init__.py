"""The written equations, as pure functions on tensors: the reference that everything faster is tested against."""

from mpd_agl.core.lif import lif
from mpd_agl.core.mpd import (
    KAPPA_MIN,
    deeptage_width,
    input_moments,
    lsg_width,
    mpd_width,
    potential_moments,
    quantile_width,
)
from mpd_agl.core.surrogate import (
    SURROGATES,
    Arctan,
    ArctanPeak,
    Rectangular,
    Sigmoid,
    Surrogate,
    Triangular,
    get_surrogate,
    noisy_spike,
    spike,
)
from mpd_agl.core.tdbn import batch_moments, tdbn, update_running

__all__ = [
    "KAPPA_MIN",
    "SURROGATES",
    "Arctan",
    "ArctanPeak",
    "Rectangular",
    "Sigmoid",
    "Surrogate",
    "Triangular",
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
    "spike",
    "tdbn",
    "update_running",
]
