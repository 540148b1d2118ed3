"""Method `mpd-gain`: the width by the length of the chain, the height by the spikes' variance, the size bounded."""

import copy
import math
from itertools import pairwise

import pytest
import torch

from mpd_agl.core import (
    SURROGATES,
    Surrogate,
    bounded_size,
    chain_share,
    chain_width,
    get_surrogate,
    lif,
    matched_gain,
    signal_share,
)
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, ChainWidth, Potential, SpikingBlock, set_chain
from mpd_agl.ops import NeuronSpec
from tests.nn.parts import gradients, widths


def known(mean_T, std_T, surrogate="rectangular"):
    """A potential with these moments."""
    neuron = NeuronSpec(tau=0.2, v_th=0.5, surrogate=get_surrogate(surrogate))
    return Potential(num_steps=len(mean_T), neuron=neuron, measured=lambda: (mean_T, std_T))


def normal_share(mean, std, kappa, v_th):
    def below(v):
        return 0.5 * math.erfc((mean - v) / std / math.sqrt(2))

    return below(v_th + kappa / 2) - below(v_th - kappa / 2)


@pytest.mark.parametrize("layers", [1, 2, 7, 15, 31])
@pytest.mark.parametrize(("mean", "std", "v_th"), [(0.0, 0.5, 0.5), (-0.4, 0.3, 0.5), (0.2, 1.5, 0.5), (0.0, 0.1, 0.1)])
def test_the_window_holds_the_chains_share(layers, mean, std, v_th):
    rectangular = get_surrogate("rectangular")
    kappa = float(chain_width(torch.tensor([mean]), torch.tensor([std]), layers, rectangular, v_th=v_th))
    assert normal_share(mean, std, kappa, v_th) == pytest.approx(max(0.4772, 0.005 ** (1 / layers)), abs=4e-3)


@pytest.mark.parametrize("name", ["rectangular", "triangular", "sigmoid", "arctan"])
def test_the_signal_share_is_the_energy_that_all_samples_have_in_common(name):
    surrogate, kappa = get_surrogate(name), 1.7
    v = -0.1 + 0.6 * torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = surrogate.grad(v - 0.5, kappa)
    found = signal_share(torch.tensor([-0.1]), torch.tensor([0.6]), torch.tensor([kappa]), surrogate)
    assert float(found) == pytest.approx(float(h.mean().square() / h.square().mean()), abs=4e-3)


@pytest.mark.parametrize("name", ["rectangular", "triangular", "arctan"])
def test_the_rules_table_is_cores_width_and_gain(name):
    surrogate = get_surrogate(name)
    mean_T, std_T = torch.tensor([0.0, -0.43, 0.31, 1.2, -6.0]), torch.tensor([0.5, 0.37, 1.4, 0.2, 2.0])
    found = ChainWidth(15)(known(mean_T, std_T, surrogate))
    kappa_T = chain_width(mean_T, std_T, 15, surrogate)
    assert torch.allclose(found.kappa_T, kappa_T, rtol=6e-3)
    assert torch.allclose(found.gain_T, matched_gain(mean_T, std_T, kappa_T, surrogate), rtol=1.5e-2)


@pytest.mark.parametrize("name", ["rectangular", "triangular", "sigmoid", "arctan"])
def test_no_distance_from_the_threshold_asks_for_less_than_none(name):
    mean_T = -torch.arange(9, dtype=torch.float32)
    kappa_T = chain_width(mean_T, torch.full((9,), 0.7), 2, get_surrogate(name), v_th=0.0)
    assert bool((kappa_T >= kappa_T[0]).all())
    if name != "arctan":  # its tails keep the share at any width from 3 deviations on
        assert bool((kappa_T.diff() > 0).all())


def test_the_width_has_a_lower_bound():
    silent = known(torch.zeros(1), torch.full((1,), 1e-9))
    assert float(ChainWidth(2)(silent).kappa_T) == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["rectangular", "triangular", "sigmoid", "arctan"])
def test_the_gain_makes_the_gradients_energy_the_spikes_variance(name):
    """By Monte Carlo: G^2 E[h^2] Var(v) = Var(s)."""
    surrogate, kappa = get_surrogate(name), 1.7
    v = -0.1 + 0.6 * torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gain = float(matched_gain(torch.tensor([-0.1]), torch.tensor([0.6]), torch.tensor([kappa]), surrogate))
    s = (v >= 0.5).double()
    energy = gain**2 * float(surrogate.grad(v - 0.5, kappa).square().mean() * v.var())
    assert energy == pytest.approx(float(s.var()), rel=0.02)


