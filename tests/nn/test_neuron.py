"""Neurons that stand alone: every option against the written equations, states, widths of their own."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, PLIF, FixedWidth, MPDWidth, SpikingBlock, Widths
from mpd_agl.ops import StepInput
from tests.nn.parts import noise

SHAPES = {
    "(T,N,F)": (3, 7, 5),
    "(T,N,C,H,W)": (3, 2, 5, 3, 4),
    "tokens (T,N,L,C)": (3, 2, 4, 5),
    "(T,N,C,L)": (3, 2, 5, 6),
}


def reference(neuron, i_T, kappa_T, state):
    """Spikes and state by `core.lif` in float64."""
    c = neuron.constants()
    s, _, state = core.lif(
        i_T, c.tau, kappa_T.double(), v_th=c.v_th, reset=c.reset, decay_input=c.decay_input,
        surrogate=c.surrogate, detach_reset=c.detach_reset, channel_dim=c.channel_dim, state=state,
    )  # fmt: skip
    return s, state


@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("decay_input", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_every_layout_and_option_is_the_equations(kind, per_channel, decay_input, reset):
    axis = 3 if kind.startswith("tokens") else 2
    tau = [0.2, 0.35, 0.5, 0.65, 0.8] if per_channel else 0.4
    v_th = [0.3, 0.4, 0.5, 0.6, 0.7] if per_channel else 0.5
    options = {"reset": reset, "decay_input": decay_input, "channel_dim": axis, "width": FixedWidth(0.8)}
    neuron = PLIF(tau=tau, v_th=v_th, learn_v_th=True, **options)
    twin, kappa_T = copy.deepcopy(neuron).double(), torch.full((3,), 0.8)
    i_T, state = noise(*SHAPES[kind]), 0.2 * noise(*SHAPES[kind][1:], seed=1)
    leaves = i_T.clone().requires_grad_(), state.clone().requires_grad_()
    exact = i_T.double().requires_grad_(), state.double().requires_grad_()
    s, kept = neuron.with_state(*leaves)
    want, want_kept = reference(twin, exact[0], kappa_T, exact[1])
    assert torch.equal(s.double(), want)
    torch.testing.assert_close(kept.double(), want_kept, rtol=1e-5, atol=1e-6)
    g, g_kept = torch.randn_like(s), torch.randn_like(kept)
    got = torch.autograd.grad((s, kept), (*leaves, neuron.rho, neuron.v_th), (g, g_kept))
    wanted = torch.autograd.grad((want, want_kept), (*exact, twin.rho, twin.v_th), (g.double(), g_kept.double()))
    for name, a, b in zip(("i", "state", "rho", "v_th"), got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5, msg=name)


def test_widths_that_are_passed_in_are_used_and_float64_stays():
    neuron, i_T = LIF().double(), noise(3, 4, 5).double().requires_grad_()
    kappa_T, gain_T = torch.tensor([0.8, 1.0, 1.3]).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    out = neuron(i_T, Widths(kappa_T, gain_T))
    want = core.lif(i_T, neuron.tau, kappa_T, gain_T=gain_T)[0]
    assert out.dtype == torch.float64
    (g,), (g_want,) = (torch.autograd.grad(s, i_T, torch.ones_like(s)) for s in (out, want))
    torch.testing.assert_close(g, g_want, rtol=1e-12, atol=1e-12)


def test_steps_with_a_state_are_the_sequence():
    neuron, i_T = LIF(tau=0.7, reset="soft"), noise(6, 4, 5)
    whole, last = neuron.with_state(i_T, None)
    state, steps = None, []
    for i in i_T:
        s, state = neuron.step(i, state)
        steps.append(s)
    assert torch.equal(torch.stack(steps), whole)
    torch.testing.assert_close(state, last)
    first, middle = neuron.with_state(i_T[:2], None)
    second, end = neuron.with_state(i_T[2:], middle)
    assert torch.equal(torch.cat([first, second]), whole)
    torch.testing.assert_close(end, last)
    assert torch.equal(neuron(i_T), whole)  # the call without a state starts at rest


def test_by_hand_soft_reset_and_decayed_input():
    i_T = torch.tensor([[[1.2]], [[0.0]], [[1.0]]])
    s, kept = LIF(tau=0.5, v_th=1.0, reset="soft").with_state(i_T, None)
    assert s.flatten().tolist() == [1.0, 0.0, 1.0]  # v = 1.2, 0.1, 1.05
    assert float(kept) == pytest.approx(0.05, abs=1e-6)
    s, kept = LIF(tau=0.5, v_th=1.0, decay_input=True).with_state(2 * i_T, None)
    assert s.flatten().tolist() == [1.0, 0.0, 1.0]  # v = 1.2, 0, 1
    assert float(kept) == 0.0


@pytest.mark.parametrize("hooked", [False, True])
def test_a_block_carries_a_state_and_its_pieces_have_the_widths_of_the_whole(hooked):
    """The first step of a later piece is not t = 1 of Theorem 2."""
    torch.manual_seed(0)
    block = SpikingBlock(nn.Linear(5, 6, bias=False), tau=0.8).eval()
    if hooked:
        block.neuron.register_forward_hook(lambda m, i, o: None)
    x, g = noise(4, 3, 5), noise(4, 3, 6, seed=2)
    whole = block(x)
    (want,) = torch.autograd.grad((whole * g).sum(), block.synapse.weight)
    for pieces in ((2, 2), (1, 1, 2)):
        state, found = None, []
        for part in x.split(pieces):
            s, state = block.with_state(part, state)
            found.append(s)
        assert torch.equal(torch.cat(found), whole)
        (got,) = torch.autograd.grad((torch.cat(found) * g).sum(), block.synapse.weight)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def watched(neuron):
    seen = []
    neuron.watch(lambda o: seen.append(o.step.widths.kappa_T))
    return seen


def test_the_width_follows_the_measured_potential():
    neuron, i_T = LIF(method="mpd-agl", tau=0.5), 3 * noise(2, 400, 16) + 0.2
    seen = watched(neuron)
    neuron(i_T)
    want = 2 * core.lif(i_T, 0.5, torch.ones(2))[1].flatten(1).std(1, correction=0)
    assert seen[0].tolist() == pytest.approx(want.tolist(), rel=1e-4)
    for _ in range(10):  # measured again with the eleventh call: a tenth of the way to the new spread
        neuron(0.5 * i_T)
    v2_T = core.lif(0.5 * i_T, 0.5, torch.ones(2))[1].flatten(1)
    variance = 0.9 * (want / 2).square() + 0.1 * v2_T.var(1, correction=0)
    assert seen[-1].tolist() == pytest.approx((2 * variance.sqrt()).tolist(), rel=1e-4)


def test_measured_moments_are_saved_copied_and_not_moved_by_evaluation():
    neuron, other = LIF(method="mpd-agl"), LIF(method="mpd-agl")
    shapes = {k: v.shape for k, v in neuron.state_dict().items()}
    neuron(noise(4, 50, 6))
    assert {k: v.shape for k, v in neuron.state_dict().items()} == shapes
    other.load_state_dict(neuron.state_dict())
    before = neuron.measured.var.clone()
    for again in (other, copy.deepcopy(neuron), pickle.loads(pickle.dumps(neuron))):
        assert again.measured.known == 4
        assert torch.equal(again.measured.var, before)
    neuron.eval()(9 * noise(2, 50, 6))
    assert torch.equal(neuron.measured.var, before)
    neuron.train()(noise(6, 50, 6))  # two more steps: the first four are kept
    assert neuron.measured.known == 6


def test_a_watcher_sees_each_call_until_it_is_removed_and_is_not_copied():
    neuron, seen, i_T = LIF(tau=0.5), [], noise(3, 4, 5)
    handle = neuron.watch(seen.append)
    out = neuron(i_T)
    copy.deepcopy(neuron)(i_T)
    pickle.loads(pickle.dumps(neuron))(i_T)
    (found,) = seen
    assert torch.equal(found.output.spikes, out)
    assert found.step.x is i_T
    assert found.current is None
    handle.remove()
    neuron(i_T)
    assert len(seen) == 1
    assert not neuron.is_watched


def test_a_block_shows_its_neuron_the_norm_as_it_was_applied():
    torch.manual_seed(0)
    block, seen, x = SpikingBlock(nn.Linear(5, 6), method="stbp-tdbn"), [], noise(3, 8, 5)
    block.neuron.watch(seen.append)
    block(x)
    (found,) = seen
    i = (found.step.x - found.current.mean_C) * found.current.scale_C + found.current.bias_C
    torch.testing.assert_close(i, block.norm(block.synapse(x)))


@pytest.mark.parametrize("method", ["stbp-tdbn", "lsg", "mpd-agl", "mpd-agl-exact", "mpd-quantile", "mpd-gain"])
def test_every_method_works_without_a_norm(method):
    neuron, i_T = PLIF(method=method), noise(3, 8, 6).requires_grad_()
    seen = watched(neuron)
    out = neuron(i_T)
    (g,) = torch.autograd.grad(out.sum(), i_T, retain_graph=True)
    gain_T = None if method != "mpd-gain" else neuron.width(neuron.eval().potential(StepInput(i_T, 3))).gain_T
    s = core.lif(i_T, neuron.tau, seen[0], surrogate=neuron.surrogate, gain_T=gain_T)[0]
    assert torch.equal(out, s)
    torch.testing.assert_close(g, torch.autograd.grad(s.sum(), i_T)[0], rtol=1e-4, atol=1e-5)


def test_a_bare_neuron_has_width_one_and_a_given_rule_its_own():
    i_T = noise(2, 50, 4).requires_grad_()
    for neuron, kappa in ((LIF(), 1.0), (LIF(width=FixedWidth(0.5)), 0.5)):
        (g,) = torch.autograd.grad(neuron(i_T).sum(), i_T)
        (want,) = torch.autograd.grad(core.lif(i_T, 0.2, torch.full((2,), kappa))[0].sum(), i_T)
        torch.testing.assert_close(g, want)
    assert isinstance(LIF(method="agr").width, MPDWidth)


def test_a_current_without_channels_and_one_step_alone():
    neuron = LIF(method="mpd-agl")
    assert neuron(noise(3, 40)).shape == (3, 40)
    assert neuron.step(noise(40))[0].shape == (40,)


def test_a_threshold_that_training_drove_below_zero_is_refused():
    neuron = LIF(learn_v_th=True)
    block = SpikingBlock(nn.Linear(3, 3), neuron=neuron)
    with torch.no_grad():
        neuron.v_th.fill_(-0.01)
    for call in (lambda: neuron(noise(2, 1, 3)), lambda: block(noise(2, 4, 3))):
        with pytest.raises(InputError, match=r"training drove a threshold below zero, to -0\.01"):
            call()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LIF(reset="zero"), "unknown reset 'zero'"),
        (lambda: LIF(v_th=[0.5, -1.0]), "v_th must be positive, one number or one per channel"),
        (lambda: LIF(tau=[0.1, 1.2]), "tau, the share of the potential that is kept, must lie between 0 and 1"),
        (lambda: LIF()(torch.randn(5)), r"takes floating-point currents \(T, N, ...\), got \(5,\)"),
        (lambda: LIF()(torch.randn(3, 4, 5), Widths(torch.ones(2))), "a neuron over 2 timesteps takes an input of 2"),
        (lambda: LIF(tau=[0.1] * 4)(torch.randn(3, 2, 5)), r"tau .*got \(4,\)"),
        (lambda: LIF().with_state(torch.randn(3, 2, 5), torch.zeros(3, 5)), r"state .* \(2, 5\), got \(3, 5\)"),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
