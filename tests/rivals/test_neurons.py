"""The rivals' neurons against their own equations, written a second time: float64, plain autograd, one step at a time.

The references follow the published formulation (straight-through rounding, relative potentials), not our kernels.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.export.plainstep import PlainNeuron
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, PLIF, SpikingBlock, Widths, get_method
from mpd_agl.nn.methods import StartWidth
from mpd_agl.rivals.asgl import ASGLNeuron
from mpd_agl.rivals.atgo import AtgoNeuron, atgo
from mpd_agl.rivals.neurons import MPRNeuron, diet_neuron
from mpd_agl.rivals.surrogates import MPR
from mpd_agl.rivals.trsg import MPInitLIF, MPInitPLIF, MPInitTrSG, TrSGNeuron
from mpd_agl.rivals.widths import RelativeWidth, ScheduledWidth
from tests.nn.parts import noise

T, N, C = 4, 6, 5


def straight_through(hard, soft):
    """`hard` forward, the gradient of `soft` backward."""
    return soft + (hard - soft).detach()


def trsg(i_T, theta, kept_share, start=0.0):
    """v += (i - v)/tau', out = theta round(clamp(v/theta - 1/2, 0, 1)), v -= out."""
    v, outs = torch.full_like(i_T[0], start), []
    for i in i_T:
        v = v + (i - v) * (1 - kept_share)
        x = (v / theta - 0.5).clamp(0, 1)
        out = theta * straight_through((v >= theta).to(v), x)
        v = v - out
        outs.append(out)
    return torch.stack(outs), v


def diet(i_T, theta, leak):
    """s = step(v/theta - 1) with derivative 0.3 max(0, 1 - |x|); v = leak v + i - theta s."""
    kept, outs = torch.zeros_like(i_T[0]), []
    for i in i_T:
        v = leak * kept + i
        x = v / theta - 1
        inside = x.clamp(-1, 1)
        s = straight_through((x >= 0).to(v), 0.3 * (inside - inside * inside.abs() / 2))
        kept = v - theta * s.detach()
        outs.append(s)
    return torch.stack(outs)


def mpr(i_T, leak):
    """The rectified potential through clamp(., 0, 1), fired over 1/2; the potential itself is lowered by the spike."""
    v, outs = torch.zeros_like(i_T[0]), []
    for i in i_T:
        v = leak * v + i
        middle = 0.5 + torch.tanh(3 * (v - 0.5)) / (2 * math.tanh(1.5))
        above, below = v.clamp_min(1) ** (1 / 3), 1 - (1 - v.clamp_max(0)) ** (1 / 3)
        rectified = torch.where(v > 1, above, torch.where(v < 0, below, middle))
        s = straight_through((rectified >= 0.5).to(v), rectified.clamp(0, 1))
        v = v - s
        outs.append(s)
    return torch.stack(outs)


def ds_atgo(i_T, tau, v_th, form, thresholds=None):
    """theta_t = mean + std of all potentials of the step, a rectangle of width 1 + tanh(theta_t or std_t - V_th)."""
    kept, outs, thetas = torch.zeros_like(i_T[0]), [], []
    for t, i in enumerate(i_T):
        v = tau * kept + i
        with torch.no_grad():
            std = (((v - v.mean()) ** 2).sum() / (v.numel() - 1)) ** 0.5
            theta = v.mean() + std if thresholds is None else thresholds[t]
            kappa = 1 + torch.tanh((theta if form == "threshold" else std) - v_th)
        s = straight_through((v >= theta).to(v), ((v - theta) / kappa + 0.5).clamp(0, 1))
        kept = v * (1 - s)
        outs.append(s)
        thetas.append(theta)
    return torch.stack(outs), torch.stack(thetas)


def asgl(i_T, tau, slope, noise_share):
    """Hard spikes, a share of them replaced by clamp(a u + 1/2, 0, 1), the gradient of that throughout."""
    kept, outs = torch.zeros_like(i_T[0]), []
    for i in i_T:
        v = tau * kept + i
        soft = (slope * (v - 0.5) + 0.5).clamp(0, 1)
        is_soft = torch.rand(v.shape, dtype=v.dtype) < noise_share
        s = torch.where(is_soft, soft, straight_through((v >= 0.5).to(v), soft))
        kept = v * (1 - s)
        outs.append(s)
    return torch.stack(outs)


