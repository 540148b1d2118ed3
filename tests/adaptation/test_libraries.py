"""Whole networks of other libraries: what is found, calibrated, fused and released."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.adaptation import adapt, adaptive_spikes, release
from mpd_agl.errors import InputError
from tests.adaptation.peers import Wired, peer, spikingjelly

T, N, C = 4, 24, 8


def images() -> Tensor:
    g = torch.Generator().manual_seed(0)
    return (torch.rand(N, 1, 8, 8, generator=g) < 0.4).float()


def sequence() -> Tensor:
    return images().unsqueeze(0).repeat(T, 1, 1, 1, 1)


def jelly(*, depth: int = 6, tau: float = 4.0, surrogate: str = "Rect", **options):
    """The network of spikingjelly's issue 190, small."""
    return spikingjelly(surrogate, layers=depth, tau=tau, size=8, **options)


def test_the_network_of_issue_190_is_silent_and_then_is_not():
    net = jelly()
    result = adapt(net, sequence())
    for row in result.layers[1:]:
        assert 0.2 < row.spread_before < 0.4
        assert row.rate_before < 0.02
    for row in result.layers:
        assert row.spread == pytest.approx(1, abs=0.04)
        assert 0.08 < row.rate < 0.2
        assert row.available > 0.3
        assert (row.tau, row.source, row.num_steps) == (0.75, "predicted", T)
        # decay_input: (1 - tau) gamma at the first step
        assert row.kappa_T[0] == pytest.approx(2 * 0.25 * row.scale, rel=1e-4)
    assert result.not_adapted == ()


def test_a_container_that_folds_time_hides_no_norm():
    a, b = jelly(depth=2), jelly(depth=2, container=True)
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        y.data.copy_(x.data)
    ra, rb = adapt(a, sequence()), adapt(b, sequence())
    for r, s in zip(ra.layers, rb.layers, strict=True):
        assert s.norm.endswith(".1")
        assert s.source == "predicted"
        assert s.kappa_T == pytest.approx(r.kappa_T, rel=1e-5)


def test_single_and_multi_step_are_calibrated_alike():
    functional = peer("spikingjelly.activation_based.functional")
    multi = jelly(depth=2)
    single = copy.deepcopy(multi)
    functional.set_step_mode(single, "s")

    def loop(net, x_T):
        return torch.stack([net(x) for x in x_T])

    a, b = adapt(multi, sequence()), adapt(single, sequence(), forward=loop)
    first, other = a.layers[0], b.layers[0]
    assert other.num_steps == T
    assert other.spread == pytest.approx(first.spread, abs=0.02)
    assert other.scale == pytest.approx(first.scale, rel=0.03)


@pytest.mark.parametrize(
    "surrogate", ["ATan", "Sigmoid", "Rect", "PiecewiseQuadratic", "Erf", "SoftSign", "PiecewiseExp"]
)
def test_released_surrogates_keep_their_width(surrogate):
    functional = peer("spikingjelly.activation_based.functional")
    net = jelly(depth=1, surrogate=surrogate)
    adapt(net, sequence(), method="lsg")  # one width for all steps, so that nothing is averaged

    def gradient():
        net.zero_grad()
        net(sequence()).square().sum().backward()
        functional.reset_net(net)
        return net[0].weight.grad.clone()

    wanted = gradient()
    (width,) = release(net).values()
    assert width == pytest.approx(2 * (1 + 0.75**2) ** 0.5)
    torch.testing.assert_close(gradient(), wanted, rtol=1e-4, atol=1e-5)
    assert type(net[2].surrogate_function).__module__.startswith("spikingjelly")


def test_each_timesteps_factor_of_spikingjellys_tebn_leaks_on():
    sj, layer = peer("spikingjelly.activation_based.neuron"), peer("spikingjelly.activation_based.layer")
    torch.manual_seed(0)
    norm = layer.TemporalEffectiveBatchNorm2d(T, C)
    norm.step_mode, conv = "m", layer.Conv2d(1, C, 3, step_mode="m", bias=False)
    factor_T = torch.tensor([1.0, 3.0, 0.5, 2.0])
    norm.scale.data.copy_(factor_T.view_as(norm.scale))
    net = nn.Sequential(conv, norm, sj.LIFNode(tau=2.0, decay_input=False, v_threshold=9.0, step_mode="m"))
    (row,) = adapt(net, sequence(), calibrate=False).layers
    var, want = 0.0, []
    for factor in factor_T.tolist():  # v_t = v_{t-1} / 2 + p_t N(0, 1)
        var = var / 4 + factor**2
        want.append(2 * var**0.5)
    assert row.source == "predicted"
    assert row.kappa_T == pytest.approx(want, rel=1e-5)


