"""Neurons that stand alone: every option against the written equations, states, widths of their own."""

import copy

import pytest
import torch

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, PLIF, FixedWidth, MPDWidth, SpikingBlock, recompute

SHAPES = {
    "(T,N,F)": (3, 7, 5),
    "(T,N,C,H,W)": (3, 2, 5, 3, 4),
    "tokens (T,N,L,C)": (3, 2, 4, 5),
    "(T,N,C,L)": (3, 2, 5, 6),
}


def current(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference(neuron, i_T, kappa_T, state=None):
    """Spikes and state by `core.lif` in float64."""
    tau, v_th = neuron.tau.double(), neuron.v_th
    v_th = v_th.double() if isinstance(v_th, torch.Tensor) else v_th
    options = {**neuron.dynamics(), "v_th": v_th}
    s, _, kept = core.lif(i_T, tau, kappa_T.double(), kept_0=state, return_state=True, **options)
    return s, kept


@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("decay_input", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_every_layout_and_option_is_the_equations(kind, per_channel, decay_input, reset):
    axis = 3 if kind.startswith("tokens") else 2
    tau = [0.2, 0.35, 0.5, 0.65, 0.8] if per_channel else 0.4
    v_th = [0.3, 0.4, 0.5, 0.6, 0.7] if per_channel else 0.5
    neuron = PLIF(tau=tau, v_th=v_th, learn_v_th=True, reset=reset, decay_input=decay_input, channel_dim=axis)
    i_T = current(SHAPES[kind])
    leaf, exact = i_T.clone().requires_grad_(), i_T.double().requires_grad_()
    kept_0 = 0.2 * current(SHAPES[kind][1:], 1)
    state, exact_state = kept_0.clone().requires_grad_(), kept_0.double().requires_grad_()
    kappa_T = torch.tensor([0.8, 1.0, 1.3])
    s, kept = neuron(leaf, kappa_T, state=state)
    twin = copy.deepcopy(neuron).double()
    want, want_kept = reference(twin, exact, kappa_T, exact_state)
    assert torch.equal(s.double(), want)
    torch.testing.assert_close(kept.double(), want_kept, rtol=1e-5, atol=1e-6)
    g, g_kept = torch.randn_like(s), torch.randn_like(kept)
    got = torch.autograd.grad((s, kept), (leaf, state, neuron.rho, neuron.v_th), (g, g_kept))
    wanted = torch.autograd.grad(
        (want, want_kept), (exact, exact_state, twin.rho, twin.v_th), (g.double(), g_kept.double())
    )
    for name, a, b in zip(("i", "state", "rho", "v_th"), got, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5, msg=name)


def test_steps_with_a_state_are_the_sequence():
    neuron, i_T = LIF(tau=0.7, reset="soft"), current((6, 4, 5))
    whole, last = neuron(i_T, state=None)
    state, steps = None, []
    for i in i_T:
        s, state = neuron.step(i, state)
        steps.append(s)
    assert torch.equal(torch.stack(steps), whole)
    torch.testing.assert_close(state, last)
    first, middle = neuron(i_T[:2], state=None)
    second, end = neuron(i_T[2:], state=middle)
    assert torch.equal(torch.cat([first, second]), whole)
    torch.testing.assert_close(end, last)
    assert torch.equal(neuron(i_T), whole)  # the call without a state starts at rest


def test_a_block_carries_a_state():
    torch.manual_seed(0)
    block = SpikingBlock(torch.nn.Linear(5, 6, bias=False)).eval()
    x = current((4, 3, 5))
    with torch.no_grad():
        whole = block(x)
        state, steps = None, []
        for t in range(4):
            s, state = block(x[t : t + 1], state=state)
            steps.append(s)
    assert torch.equal(torch.cat(steps), whole)


def test_by_hand_soft_reset_and_decayed_input():
    i_T = torch.tensor([[[1.2]], [[0.0]], [[1.0]]])
    s, kept = LIF(tau=0.5, v_th=1.0, reset="soft")(i_T, state=None)
    assert s.flatten().tolist() == [1.0, 0.0, 1.0]  # v = 1.2, 0.1, 1.05
    assert float(kept) == pytest.approx(0.05, abs=1e-6)
    s, kept = LIF(tau=0.5, v_th=1.0, decay_input=True)(2 * i_T, state=None)
    assert s.flatten().tolist() == [1.0, 0.0, 1.0]  # v = 1.2, 0, 1
    assert float(kept) == 0.0


def test_the_width_follows_the_measured_potential():
    torch.manual_seed(0)
    neuron, seen = LIF(method="mpd-agl", tau=0.5), []
    neuron.watchers.append(lambda p: seen.append(p.kappa_T))
    i_T = 3 * current((2, 400, 16)) + 0.2
    neuron(i_T)
    v_T = core.lif(i_T, 0.5, torch.ones(2))[1]
    want = 2 * v_T.flatten(1).std(1, correction=0)
    assert seen[0].tolist() == pytest.approx(want.tolist(), rel=1e-4)
    for _ in range(10):  # measured again with the eleventh call: a tenth of the way to the new spread
        neuron(0.5 * i_T)
    v2_T = core.lif(0.5 * i_T, 0.5, torch.ones(2))[1].flatten(1)
    variance = 0.9 * (want / 2).square() + 0.1 * v2_T.var(1, correction=0)
    assert seen[-1].tolist() == pytest.approx((2 * variance.sqrt()).tolist(), rel=1e-4)
    saved = copy.deepcopy(neuron.state_dict())
    other = LIF(method="mpd-agl", tau=0.5)
    other.load_state_dict(saved)
    assert torch.equal(other.measured.var_T, neuron.measured.var_T)
    neuron.eval()
    before = neuron.measured.var_T.clone()
    neuron(i_T)
    assert torch.equal(neuron.measured.var_T, before)  # evaluation measures nothing


@pytest.mark.parametrize(
    "method", ["stbp-tdbn", "lsg", "mpd-agl", "mpd-agl-exact", "mpd-quantile", "psg", "asgl", "deeptage"]
)
def test_every_method_works_without_a_norm(method):
    neuron = PLIF(method=method)
    i_T = current((3, 8, 6)).requires_grad_()
    out = neuron(i_T)
    out.sum().backward()
    assert out.shape == (3, 8, 6)
    assert torch.isfinite(i_T.grad).all()
    assert float(i_T.grad.abs().sum()) > 0


def test_a_bare_neuron_has_width_one_and_a_given_rule_its_own():
    i_T = current((2, 50, 4)).requires_grad_()
    for neuron, kappa in ((LIF(), 1.0), (LIF(width=FixedWidth(0.5)), 0.5)):
        (g,) = torch.autograd.grad(neuron(i_T).sum(), i_T)
        (want,) = torch.autograd.grad(core.lif(i_T, 0.2, torch.full((2,), kappa))[0].sum(), i_T)
        torch.testing.assert_close(g, want)
    assert isinstance(LIF(method="agr").width, MPDWidth)


def test_half_a_threshold_learns():
    neuron = LIF(v_th=0.5, learn_v_th=True)
    assert dict(neuron.named_parameters()).keys() == {"v_th"}
    neuron(current((3, 64, 4))).sum().backward()
    assert float(neuron.v_th.grad) < 0  # a higher threshold, fewer spikes


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LIF(reset="zero"), "unknown reset 'zero'"),
        (lambda: LIF(v_th=[0.5, -1.0]), "v_th must be positive, one number or one per channel"),
        (lambda: LIF(tau=[0.1, 1.2]), "tau, the share of the potential that is kept, must lie between 0 and 1"),
        (lambda: LIF()(torch.randn(5)), r"takes a current with time first, \(T, N, ...\), got \(5,\)"),
        (lambda: LIF()(torch.randn(3, 4, 5), torch.ones(2)), "a neuron over 2 timesteps takes a current of 2"),
        (lambda: LIF(tau=[0.1] * 4)(torch.randn(3, 2, 5)), r"tau .*got \(4,\)"),
        (lambda: LIF()(torch.randn(3, 2, 5), state=torch.zeros(3, 5)), "state|kept_0"),
        (lambda: LIF(width=MPDWidth(), method=None, surrogate="atan"), "unknown surrogate 'atan'"),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_state_is_no_first_step():
    """Pieces of a sequence have the widths of the whole: the first step of a later piece is not t = 1 of Theorem 2."""
    torch.manual_seed(0)
    block = SpikingBlock(torch.nn.Linear(5, 6, bias=False), tau=0.8).eval()
    x, g = current((4, 3, 5)), current((4, 3, 6), 2)
    (want,) = torch.autograd.grad((block(x) * g).sum(), block.synapse.weight)
    first, state = block(x[:2], state=None)
    second, _ = block(x[2:], state=state)
    (got,) = torch.autograd.grad((torch.cat([first, second]) * g).sum(), block.synapse.weight)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_frozen_norm_is_frozen():
    block = SpikingBlock(torch.nn.Linear(5, 6, bias=False))
    block.norm.eval()
    x = current((3, 8, 5))
    out = block(x)
    assert float(block.norm.running_mean.abs().sum()) == 0
    assert torch.equal(out, block.eval()(x))


def test_recompute_repeats_the_measured_widths():
    torch.manual_seed(0)
    linear, neuron = torch.nn.Linear(5, 6), LIF(method="mpd-agl")

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.neuron = linear, neuron

        def forward(self, x_TNF, num_steps=None):
            return self.neuron(self.linear(x_TNF))

    part = Part()
    for _ in range(12):
        x = current((3, 8, 5))
        twin = copy.deepcopy(part)
        twin.neuron._sequences = part.neuron._sequences
        (want,) = torch.autograd.grad(twin(x).sum(), twin.linear.weight)
        (got,) = torch.autograd.grad(recompute([part], x, 3).sum(), part.linear.weight)
        torch.testing.assert_close(got, want)


def test_a_current_without_channels_and_one_step_alone():
    neuron = LIF(method="mpd-agl")
    assert neuron(current((3, 40))).shape == (3, 40)
    assert neuron.step(current((40,)))[0].shape == (40,)


def test_a_given_neuron_sets_the_scale_of_the_norm_and_keeps_its_axis():
    assert SpikingBlock(torch.nn.Linear(5, 6), neuron=LIF(v_th=1.0)).norm.v_th == 1.0
    with pytest.raises(InputError, match="channels are on axis 2, got a neuron with channel_dim=-1"):
        SpikingBlock(torch.nn.Conv2d(3, 8, 3), neuron=LIF(channel_dim=-1))


def test_measured_moments_keep_their_shape_and_are_not_moved_by_evaluation():
    neuron, other = LIF(method="mpd-agl"), LIF(method="mpd-agl")
    shapes = {k: v.shape for k, v in neuron.state_dict().items()}
    neuron(current((4, 50, 6)))
    assert {k: v.shape for k, v in neuron.state_dict().items()} == shapes
    other.load_state_dict(neuron.state_dict())
    assert other.measured.known == 4
    before = neuron.measured.var.clone()
    neuron.eval()(9 * current((2, 50, 6)))
    assert torch.equal(neuron.measured.var, before)
    neuron.train()(current((6, 50, 6)))  # two more steps: the first four are kept
    assert neuron.measured.known == 6


def test_a_block_refuses_options_that_a_given_part_makes_void():
    linear = torch.nn.Linear(5, 6)
    for options, words in (
        ({"tau": 0.5}, "tau would have no effect beside neuron="),
        ({"v_th": 1.0, "surrogate": "arctan"}, "v_th, surrogate would have no effect beside neuron="),
        ({"detach_reset": False}, "detach_reset would"),
        ({"backend": "eager"}, "backend would"),
    ):
        with pytest.raises(InputError, match=words):
            SpikingBlock(linear, neuron=LIF(), **options)
    with pytest.raises(InputError, match="method would have no effect beside neuron="):
        SpikingBlock(linear, neuron=LIF(method="mpd-agl"), method="lsg")
    with pytest.raises(InputError, match="alpha would have no effect beside norm="):
        SpikingBlock(linear, norm=torch.nn.LayerNorm(6), alpha=0.5)
    block = SpikingBlock(linear, neuron=LIF(), method="lsg")  # a neuron without a rule takes the block's
    assert type(block.width).__name__ == "LSGWidth"
    assert (block.neuron.v_th, float(block.neuron.tau)) == (0.5, pytest.approx(0.2))
