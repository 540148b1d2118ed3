"""The monitor on neurons of other libraries, on copies, on evaluation, on gradients."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.adaptation import AdaptiveSpike, adapt, register_neuron
from mpd_agl.core import spike
from mpd_agl.diagnosis import Monitor
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, SpikingBlock
from tests.adaptation.peers import Wired, outcome, peer, spikingjelly

T, N, F = 5, 6, 7


class Own(nn.Module):
    """A user's neuron: a whole sequence in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.fire, self.v_th, self.keep = lambda u: spike(u, 0.8, "rectangular"), 1.0, 0.6

    def forward(self, current_T: Tensor) -> Tensor:
        v, spikes = torch.zeros_like(current_T[0]), []
        for current in current_T:
            v = self.keep * v + current
            spikes.append(self.fire(v - self.v_th))
            v = v * (1 - spikes[-1].detach())
        return torch.stack(spikes)


@pytest.fixture(autouse=True)
def _registered():
    register_neuron(Own, spike="fire", v_th="v_th", tau="keep", detach_reset=True)


def currents() -> Tensor:
    return 1.2 * torch.randn(T, N, F, generator=torch.Generator().manual_seed(0))


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_figures_of_an_own_neuron_by_hand():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(F, 4), Own())
    x = currents()
    monitor = Monitor(net, every=1, detail=True)
    out = net(x)
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    (out * weight).sum().backward()
    seen = monitor.step().layers["1"]
    # By hand: the equations, and dL/ds = weight (the reset is detached).
    i_T = net[0](x).detach().double()
    v, rows = torch.zeros(N, 4, dtype=torch.float64), []
    for i in i_T:
        v = 0.6 * v + i
        rows.append(v)
        v = v * (v < 1.0)
    v_T = torch.stack(rows)
    assert seen.rate_T == pytest.approx((v_T >= 1).double().mean((1, 2)).tolist())
    assert seen.available_T == pytest.approx(((v_T - 1).abs() < 0.4).double().mean((1, 2)).tolist())
    assert seen.kappa_T == pytest.approx([0.8] * T, rel=2e-3)
    assert seen.mean_T == pytest.approx(v_T.mean((1, 2)).tolist(), abs=1e-6)
    assert seen.var_T == pytest.approx(v_T.var((1, 2), correction=0).tolist(), rel=1e-5)
    assert seen.grad_rms_T == pytest.approx(weight.square().mean((1, 2)).sqrt().tolist(), rel=1e-6)
    assert (seen.tau, seen.v_th, seen.rest, seen.values, seen.uses) == (pytest.approx(0.6), 1.0, 0.0, N * 4, 1)
    assert seen.gamma_bar is seen.rate_in is seen.input_mean is None
    assert seen.predicted_mean_T == []
    assert seen.detail.fired_C == (v_T >= 1).sum((0, 1)).tolist()
    assert [sum(count_B) for count_B in seen.detail.potential.count_TB] == [N * 4] * T
    assert (seen.detail.potential.low, seen.detail.potential.high) == (-4.0, 6.0)
    below = [sum(count_B[:33]) for count_B in seen.detail.potential.count_TB]  # 32 bins from -4 to 1, and those below
    assert below == (v_T < 1).sum((1, 2)).tolist()
    monitor.close()
    assert not any(isinstance(m, AdaptiveSpike) for m in net.modules())


