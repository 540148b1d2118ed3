"""Networks and neurons for the tests of `adapt`: of other libraries, and of one's own."""

import warnings

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


class OverTime(nn.Sequential):
    """Layers that know no time, T folded into the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view(*x.shape[:2], -1)


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
