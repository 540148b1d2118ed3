"""The rivals' surrogates: their formulas, the derivative by the width, finite at any size."""

import math

import pytest
import torch

from mpd_agl.core import get_surrogate
from mpd_agl.rivals.asgl import noisy_spike
from mpd_agl.rivals.surrogates import MPR

NAMES = ["arctan-peak", "fast-sigmoid", "mpr"]
SOFT = {
    "arctan-peak": lambda u, k: k / math.pi * torch.atan(math.pi * u / k),
    "fast-sigmoid": lambda u, k: u / (1 + 2 * u.abs() / k),
    "mpr": lambda u, k: (MPR.rectified(u) / k + 0.5).clamp(0, 1),
}
"""Functions whose derivative each shape is."""


@pytest.mark.parametrize("kappa", [0.2, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_the_shape_is_the_derivative_of_its_step(name, kappa):
    h, e = get_surrogate(name), 1e-6
    u = torch.linspace(-2.03, 2.01, 501, dtype=torch.float64)
    u = u[(u.abs() > 1e-3) & ((u.abs() - 0.5).abs() > 1e-3)]
    edges = (MPR.rectified(u).abs() - kappa / 2).abs() > 1e-3
    u = u[edges] if name == "mpr" else u
    by_u = (SOFT[name](u + e, kappa) - SOFT[name](u - e, kappa)) / (2 * e)
    torch.testing.assert_close(h.grad(u, kappa), by_u, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kappa", [0.7, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_by_the_width_is_that_of_the_unit_step(name, kappa):
    """H rises from 0 to 1: of the shapes with peak 1, `dH/dkappa` is that of the step divided by the width."""
    h, e = get_surrogate(name), 1e-6
    u = torch.linspace(-1.03, 1.01, 101, dtype=torch.float64)
    u = u[(MPR.rectified(u).abs() - kappa / 2).abs() > 1e-3]

    def step(kappa):
        return SOFT[name](u, kappa) + (0 if name == "mpr" else 0.5 * kappa)

    torch.testing.assert_close(
        h.grad_kappa(u, kappa), (step(kappa + e) - step(kappa - e)) / (2 * e), rtol=1e-6, atol=1e-8
    )


def test_s2nn_by_its_formula():
    u = torch.tensor([-1.0, -0.2, 0.3, 2.0], dtype=torch.float64)
    want = [4 * math.exp(4 * x) / (1 + math.exp(4 * x)) ** 2 for x in (-1.0, -0.2)] + [1 / 1.3, 1 / 3.0]
    assert get_surrogate("s2nn").grad(u, 1.0).tolist() == pytest.approx(want)
    assert get_surrogate("s2nn").grad(2 * u, 2.0).tolist() == pytest.approx([w / 2 for w in want])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [*NAMES, "s2nn"])
def test_finite_at_any_size(name, dtype):
    u = torch.tensor([-1e4, -3.5, -1e-4, 0.0, 1e-4, 3.5, 1e4], dtype=dtype)
    for kappa in (0.05, 1.0, 4.0):
        out = get_surrogate(name).grad(u, torch.tensor(kappa, dtype=dtype))
        assert torch.isfinite(out).all()
        assert (out >= 0).all()
        assert float(out[0]) == pytest.approx(0.0, abs=1e-3)


def test_noisy_spike_mixes_hard_and_soft_and_is_the_soft_gradient():
    u = torch.tensor([-0.3, 0.1, 0.2, 0.9], dtype=torch.float64, requires_grad=True)
    slope = torch.tensor(1.25, dtype=torch.float64, requires_grad=True)
    out = noisy_spike(u, 1 / slope, torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert out.tolist() == pytest.approx([0.0, 1.0, 0.75, 1.0])
    out.sum().backward()
    assert u.grad.tolist() == pytest.approx([1.25, 1.25, 1.25, 0.0])
    assert float(slope.grad) == pytest.approx(-0.3 + 0.1 + 0.2)  # d clamp(a u + 1/2)/da = u inside
