"""Methods side by side: one network and one loop; only the width rule and the neuron differ.

python examples/compare_methods.py
"""

import torch
from torch import nn

from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.diagnosis import Monitor
from mpd_agl.models import create_model

train, test = load_dataset("mnist5k", "train"), load_dataset("mnist5k", "test")
print("one epoch, one seed: a look at the mechanism, not a ranking")
print("method             test accuracy   mean share of gradient-available neurons   mean kappa")
for method in ("stbp-tdbn", "lsg", "mpd-agl", "mpd-agl-exact", "mpd-quantile"):
    torch.manual_seed(0)
    net = create_model("cnn8", in_channels=1, image_size=28, width_mult=0.125, method=method)
    monitor = Monitor(net, every=20)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in Loader(train, batch_size=50, seed=0, train=True).epoch(0):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).mean(0), y).backward()
        optimizer.step()
        monitor.step()
    monitor.close()
    net.eval()
    with torch.no_grad():
        batches = Loader(test, batch_size=250, seed=0, train=False).epoch(0)
        right = sum(int((net(x).mean(0).argmax(1) == y).sum()) for x, y in batches)
    layers = monitor.history[-1].layers.values()
    available = [a for layer in layers for a in layer.available_T]
    kappa = [k for layer in layers for k in layer.kappa_T]
    share, width = sum(available) / len(available), sum(kappa) / len(kappa)
    print(f"{method:18} {right / 10:11.1f} % {100 * share:31.1f} % {width:22.3f}")