def test_the_gain_is_kept_within_bounds():
    silent = matched_gain(torch.tensor([-50.0]), torch.tensor([0.5]), torch.tensor([1.0]), SURROGATES["rectangular"])
    assert float(silent) == 10.0  # the window holds nothing


def test_a_threshold_far_out_counts_as_one_two_deviations_away():
    """By Monte Carlo: the energy that passes is that of spikes at two deviations, on both sides; at 1.9 their own."""
    surrogate, one = get_surrogate("triangular"), torch.ones(1)
    z = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for away, rate in ((1.9, 0.02872), (2.0, 0.02275), (3.3, 0.02275), (-3.3, 0.02275)):
        kappa = chain_width(torch.tensor([-away]), one, 7, surrogate, v_th=0.0)
        gain = float(matched_gain(torch.tensor([-away]), one, kappa, surrogate, v_th=0.0))
        energy = gain**2 * float(surrogate.grad(z - away, float(kappa)).square().mean())
        assert energy == pytest.approx(rate * (1 - rate), rel=0.02)


def test_gradients_grow_no_more_than_thirtyfold_through_a_deep_plain_network():
    """With weights that would let them explode, over 22 layers."""
    torch.manual_seed(0)
    net = create_model("plain", depth=24, in_channels=1, image_size=14, method="mpd-gain")
    blocks = [b for b in net.modules() if isinstance(b, SpikingBlock)]
    sizes: list[float] = []
    for block in blocks[1:]:
        with torch.no_grad():
            block.synapse.weight.add_(0.05)
        block.register_forward_hook(
            lambda _, __, s: s.register_hook(lambda g: sizes.append(float(g.norm() * s.detach().std()))) and None
        )
    net(torch.randn(32, 1, 14, 14)).mean(0).square().sum().backward()
    growth = [b / a for a, b in pairwise(sizes)]
    assert len(growth) == 21
    assert max(growth) == pytest.approx(30 ** (1 / 23), rel=1e-3)
    assert growth[-1] == pytest.approx(max(growth), rel=1e-3)  # bounded, not stopped


def plain_block(layers):
    torch.manual_seed(0)
    block = SpikingBlock(torch.nn.Conv2d(2, 3, 3, bias=False), method="mpd-gain", tau=0.3)
    set_chain(block, layers)
    return block


class Unbounded(ChainWidth):
    """The same widths, and no bound."""

    max_growth = math.inf


def test_a_block_in_a_chain_passes_down_what_core_says():
    x, g = torch.rand(2, 5, 2, 6, 6).gt(0.6).float(), torch.ones(2, 5, 3, 4, 4)
    g[:, ::2] = -1.0  # the same all over an image: a convolution adds it up
    block = plain_block(40)
    with torch.no_grad():
        block.synapse.weight.abs_()
    bare = copy.deepcopy(block)
    bare.width = Unbounded(40)
    found = []
    for part in (block, bare):
        own = x.clone().requires_grad_()
        s = part(own)
        found.append(gradients(s, {"x": own, "w": part.synapse.weight}, g))
    bounded = bounded_size(found[1]["x"], g, x, s.detach(), 40)
    assert torch.allclose(found[0]["x"], bounded, rtol=1e-4)
    assert float(found[0]["x"].norm() / found[1]["x"].norm()) < 0.99
    assert torch.equal(found[0]["w"], found[1]["w"])  # its own gradients are as they were


def test_a_gradient_of_nothing_stays_nothing_and_one_of_1e_23_stays():
    x = torch.rand(2, 5, 2, 6, 6).gt(0.6).float().requires_grad_()
    (0 * plain_block(7)(x)).sum().backward()
    assert float(x.grad.abs().max()) == 0.0
    x.grad = None
    (1e-23 * plain_block(7)(x)[:, 0]).sum().backward()
    assert float(x.grad.abs().max()) > 1e-26


def test_a_block_that_carries_a_state_has_no_bound():
    x, found = torch.rand(2, 5, 2, 6, 6).gt(0.6).float(), []
    for rule in (ChainWidth(40), Unbounded(40)):
        block = plain_block(40)
        block.width = rule
        first = x[:1].clone().requires_grad_()
        _, state = block.with_state(first, None)
        s, _ = block.with_state(x[1:], state)
        s.sum().backward()
        found.append(first.grad)
    assert float(found[0].abs().max()) > 0
    assert torch.equal(*found)


