"""Width and height of method mpd-gain for a layer in two native calls; elsewhere `core`'s functions, which they equal.

The search for a width and the mean over 256 quantiles are some fifty operators on a few numbers each, at every layer
and step: on a CPU the framework's time for them was a tenth of a small network's step.
"""

from functools import cache

import torch
from torch import Tensor

from mpd_agl import core
from mpd_agl.core import Surrogate
from mpd_agl.core.mpd import GAIN_RANGE, KAPPA_MIN
from mpd_agl.kernels import native


def _takes(*tensors: Tensor) -> bool:
    """Whether the native functions take these."""
    if torch.compiler.is_compiling() or native.load()[1]:
        return False
    return all(a.device.type == "cpu" and a.dtype == torch.float32 and a.dim() == 1 for a in tensors)


def chain_width(mean_T: Tensor, std_T: Tensor, layers: float, *, v_th: Tensor | float = 0.5) -> Tensor:
    """`core.chain_width`.

    >>> mean_T, std_T = torch.zeros(1), torch.full((1,), 0.5)
    >>> [round(float(chain_width(mean_T, std_T, layers) / std_T), 1) for layers in (2, 7, 23)]
    [2.0, 3.8, 5.1]
    """
    if not _takes(mean_T, std_T):
        return core.chain_width(mean_T, std_T, layers, v_th=v_th)
    mean_T, std_T, v_th = mean_T.contiguous(), std_T.contiguous(), float(v_th)
    kappa_T = torch.empty_like(std_T)
    native.library().mpd_agl_chain_width(
        mean_T.data_ptr(),
        std_T.data_ptr(),
        len(std_T),
        core.chain_share(layers),
        v_th,
        KAPPA_MIN * v_th,
        kappa_T.data_ptr(),
    )
    return kappa_T


@cache
def _quantiles() -> Tensor:
    """The 256 quantiles of the standard normal at which `core.matched_gain` takes E[h^2]."""
    found: Tensor = torch.special.ndtri((torch.arange(256, dtype=torch.float64, device="cpu") + 0.5) / 256)
    return found


def matched_gain(
    mean_T: Tensor, std_T: Tensor, kappa_T: Tensor, surrogate: Surrogate, *, v_th: Tensor | float = 0.5
) -> Tensor:
    """`core.matched_gain`."""
    if type(surrogate) not in native.SURROGATES or not _takes(mean_T, std_T, kappa_T):
        return core.matched_gain(mean_T, std_T, kappa_T, surrogate, v_th=v_th)
    mean_T, std_T, kappa_T = mean_T.contiguous(), std_T.contiguous(), kappa_T.contiguous()
    gain_T, points = torch.empty_like(std_T), _quantiles()
    native.library().mpd_agl_matched_gain(
        mean_T.data_ptr(),
        std_T.data_ptr(),
        kappa_T.data_ptr(),
        len(std_T),
        float(v_th),
        native.SURROGATES.index(type(surrogate)),
        points.data_ptr(),
        len(points),
        *GAIN_RANGE,
        gain_T.data_ptr(),
    )
    return gain_T
