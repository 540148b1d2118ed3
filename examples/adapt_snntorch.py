"""An snnTorch network whose deeper layers are silent, before and after one line: python examples/adapt_snntorch.py"""

import sys

import snntorch as snn
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mpd_agl
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
T, C = 6, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.synapses = nn.ModuleList(nn.Conv2d(C if k else 1, C, 3, padding=1) for k in range(4))
        self.neurons = nn.ModuleList(snn.Leaky(beta=0.9) for _ in range(4))
        self.readout = nn.Linear(C * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        states = [neuron.reset_mem() for neuron in self.neurons]
        logits = []
        for _ in range(T):
            s = x
            for k, (synapse, neuron) in enumerate(zip(self.synapses, self.neurons, strict=True)):
                current = synapse(s)
                s, states[k] = neuron(F.avg_pool2d(current, 2) if k < 3 else current, states[k])
            logits.append(self.readout(s.flatten(1)))
        return torch.stack(logits).mean(0)


def train(net: nn.Module) -> float:
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        for x, y in training.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        right = [(net(x).argmax(1) == y).float() for x, y in testing.epoch(0)]
    return float(torch.cat(right).mean())


training = Loader(load_dataset("mnist5k", "train"), batch_size=50, seed=0, train=True)
testing = Loader(load_dataset("mnist5k", "test"), batch_size=200, seed=0, train=False)
print(f"as it comes: {train(Net()):.1%}")

net = Net()
x, _ = next(iter(training.epoch(0)))
print(mpd_agl.adapt(net, x))  # the one line; where your loop over time is outside of the network, pass forward=
print(f"adapted: {train(net):.1%}")
