"""What `adapt` finds, sets and leaves alone, on networks of one's own neurons: no other library is needed."""

import copy
import io
import json
from itertools import cycle

import pytest
import torch
from torch import nn

from mpd_agl.adaptation import AdaptiveSpike, adapt, adaptive_spikes, register_neuron, release
from mpd_agl.core import spike
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, METHODS, MeasuredMoments, Widths
from mpd_agl.rivals.widths import LearnableWidth
from tests.adaptation.peers import OwnCell, OwnNeuron, Wired, normed, own_net, register_own

T, N = 4, 64


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(T, N, 10, generator=torch.Generator().manual_seed(seed))


def grads(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    (net(x) * torch.linspace(-1, 1, 32)).sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_spread_fits_the_threshold_after_calibration():
    net = own_net()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.weight.data.fill_(0.2)
    result = adapt(net, batch())
    assert [row.layer for row in result.layers] == ["1", "3", "5"]
    assert result.layers[0].spread_before == pytest.approx(0.2 * (1 + 0.25 + 0.06) ** 0.5, rel=0.1)
    for row in result.layers:
        assert row.spread == pytest.approx(1, abs=0.03)
        assert row.rate_before < 0.001 < 0.1 < row.rate < 0.25
        assert row.source == "predicted"
        assert 0.35 < row.available < 0.55
        assert row.sigmas == pytest.approx(1.1, abs=0.15)
    weights = [m.weight for m in net.modules() if isinstance(m, nn.BatchNorm1d)]
    for row, weight in zip(result.layers, weights, strict=True):
        torch.testing.assert_close(weight.detach(), torch.full_like(weight, 0.2 * row.scale))
    assert "std/v_th" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["layers"][0]["v_th"] == 1.0


def test_without_norms_the_synapses_are_scaled_layer_by_layer():
    net = own_net(norm=False, depth=4)
    result = adapt(net, batch())
    for row in result.layers:
        assert row.spread == pytest.approx(1, abs=0.03)
        assert row.rate > 0.05
        assert (row.norm, row.source) == ("", "measured")
    assert result.layers[-1].rate_before < 0.001
    assert [row.synapse for row in result.layers] == ["0", "2", "4", "6"]


def test_a_threshold_moves_instead_of_a_scale():
    a, b = own_net(norm=False), own_net(norm=False)
    scaled, moved = adapt(a, batch()), adapt(b, batch(), calibrate="threshold")
    assert torch.equal(b[0].weight, own_net(norm=False)[0].weight)
    for r, s in zip(scaled.layers, moved.layers, strict=True):
        assert s.rate == pytest.approx(r.rate, abs=0.01)
        assert s.v_th * r.scale == pytest.approx(1, rel=0.05)
        assert b[int(s.layer)].v_th == s.v_th


def test_the_passes_leave_no_trace():
    net = own_net()
    net[1].eval()
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    adapt(net, (batch(), torch.zeros(N)), calibrate=False)
    assert torch.equal(torch.rand(3), expected)
    after = net.state_dict()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
    assert not net[1].training
    assert net[3].training
    assert all(p.grad is None for p in net.parameters())


def test_predicted_width_is_eq_7_and_follows_the_norm():
    net = own_net(depth=1)
    (row,) = adapt(net, batch(), calibrate=False).layers
    full = [sum(0.25**k for k in range(t + 1)) ** 0.5 for t in range(T)]
    torch.testing.assert_close(torch.tensor(row.kappa_T), torch.tensor([2 * f for f in full]))
    net[0][1].weight.data.fill_(0.5)
    net(batch())
    ((_, _, spike_),) = adaptive_spikes(net)
    torch.testing.assert_close(spike_.kappa_T, torch.tensor(full))


def test_measured_widths_follow_the_potential():
    net = own_net(depth=1, norm=False)
    adapt(net, batch(), calibrate=False, momentum=0.5, every=2)
    ((_, neuron, injected),) = adaptive_spikes(net)
    seen = []
    first = injected.measured.var[:T].clone()
    injected.watch(lambda t, u, s: seen.append(u + neuron.v_th))
    net(3 * batch(1))  # measured, for the sequences that follow
    torch.testing.assert_close(injected.kappa_T, 2 * first.sqrt())
    new = torch.stack(seen).flatten(1).var(1, correction=0)
    torch.testing.assert_close(injected.measured.var[:T], (first + new) / 2)
    net(batch())  # not measured
    torch.testing.assert_close(injected.kappa_T, 2 * injected.measured.var[:T].sqrt())
    before = injected.measured.var.clone()
    net(batch())
    assert not torch.equal(injected.measured.var, before)


def test_a_shorter_sequence_leaves_the_later_steps():
    net = own_net(depth=1, norm=False)
    adapt(net, batch(), momentum=0.5, every=1)
    ((_, _, injected),) = adaptive_spikes(net)
    first = injected.measured.var[:T].clone()
    net(2 * batch(1)[:2])
    net(batch())
    assert bool((injected.measured.var[:2] != first[:2]).all())
    assert len(injected.kappa_T) == T
    net(batch().repeat(2, 1, 1))  # longer: the last width serves those that were never measured
    assert injected.measured.known == 2 * T


def test_evaluation_computes_nothing():
    net = own_net(depth=1, norm=False)
    adapt(net, batch())
    ((_, _, injected),) = adaptive_spikes(net)
    injected.widths, before = None, injected.measured.var.clone()
    net.eval()
    net(batch())
    net.train()
    with torch.no_grad():
        net(batch())
    assert injected.kappa_T is None
    assert torch.equal(injected.measured.var, before)


@pytest.mark.parametrize(
    "method", sorted(m.name for m in METHODS.values() if not m.replaces_neuron and not m.max_steps)
)
@pytest.mark.parametrize("norm", [True, False])
def test_every_method_runs(method, norm):
    net = own_net(norm=norm)
    result = adapt(net, batch(), method=method)
    found = grads(net, batch())
    assert all(torch.isfinite(g).all() for g in found)
    assert all(float(g.abs().max()) > 0 for g in found[:2])
    for row in result.layers:
        assert len(row.kappa_T) == T
        assert all(0.05 < k < 9 for k in row.kappa_T)
    needs = method not in ("stbp-tdbn", "trainable-decay", "lsg", "psg", "asgl", "slope-schedule")
    assert any(isinstance(m, MeasuredMoments) for m in net.modules()) == (needs and (not norm or method == "deeptage"))


def test_a_learnable_width_learns_the_derivative_of_the_soft_step():
    net = own_net(depth=1, surrogate=lambda u: spike(u, 1.0, "sigmoid"))
    x = batch()
    adapt(net, x, method="psg", calibrate=False)
    ((_, _, injected),) = adaptive_spikes(net)
    assert isinstance(injected.width, LearnableWidth)
    injected.width.kappa.data.fill_(1.7)
    grads(net, x)
    got = injected.width.kappa.grad.clone()
    i = net[0](x).detach()
    kappa = torch.tensor(1.7, requires_grad=True)
    v, wanted = torch.zeros_like(i[0]), 0.0
    for t in range(T):
        v = 0.5 * v + i[t]
        s = spike(v - 1.0, kappa, "sigmoid")
        v = v * (1 - s)
        wanted = wanted + (s * torch.linspace(-1, 1, 32)).sum()
    wanted.backward()
    torch.testing.assert_close(got, kappa.grad, rtol=1e-4, atol=1e-4)


def test_our_shapes_replace_theirs():
    net = own_net(depth=1, surrogate=lambda u: spike(u, 1.0, "arctan"))
    adapt(net, batch(), calibrate=False, surrogate="rectangular")
    got = grads(net, batch())
    release(net)
    kappa = cycle([2 * sum(0.25**k for k in range(t + 1)) ** 0.5 for t in range(T)])
    plain = own_net(depth=1, surrogate=lambda u: spike(u, next(kappa), "rectangular"))
    for a, b in zip(got, grads(plain, batch()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_sums_of_two_norms_are_predicted_and_scaled_together():
    register_own()
    torch.manual_seed(0)
    net = Wired(lambda m, x: m.neuron(m.a(x) + m.b(x)), a=normed(10), b=normed(10), neuron=OwnNeuron())
    (row,) = adapt(net, batch()).layers
    assert row.norm in ("a.1 + b.1", "b.1 + a.1")
    assert row.source == "predicted"
    assert row.spread == pytest.approx(1, abs=0.03)
    assert row.kappa_T[0] == pytest.approx(2 * (2 * row.scale**2) ** 0.5, rel=1e-4)
    assert torch.equal(net.a[1].weight, net.b[1].weight)


def test_a_residual_added_in_place_to_a_view_hides_no_norm():
    def run(m, x):
        s = m.first(m.a(x))
        out = m.b(s)
        out += s
        return m.second(out)

    register_own()
    first, second = adapt(Wired(run, a=normed(10), b=normed(32), first=OwnNeuron(), second=OwnNeuron()), batch()).layers
    assert (first.norm, first.source) == ("a.1", "predicted")
    assert (second.norm, second.source) == ("b.1", "measured")  # the spikes are no norm's
    assert second.spread == pytest.approx(1, abs=0.03)


def test_pooling_between_norm_and_neuron_means_measured():
    register_own()
    pooled = Wired(lambda m, x: m.neuron(nn.functional.max_pool1d(m.block(x), 2)), block=normed(10), neuron=OwnNeuron())
    (row,) = adapt(pooled, batch()).layers
    assert (row.norm, row.source) == ("block.1", "measured")
    assert row.spread == pytest.approx(1, abs=0.03)


def test_a_neuron_used_twice():
    register_own()
    twice = Wired(lambda m, x: m.neuron(m.b(m.neuron(m.a(x)))), a=normed(10), b=normed(32), neuron=OwnNeuron())
    (row,) = adapt(twice, batch()).layers
    assert row.source == "measured"
    assert "2 times" in row.note
    assert row.num_steps == T


def test_single_steps_are_counted_by_the_state():
    own_net()
    neuron = OwnCell()
    net = nn.Sequential(nn.Linear(10, 32), neuron)
    steps = []

    def run(net, x, chunk=None):
        neuron.v = None
        for t in range(T):
            if t == chunk:
                neuron.v = neuron.v.detach()  # truncated backpropagation: the same sequence
            net(x[t])

    adapt(net, batch(), forward=run)
    ((_, _, injected),) = adaptive_spikes(net)
    injected.watch(lambda t, u, s: steps.append(t))
    run(net, batch(), chunk=2)
    run(net, batch())
    assert steps == [0, 1, 2, 3] * 2


def test_copies_and_pickles_stand_alone():
    net = own_net(norm=True)
    adapt(net, batch())
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    wanted = grads(net, batch())
    for other in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        for a, b in zip(grads(other, batch()), wanted, strict=True):
            assert torch.equal(a, b)
        ((_, _, mine), *_), ((_, _, theirs), *_) = adaptive_spikes(other), adaptive_spikes(net)
        assert mine is not theirs
        assert mine.norms[0] is other[0][1]
        with torch.no_grad():
            other[0][1].weight.mul_(2)
        other(batch())
        net(batch())
        torch.testing.assert_close(mine.kappa_T, 2 * theirs.kappa_T)
        release(other)
        assert not adaptive_spikes(other)
        other(batch())
    assert len(adaptive_spikes(net)) == 3


def test_state_dicts_round_trip():
    plain = own_net(norm=False)
    net = own_net(norm=False)
    adapt(net, batch())
    other = own_net(norm=False, seed=1)
    adapt(other, batch(1))
    other.load_state_dict(net.state_dict())
    for a, b in zip(grads(other, batch()), grads(net, batch()), strict=True):
        assert torch.equal(a, b)
    net.load_state_dict(plain.state_dict())  # from before it was adapted
    assert torch.equal(net[0].weight, plain[0].weight)
    release(net)
    plain.load_state_dict(net.state_dict())


def test_predicted_layers_add_nothing_to_the_state_dict():
    net = own_net()
    keys = net.state_dict().keys()
    adapt(net, batch())
    assert net.state_dict().keys() == keys


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler's own
def test_compiled():
    net = own_net()
    adapt(net, batch())
    wanted, spikes = grads(net, batch()), net(batch())
    compiled = torch.compile(net, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(batch()), spikes)
        for a, b in zip(grads(compiled, batch()), wanted, strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, nn.BatchNorm1d):
                m.weight.mul_(1.5)
    for a, b in zip(grads(compiled, batch()), grads(net, batch()), strict=True):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()


def test_a_trained_network_is_not_rescaled():
    net = own_net()
    for _ in range(40):  # a look at shapes is no training, also where every timestep counts as a batch
        net(batch())
    assert adapt(net, batch()).calibrated
    release(net)
    net = own_net()
    net(batch()).square().sum().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    net.zero_grad()
    with pytest.raises(InputError, match=r"looks trained \(the weights of 0\.1 differ .*calibrate='force'"):
        adapt(net, batch())
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm1d)):  # what never learns is known by counts
        norm.requires_grad_(False).weight.fill_(1), norm.bias.zero_(), norm.num_batches_tracked.fill_(4)
    with pytest.raises(InputError, match=r"looks trained \(0\.1 has counted 4 batches\).*calibrate='force'"):
        adapt(net, batch())
    assert not adaptive_spikes(net)
    assert not adapt(net, batch(), calibrate=False).calibrated
    release(net)
    assert adapt(net, batch(), calibrate="force").calibrated
    net = own_net(norm=False)
    net(batch()).sum().backward()
    with pytest.raises(InputError, match="holds a gradient"):
        adapt(net, batch())


def test_what_cannot_be_adapted_is_told():
    with pytest.raises(InputError, match="no neuron was found"):
        adapt(nn.Sequential(nn.Linear(10, 2), nn.ReLU()), batch())
    net = own_net()
    net[1] = OwnNeuron(torch.sigmoid)
    net[3] = OwnNeuron(lambda u: spike(u, 1.0).detach() + (u - u.detach()))
    result = adapt(net, batch())
    assert [r.layer for r in result.not_adapted] == ["1", "3"]
    assert "0 below and 1 above" in result.not_adapted[0].reason
    assert "no width; surrogate='rectangular'" in result.not_adapted[1].reason
    assert "3 (OwnNeuron) was not adapted" in str(result)
    with pytest.raises(InputError, match="adapted already"):
        adapt(net, batch())
    release(net)
    assert [r.layer for r in adapt(net, batch(), surrogate="rectangular").not_adapted] == ["1"]
    with pytest.raises(InputError, match="unknown moments"):
        adapt(own_net(), batch(), moments="exact")


def test_a_pass_that_fails_leaves_the_network_as_it_was():
    net = own_net()
    with pytest.raises(InputError, match=r"net\(batch\) failed with RuntimeError: .*Pass a batch as you train with"):
        adapt(net, torch.randn(T, N, 11))
    assert not any(isinstance(m, AdaptiveSpike) for m in net.modules())
    assert not net[1]._forward_hooks
    net(batch())


def test_nan_in_the_batch_is_refused_and_a_later_failure_undoes_the_calibration():
    net = own_net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x = batch()
    x[0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="the batch holds NaN or Inf"):
        adapt(net, x)
    passes = []

    def forward(net, x):
        passes.append(1)
        if len(passes) > 3:
            raise KeyboardInterrupt
        return net(x)

    with pytest.raises(KeyboardInterrupt):
        adapt(net, batch(), forward=forward)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_lazy_layers_get_their_shapes_first():
    register_own()
    net = nn.Sequential(nn.LazyLinear(32), OwnNeuron())
    (row,) = adapt(net, batch()).layers
    assert (net[0].in_features, row.source) == (10, "measured")
    assert row.spread == pytest.approx(1, abs=0.03)
    assert net(batch()).shape == (T, N, 32)


def test_a_registered_subclass_is_read_as_registered():
    class Scaled(OwnNeuron):
        pass

    register_neuron(Scaled, spike="surrogate", v_th=lambda m: 2 * m.v_th, tau=None)
    net = nn.Sequential(normed(10), Scaled())
    (row,) = adapt(net, batch(), calibrate=False).layers
    assert (row.v_th, row.tau, row.source) == (2.0, None, "measured")


def test_what_release_and_adapt_leave_alone():
    net = own_net(depth=1)
    own = net[1].surrogate
    adapt(net, batch())
    assert release(net) == {"1": None}  # it has no parameter for its width
    assert net[1].surrogate is own
    result = adapt(nn.Sequential(nn.Linear(10, 4), LIF(method="mpd-agl")), batch())
    assert result.layers == ()
    assert "own width rule" in result.not_adapted[0].reason


def test_mpd_gain_sets_the_height_of_the_neurons_own_surrogate():
    net = own_net(depth=1, norm=False)
    x = batch()[:1]
    adapt(net, x, method="mpd-gain", chain=5)
    (_, _, own) = adaptive_spikes(net)[0]
    net.train()
    with_gain = grads(net, x)
    (gain,) = own.widths.gain_T
    assert 0.1 < float(gain) < 10
    assert abs(float(gain) - 1) > 0.05
    real = own.width.forward
    own.width.forward = lambda potential: Widths(real(potential).kappa_T)
    for a, b in zip(with_gain, grads(net, x), strict=True):
        torch.testing.assert_close(a, gain * b, rtol=1e-5, atol=1e-6)


def test_mpd_gain_takes_all_layers_as_one_chain_unless_told_otherwise():
    shares = []
    for chain in (None, 2):
        net = own_net(depth=4)
        adapt(net, batch(), method="mpd-gain", chain=chain)
        shares.append({own.width.layers for _, _, own in adaptive_spikes(net)})
    assert shares == [{4}, {2}]
