"""The LIF sequence: trajectories by hand, and its gradient against the written recursion and finite differences."""

import pytest
import torch

from mpd_agl.core import SURROGATES, get_surrogate, lif
from mpd_agl.errors import InputError


def test_trajectory_by_hand():
    # v1 = 0.4; v2 = 0.2*0.4 + 0.45 = 0.53 fires; v3 = 0 + 0.1; v4 = 0.2*0.1 + 0.48 = 0.5 fires at >=
    i_T = torch.tensor([0.4, 0.45, 0.1, 0.48], dtype=torch.float64).view(4, 1)
    s_T, v_T, _ = lif(i_T, 0.2, torch.ones(4, dtype=torch.float64))
    assert v_T.flatten().tolist() == pytest.approx([0.4, 0.53, 0.1, 0.5])
    assert s_T.flatten().tolist() == [0, 1, 0, 1]


def test_gradient_by_hand_through_the_reset():
    # two steps, rectangular kappa 1: dv2 = g2 h2; ds1 = g1 - tau v1 dv2; dv1 = ds1 h1 + tau (1-s1) dv2
    for i1, fired in ((0.6, True), (0.3, False)):
        i_T = torch.tensor([[i1], [0.35]], dtype=torch.float64, requires_grad=True)
        tau = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        s_T, *_ = lif(i_T, tau, torch.ones(2, dtype=torch.float64))
        (3 * s_T[0] + 5 * s_T[1]).sum().backward()
        dv2 = 5.0
        dv1 = (3 - 0.2 * i1 * dv2) + (0 if fired else 0.2 * dv2)
        assert i_T.grad.flatten().tolist() == pytest.approx([dv1, dv2])
        assert float(tau.grad) == pytest.approx(0.0 if fired else dv2 * i1)


def written_gradients(i_T, tau, kappa_T, g_T, surrogate, detach_reset, v_th=0.5):
    """facts: the backward recursion, in float64, from its formula alone."""
    _, v_T, _ = lif(i_T, tau, kappa_T, v_th=v_th, surrogate=surrogate)
    h = get_surrogate(surrogate)
    T = len(i_T)
    dv = [torch.zeros_like(i_T[0])] * (T + 1)
    dtau = torch.zeros((), dtype=i_T.dtype)
    for t in reversed(range(T)):
        v, s = v_T[t], (v_T[t] >= v_th).to(v_T.dtype)
        ds = g_T[t] - (0 if detach_reset else tau * v * dv[t + 1])
        dtau = dtau + (dv[t + 1] * v * (1 - s)).sum()
        dv[t] = ds * h.grad(v - v_th, kappa_T[t]) + tau * (1 - s) * dv[t + 1]
    return torch.stack(dv[:T]), dtau * tau * (1 - tau)  # drho


