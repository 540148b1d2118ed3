"""Where do gradients die? The monitor in your own loop, two lines: python examples/own_loop_with_monitor.py"""

import torch
from torch import nn

from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.diagnosis import Monitor
from mpd_agl.models import create_model

torch.manual_seed(0)
net = create_model("cnn8", in_channels=1, image_size=28, width_mult=0.125, method="mpd-agl")
monitor = Monitor(net, every=20)  # line one
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loader = Loader(load_dataset("mnist5k", "train"), batch_size=50, seed=0, train=True)
for x, y in loader.epoch(0):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x).mean(0), y).backward()
    optimizer.step()
    monitor.step()  # line two

print("layer    rate   available   kappa_1   kappa_2   var of v (t=2): measured, Theorem 2, exact moments")
for name, layer in monitor.history[-1].layers.items():
    print(
        f"{name:6} {100 * layer.rate_T[-1]:5.1f} % {100 * layer.available_T[-1]:8.1f} %"
        f" {layer.kappa_T[0]:9.3f} {layer.kappa_T[1]:9.3f}"
        f"   {layer.var_T[1]:22.3f} {layer.predicted_var_T[1]:10.3f} {layer.exact_var_T[1]:10.3f}"
    )
