"""Firing falls to 0 from layer 5 on: SpikingJelly without a norm (its issue 285).

Eight convolutions: each passes on a smaller current than it got, until none reaches the threshold.
A surrogate with long tails (ATan, Sigmoid) wakes such layers up by itself after some hundred steps; a rectangle never
does: python examples/diagnose_spikingjelly_285.py
"""

import sys

import torch
from torch import nn

from mpd_agl.adaptation import adapt
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.diagnosis import diagnose

try:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate
except ImportError:
    sys.exit("This example needs SpikingJelly: pip install spikingjelly")


class Network(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        parts = []
        for k in range(8):
            synapse = layer.Conv2d(channels if k else 1, channels, 3, stride=2 if k in (0, 2) else 1, padding=1)
            nn.init.kaiming_normal_(synapse.weight).data.mul_(1.15)
            parts += [synapse, neuron.LIFNode(decay_input=False, surrogate_function=surrogate.Rect())]
        self.net = nn.Sequential(*parts, layer.Flatten(), layer.Linear(channels * 16, 10))
        functional.set_step_mode(self, "m")

    def forward(self, x):
        functional.reset_net(self)
        return self.net(x.expand(4, *x.shape))  # the same image at every timestep


def digits(split, samples):
    """Embedded handwritten digits, 14 x 14, normalised."""
    data = load_dataset("mnist5k", split)
    loader = Loader(data, batch_size=samples, seed=0, train=split == "train")
    x, y = next(iter(loader.epoch(0)))
    return nn.functional.avg_pool2d(x, 2), y


def train(net):
    """Four epochs of 2,000 digits; accuracy on 1,000 others."""
    x, y = digits("train", 2000)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.train()
    for _ in range(4):
        for part in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]).mean(0), y[part]).backward()
            optimizer.step()
    net.eval()
    x, y = digits("test", 1000)
    with torch.no_grad():
        return float((net(x).mean(0).argmax(1) == y).float().mean())


torch.set_num_threads(1)  # the layers are small
batch = digits("train", 128)
torch.manual_seed(0)
net = Network()
print(diagnose(net, batch))
print(f"as it comes it learns to {train(net):.1%}\n")

torch.manual_seed(0)
net = Network()
print(adapt(net, batch))  # the cure
diagnosis = diagnose(net, batch)
print("\n".join(str(finding) for finding in diagnosis.findings) or "no illness found")
diagnosis.plot("diagnose_spikingjelly_285.png")
print(f"adapted it learns to {train(net):.1%}; diagnose_spikingjelly_285.png shows it")
