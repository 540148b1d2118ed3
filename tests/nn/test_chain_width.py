"""Our rule `mpd-gain`: the window by the length of the chain, the height by the spikes' variance."""

import math

import pytest
import torch

from mpd_agl.core import SURROGATES, chain_share, chain_width, get_surrogate, lif, matched_gain
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, ChainWidth, SpikingBlock, set_chain


def normal_share(mean, std, kappa, v_th):
    def below(v):
        return 0.5 * math.erfc((mean - v) / std / math.sqrt(2))

    return below(v_th + kappa / 2) - below(v_th - kappa / 2)


@pytest.mark.parametrize("layers", [1, 2, 7, 31])
@pytest.mark.parametrize(("mean", "std", "v_th"), [(0.0, 0.5, 0.5), (-0.4, 0.3, 0.5), (0.2, 1.5, 0.5), (0.0, 0.1, 0.1)])
def test_the_window_holds_the_chains_share(layers, mean, std, v_th):
    kappa = float(chain_width(torch.tensor([mean]), torch.tensor([std]), layers, v_th=v_th))
    assert normal_share(mean, std, kappa, v_th) == pytest.approx((0.4772**2) ** (1 / layers), abs=2e-4)


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
    assert 0.1 <= float(silent) <= 10.0


def test_gradients_keep_their_size_through_a_deep_plain_network():
    """At the start, over 22 layers."""

    def first_over_last(method):
        torch.manual_seed(0)
        net = create_model("plain", depth=24, in_channels=1, image_size=14, method=method)
        net(torch.randn(32, 1, 14, 14)).mean(0).square().sum().backward()
        norms = [b.synapse.weight.grad.norm() for b in net.modules() if isinstance(b, SpikingBlock)]
        return float(norms[1] / norms[-1])

    assert 1 / 6 < first_over_last("mpd-gain") < 6


def test_block_and_neuron_pass_the_gain_to_the_surrogate():
    torch.manual_seed(0)
    block = SpikingBlock(torch.nn.Conv2d(2, 3, 3, bias=False), method="mpd-gain", tau=0.3)
    x = torch.randn(2, 5, 2, 6, 6)
    g = torch.randn(2, 5, 3, 4, 4)
    kappa_T = block.kappa(2)
    potential = block._potential(2, None, None, None)
    gain_T = block.width.gain(potential, kappa_T, block.neuron.surrogate)
    (block(x) * g).sum().backward()
    found = block.synapse.weight.grad.clone()
    block.synapse.weight.grad = None
    i_T = block.norm(block.synapse(x.flatten(0, 1)).view(2, 5, 3, 4, 4))
    s, *_ = lif(i_T, block.neuron.tau, kappa_T, gain_T=gain_T, v_th=0.5)
    (s * g).sum().backward()
    assert torch.allclose(found, block.synapse.weight.grad, rtol=1e-4, atol=1e-6)


def test_a_neuron_alone_measures_for_width_and_gain_once():
    neuron = LIF(method="mpd-gain")
    i = torch.randn(3, 8, 4, requires_grad=True)
    neuron(i).sum().backward()
    assert neuron._sequences == 1
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


def test_a_foreign_neuron_refuses_a_gain():
    class Foreign(torch.nn.Module):
        tau, v_th = 0.2, 0.5

        def forward(self, i_TNC, kappa_T):
            return (i_TNC > 0.5).float()

    block = SpikingBlock(torch.nn.Linear(4, 3, bias=False), method="mpd-gain", neuron=Foreign())
    with pytest.raises(InputError, match="takes no factor on its surrogate's height"):
        block(torch.randn(2, 5, 4))


def test_two_layers_give_eq_7s_share():
    assert chain_share(2) == pytest.approx(0.4772)
