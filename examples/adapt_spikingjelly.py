"""A deep SpikingJelly network that does not learn, and the line that cures it: python examples/adapt_spikingjelly.py"""

import sys

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

import mpd_agl
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
T, C = 4, 16


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k in range(6):
        layers += [layer.Conv2d(C if k else 1, C, 3, padding=1, bias=False), layer.BatchNorm2d(C)]
        layers += [neuron.LIFNode(tau=4.0, surrogate_function=surrogate.Rect())]
        if k in (0, 2, 4):
            layers += [layer.AvgPool2d(2)]
    net = nn.Sequential(*layers, layer.Flatten(), layer.Linear(C * 9, 10))
    functional.set_step_mode(net, "m")
    return net


def accuracy(net: nn.Module, loader: Loader) -> float:
    net.eval()
    right = count = 0
    with torch.no_grad():
        for x, y in loader.epoch(0):
            right += int((net(x.expand(T, *x.shape)).mean(0).argmax(1) == y).sum())
            count += len(y)
            functional.reset_net(net)
    return right / count


def train(net: nn.Module) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        net.train()
        for x, y in training.epoch(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x.expand(T, *x.shape)).mean(0), y).backward()
            optimizer.step()
            functional.reset_net(net)
    return accuracy(net, testing)


training = Loader(load_dataset("mnist5k", "train"), batch_size=50, seed=0, train=True)
testing = Loader(load_dataset("mnist5k", "test"), batch_size=200, seed=0, train=False)
print(f"as it comes: {train(network()):.1%}")

net = network()
x, _ = next(iter(training.epoch(0)))
print(mpd_agl.adapt(net, x.expand(T, *x.shape)))  # the one line
print(f"adapted: {train(net):.1%}")
mpd_agl.release(net)  # the network is SpikingJelly's again, with the last widths
