"""Networks with problems made by hand: what is found, in which layers, with which figure; and nothing is touched."""

import copy
import json
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mpd_agl.adaptation import adapt, register_neuron
from mpd_agl.diagnosis import diagnose
from mpd_agl.diagnosis.checks import CHECKS, FAR, FORGETS, SILENT
from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, FixedWidth
from tests.adaptation.peers import OwnCell, Wired, peer, spikingjelly


def cnn8(**options) -> nn.Module:
    torch.manual_seed(0)
    return create_model("cnn8", width_mult=0.125, image_size=16, **options)


def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 16, 16, generator=g), torch.arange(16) % 10


def found(diagnosis) -> dict[str, object]:
    return {finding.problem: finding for finding in diagnosis.findings}


class Plain(nn.Module):
    """Linear layers whose currents are normal by construction: weights and biases as given."""

    def __init__(self, neuron, layers: int = 3, width: int = 64, gain: float = 1.0, bias: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.synapses = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.neurons = nn.ModuleList(neuron() for _ in range(layers))
        for synapse in self.synapses:
            nn.init.normal_(synapse.weight, std=gain / width**0.5)
            nn.init.constant_(synapse.bias, bias)

    def forward(self, x_TNF: Tensor) -> Tensor:
        for synapse, neuron in zip(self.synapses, self.neurons, strict=True):
            x_TNF = neuron(synapse(x_TNF))
        return x_TNF


def drive(T: int = 4) -> Tensor:
    return torch.randn(T, 32, 64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("method", ["mpd-agl", "stbp-tdbn"])
def test_a_healthy_network_is_clean(method):
    x, y = batch()
    diagnosis = diagnose(cnn8(method=method), x, y)
    assert diagnosis.healthy
    assert diagnosis.notes == ()
    assert str(diagnosis).endswith("no problem found")
    assert [row.layer for row in diagnosis.layers] == [f"conv{k}" for k in range(1, 8)]
    assert all(0.8 < row.sigmas < 1.2 for row in diagnosis.layers)
    assert all(row.is_read and row.grad_norm > 0 for row in diagnosis.layers)


def test_silent_from_a_layer_on():
    net = cnn8()
    for k in (5, 6, 7):
        nn.init.constant_(net.get_submodule(f"conv{k}").norm.bias, -4.0)
    problems = found(diagnose(net, *batch()))
    silent = problems["silent"]
    assert silent.layers == ("conv5", "conv6", "conv7")
    assert silent.where == "from layer 5 (conv5) on"
    assert (silent.value, silent.limit) == (0.0, SILENT)
    far = problems["potentials far below the threshold"]
    assert far.layers == silent.layers
    # conv6 reads nothing but zeros: v_1 = -4 and v_2 = -4.8 everywhere, so mean -4.4 and deviation 0.4, against 0.5.
    assert far.value == pytest.approx(4.9 / 0.4, rel=1e-3)
    assert "norm.bias" in far.fix
    gradient = problems["gradient vanishes through depth"]
    assert gradient.value == 0.0
    assert gradient.layers[-1] == "conv6"  # behind an empty rectangle


def test_far_by_its_number():
    net = Plain(lambda: LIF(tau=0.5, v_th=3.0), layers=1)
    far = found(diagnose(net, drive()))["potentials far below the threshold"]
    v = torch.zeros(32, 64)
    rows = []
    for i in net.synapses[0](drive()).detach():
        v = 0.5 * v + i
        rows.append(v)
        v = v * (v < 3.0)
    v_T = torch.stack(rows)
    assert far.value == pytest.approx(float((3.0 - v_T.mean()) / v_T.std(correction=0)), rel=1e-4)
    assert far.value > FAR
    assert far.layers == ("neurons.0",)


def test_saturated_and_its_fix():
    problems = found(diagnose(Plain(lambda: LIF(tau=0.5), bias=9.0), drive()))
    saturated = problems["saturated"]
    assert saturated.value == 1.0
    assert len(saturated.layers) == 3
    assert "norm" in saturated.fix  # a scale would not move the mean


@pytest.mark.parametrize(("width", "problem"), [(1e-3, "window too narrow"), (100.0, "window too wide")])
def test_windows(width, problem):
    net = Plain(lambda: LIF(tau=0.5, v_th=1.0, width=FixedWidth(width)), gain=2.0)
    problems = found(diagnose(net, drive()))
    assert set(problems) & {"window too narrow", "window too wide"} == {problem}
    assert problems[problem].layers[0] == "neurons.0"
    assert problems[problem].value == (pytest.approx(0.0, abs=5e-3) if width < 1 else 1.0)
    assert "method='mpd-agl'" in problems[problem].fix


@pytest.mark.parametrize(("gain", "problem"), [(0.01, "vanishes"), (1000.0, "explodes")])
def test_gradients_through_depth(gain, problem):
    """Identity-like currents keep the layers firing; a gain on the way back alone changes the gradient."""

    class Gain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return gain * g

    net = cnn8()
    net.get_submodule("conv4").register_forward_hook(lambda m, args, out: Gain.apply(out))
    diagnosis = diagnose(net, *batch())
    (finding,) = diagnosis.findings
    healthy = diagnose(cnn8(), *batch())
    want = gain * healthy.layers[0].grad_norm / healthy.layers[-1].grad_norm
    assert finding.problem == f"gradient {problem} through depth"
    assert finding.value == pytest.approx(want, rel=1e-3)
    assert "conv4" in finding.figure


def test_leaks():
    problems = found(diagnose(Plain(lambda: LIF(tau=0.01, v_th=1.0), gain=1.5), drive()))
    assert problems["leak that forgets everything"].value == pytest.approx(0.01)
    assert problems["leak that forgets everything"].limit == FORGETS
    assert "leak that forgets everything" not in found(diagnose(Plain(lambda: LIF(tau=0.01), gain=1.5), drive(1)))
    steady = drive(1).expand(12, -1, -1)  # the same input at every step: the potential grows with t
    problems = found(diagnose(Plain(lambda: LIF(tau=1.0, v_th=1.0), gain=0.5), steady))
    assert problems["leak that keeps everything"].layers[0] == "neurons.0"
    assert problems["leak that keeps everything"].value > 4
    assert not [i for i in found(diagnose(Plain(lambda: LIF(tau=0.5, v_th=1.0), gain=1.5), steady)) if "leak" in i]


def test_dead_channels():
    net = cnn8()
    channels = net.get_submodule("conv3").norm.bias.shape[0]
    with torch.no_grad():
        net.get_submodule("conv3").norm.bias[: channels // 2] = -9.0
    dead = found(diagnose(net, *batch()))["dead channels"]
    assert (dead.layers, dead.value) == (("conv3",), 0.5)


def test_not_finite():
    net = cnn8()
    with torch.no_grad():
        net.get_submodule("conv2").norm.weight[0] = float("nan")
    diagnosis = diagnose(net, *batch())
    assert found(diagnosis)["not finite"].layers[:2] == ("conv1", "conv2")  # conv1 by its gradient
    json.dumps(diagnosis.to_dict(), allow_nan=False)


def test_nothing_is_touched():
    for net in (cnn8(), cnn8(conv_impl="event"), cnn8(method="deeptage")):
        x, y = batch()
        net.eval()
        net.get_submodule("conv1").train()
        net.get_submodule("conv2").requires_grad_(False)
        net(x).sum().backward()
        grads = {n: (p.grad, None if p.grad is None else p.grad.clone()) for n, p in net.named_parameters()}
        state = copy.deepcopy(net.state_dict())
        modes = [m.training for m in net.modules()]
        frozen = [p.requires_grad for p in net.parameters()]
        twin = copy.deepcopy(net)
        keys = [set(m.__dict__) for m in net.modules()]
        before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # noqa: NPY002
        diagnose(net, x, y)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert np.array_equal(np.random.get_state()[1], before[2])  # noqa: NPY002
        assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
        assert modes == [m.training for m in net.modules()]
        assert frozen == [p.requires_grad for p in net.parameters()]
        assert keys == [set(m.__dict__) for m in net.modules()]
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
        for name, p in net.named_parameters():
            assert p.grad is grads[name][0]
            assert p.grad is None or torch.equal(p.grad, grads[name][1])
        assert torch.equal(net(x), twin(x))


def test_a_pair_a_forward_and_a_loss_of_ones_own():
    x, y = batch()
    pair = diagnose(cnn8(), (x, y))
    apart = diagnose(cnn8(), x, y, forward=lambda net, x: (net(x), "more"))
    assert [a.grad_norm for a in pair.layers] == [a.grad_norm for a in apart.layers]
    doubled = diagnose(cnn8(), x, y, loss=lambda out, y: 2 * nn.functional.cross_entropy(out.mean(0), y))
    assert doubled.layers[0].grad_norm == pytest.approx(2 * pair.layers[0].grad_norm, rel=1e-5)
    assert diagnose(cnn8(), x).layers[0].grad_norm > 0


def test_bad_input_is_one_sentence():
    x, y = batch()
    with pytest.raises(InputError, match=r"labels must be class numbers.*got \(16,\) torch.int64 for \(2, 16, 10\)"):
        diagnose(cnn8(), x, y + 5)
    with pytest.raises(InputError, match=r"net\(batch\) failed with RuntimeError"):
        diagnose(Plain(lambda: LIF()), torch.randn(4, 32, 63))
    with pytest.raises(InputError, match="must give a tensor"):
        diagnose(cnn8(), x, forward=lambda net, x: None)
    with pytest.raises(InputError, match="none of the network's neurons ran"):
        diagnose(cnn8(), x, forward=lambda net, x: x)
    with pytest.raises(InputError, match="no spiking neuron that can be watched"):
        diagnose(nn.Linear(2, 2), torch.randn(3, 2))


def test_the_picture_is_written(tmp_path):
    diagnosis = diagnose(cnn8(), *batch())
    for name in ("a.png", "b.svg"):
        diagnosis.plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000
    with pytest.raises(InputError, match="must end in .png"):
        diagnosis.plot(tmp_path / "a.gif")
    with pytest.raises(InputError, match="cannot be written"):
        diagnosis.plot(tmp_path / "none" / "a.png")


def test_every_check_says_what_why_and_how():
    for check in CHECKS:
        assert check.why.endswith(".")
        assert "{v" in check.figure
        assert "{limit" in check.figure


def images() -> Tensor:
    return torch.rand(16, 1, 6, 6, generator=torch.Generator().manual_seed(3)).expand(4, -1, -1, -1, -1)


def test_spikingjelly_190_and_its_fix():
    """Defaults with tau = 4: 3 to 4 standard deviations below the threshold; the fix is the line that is printed."""
    peer("spikingjelly")
    net, y = spikingjelly("Rect", tau=4.0, layers=6), torch.arange(16) % 5
    diagnosis = diagnose(net, images(), y)
    problems = found(diagnosis)
    far = problems["potentials far below the threshold"]
    assert far.where == "in all layers"
    assert far.value > 3
    assert far.fix == "mpd_agl.adapt(net, batch)"
    assert "window too narrow" in problems
    assert "the network keeps its state from call to call" in diagnosis.notes[0]
    adapt(net, images())
    assert diagnose(net, images(), y).healthy


def test_spikingjelly_trained_networks_are_scaled_only_by_force():
    functional = peer("spikingjelly.activation_based.functional")
    net = spikingjelly("Rect", tau=4.0, layers=2)
    fixes = []
    for _ in range(2):  # a look at shapes is no training, a step is one
        fixes.append(found(diagnose(net, images()))["potentials far below the threshold"].fix)
        net(images()).square().sum().backward()
        torch.optim.SGD(net.parameters(), 1e-3).step()
        net.zero_grad()
        functional.reset_net(net)
    assert fixes == ["mpd_agl.adapt(net, batch)", "mpd_agl.adapt(net, batch, calibrate='force')"]


def test_a_forgotten_reset():
    functional = peer("spikingjelly.activation_based.functional")
    net = spikingjelly("Rect", layers=2)
    adapt(net, images())
    assert diagnose(net, images()).healthy
    net(images())
    states = {n: m.v for n, m in net.named_modules() if hasattr(m, "v")}
    diagnosis = diagnose(net, images())
    carried = diagnosis.findings[0]
    assert carried.problem == "state carried over"
    assert carried.layers == ("2", "5")
    assert carried.value > 0.01
    assert "backward through the graph a second time" in carried.why
    assert "functional.reset_net(net)" in carried.fix
    assert all(m.v is states[n] for n, m in net.named_modules() if hasattr(m, "v"))  # the state is left as it was
    functional.reset_net(net)
    assert diagnose(net, images()).healthy


def test_snntorch_219_and_norse():
    snn = peer("snntorch")
    peer("norse")

    def run(net, x_TN: Tensor) -> Tensor:
        states = [n.init_leaky() for n in (*net.neurons, net.output)]
        potentials = []
        for s in x_TN:
            for k in range(4):
                s, states[k] = net.neurons[k](net.synapses[k](s), states[k])
            _, states[4] = net.output(net.readout(s.flatten(1)), states[4])
            potentials.append(states[4])
        return torch.stack(potentials)

    torch.manual_seed(0)
    net = Wired(
        run,
        synapses=nn.ModuleList(nn.Conv2d(c, 8, 3, padding=1) for c in (1, 8, 8, 8)),
        neurons=nn.ModuleList(snn.Leaky(beta=0.9) for _ in range(4)),
        readout=nn.Linear(8 * 36, 5),
        output=snn.Leaky(beta=0.9),
    )
    net(images())  # each pass begins by init_leaky: what the neurons keep does not matter
    diagnosis = diagnose(net, images(), torch.arange(16) % 5)
    silent = found(diagnosis)["silent"]
    assert silent.layers == ("neurons.1", "neurons.2", "neurons.3")
    assert not diagnosis.layers[-1].is_read  # the output is its potential
    assert "state carried over" not in found(diagnosis)
    assert diagnosis.notes == ()


def test_ones_own_neuron():
    register_neuron(OwnCell, spike="surrogate", v_th=1.0, tau=0.5, state="v")
    torch.manual_seed(0)

    def run(net, x_TN: Tensor) -> Tensor:
        net.neuron.v = None
        return torch.stack([net.neuron(net.synapse(x)) for x in x_TN])

    x = 4 * torch.randn(4, 32, 8, generator=torch.Generator().manual_seed(0))
    diagnosis = diagnose(Wired(run, synapse=nn.Linear(8, 8), neuron=OwnCell()), x)
    assert diagnosis.healthy
    assert diagnosis.notes == ()
    assert diagnosis.layers[0].library == "own"