def gradients_by_hand(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """RMS per timestep of the gradient at every block's output, from outputs that retain it."""
    outputs = {}

    def keep(module, args, out, name):
        out.retain_grad()
        outputs[name] = out

    blocks = [(n, m) for n, m in net.named_modules() if isinstance(m, SpikingBlock)]
    handles = [m.register_forward_hook(lambda m, a, o, n=n: keep(m, a, o, n)) for n, m in blocks]
    net(x).square().mean().backward()
    for handle in handles:
        handle.remove()
    return {n: o.grad.flatten(1).square().mean(1).sqrt() for n, o in outputs.items()}


def test_gradients_of_blocks():
    torch.manual_seed(0)
    net = create_model("resnet18", width_mult=0.125, image_size=16, num_steps=3)
    x = torch.randn(4, 3, 16, 16)
    twin = copy.deepcopy(net)
    monitor = Monitor(net, every=1)
    net(x).square().mean().backward()
    seen = monitor.step()
    want = gradients_by_hand(twin, x)
    assert set(seen.ran) == set(seen.layers) == set(want)
    for name, rms_T in want.items():
        assert seen.layers[name].grad_rms_T == pytest.approx(rms_T.tolist(), rel=1e-4), name
    assert len(seen.layers["stem"].grad_in_rms_T) == 1  # one image is shown at all steps
    assert len(seen.layers["stage1.block1.conv1"].grad_in_rms_T) == 3


def test_a_neuron_without_a_block():
    net = nn.Sequential(nn.Linear(F, 4), LIF(tau=0.6, v_th=1.0, method="stbp-tdbn"))
    monitor = Monitor(net, every=1, detail=True)
    x = currents()
    net(x).sum().backward()
    seen = monitor.step().layers["1"]
    v_T = core.lif(net[0](x).detach().double(), 0.6, torch.ones(T), v_th=1.0)[1]
    assert seen.mean_T == pytest.approx(v_T.mean((1, 2)).tolist(), abs=1e-5)
    assert seen.rate_T == pytest.approx((v_T >= 1).double().mean((1, 2)).tolist())
    assert seen.grad_rms_T == pytest.approx([1.0] * T)
    assert seen.detail.fired_C == (v_T >= 1).sum((0, 1)).tolist()
    assert seen.gamma_bar is None
    assert seen.rate_in is None


def test_a_look_without_gradients_moves_no_running_moment():
    torch.manual_seed(0)
    neuron = LIF(method="mpd-agl")
    net = nn.Sequential(nn.Linear(F, 4), neuron)
    net(currents()).sum().backward()
    before = [b.clone() for b in neuron.measured.buffers()]
    monitor = Monitor(net.eval(), every=1, when="evaluation")
    with torch.no_grad():
        net(3 * currents())
    assert monitor.step().layers["1"].kappa_T[0] > 0
    assert all(torch.equal(a, b) for a, b in zip(before, neuron.measured.buffers(), strict=True))


def test_training_and_evaluation_are_told_apart():
    net = create_model("cnn8", width_mult=0.125, image_size=16)
    x = torch.randn(4, 3, 16, 16)
    monitors = {when: Monitor(net, every=1, when=when) for when in ("training", "evaluation", "both")}
    net.train()(x)
    net.eval()(x)
    taken = {when: monitor.step() for when, monitor in monitors.items()}
    assert {when: s.mode for when, s in taken.items()} == {
        "training": "training",
        "evaluation": "evaluation",
        "both": "training",
    }
    assert [s.mode for s in monitors["both"].history] == ["evaluation", "training"]
    rates = {when: s.layers["conv2"].rate_T for when, s in taken.items()}
    assert rates["training"] == rates["both"] != rates["evaluation"]
    assert monitors["both"].history[0].layers["conv2"].rate_T == rates["evaluation"]
    with pytest.raises(InputError, match="unknown when 'test'"):
        Monitor(net, when="test")


@pytest.mark.parametrize("neuron", [Own, lambda: LIF(tau=0.6, v_th=1.0)], ids=["own", "native"])
def test_a_layer_that_is_used_twice(neuron):
    torch.manual_seed(0)
    net = Wired(lambda m, x: m.neuron(m.b(m.neuron(m.a(x)))), a=nn.Linear(F, 4), b=nn.Linear(4, 4), neuron=neuron())
    monitor = Monitor(net, every=1)
    x = currents()
    for _ in range(2):  # two parts of one batch: two passes, each with two uses
        net(x).sum().backward()
    seen = monitor.step().layers["neuron"]
    assert (seen.uses, seen.values) == (2, 4 * N * 4)
    first = net.neuron(net.a(x))
    both = torch.stack([first, net.neuron(net.b(first))])
    assert seen.rate_T == pytest.approx(both.mean((0, 2, 3)).tolist(), abs=1e-6)


@pytest.mark.parametrize("kind", ["native", "own"])
def test_copies_and_pickles_are_not_watched(kind):
    torch.manual_seed(0)
    if kind == "native":
        net, x = create_model("cnn8", width_mult=0.125, image_size=16), torch.randn(4, 3, 16, 16)
    else:
        net, x = nn.Sequential(nn.Linear(F, 4), Own()), currents()
    plain = outcome(copy.deepcopy(net), x)
    monitor = Monitor(net, every=1)
    copies = [copy.deepcopy(net)]
    if kind == "native":  # a lambda as surrogate function cannot be pickled, watched or not
        copies.append(pickle.loads(pickle.dumps(net)))
    for other in copies:
        assert same(outcome(other, x), plain)
    assert monitor.step() is None
    if kind == "own":
        adapt(copies[0], x, calibrate=False)
        with pytest.raises(InputError, match="a Monitor watches the network"):
            adapt(net, x, calibrate=False)
    assert same(outcome(net, x), plain)
    assert monitor.step() is not None
    monitor.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_what_cannot_be_watched_is_told():
    class Unknown(nn.Module):
        def forward(self, i):
            return (i > 0.5).float()

    unknown = SpikingBlock(nn.Linear(F, 4))
    unknown.neuron = Unknown()
    monitor = Monitor(nn.Sequential(unknown, Own()), every=1)
    assert monitor.layers == ["1"]
    assert "Unknown" in monitor.not_watched["0"]
    with pytest.raises(InputError, match="no spiking neuron that can be watched.*Unknown"):
        Monitor(nn.Sequential(unknown))


def loop(m: Wired, x: Tensor) -> Tensor:
    return torch.stack([m.net(step) for step in x])


def test_spikingjelly_with_its_sigmoid_differs_in_the_last_digits_of_gradients():
    """Its own kernel for this one surrogate cannot be watched; the neuron then runs the steps as they are written."""
    functional = peer("spikingjelly.activation_based.functional")
    net, x = spikingjelly(surrogate="Sigmoid"), torch.randn(4, 6, 1, 6, 6)
    plain = outcome(copy.deepcopy(net), x, functional.reset_net)
    monitor = Monitor(net, every=1)
    watched = outcome(net, x, functional.reset_net)
    monitor.close()
    assert torch.equal(watched[0], plain[0])
    for a, b in zip(watched, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert same(outcome(net, x, functional.reset_net), plain)


@pytest.mark.parametrize("surrogate", ["ATan", "Rect"])
@pytest.mark.parametrize("mode", ["m", "s"])
def test_spikingjelly_bit_for_bit(mode, surrogate):
    functional = peer("spikingjelly.activation_based.functional")
    net = spikingjelly(surrogate, mode=mode) if mode == "m" else Wired(loop, net=spikingjelly(surrogate, mode=mode))
    x = torch.randn(4, 6, 1, 6, 6)
    plain = outcome(copy.deepcopy(net), x, functional.reset_net)
    monitor = Monitor(net, every=1)
    assert same(outcome(net, x, functional.reset_net), plain)
    seen = monitor.step()
    prefix = "" if mode == "m" else "net."
    assert list(seen.layers) == list(seen.ran) == [f"{prefix}{k}" for k in (2, 5, 8)]
    layer = seen.layers[f"{prefix}5"]
    assert len(layer.rate_T) == len(layer.grad_rms_T) == 4
    assert (layer.tau, layer.v_th, layer.uses, layer.values) == (0.5, 1.0, 1, 6 * 8 * 36)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert len(outcome(other, x, functional.reset_net)) == len(plain)
    assert monitor.step() is None
    monitor.close()
    assert not any(isinstance(m, AdaptiveSpike) for m in net.modules())


def test_a_loop_outside_of_the_network():
    net, x = spikingjelly(mode="s"), torch.randn(4, 6, 1, 6, 6)
    monitor = Monitor(net, every=1)
    torch.stack([net(step) for step in x]).sum().backward()
    looped = monitor.step()
    assert {len(layer.rate_T) for layer in looped.layers.values()} == {4}
    assert {layer.uses for layer in looped.layers.values()} == {1}
    assert looped.layers["2"].rate_T[0] < looped.layers["2"].rate_T[-1]  # the potential starts at rest


def test_an_adapted_network_is_watched_too():
    functional = peer("spikingjelly.activation_based.functional")
    net, x = spikingjelly(), torch.randn(4, 6, 1, 6, 6)
    adapt(net, x)
    functional.reset_net(net)
    plain = outcome(copy.deepcopy(net), x, functional.reset_net)
    monitor = Monitor(net, every=1)
    assert same(outcome(net, x, functional.reset_net), plain)
    layer = monitor.step().layers["5"]
    spikes = [m for m in net.modules() if isinstance(m, AdaptiveSpike)]
    assert layer.kappa_T == pytest.approx(spikes[1].kappa_T.tolist())
    assert layer.gamma_bar == pytest.approx(float(net[4].weight.detach().mean()))
    assert len(layer.predicted_var_T) == 4
    assert layer.predicted_var_T[0] == pytest.approx(layer.var_T[0], rel=0.1)
    monitor.close()
    assert len([m for m in net.modules() if isinstance(m, AdaptiveSpike)]) == 3


def test_snntorch_and_norse_bit_for_bit():
    snn = peer("snntorch")
    norse = peer("norse.torch")

    def run(net, x: Tensor) -> Tensor:
        mem, spikes = net.neuron.init_leaky(), []
        for step in x:
            s, mem = net.neuron(net.synapse(step), mem)
            spikes.append(s)
        return torch.stack(spikes)

    p = norse.LIFParameters(v_th=torch.tensor(0.3))
    torch.manual_seed(0)
    for net in (
        Wired(run, synapse=nn.Linear(F, 4), neuron=snn.Leaky(beta=0.8)),
        Wired(lambda m, x: m.neuron(5 * m.synapse(x))[0], synapse=nn.Linear(F, 4), neuron=norse.LIF(p=p)),
    ):
        x, plain = currents(), outcome(net, currents())
        monitor = Monitor(net, every=1)
        assert same(outcome(net, x), plain)
        layer = monitor.step().layers["neuron"]
        assert layer.rate_T == pytest.approx(plain[0].mean((1, 2)).tolist())
        assert len(layer.grad_rms_T) == T
        monitor.close()
        assert same(outcome(net, x), plain)
