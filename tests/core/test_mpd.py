"""Tests of the theory: draw what a theorem assumes, compare what it predicts, assert the gap where it approximates."""

import math

import pytest
import torch

from mpd_agl.core import (
    KAPPA_MIN,
    input_moments,
    lif,
    lsg_width,
    mpd_width,
    potential_moments,
    quantile_width,
)
from mpd_agl.errors import InputError

V_TH = 0.5


def affine(spread, channels=64):
    g = torch.Generator().manual_seed(7)
    gamma_C = 1 + spread * torch.randn(channels, generator=g, dtype=torch.float64)
    beta_C = -0.1 + spread * 0.4 * torch.randn(channels, generator=g, dtype=torch.float64)
    return gamma_C, beta_C


def drawn_input(gamma_C, beta_C, T=1, rows=40_000):
    """What Theorem 1 assumes: normalised input N(0, v_th^2) in every channel, then the affine transformation."""
    g = torch.Generator().manual_seed(8)
    x = torch.randn(T, rows, len(gamma_C), generator=g, dtype=torch.float64) * V_TH
    return gamma_C * x + beta_C


def test_theorem_1_with_equal_channels_is_exact_for_both():
    gamma_C, beta_C = torch.full((16,), 1.3, dtype=torch.float64), torch.full((16,), -0.2, dtype=torch.float64)
    i = drawn_input(gamma_C, beta_C)
    for moments in ("paper", "exact"):
        mean, std = input_moments(gamma_C, beta_C, v_th=V_TH, moments=moments)
        assert float(mean) == pytest.approx(float(i.mean()), abs=3e-3)
        assert float(std) == pytest.approx(float(i.std()), rel=3e-3)


def test_theorem_1_with_channels_apart_paper_falls_short_by_a_known_gap_and_exact_does_not():
    gamma_C, beta_C = affine(0.5)
    i = drawn_input(gamma_C, beta_C)
    measured = float(i.var())
    paper = float(input_moments(gamma_C, beta_C, v_th=V_TH)[1]) ** 2
    exact = float(input_moments(gamma_C, beta_C, v_th=V_TH, moments="exact")[1]) ** 2
    assert exact == pytest.approx(measured, rel=5e-3)
    gap = V_TH**2 * float(gamma_C.var(correction=0)) + float(beta_C.var(correction=0))
    assert measured - paper == pytest.approx(gap, rel=0.05)
    assert gap / measured > 0.25  # the paper's variance misses a quarter here
    assert float(input_moments(gamma_C, beta_C)[0]) == pytest.approx(float(i.mean()), abs=3e-3)


@pytest.mark.parametrize("tau", [0.2, 0.5])
def test_theorem_2_without_reset_holds_at_t_2_and_misses_the_rest_of_the_leak_sum_later(tau):
    """Below threshold (no reset) t = 2 is exact; at t = 4 the true variance is larger by tau^4 + tau^6."""
    gamma_C, beta_C = affine(0.0)
    i_T = drawn_input(gamma_C, beta_C, T=4, rows=20_000)
    _, v_T, _ = lif(i_T, tau, torch.ones(4, dtype=torch.float64), v_th=1e9)  # a threshold nobody reaches
    mean_T, std_T = potential_moments(*input_moments(gamma_C, beta_C, v_th=V_TH), tau, 4)
    for t in (0, 1):
        assert float(v_T[t].mean()) == pytest.approx(float(mean_T[t]), abs=4e-3)
        assert float(v_T[t].var()) == pytest.approx(float(std_T[t]) ** 2, rel=1e-2)
    full = sum(tau ** (2 * k) for k in range(4))
    assert float(v_T[3].var()) / float(std_T[3]) ** 2 == pytest.approx(full / (1 + tau**2), rel=1e-2)
    moments = input_moments(gamma_C, beta_C, v_th=V_TH)
    for mean, std in (moments, [a.expand(4) for a in moments]):  # one value, or one per step
        mean_T, std_T = potential_moments(mean, std, tau, 4, leak="full")
        assert v_T.mean((1, 2)).tolist() == pytest.approx(mean_T.tolist(), abs=4e-3)
        assert v_T.var((1, 2)).tolist() == pytest.approx(std_T.square().tolist(), rel=1e-2)


