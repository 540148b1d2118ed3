"""Surrogates: unit area, exact support, the derivative of their own soft step, finite at any size."""

import math

import pytest
import torch

from mpd_agl.core import SURROGATES, Surrogate, get_surrogate, register_surrogate, spike
from mpd_agl.errors import InputError

KAPPAS = [0.2, 0.7, 1.0, 2.5]
SOFT_STEPS = {
    "rectangular": lambda u, kappa: (u / kappa + 0.5).clamp(0, 1),
    "triangular": lambda u, kappa: 0.5 + 0.5 * u.sign() * (1 - (1 - u.abs() / kappa).clamp_min(0).square()),
    "sigmoid": lambda u, kappa: torch.sigmoid(4 * u / kappa),
    "arctan": lambda u, kappa: 0.5 + torch.atan(math.pi * u / kappa) / math.pi,
}


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("name", list(SURROGATES))
def test_peak_and_area(name, kappa):
    h = SURROGATES[name]
    assert float(h.grad(torch.zeros(1, dtype=torch.float64), kappa)) == pytest.approx(1 / kappa, rel=1e-12)
    reach = 2000 * kappa if name == "arctan" else 20 * kappa
    u = torch.linspace(-reach, reach, 2_000_001, dtype=torch.float64)
    tail = 2 * (0.5 - math.atan(math.pi * reach / kappa) / math.pi) if name == "arctan" else 0.0
    assert float(torch.trapezoid(h.grad(u, kappa), u)) + tail == pytest.approx(
        1.0, abs=2e-3 if name == "arctan" else 1e-4
    )


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("name", list(SURROGATES))
def test_grad_is_the_derivative_of_the_soft_step(name, kappa):
    h, H = SURROGATES[name], SOFT_STEPS[name]
    u = torch.linspace(-2.03, 2.01, 501, dtype=torch.float64)
    u = u[((u.abs() - kappa / 2).abs() > 1e-3) & ((u.abs() - kappa).abs() > 1e-3) & (u.abs() > 1e-3)]
    e = 1e-6
    by_u = (H(u + e, kappa) - H(u - e, kappa)) / (2 * e)
    torch.testing.assert_close(h.grad(u, kappa), by_u, rtol=1e-6, atol=1e-8)
    by_kappa = (H(u, kappa + e) - H(u, kappa - e)) / (2 * e)
    torch.testing.assert_close(h.grad_kappa(u, kappa), by_kappa, rtol=1e-6, atol=1e-8)


def test_rectangular_support_is_open():
    u = torch.tensor([-0.5, math.nextafter(-0.5, 0), 0.0, math.nextafter(0.5, 0), 0.5], dtype=torch.float64)
    assert SURROGATES["rectangular"].grad(u, 1.0).tolist() == [0, 1, 1, 1, 0]
    assert SURROGATES["rectangular"].is_available(u, 1.0).tolist() == [False, True, True, True, False]
    assert SURROGATES["triangular"].grad(torch.tensor([-1.0, -0.5, 0.75, 1.0]), 1.0).tolist() == [0, 0.5, 0.25, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", list(SURROGATES))
def test_finite_at_any_size(name, dtype):
    u = torch.tensor([-1e4, -3.5, -1e-4, 0.0, 1e-4, 3.5, 1e4], dtype=dtype)
    for kappa in (0.05, 1.0, 4.0):
        out = SURROGATES[name].grad(u, torch.tensor(kappa, dtype=dtype))
        assert torch.isfinite(out).all()
        assert (out >= 0).all()
        assert float(out[0]) == pytest.approx(0.0, abs=1e-3)
        assert torch.isfinite(SURROGATES[name].grad_kappa(u, torch.tensor(kappa, dtype=dtype))).all()


def test_spike_fires_at_the_threshold_and_takes_both_gradients():
    u = torch.tensor([-0.3, -0.1, 0.0, 0.2, 0.6], dtype=torch.float64, requires_grad=True)
    kappa = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    s = spike(u, kappa)
    (s * weight).sum().backward()
    assert s.tolist() == [0, 0, 1, 1, 1]
    assert u.grad.tolist() == pytest.approx([1.25, 2.5, 3.75, 5.0, 0.0])
    # dH/dkappa = -(u/kappa) h, summed: -(1/0.64) * (1*-0.3 + 2*-0.1 + 0 + 4*0.2)
    assert float(kappa.grad) == pytest.approx(-(-0.3 - 0.2 + 0.8) / 0.64)


class Flat(Surrogate):
    name = "flat"

    def grad(self, u, kappa):
        return torch.ones_like(u) / kappa


def test_a_surrogate_registers_once_under_its_name(monkeypatch):
    monkeypatch.setattr("mpd_agl.core.surrogate.SURROGATES", dict(SURROGATES))
    own = register_surrogate(Flat())
    assert get_surrogate("flat") is own
    assert register_surrogate(Flat()) == own  # the same again
    u = torch.zeros(2, requires_grad=True)
    assert torch.autograd.grad(spike(u, 2.0, "flat").sum(), u)[0].tolist() == [0.5, 0.5]

    class Rival(Flat):
        pass

    with pytest.raises(InputError, match="the name 'flat' belongs to Flat"):
        register_surrogate(Rival())
    for wrong in (Flat, "flat", Surrogate):
        with pytest.raises(InputError, match="takes an object of a Surrogate class with a name"):
            register_surrogate(wrong)


def test_unknown_surrogate_lists_the_near_ones():
    with pytest.raises(InputError, match="unknown surrogate 'rectangle'. Did you mean 'rectangular'"):
        get_surrogate("rectangle")