def test_spikingjelly_tdbn_and_other_nodes():
    sj, layer = peer("spikingjelly.activation_based.neuron"), peer("spikingjelly.activation_based.layer")
    norm = layer.ThresholdDependentBatchNorm2d(1.0, 0.5, C)
    net = nn.Sequential(
        layer.Conv2d(1, C, 3, step_mode="m"),
        norm,
        sj.LIFNode(tau=2.0, decay_input=False, v_threshold=0.5, step_mode="m"),
        layer.Conv2d(C, C, 3, step_mode="m"),
        sj.QIFNode(step_mode="m"),
    )
    result = adapt(net, sequence(), calibrate=False)
    (row,) = result.layers
    assert row.kappa_T[0] == pytest.approx(1.0)  # 2 gamma, and gamma is alpha v_th
    assert "QIFNode" in result.not_adapted[0].reason


@pytest.mark.parametrize("node", ["IFNode", "LIFNode", "ParametricLIFNode"])
@pytest.mark.parametrize("surrogate", ["Rect", "ATan", "Sigmoid", "PiecewiseQuadratic"])
@pytest.mark.parametrize("container", [False, True])
def test_fused_networks_give_what_they_gave(node, surrogate, container):
    functional = peer("spikingjelly.activation_based.functional")
    plain = jelly(depth=3, tau=2.0, node=node, surrogate=surrogate, container=container)
    fused = copy.deepcopy(plain)
    adapt(plain, sequence())
    result = adapt(fused, sequence(), fuse=True)
    assert [row.fused for row in result.layers] == ["norm + neuron"] * 3, [row.note for row in result.layers]
    assert fused.state_dict().keys() == plain.state_dict().keys()
    for _ in range(2):  # carries no state over, once reset
        outputs = []
        for net in (plain, fused, copy.deepcopy(fused)):
            net.zero_grad()
            y = net(sequence())
            y.square().sum().backward()
            outputs.append(y.detach())
            functional.reset_net(net)
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
        for p, q in zip(plain.parameters(), fused.parameters(), strict=True):
            assert float((p.grad - q.grad).norm()) <= 1e-4 * float(p.grad.norm()) + 1e-7
        for p, q in zip(plain.buffers(), fused.buffers(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    # The state is carried from call to call, as SpikingJelly's does.
    for _ in range(2):
        torch.testing.assert_close(fused(sequence()), plain(sequence()), rtol=1e-4, atol=1e-4)
    release(fused)
    functional.reset_net(fused)
    assert "forward" not in vars(fused[-3])


def test_what_is_not_fused_is_told():
    net = jelly(depth=2, surrogate="Erf")
    assert "surrogate Erf" in adapt(net, sequence(), fuse=True).layers[0].note
    release(net)
    for m in net:
        if hasattr(m, "v_reset"):
            m.v_reset = -0.5
    result = adapt(net, sequence(), fuse=True, surrogate="rectangular")
    assert all("v_reset" in row.note and not row.fused for row in result.layers)


class SnnTorchNet(nn.Module):
    """Convolutions without a norm, pooled, as the tutorials write them."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        snn = peer("snntorch")
        torch.manual_seed(0)
        self.synapses = nn.ModuleList(nn.Conv2d(C if k else 1, C, 3, padding=1) for k in range(depth))
        self.neurons = nn.ModuleList(snn.Leaky(beta=0.9) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        states = [n.reset_mem() for n in self.neurons]
        out = []
        for _ in range(T):
            s = x
            for k, (synapse, neuron) in enumerate(zip(self.synapses, self.neurons, strict=True)):
                current = synapse(s)
                s, states[k] = neuron(F.max_pool2d(current, 2) if k == 1 else current, states[k])
            out.append(s)
        return torch.stack(out)


def test_snntorch_layers_are_silent_and_then_are_not():
    net = SnnTorchNet()
    result = adapt(net, images())
    assert [row.synapse for row in result.layers] == [f"synapses.{k}" for k in range(4)]
    assert result.layers[-1].rate_before < 0.001
    for row in result.layers:
        assert row.spread == pytest.approx(1, abs=0.04)
        assert row.rate > 0.03
        assert (row.num_steps, row.source, row.reset) == (T, "measured", "soft, detached")
    net(images()).sum().backward()
    assert all(float(s.weight.grad.abs().max()) > 0 for s in net.synapses)
    copy.deepcopy(release(net))


def test_one_snntorch_neuron_for_two_layers_keeps_two_times():
    snn = peer("snntorch")
    torch.manual_seed(0)

    def run(net, x: Tensor) -> Tensor:
        m, n = torch.zeros(len(x), 16), torch.zeros(len(x), 16)
        for _ in range(T):
            s, m = net.neuron(net.a(x.flatten(1)), m)
            s, n = net.neuron(net.b(s), n)
        return s

    net = Wired(run, a=nn.Linear(64, 16), b=nn.Linear(16, 16), neuron=snn.Leaky(beta=0.5))
    (row,) = adapt(net, images(), calibrate=False).layers
    assert row.num_steps == T
    assert "2 times" in row.note
    steps: list[int] = []
    ((_, _, injected),) = adaptive_spikes(net)
    injected.watch(lambda t, u, s: steps.append(t))
    net(images())
    assert steps == [0, 0, 1, 1, 2, 2, 3, 3]


def test_norse_recurrent_weights_are_scaled():
    norse = peer("norse.torch")
    torch.manual_seed(0)
    net = norse.LIFRecurrent(64, 16)
    x = images().flatten(1).repeat(12, 1, 1)
    before = net.input_weights.detach().clone()
    (row,) = adapt(net, x).layers
    assert row.spread == pytest.approx(1, abs=0.05)
    torch.testing.assert_close(net.input_weights.detach(), before * row.scale)
    assert row.source == "measured"
    net(x)[0].sum().backward()
    assert float(net.input_weights.grad.abs().max()) > 0


@pytest.mark.parametrize(("spread", "wanted"), [(None, [1.0, 2.0]), (1.5, [1.5, 1.5])])
def test_the_spread_that_is_asked_for_and_the_usual_one(spread, wanted):
    sj, layer = peer("spikingjelly.activation_based.neuron"), peer("spikingjelly.activation_based.layer")
    torch.manual_seed(0)
    net = nn.Sequential(
        layer.Linear(12, 32),
        layer.BatchNorm1d(32, step_mode="m"),
        sj.LIFNode(step_mode="m"),
        layer.Linear(32, 32),
        nn.LayerNorm(32),
        sj.LIFNode(step_mode="m"),
    )
    rows = adapt(net, torch.randn(T, 64, 12), spread=spread).layers
    assert [row.spread for row in rows] == pytest.approx(wanted, rel=0.05)
    with pytest.raises(InputError, match="spread, the potential's deviation in thresholds"):
        adapt(net, torch.randn(T, 64, 12), spread=0.0)


def test_a_layer_whose_spikes_are_not_read_is_not_scaled():
    snn = peer("snntorch")

    def run(net, x):
        m1, m2, potentials = net.lif1.init_leaky(), net.lif2.init_leaky(), []
        for _ in range(T):
            s1, m1 = net.lif1(net.fc1(x), m1)
            _, m2 = net.lif2(net.fc2(s1), m2)
            potentials.append(m2)
        return torch.stack(potentials)

    torch.manual_seed(0)
    net = Wired(run, fc1=nn.Linear(9, 32), lif1=snn.Leaky(0.9), fc2=nn.Linear(32, 3), lif2=snn.Leaky(0.9))
    before = net.fc2.weight.detach().clone()
    first, last = adapt(net, torch.randn(64, 9)).layers
    assert first.scale != 1
    assert last.scale == 1
    assert "its spikes do not reach the network's output" in last.note
    assert torch.equal(net.fc2.weight, before)