def test_theorem_2_forgets_the_reset_and_the_gap_is_measured():
    """The reset removes the upper tail of what is kept: mean and variance at t = 2 are lower than predicted."""
    gamma_C, beta_C = torch.ones(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    tau = 0.5
    i_T = drawn_input(gamma_C, beta_C, T=2, rows=40_000)
    _, v_T, _ = lif(i_T, tau, torch.ones(2, dtype=torch.float64), v_th=V_TH)
    mean_T, std_T = potential_moments(*input_moments(gamma_C, beta_C, v_th=V_TH), tau, 2)
    # V | V < sigma for a standard normal V: mean -phi(1)/Phi(1), kept part's moments E[V 1(V<1)] = -phi(1)
    phi, cdf = math.exp(-0.5) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    kept_mean, kept_square = -phi * V_TH, (cdf - phi) * V_TH**2
    assert float(v_T[1].mean()) == pytest.approx(tau * kept_mean, abs=3e-3)
    assert float(mean_T[1]) == 0.0
    want = tau**2 * (kept_square - kept_mean**2) + V_TH**2
    assert float(v_T[1].var()) == pytest.approx(want, rel=5e-3)
    assert float(std_T[1]) ** 2 / want == pytest.approx(
        1.25 / 1.1355, rel=1e-3
    )  # the rule overstates the variance by 10 %


def test_width_rule_by_hand():
    gamma_C, beta_C = torch.tensor([0.5, 1.0, 1.8]), torch.tensor([0.3, -0.1, 0.1])
    _, std_T = potential_moments(*input_moments(gamma_C, beta_C, v_th=0.5), 0.2, 3)
    later = 2 * math.sqrt(1.04) * 1.1 * 0.5
    assert mpd_width(std_T, v_th=0.5).tolist() == pytest.approx([1.1, later, later], rel=1e-6)  # Eq. 7
    assert lsg_width(torch.tensor(0.2), 2).tolist() == pytest.approx([math.sqrt(1.04)] * 2)
    assert potential_moments(torch.tensor(0.1), torch.tensor(0.5), 0.2, 1)[0].tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("gamma_bar", [0.0, -0.3, -2.0])
def test_non_positive_gamma_bar_gives_a_positive_width(gamma_bar):
    gamma_C, beta_C = torch.full((8,), gamma_bar), torch.zeros(8)
    kappa_T = mpd_width(potential_moments(*input_moments(gamma_C, beta_C), 0.2, 2)[1])
    assert float(kappa_T[0]) == pytest.approx(max(abs(gamma_bar), KAPPA_MIN * 0.5))
    assert torch.isfinite(1 / kappa_T).all()


def test_exact_moments_by_hand():
    mean, std = input_moments(torch.tensor([0.5, 1.5]), torch.tensor([-0.2, 0.2]), v_th=0.5, alpha=0.8, moments="exact")
    assert float(mean) == pytest.approx(0.0)
    assert float(std) ** 2 == pytest.approx(0.16 * 1.25 + 0.04)
    with pytest.raises(InputError, match="unknown moments 'exakt'. Did you mean 'exact'"):
        input_moments(torch.ones(2), torch.zeros(2), moments="exakt")


def test_quantile_width_holds_the_share():
    mean_T = torch.tensor([0.0, 0.2, -0.3, 0.0], dtype=torch.float64)
    std_T = torch.tensor([0.5, 0.6, 0.7, 0.25], dtype=torch.float64)
    kappa_T = quantile_width(mean_T, std_T)
    assert float(kappa_T[0]) == pytest.approx(1.0, abs=2e-4)
    g = torch.Generator().manual_seed(3)
    v = mean_T + std_T * torch.randn(400_000, 4, generator=g, dtype=torch.float64)
    share_T = ((v - 0.5).abs() < kappa_T / 2).double().mean(0)
    assert share_T.tolist() == pytest.approx([0.4772] * 4, abs=3e-3)
    # what Eq. 7 does instead, at mean 0: 48 % at std 0.5, 16 % at std 0.25
    for std, share in ((0.5, 0.4772), (0.25, 0.1573)):
        measured = ((torch.randn(400_000, generator=g, dtype=torch.float64) * std - 0.5).abs() < std).double().mean()
        assert float(measured) == pytest.approx(share, abs=3e-3)
