"""A neuron whose width is held at its own surrogate's gives the spikes and gradients it gave before."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mpd_agl.adaptation import AdaptiveSpike, adapt, adaptive_spikes, release
from mpd_agl.nn import LIF, FixedWidth, Method
from tests.adaptation.peers import OwnCell, OwnNeuron, Wired, outcome, peer, register_own

T, N, F = 5, 3, 7


class Looped(nn.Module):
    """A single-step network over time, with the state passed from step to step where the neuron returns one."""

    def __init__(self, synapse: nn.Module, neuron: nn.Module, states: int) -> None:
        super().__init__()
        self.synapse, self.neuron, self.states = synapse, neuron, states

    def forward(self, x_TNF: Tensor) -> Tensor:
        state: tuple = (None,) * self.states
        spikes = []
        for x in x_TNF:
            out = self.neuron(self.synapse(x), *state)
            s, state = (out[0], out[1:]) if isinstance(out, tuple) else (out, ())
            spikes.append(s)
        return torch.stack(spikes)


def held(width: float) -> Method:
    return Method(name="held", neuron=LIF, width=lambda: FixedWidth(width), about="")


def check(net: nn.Module, reset=lambda net: None) -> None:
    """Unadapted, adapted by their own width two ways, released: the same."""
    x = torch.randn(T, N, F, generator=torch.Generator().manual_seed(1)) * 4
    keys = net.state_dict().keys()
    wanted = outcome(net, x, reset)
    assert 0.02 < float(wanted[0].mean()) < 0.9  # it fires, and not always
    assert float(wanted[1].abs().max()) > 1e-3

    def same(got: list[Tensor], exact: bool) -> None:
        assert torch.equal(got[0], wanted[0])
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)

    result = adapt(net, x, method=None, calibrate=False)
    (row,) = result.layers
    assert row.num_steps == T
    same(outcome(net, x, reset), exact=False)
    release(net)
    adapt(net, x, method=held(row.natural_width), calibrate=False)
    ((_, _, spike),) = adaptive_spikes(net)
    same(outcome(net, x, reset), exact=False)
    assert torch.equal(spike.kappa_T, torch.full((T,), row.natural_width))
    # Another width changes the gradient, and only that.
    spike.width = FixedWidth(3 * row.natural_width)
    other = outcome(net, x, reset)
    assert torch.equal(other[0], wanted[0])
    assert float((other[1] - wanted[1]).abs().max()) > 1e-4
    release(net, keep_widths=False)
    assert not any(isinstance(m, AdaptiveSpike) for m in net.modules())
    assert not net.neuron._forward_hooks
    assert not net.neuron._forward_pre_hooks
    same(outcome(net, x, reset), exact=True)
    assert net.state_dict().keys() == keys


@pytest.mark.parametrize("surrogate", ["ATan", "Sigmoid", "Rect"])
@pytest.mark.parametrize("v_reset", [0.0, None, -0.3])
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("step_mode", ["s", "m"])
@pytest.mark.parametrize("kind", ["IFNode", "LIFNode", "LIFNode-no-decay-input", "ParametricLIFNode"])
def test_spikingjelly(kind, step_mode, detach, v_reset, surrogate):
    sj = peer("spikingjelly.activation_based.neuron")
    surrogates = peer("spikingjelly.activation_based.surrogate")
    functional = peer("spikingjelly.activation_based.functional")
    name, *flags = kind.split("-", 1)
    options = {"decay_input": False} if flags else {}
    torch.manual_seed(0)
    neuron = getattr(sj, name)(
        v_reset=v_reset,
        detach_reset=detach,
        step_mode=step_mode,
        surrogate_function=getattr(surrogates, surrogate)(),
        **options,
    )
    synapse = nn.Linear(F, 4)
    check(multi(synapse, neuron) if step_mode == "m" else Looped(synapse, neuron, 0), functional.reset_net)


def multi(synapse: nn.Module, neuron: nn.Module) -> Wired:
    def run(net: Any, x: Tensor) -> Tensor:
        out = net.neuron(net.synapse(x))
        return out[0] if isinstance(out, tuple) else out

    return Wired(run, synapse=synapse, neuron=neuron)


@pytest.mark.parametrize("surrogate", ["atan", "fast_sigmoid"])
@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind", ["Leaky", "Leaky-now", "Synaptic", "Lapicque", "RLeaky"])
def test_snntorch(kind, hidden, reset, surrogate):
    snn = peer("snntorch")
    name, *now = kind.split("-")
    options = {
        "Leaky": {"beta": 0.7},
        "Synaptic": {"alpha": 0.5, "beta": 0.6},
        "Lapicque": {"beta": 0.6},
        "RLeaky": {"beta": 0.7, "linear_features": 4},
    }[name]
    if now:
        options["reset_delay"] = False
    torch.manual_seed(0)
    neuron = getattr(snn, name)(
        **options,
        init_hidden=hidden,
        reset_mechanism=reset,
        spike_grad=getattr(snn.surrogate, surrogate)(),
    )
    net = Looped(nn.Linear(F, 4), neuron, 0 if hidden else {"Synaptic": 2, "RLeaky": 2}.get(name, 1))
    if kind == "Lapicque":
        net.synapse.weight.data.mul_(3)

    def to_rest(net):
        neuron = net.neuron
        neuron.reset_mem()
        for name in ("mem", "syn", "spk"):
            if isinstance(getattr(neuron, name, None), Tensor):
                setattr(neuron, name, torch.zeros(0))

    check(net, to_rest)


@pytest.mark.parametrize("method", ["super", "tanh", "circ"])
@pytest.mark.parametrize("kind", ["LIFCell", "LIF", "LIFBoxCell", "LIFRecurrentCell", "LIFRecurrent"])
def test_norse(kind, method):
    norse = peer("norse.torch")
    torch.manual_seed(0)
    parameters = norse.LIFBoxParameters if "Box" in kind else norse.LIFParameters
    p = parameters(method=method, alpha=2.0, v_th=torch.tensor(0.4))
    sizes = (4, 4) if "Recurrent" in kind else ()
    neuron = getattr(norse, kind)(*sizes, p=p)
    synapse = nn.Linear(F, 4)
    synapse.weight.data.mul_(5)
    net = Looped(synapse, neuron, 1) if kind.endswith("Cell") else multi(synapse, neuron)
    check(net)


@pytest.mark.parametrize("kind", [OwnNeuron, OwnCell])
def test_own(kind):
    register_own()
    torch.manual_seed(0)
    neuron, synapse = kind(), nn.Linear(F, 4)

    def to_rest(net):
        net.neuron.v = None

    check(Looped(synapse, neuron, 0) if kind is OwnCell else multi(synapse, neuron), to_rest)
