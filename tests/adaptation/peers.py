"""Networks and neurons for the tests of `adapt`: of other libraries, and of one's own."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mpd_agl.adaptation import register_neuron
from mpd_agl.core import spike


def peer(name: str):
    """A library of others; its warnings at import are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


class Step(nn.Module):
    """A surrogate function as a module."""

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        self.kappa = kappa

    def forward(self, u: Tensor) -> Tensor:
        return spike(u, self.kappa)


class OwnNeuron(nn.Module):
    """Someone's own multi-step neuron."""

    def __init__(self, surrogate=None, v_th: float = 1.0, decay: float = 0.5) -> None:
        super().__init__()
        self.surrogate, self.v_th, self.decay = surrogate or Step(), v_th, decay

    def forward(self, i_TN: Tensor) -> Tensor:
        v, spikes = torch.zeros_like(i_TN[0]), []
        for i in i_TN:
            v = self.decay * v + i
            s = self.surrogate(v - self.v_th)
            v = v * (1 - s)
            spikes.append(s)
        return torch.stack(spikes)


class OwnCell(OwnNeuron):
    """Someone's own single-step neuron: `v` is None at rest."""

    v: Tensor | None = None

    def forward(self, i_N: Tensor) -> Tensor:
        v = i_N if self.v is None else self.decay * self.v + i_N
        s = self.surrogate(v - self.v_th)
        self.v = v * (1 - s)
        return s


def spikingjelly(
    surrogate: str = "ATan",
    *,
    layers: int = 3,
    tau: float = 2.0,
    node: str = "LIFNode",
    mode: str = "m",
    size: int = 6,
    container: bool = False,
) -> nn.Sequential:
    """(T, N, 1, size, size) -> (T, N, 10): convolutions, batch norms and neurons, and a linear layer."""
    layer, neuron, functions, functional = (
        peer(f"spikingjelly.activation_based.{name}") for name in ("layer", "neuron", "surrogate", "functional")
    )
    torch.manual_seed(0)
    options = {"IFNode": {}, "LIFNode": {"tau": tau}, "ParametricLIFNode": {"init_tau": tau}}[node]
    parts: list[nn.Module] = []
    for k in range(layers):
        kind = nn if container else layer
        pair = [kind.Conv2d(8 if k else 1, 8, 3, padding=1, bias=False), kind.BatchNorm2d(8)]
        parts += [layer.SeqToANNContainer(*pair)] if container else pair
        parts.append(getattr(neuron, node)(surrogate_function=getattr(functions, surrogate)(), **options))
    net = nn.Sequential(*parts, layer.Flatten(), layer.Linear(8 * size * size, 10))
    functional.set_step_mode(net, mode)
    return net


def outcome(net: nn.Module, x: Tensor, reset: Callable[[nn.Module], None] = lambda net: None) -> list[Tensor]:
    """Spikes, and the gradients of the input and of every parameter; the parameters keep none."""
    reset(net)
    x = x.clone().requires_grad_()
    out = net(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    net.zero_grad()
    reset(net)
    return [out.detach(), x.grad, *grads]


class Wired(nn.Module):
    """Modules by name, and a function of them and the input that is the forward pass."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class OverTime(nn.Sequential):
    """Layers that know no time, T folded into the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view(*x.shape[:2], -1)


def normed(features: int, out: int = 32) -> OverTime:
    return OverTime(nn.Linear(features, out), nn.BatchNorm1d(out))


def register_own() -> None:
    register_neuron(OwnNeuron, spike="surrogate", v_th="v_th", tau="decay")
    register_neuron(OwnCell, spike="surrogate", v_th="v_th", tau="decay", state="v")


def own_net(*, depth: int = 3, features: int = 32, norm: bool = True, seed: int = 0, surrogate=None) -> nn.Sequential:
    """(T, N, 10) -> spikes of `depth` layers of OwnNeuron behind batch norms, or none."""
    torch.manual_seed(seed)
    register_own()
    layers: list[nn.Module] = []
    for k in range(depth):
        synapse = nn.Linear(10 if k == 0 else features, features)
        layers += [OverTime(synapse, nn.BatchNorm1d(features)) if norm else synapse, OwnNeuron(surrogate)]
    return nn.Sequential(*layers)
