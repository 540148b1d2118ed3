"""A network of four convolutions that stays at chance, its output silent: snnTorch (its issue 219).

Without a norm the potentials of the deeper layers never reach the threshold. Counted spikes of the last layer are the
output, and there are none. Adapted, the layers fire; what is left of the gradient's fading comes from fast_sigmoid,
whose area is 2/25 of a spike's: python examples/diagnose_snntorch_219.py

The slope of 25 is the thread's own choice. With snnTorch's default surrogate, which has long tails, the network wakes
up by itself under Adam and ends slightly higher than the adapted one (84.6 against 79.9 %, one seed).
"""

import sys

import torch
from torch import nn

from mpd_agl.adaptation import adapt
from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.diagnosis import diagnose

try:
    import snntorch as snn
except ImportError:
    sys.exit("This example needs snnTorch: pip install snntorch")


class Network(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        sizes = zip([1, channels, channels, channels], [2, 1, 2, 1], strict=True)
        self.synapses = nn.ModuleList(nn.Conv2d(c, channels, 3, stride=stride, padding=1) for c, stride in sizes)
        options = {"beta": 0.9, "spike_grad": snn.surrogate.fast_sigmoid(slope=25)}  # as snnTorch's tutorials have it
        self.neurons = nn.ModuleList(snn.Leaky(**options) for _ in range(4))
        self.readout, self.output = nn.Linear(channels * 16, 10), snn.Leaky(**options)

    def forward(self, x):
        states = [neuron.init_leaky() for neuron in (*self.neurons, self.output)]
        spikes = []
        for _ in range(6):  # the same image at every timestep
            s = x
            for k, (synapse, neuron) in enumerate(zip(self.synapses, self.neurons, strict=True)):
                s, states[k] = neuron(synapse(s), states[k])
            s, states[-1] = self.output(self.readout(s.flatten(1)), states[-1])
            spikes.append(s)
        return torch.stack(spikes)


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
diagnosis.plot("diagnose_snntorch_219.png")
print(f"adapted it learns to {train(net):.1%}; diagnose_snntorch_219.png shows it")
