"""`adapt(net, batch, fuse=True)` on residual networks, still images, event-driven synapses, and under a monitor."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from mpd_agl import core
from mpd_agl.adaptation import adapt, release
from mpd_agl.adaptation.norms import folded_norms
from mpd_agl.adaptation.synapses import FastSynapse, agrees, fast_synapses
from mpd_agl.diagnosis import Monitor
from mpd_agl.errors import InputError
from mpd_agl.ops.conv import event
from tests.adaptation.peers import peer

peer("spikingjelly")
from spikingjelly.activation_based import functional, layer, neuron, surrogate  # noqa: E402

T, N = 3, 4


class Residual(nn.Module):
    """conv - norm - neuron, then a block that adds in place before its neuron, as SpikingJelly's ResNets do."""

    def __init__(self):
        super().__init__()

        def lif():
            return neuron.LIFNode(surrogate_function=surrogate.ATan(), detach_reset=True)

        self.conv1, self.bn1, self.sn1 = layer.Conv2d(3, 16, 3, padding=1, bias=False), layer.BatchNorm2d(16), lif()
        self.conv2, self.bn2, self.sn2 = layer.Conv2d(16, 16, 3, padding=1), layer.BatchNorm2d(16), lif()
        self.down = layer.Conv2d(16, 16, 1, stride=2)
        self.fc1, self.sn3, self.fc2 = layer.Linear(16 * 16, 24), lif(), layer.Linear(24, 5)

    def forward(self, x):
        s = self.sn1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(s))
        out += s
        return self.fc2(self.sn3(self.fc1(self.down(self.sn2(out)).flatten(2))))


def residual():
    torch.manual_seed(0)
    net = Residual()
    functional.set_step_mode(net, "m")
    return net.double()


def images(still):
    x = torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if still:
        return x.unsqueeze(0).repeat(T, 1, 1, 1, 1)
    return torch.randn(T, N, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def step(net, x):
    functional.reset_net(net)
    net.zero_grad()
    out = net(x)
    out.square().mean().backward()
    functional.reset_net(net)
    return out.detach()


@pytest.mark.parametrize("still", [True, False])
def test_a_residual_network_computes_the_same(still):
    plain, x = residual(), images(still)
    adapt(plain.float(), x.float())
    fused = copy.deepcopy(plain)
    release(fused, keep_widths=False)
    result = adapt(fused, x.float(), calibrate=False, fuse=True)
    assert [row.fused for row in result.layers] == ["norm + neuron", "neuron", "neuron"], result
    assert sorted(fast_synapses(fused)) == ["conv1", "conv2", "down", "fc1", "fc2"]
    assert len(folded_norms(fused)) == 1
    plain.double(), fused.double()
    for _ in range(2):  # running statistics, too: the second step has those of the first
        torch.testing.assert_close(step(fused, x), step(plain, x), rtol=1e-9, atol=1e-9)
        silent = [name for name, p in plain.named_parameters() if float(p.grad.norm()) < 1e-6]
        assert silent == ["conv2.bias"]  # the norm behind it takes it out
        for (name, p), q in zip(plain.named_parameters(), fused.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-6, atol=1e-9, msg=name)
    for (name, p), q in zip(plain.named_buffers(), fused.named_buffers(), strict=True):
        rtol = 1e-4 if "measured" in name else 1e-6  # measured in float32
        torch.testing.assert_close(q[1].double(), p.double(), rtol=rtol, atol=1e-6, msg=name)


def test_a_still_image_is_convolved_once():
    net, seen = residual().float(), []
    x = images(True).float()
    adapt(net, x, calibrate=False, fuse=True)
    conv1 = fast_synapses(net)["conv1"]
    compute = conv1.compute
    conv1.compute = lambda x: seen.append(x.shape) or compute(x)
    net(x)
    functional.reset_net(net)
    net(x.clone().requires_grad_())  # a gradient for every step is asked for
    functional.reset_net(net)
    net(images(False).float())
    assert [s[0] for s in seen] == [N, T * N, T * N]


def test_a_synapse_that_computes_something_else_is_found(monkeypatch):
    net = residual().float()
    x = (torch.rand(T, N, 16, 8, 8) < 0.2).float()
    for impl in ("auto", "event", "dense"):
        assert agrees(FastSynapse(net.conv2, impl), x)
    monkeypatch.setattr(event, "forward", lambda *a: torch.zeros(N, 16, 8, 8))
    assert not agrees(FastSynapse(net.conv2, "event"), x)


def test_synapses_compute_as_they_are_asked():
    net, x = residual().float(), images(True).float()
    adapt(net, x, calibrate=False, fuse=True)
    step(net, x)
    assert {s.conv_impl for s in fast_synapses(net).values()} == {"auto"}
    release(net)
    assert not fast_synapses(net)
    assert not folded_norms(net)
    assert all("forward" not in vars(m) for m in net.modules())
    adapt(net, x, calibrate=False, fuse="dense")
    step(net, x)
    assert {s.conv_impl for s in fast_synapses(net).values()} == {"dense"}
    with pytest.raises(InputError, match="unknown fuse 'fast'"):
        adapt(residual().float(), x, fuse="fast")


def test_copies_and_pickles_of_a_fused_network_are_networks_of_their_own():
    net, x = residual().float(), images(True).float()
    adapt(net, x, fuse="dense")
    step(net, x)
    for other in (copy.deepcopy(net), pickle.load(io.BytesIO(pickle.dumps(net)))):
        assert torch.equal(step(other, x), step(net, x))
        with torch.no_grad():
            other.conv2.weight.mul_(0)
        assert fast_synapses(other)["conv2"].module is other.conv2
        assert not torch.equal(step(other, x), step(net, x))


def test_a_monitor_shows_the_gradients_of_fused_layers():
    plain, x = residual().float(), images(False).float()
    adapt(plain, x)
    fused = copy.deepcopy(plain)
    release(fused, keep_widths=False)
    adapt(fused, x, calibrate=False, fuse="dense")
    found = []
    for net in (plain, fused):
        monitor = Monitor(net, every=2)
        step(net, x)
        found.append(monitor.step())
        step(net, x)
        assert monitor.step() is None
        monitor.close()
    for name, one in found[0].layers.items():
        other = found[1].layers[name]
        assert len(other.grad_rms_T) == T
        for field in ("grad_rms_T", "rate_T", "mean_T", "var_T"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-3, abs=1e-7), (name, field)


def test_running_moments_of_a_fused_layer_are_the_potentials():
    net, x = residual().float(), images(False).float()
    adapt(net, x, calibrate=False, moments="measured", every=1, momentum=1.0, fuse="dense")
    step(net, x)
    functional.reset_net(net)
    current = nn.BatchNorm2d.forward(net.bn1, layer.Conv2d.forward(net.conv1, x).flatten(0, 1)).unflatten(0, (T, N))
    v = core.lif(current.detach(), 0.5, torch.ones(T), v_th=1.0, decay_input=True)[1]
    mean_T, std_T = net.sn1.surrogate_function.measured.moments()
    torch.testing.assert_close(mean_T[:T], v.flatten(1).mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(std_T[:T], v.flatten(1).std(1, correction=0), rtol=1e-4, atol=1e-5)