def psg(i_T, tau, kappa):
    """The rectangle as the derivative of clamp(u/kappa + 1/2, 0, 1), which knows kappa."""
    kept, outs = torch.zeros_like(i_T[0]), []
    for i in i_T:
        v = tau * kept + i
        s = straight_through((v >= 0.5).to(v), ((v - 0.5) / kappa + 0.5).clamp(0, 1))
        kept = v * (1 - s)
        outs.append(s)
    return torch.stack(outs)


def currents(seed=0, scale=1.0, shape=(T, N, C)):
    generator = torch.Generator().manual_seed(seed)
    return scale * (0.6 + torch.randn(shape, generator=generator, dtype=torch.float64))


def both(neuron, reference, i_T, dtype, tolerance):
    """Outputs and every gradient of a neuron and of its reference, at random gradients from above."""
    leaves = dict(neuron.named_parameters())
    double = {k: p.detach().double().requires_grad_() for k, p in leaves.items()}
    i_ref, i_own = i_T.clone().requires_grad_(), i_T.to(dtype).requires_grad_()
    torch.manual_seed(5)
    want = reference(i_ref, double)
    torch.manual_seed(5)
    got = neuron(i_own)
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    g = torch.randn(want.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    g_want = torch.autograd.grad(want, [i_ref, *double.values()], g)
    g_got = torch.autograd.grad(got, [i_own, *leaves.values()], g.to(dtype))
    assert all(float(a.abs().max()) > 0 for a in g_want)
    for name, a, b in zip(("i", *leaves), g_got, g_want, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(a.double() / scale, b / scale, rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)


REFERENCES = {
    "trsg": (TrSGNeuron, lambda i, p: trsg(i, F.softplus(p["p"]), torch.sigmoid(p["rho"]))[0]),
    "diet": (diet_neuron, lambda i, p: diet(i, p["v_th"], torch.sigmoid(p["rho"]))),
    "mpr": (MPRNeuron, lambda i, p: mpr(i, float(torch.tensor(0.3)))),
    "ds-atgo": (AtgoNeuron, lambda i, p: ds_atgo(i, torch.sigmoid(p["rho"]), 0.5, "threshold")[0]),
    "asgl": (
        lambda tau: ASGLNeuron(tau=tau, width=get_method("asgl").with_options(StartWidth(kappa=1.6)).width()),
        lambda i, p: asgl(i, float(torch.tensor(0.3)), p["width.slope"], 0.2),
    ),
    "psg": (
        lambda tau: PLIF(tau=tau, method=get_method("psg").with_options(StartWidth(kappa=1.6))),
        lambda i, p: psg(i, p["rho"].sigmoid(), p["width.kappa"]),
    ),
    "ds-atgo-sigma": (get_method("ds-atgo-sigma").neuron, lambda i, p: ds_atgo(i, p["rho"].sigmoid(), 0.5, "sigma")[0]),
}


# ASGL's draws depend on the dtype
CASES = [(name, torch.float64) for name in REFERENCES] + [(n, torch.float32) for n in REFERENCES if n != "asgl"]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_values_and_every_gradient(name, dtype):
    make, reference = REFERENCES[name]
    neuron = make(tau=0.3).to(dtype).train()
    both(neuron, reference, currents(), dtype, 1e-9 if dtype == torch.float64 else 2e-5)


def test_trsg_by_hand():
    # theta 1, half is kept: v = .6, 1.4 (fires, keeps .4), .7; all inside (1/2, 3/2), where d out/dv = 1.
    neuron = TrSGNeuron(v_th=1.0, tau=0.5)
    i_T = torch.tensor([[[1.2]], [[2.2]], [[1.0]]], requires_grad=True)
    out = neuron(i_T)
    assert out.flatten().tolist() == pytest.approx([0.0, 1.0, 0.0])
    out.sum().backward()
    # What is kept is v - out, whose derivative by v is 1 - 1 = 0: no gradient comes from later steps.
    assert i_T.grad.flatten().tolist() == pytest.approx([0.5, 0.5, 0.5])
    # d out/d theta = s - v/theta at theta = 1, and kept = v - out passes its own derivative on by one half.
    d_kept, total = 0.0, 0.0
    for v, s in ((0.6, 0.0), (1.4, 1.0), (0.7, 0.0)):
        dv = 0.5 * d_kept
        d_out = dv + s - v
        d_kept, total = dv - d_out, total + d_out
    assert float(neuron.p.grad) == pytest.approx(total * (1 - math.exp(-1)))  # dsoftplus/dp = 1 - exp(-theta)


def test_diet_by_hand():
    # theta 1, leak .5: v = .8 (0), 1.2 (1, keeps .2), .6 (0). h = .3 (1 - |v - 1|) = .24, .24, .18.
    neuron = diet_neuron(v_th=1.0, tau=0.5)
    i_T = torch.tensor([[[0.8]], [[0.8]], [[0.5]]], requires_grad=True)
    s_T = neuron(i_T)
    assert s_T.flatten().tolist() == [0.0, 1.0, 0.0]
    s_T.sum().backward()
    # Detached soft reset: dkept/dv = 1. di_3 = .18, di_2 = .24 + .5 * .18, di_1 = .24 + .5 * di_2.
    assert i_T.grad.flatten().tolist() == pytest.approx([0.405, 0.33, 0.18])
    # dv_2's reset lowers v_3 by .5 theta: -(.24 * .8 + .24 * 1.2 + .18 * .6) - .5 * .18
    assert float(neuron.v_th.grad) == pytest.approx(-(0.24 * 0.8 + 0.24 * 1.2 + 0.18 * 0.6) - 0.5 * 0.18)


def test_mpr_by_hand():
    # v = .6 fires and leaves -.4; then .5 * -.4 + .2 = 0; the slope at 1/2 is 3/(2 tanh 1.5).
    s_T = MPRNeuron(tau=0.5)(torch.tensor([[[0.6]], [[0.2]], [[0.5]]]))
    assert s_T.flatten().tolist() == [1.0, 0.0, 1.0]
    assert float(MPR().slope(torch.zeros(1))) == pytest.approx(1.5 / math.tanh(1.5))
    assert MPR().rectified(torch.tensor([7.5, -7.5, 0.5])).tolist() == pytest.approx([1.5, -1.5, 0.5])


def test_ds_atgo_by_hand():
    i_T = torch.tensor([[[0.0, 1.0, 2.0, 3.0]], [[1.0, 1.0, 1.0, 1.0]]])
    neuron = AtgoNeuron(v_th=1.0, tau=0.5)
    s_T = neuron(i_T)
    # mean 1.5, std sqrt(5/3): theta 2.791. Then v = 1, 1.5, 2, 1: mean 1.375, std sqrt(.6875/3) = .4787.
    assert s_T.flatten().tolist() == [0, 0, 0, 1, 0, 0, 1, 0]
    theta = [1.5 + math.sqrt(5 / 3), 1.375 + math.sqrt(0.6875 / 3)]
    assert neuron.theta[:2].tolist() == pytest.approx([0.9 + 0.1 * th for th in theta])
    assert int(neuron.steps) == 2
    neuron(i_T)
    assert neuron.theta[:3].tolist() == pytest.approx([*(0.81 + 0.19 * th for th in theta), 1.0])


@pytest.mark.parametrize("shape", [(T, 6), (T, N, C, 3, 2), (1, N, C)])
def test_ds_atgo_takes_any_rank_and_one_step_that_stands_for_all(shape):
    i_S = currents(7, shape=shape).requires_grad_()
    neuron = AtgoNeuron(tau=0.3).double()
    s_T = neuron(i_S, num_steps=T)
    i_T = i_S.detach().expand(T, *shape[1:]).clone().requires_grad_()
    rho = neuron.rho.detach().clone().requires_grad_()
    want, thetas = ds_atgo(i_T, torch.sigmoid(rho), 0.5, "threshold")
    written = atgo(i_T, torch.sigmoid(rho))
    assert torch.equal(s_T, want)
    assert torch.equal(written.s_T, want)
    torch.testing.assert_close(neuron.theta[:T], 0.45 + 0.1 * thetas)
    torch.testing.assert_close(written.theta_T, thetas)
    g_T = torch.randn(s_T.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = torch.autograd.grad(s_T, [i_S, neuron.rho], g_T)
    g_i, g_rho = torch.autograd.grad(want, [i_T, rho], g_T)
    torch.testing.assert_close(got, (g_i.sum(0, keepdim=True) if shape[0] == 1 else g_i, g_rho))
    torch.testing.assert_close(torch.autograd.grad(written.s_T, [i_T, rho], g_T), (g_i, g_rho))


def test_ds_atgo_evaluates_at_the_running_thresholds_which_are_saved():
    neuron = AtgoNeuron(v_th=1.0, tau=0.3).double()
    i_T = currents(3)
    for seed in range(4):
        neuron(currents(seed))
    other = AtgoNeuron(v_th=1.0, tau=0.9).double()
    other.load_state_dict(neuron.state_dict())
    kept = other.theta.clone()
    want, _ = ds_atgo(i_T, neuron.tau.detach(), 1.0, "threshold", neuron.theta)
    assert torch.equal(other.eval()(i_T), want)
    assert torch.equal(other.theta, kept)  # evaluation measures nothing
    longer = currents(5, shape=(T + 2, N, C))
    want, _ = ds_atgo(longer, neuron.tau.detach(), 1.0, "threshold", [*neuron.theta[:T], *[neuron.theta[T - 1]] * 2])
    assert torch.equal(other(longer), want)  # the last trained step stands for those behind it
    with pytest.raises(InputError, match="a state does not tell its timestep"):
        other.step(i_T[0])


def test_mp_init_starts_where_neurons_that_fired_end():
    neuron = MPInitTrSG(v_th=0.8, tau=0.4).double().train()
    m = 0.0
    for seed in range(3):
        i_T = currents(seed)
        want, kept = trsg(i_T, torch.tensor(0.8, dtype=torch.float64), 0.4, start=m)
        torch.testing.assert_close(neuron(i_T).detach(), want, rtol=1e-6, atol=1e-6)
        fired = (want > 0).any(0)
        assert bool(fired.any()) != bool(fired.all())
        m = 0.9 * m + 0.1 * float(kept[fired].mean())
        assert float(neuron.start) == pytest.approx(m, rel=1e-5)
    assert m != 0
    neuron.eval()(currents(7))
    assert float(neuron.start) == pytest.approx(m, rel=1e-5)


@pytest.mark.parametrize("make", [MPInitLIF, MPInitPLIF])
def test_mp_init_is_a_start_of_other_neurons_and_a_state_replaces_it(make):
    neuron = make(tau=0.4).double().eval()
    neuron.start.fill_(0.6)
    i_T = currents(2)
    want, _, kept = core.lif(i_T, neuron.tau.detach(), torch.ones(T).double(), state=torch.full((N, C), 0.6).double())
    out, state = neuron.with_state(i_T, None)
    assert torch.equal(out, want)
    torch.testing.assert_close(state, kept)
    again = torch.cat([neuron.with_state(i_T[:1], None)[0], neuron.with_state(i_T[1:], neuron.step(i_T[0])[1])[0]])
    assert torch.equal(again, want)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_block_starts_there_too_and_adds_its_residual_behind_the_scale(backend):
    torch.manual_seed(0)
    block = SpikingBlock(nn.Linear(7, C, bias=False), method="mp-init-trsg", v_th=0.8, backend=backend)
    x, residual = torch.randn(T, N, 7), torch.rand(T, N, C)
    start = 0.3
    block.neuron.start.fill_(start)
    got = block(x, residual=residual)
    current = x @ block.synapse.weight.detach().T
    i = core.tdbn(current, torch.ones(C), torch.zeros(C), *core.batch_moments(current), v_th=0.8)
    want, _ = trsg(i.double(), torch.tensor(0.8, dtype=torch.float64), 0.2, start=start)
    torch.testing.assert_close(got.detach().double(), want + residual.double(), rtol=1e-5, atol=1e-5)
    g = torch.autograd.grad(got.sum(), [block.neuron.p, block.neuron.rho, block.synapse.weight])
    assert all(float(a.abs().max()) > 0 for a in g)


def test_the_relative_width_gives_the_derivative_by_the_ratio():
    v = torch.linspace(0.1, 2.0, 20, dtype=torch.float64)
    theta = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    s = core.spike(v - theta, theta, "triangular")
    (got,) = torch.autograd.grad(s.sum(), theta)
    x = v / 0.9 - 1
    assert float(got) == pytest.approx(float((-(v / 0.81) * (1 - x.abs()).clamp_min(0)).sum()))


def test_slope_schedule_follows_the_progress_and_is_saved():
    rule, other = (LIF(method="slope-schedule") for _ in range(2))

    def kappa(neuron):
        found = []
        neuron.watch(lambda o: found.append(o.step.widths.kappa_T))
        neuron(noise(2, 3, 4))
        return found[0].tolist()

    assert kappa(rule) == [2.0, 2.0]
    rule.width.progress.fill_(0.5)
    assert kappa(rule) == pytest.approx([2 / 10] * 2)
    other.load_state_dict(rule.state_dict())
    assert kappa(other) == pytest.approx([2 / 10] * 2)
    assert "width.progress" in rule.state_dict()
    rule.width.progress.fill_(1.0)
    u = torch.tensor([0.03], requires_grad=True)
    (g,) = torch.autograd.grad(rule((u + 0.5).unsqueeze(0)), u, torch.ones(1, 1))
    assert float(g) == pytest.approx(1 / (1 + 100 * 0.03) ** 2, rel=1e-5)
    with pytest.raises(InputError, match="slopes must be positive"):
        ScheduledWidth(0.0)


def test_deeptage_width_is_the_norm_of_the_potentials():
    neuron, i_T, seen = LIF(method="deeptage"), currents(4).float(), []
    neuron.watch(lambda o: seen.append(o.step.widths.kappa_T))
    neuron(i_T)
    sigma_T = (core.lif(i_T, 0.2, torch.ones(T))[1] - 0.5).flatten(1).norm(dim=1)
    assert seen[0].tolist() == pytest.approx((0.25 * sigma_T / sigma_T[0] + 0.75).tolist(), rel=1e-5)
    assert neuron.surrogate.name == "arctan-peak"
    with pytest.raises(InputError, match="has its own surrogate 'arctan-peak', got surrogate='sigmoid'"):
        LIF(method="deeptage", surrogate="sigmoid")


@pytest.mark.parametrize(("method", "start", "parameter"), [("psg", 0.001, "kappa"), ("asgl", 1000.0, "slope")])
def test_a_learnable_width_out_of_bounds_is_kept_within_and_can_come_back(method, start, parameter):
    block = SpikingBlock(nn.Linear(7, C), method=method)
    with torch.no_grad():
        getattr(block.width, parameter).fill_(start)
    seen = []
    block.neuron.watch(lambda o: seen.append(o.step.widths.kappa_T))
    block(noise(T, N, 7))
    assert seen[0].detach().tolist() == pytest.approx([core.KAPPA_MIN * 0.5] * T)
    seen[0].sum().backward()
    assert float(getattr(block.width, parameter).grad) != 0


def test_asgl_mixes_in_training_and_is_a_lif_in_evaluation():
    neuron, i_T = ASGLNeuron(noise=0.25, width=get_method("asgl").width()), noise(4, 500, 20)
    out = neuron(i_T)
    inside = (core.lif(i_T[:1], 0.2, torch.ones(1))[1] - 0.5).abs() < 0.5
    soft = ((out[:1] > 0) & (out[:1] < 1))[inside]
    assert float(soft.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert torch.equal(neuron.eval()(i_T), LIF()(i_T))
    seen = []
    neuron.train().watch(lambda o: seen.append(o.output))
    out = neuron(i_T)
    v_T = seen[0].details.potentials
    kept_T = torch.cat([torch.zeros(1, 500, 20), (v_T * (1 - out))[:-1]])
    torch.testing.assert_close(v_T, 0.2 * kept_T + i_T)
    with pytest.raises(InputError, match="soft spikes have a height of their own"):
        neuron(i_T, Widths(torch.ones(4), torch.ones(4)))


def test_s2nn_by_its_formula_and_at_one_step_only():
    u = torch.tensor([-1.0, -0.2, 0.3, 2.0], dtype=torch.float64)
    i = (u + 0.5).unsqueeze(0).unsqueeze(0).requires_grad_()
    neuron = LIF(method="s2nn").double()
    (g,) = torch.autograd.grad(neuron(i).sum(), i)
    want = [4 * math.exp(4 * x) / (1 + math.exp(4 * x)) ** 2 for x in (-1.0, -0.2)] + [1 / 1.3, 1 / 3.0]
    assert g.flatten().tolist() == pytest.approx(want)
    with pytest.raises(InputError, match="method s2nn trains networks of one timestep, got num_steps=2"):
        neuron(i.expand(2, 1, 4))


@pytest.mark.parametrize("method", ["ds-atgo", "trsg", "mpr", "diet", "asgl"])
def test_a_method_that_is_a_neuron_is_refused_as_a_width(method):
    with pytest.raises(InputError, match=f"method '{method}' is a neuron of its own"):
        LIF(method=method)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MPRNeuron(v_th=1.0), "around the threshold 0.5, got v_th=1.0"),
        (lambda: TrSGNeuron(v_th=[0.5, 0.6]), "one threshold per layer"),
        (lambda: AtgoNeuron(decay_input=True), "ds-atgo has a hard reset"),
        (lambda: AtgoNeuron()(torch.ones(2, 1, 1)), "the spread of a layer's potentials, got a single one"),
        (lambda: ASGLNeuron(noise=1.0), r"noise must lie in \[0, 1\)"),
        (lambda: PlainNeuron(MPInitLIF()), "the equations of LIF and PLIF, got MPInitLIF"),
        (lambda: PlainNeuron(MPRNeuron()), "the equations of LIF and PLIF, got MPRNeuron"),
        (lambda: PlainNeuron(TrSGNeuron()), "the equations of LIF and PLIF, got TrSGNeuron"),
        (lambda: PlainNeuron(AtgoNeuron()), "the equations of LIF and PLIF, got AtgoNeuron"),
        (lambda: PLIF(v_th=[0.5, 0.6], width=RelativeWidth())(torch.ones(1, 1, 2)), "one threshold per layer"),
    ],
)
def test_what_has_no_meaning_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


STATE_KEYS = {
    "psg": {"neuron.tau", "width.kappa"},
    "asgl": {"neuron.tau", "width.slope"},
    "deeptage": {"neuron.tau"},
    "slope-schedule": {"neuron.tau", "width.progress"},
    "ds-atgo": {"neuron.rho", "neuron.theta", "neuron.steps"},
    "trsg": {"neuron.rho", "neuron.p"},
    "mp-init-trsg": {"neuron.rho", "neuron.p", "neuron.start"},
    "mpr": {"neuron.tau"},
    "diet": {"neuron.rho", "neuron.v_th"},
    "s2nn": {"neuron.tau"},
}


@pytest.mark.parametrize("method", STATE_KEYS)
def test_a_training_step_in_a_network_and_the_names_of_its_state(method):
    T = get_method(method).max_steps or 2
    net = create_model("cnn8", width_mult=0.0625, image_size=8, method=method, num_steps=T)
    assert STATE_KEYS[method] == {
        n.removeprefix("conv1.") for n in net.state_dict() if n.startswith(("conv1.neuron", "conv1.width"))
    }
    F.cross_entropy(net(noise(6, 3, 8, 8)).mean(0), torch.arange(6)).backward()
    without = [n for n, p in net.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert without == []
    before = [p.detach().clone() for p in net.parameters()]
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert sum(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)) > 0.8 * len(before)