@pytest.mark.parametrize("detach_reset", [False, True])
@pytest.mark.parametrize("name", list(SURROGATES))
@pytest.mark.parametrize("T", [1, 2, 3, 6, 10])
def test_autograd_of_the_equations_is_the_written_recursion(T, name, detach_reset):
    torch.manual_seed(T)
    i_T = torch.randn(T, 400, dtype=torch.float64, requires_grad=True)
    rho = torch.tensor(-0.8, dtype=torch.float64, requires_grad=True)
    kappa_T = torch.linspace(0.6, 1.4, T, dtype=torch.float64)
    g_T = torch.randn(T, 400, dtype=torch.float64)
    tau = torch.sigmoid(rho)
    s_T, *_ = lif(i_T, tau, kappa_T, surrogate=name, detach_reset=detach_reset)
    s_T.backward(g_T)
    di_T, drho = written_gradients(i_T.detach(), tau.detach(), kappa_T, g_T, name, detach_reset)
    torch.testing.assert_close(i_T.grad, di_T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rho.grad, drho, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("T", [1, 2, 3, 6])
def test_smooth_sequence_against_finite_differences(T):
    """With the soft step for a spike everything is smooth: autograd of the sequence must be the numerical gradient."""
    torch.manual_seed(T)
    i_T = torch.randn(T, 5, dtype=torch.float64, requires_grad=True)
    rho = torch.tensor(-0.8, dtype=torch.float64, requires_grad=True)
    kappa_T = torch.full((T,), 0.9, dtype=torch.float64, requires_grad=True)

    def run(i_T, rho, kappa_T):
        return lif(i_T, torch.sigmoid(rho), kappa_T, fire=lambda u, kappa, t: torch.sigmoid(4 * u / kappa))[0]

    assert torch.autograd.gradcheck(run, (i_T, rho, kappa_T), eps=1e-6, atol=1e-7, rtol=1e-6)


def test_soft_reset_and_input_decay_by_hand():
    # v1 = 0.8 fires, keeps 0.3; v2 = 0.5*0.3 + 0.4 = 0.55 fires, keeps 0.05; v3 = 0.025 + 0.1
    i_T = torch.tensor([[0.8], [0.4], [0.1]], dtype=torch.float64)
    kappa_T = torch.ones(3, dtype=torch.float64)
    s_T, v_T, kept = lif(i_T, 0.5, kappa_T, reset="soft")
    assert v_T.flatten().tolist() == pytest.approx([0.8, 0.55, 0.125])
    assert s_T.flatten().tolist() == [1, 1, 0]
    assert kept.tolist() == pytest.approx([0.125])
    # decay_input at tau 0.75: a quarter of each current; from 0.4: 0.3 + 0.2 fires at >=; 0.1; 0.075 + 0.025
    state = torch.tensor([0.4], dtype=torch.float64)
    s_T, v_T, _ = lif(i_T, 0.75, kappa_T, decay_input=True, state=state)
    assert v_T.flatten().tolist() == pytest.approx([0.5, 0.1, 0.1])
    assert s_T.flatten().tolist() == [1, 0, 0]


def test_gradient_of_the_threshold_and_the_state_by_hand():
    # one step, soft, rectangular kappa 1: s = [v >= v_th], kept = v - v_th s, loss 3 s + 5 kept, v = tau state + i
    i_T = torch.tensor([[0.6, 0.2]], dtype=torch.float64, requires_grad=True)
    state = torch.tensor([0.2, 0.2], dtype=torch.float64, requires_grad=True)
    v_th = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    gain_T = torch.tensor([2.0], dtype=torch.float64)
    ones_T = torch.ones(1, dtype=torch.float64)
    s_T, _, kept = lif(i_T, tau, ones_T, v_th=v_th, reset="soft", state=state, gain_T=gain_T)
    (3 * s_T.sum() + 5 * kept.sum()).backward()
    ds = 3 - 5 * 0.5  # of each neuron; h = gain = 2 at both potentials, 0.7 and 0.3
    assert i_T.grad.flatten().tolist() == pytest.approx([2 * ds + 5] * 2)
    assert state.grad.tolist() == pytest.approx([0.5 * (2 * ds + 5)] * 2)
    assert float(tau.grad) == pytest.approx(0.2 * 2 * (2 * ds + 5))
    assert float(v_th.grad) == pytest.approx(
        -2 * 2 * ds - 5
    )  # through both spikes; through the reset of the one that fired


@pytest.mark.parametrize("reset", ["hard", "soft"])
def test_the_general_sequence_against_finite_differences(reset):
    torch.manual_seed(0)
    leaves = [
        torch.randn(3, 2, 4, dtype=torch.float64),
        torch.rand(4, dtype=torch.float64),
        torch.rand(4, dtype=torch.float64),
    ]
    leaves += [torch.randn(2, 4, dtype=torch.float64), torch.full((3,), 0.9, dtype=torch.float64)]

    def run(i_T, tau, v_th, state, kappa_T):
        options = {"v_th": v_th, "state": state, "reset": reset, "decay_input": True}
        s_T, _, kept = lif(i_T, tau, kappa_T, fire=lambda u, kappa, t: torch.sigmoid(4 * u / kappa), **options)
        return s_T, kept

    assert torch.autograd.gradcheck(run, [a.requires_grad_() for a in leaves], eps=1e-6, atol=1e-7, rtol=1e-6)


def test_what_does_not_fit_is_refused_with_its_values():
    i_T, kappa_T = torch.randn(3, 2, 4), torch.ones(3)
    for match, options in {
        r"tau .*\(4,\).*\(2,\)": {"tau": torch.rand(2)},
        r"v_th .*\(4,\).*\(2, 4\)": {"v_th": torch.rand(2, 4)},
        r"state .*\(2, 4\).*\(4,\)": {"state": torch.zeros(4)},
        r"gain_T .*\(3,\).*\(1,\)": {"gain_T": torch.ones(1)},
        r"gain_T .*fire=": {"gain_T": torch.ones(3), "fire": lambda u, k, t: u},
        r"kappa_T .*\(3,\).*\(2,\)": {"kappa_T": torch.ones(2)},
        r"'none'": {"reset": "none"},
    }.items():
        with pytest.raises(InputError, match=match):
            lif(i_T, **{"tau": 0.2, "kappa_T": kappa_T, **options})


def test_every_call_starts_at_rest():
    i_T = torch.randn(3, 50)
    kappa_T = torch.ones(3)
    assert torch.equal(lif(i_T, 0.9, kappa_T)[0], lif(i_T, 0.9, kappa_T)[0])
