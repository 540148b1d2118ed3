"""Width and height of mpd-gain in native calls against core's, in float64."""

import pytest
import torch

from mpd_agl import core
from mpd_agl.kernels import backends_here, widths

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


@pytest.mark.parametrize("layers", [1, 2, 7, 31])
@pytest.mark.parametrize("v_th", [0.5, 0.1, torch.tensor(1.0)])
def test_they_are_cores(layers, v_th):
    g = torch.Generator().manual_seed(0)
    mean_T = torch.cat([torch.zeros(1), torch.randn(40, generator=g) * 0.5])
    std_T = torch.cat([torch.full((1,), 0.5), torch.rand(40, generator=g) * 2 + 0.02])
    kappa_T = widths.chain_width(mean_T, std_T, layers, v_th=v_th)
    exact_v_th = torch.tensor(float(v_th), dtype=torch.float64)
    want_T = core.chain_width(mean_T.double(), std_T.double(), layers, v_th=exact_v_th)
    torch.testing.assert_close(kappa_T.double(), want_T, rtol=1e-6, atol=1e-9)
    for name in ("rectangular", "triangular", "sigmoid", "arctan", "arctan-peak", "fast-sigmoid"):
        surrogate = core.get_surrogate(name)
        found = widths.matched_gain(mean_T, std_T, kappa_T, surrogate, v_th=v_th)
        want = core.matched_gain(mean_T.double(), std_T.double(), kappa_T.double(), surrogate, v_th=exact_v_th)
        rtol = 1e-6 if name != "fast-sigmoid" else 1e-4  # core's own function, in float32
        torch.testing.assert_close(found.double(), want, rtol=rtol, atol=1e-9)


def test_degenerate_potentials():
    mean_T, std_T = torch.tensor([0.5, 0.5, -50.0, 0.0]), torch.tensor([0.0, 1e-9, 0.5, 1e4])
    kappa_T = widths.chain_width(mean_T, std_T, 2)
    want_T = core.chain_width(mean_T.double(), std_T.double(), 2)
    torch.testing.assert_close(kappa_T.double(), want_T, rtol=1e-6, atol=1e-9)
    found = widths.matched_gain(mean_T, std_T, kappa_T, core.get_surrogate("rectangular"))
    assert bool(((found >= 0.1) & (found <= 10)).all())
    assert widths.chain_width(mean_T.double(), std_T.double(), 2).dtype == torch.float64  # core's