def test_a_chain_trains_in_float64_and_on_meta_before_a_cpu():
    with torch.device("meta"):
        block = plain_block(9)
        block(torch.empty(2, 5, 2, 6, 6, requires_grad=True)).sum().backward()
    block = plain_block(9).double()
    x = torch.rand(2, 5, 2, 6, 6, dtype=torch.float64).requires_grad_()
    block(x).sum().backward()
    assert x.grad.dtype == torch.float64


def test_nan_in_a_norm_reaches_the_width_and_every_gradient():
    block = plain_block(9)
    with torch.no_grad():
        block.norm.weight[0] = float("nan")
    assert bool(widths(block, 2).kappa_T.isnan().all())
    block.eval()(torch.randn(2, 3, 2, 6, 6)).sum().backward()
    assert bool(block.synapse.weight.grad.isnan().all())


class Flat(Surrogate):
    """A shape whose peak is 1 at any width."""

    name = "flat"

    def grad(self, u, kappa):
        return (u.abs() < kappa / 2).to(u.dtype)


def test_shapes_of_another_area_are_refused():
    with pytest.raises(InputError, match="that scale with their width, got 'flat'"):
        SpikingBlock(torch.nn.Linear(4, 3, bias=False), method="mpd-gain", surrogate=Flat())
    with pytest.raises(InputError, match="that scale with their width, got 'flat'"):  # a neuron that is given the rule
        LIF(surrogate=Flat(), width=ChainWidth(7))(torch.randn(3, 5, 4, requires_grad=True))


def test_the_output_of_a_chains_block_can_be_changed_in_place():
    x, g = torch.rand(2, 5, 2, 6, 6).gt(0.6).float(), torch.randn(2, 5, 3, 4, 4)
    found = []
    for change in (lambda s: s + 1, lambda s: s.add_(1)):
        block, own = plain_block(7), x.clone().requires_grad_()
        (change(block(own)) * g).sum().backward()
        found.append(own.grad)
    assert torch.equal(*found)


def test_what_others_take_from_the_same_input_is_not_bounded():
    x = torch.rand(2, 5, 2, 6, 6).gt(0.6).float().requires_grad_()
    block = plain_block(7)
    (block(x).sum() * 0 + (1e6 * x).sum()).backward()
    assert torch.equal(x.grad, torch.full_like(x, 1e6))


def test_the_block_passes_width_and_gain_to_the_surrogate():
    block, x, g = plain_block(2), torch.randn(2, 5, 2, 6, 6), torch.randn(2, 5, 3, 4, 4)
    named = dict(block.named_parameters())
    kappa_T, gain_T = widths(block, 2)
    i_T = block.norm(block.synapse(x.flatten(0, 1)).view(2, 5, 3, 4, 4))
    s, *_ = lif(i_T, block.neuron.tau, kappa_T, gain_T=gain_T, v_th=0.5, surrogate=block.neuron.surrogate)
    want, found = gradients(s, named, g), gradients(block(x), named, g)
    assert float((gain_T - 1).abs().max()) > 0.04
    assert torch.allclose(found["synapse.weight"], want["synapse.weight"], rtol=1e-4, atol=1e-5)


def test_a_neuron_alone_measures_for_width_and_gain_once():
    neuron = LIF(method="mpd-gain")
    i = torch.randn(3, 8, 4, requires_grad=True)
    neuron(i).sum().backward()
    assert neuron.measured.known == 3
    assert float(i.grad.abs().sum()) > 0


def test_networks_know_their_chains_and_set_chain_sets_them():
    def layers(net):
        return {m.layers for m in net.modules() if isinstance(m, ChainWidth)}

    plain = create_model("plain", depth=9, in_channels=1, image_size=14, method="mpd-gain")
    assert layers(plain) == {8}
    assert layers(create_model("resnet19", width_mult=0.0625, method="mpd-gain")) == {2}
    set_chain(plain, 3)
    assert layers(plain) == {3}
    with pytest.raises(InputError, match="at least 1 layer, got 0"):
        set_chain(plain, 0)


def test_two_layers_give_eq_7s_share_and_long_chains_leave_a_two_hundredth():
    assert chain_share(2) == pytest.approx(0.4772)
    assert chain_share(23) ** 23 == pytest.approx(0.005)


def test_a_silent_layer_has_no_size_to_measure_by_and_cuts_nothing() -> None:
    g_in, g_out, s_in = torch.tensor([90.0, 120.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])
    for s_out in (torch.zeros(2), torch.ones(2)):
        assert torch.equal(bounded_size(g_in, g_out, s_in, s_out, layers=3), g_in)
