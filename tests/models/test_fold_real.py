"""Folding on real images: a network that has learned something, the embedded digits, every spike counted."""

import torch

from mpd_agl.data.load import load_dataset
from mpd_agl.data.loader import Loader
from mpd_agl.models import create_model
from mpd_agl.nn import SpikingBlock, fold


def spikes_of(net, x):
    seen = []
    handles = [
        m.register_forward_hook(lambda m, i, o: seen.append(o.detach().clone()))
        for m in net.modules()
        if isinstance(m, SpikingBlock)
    ]
    with torch.no_grad():
        logits = net(x)
    for handle in handles:
        handle.remove()
    return seen, logits


def test_a_trained_network_folds_to_the_same_spikes_on_real_digits():
    torch.manual_seed(0)
    net = create_model("resnet19", in_channels=1, image_size=28, width_mult=1 / 32, num_steps=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loader = Loader(load_dataset("mnist5k", "train"), batch_size=32, seed=0, train=True, num_workers=0)
    for step, (x, y) in enumerate(loader.epoch(0)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x).mean(0), y).backward()
        optimizer.step()
        if step == 11:
            break
    net.eval()
    images = Loader(load_dataset("mnist5k", "test"), batch_size=100, seed=0, train=False, num_workers=0)
    x, _ = next(iter(images.epoch(0)))
    (plain, logits), (folded, folded_logits) = spikes_of(net, x), spikes_of(fold(net), x)
    total = sum(s.numel() for s in plain)
    fired = sum(float((s != 0).sum()) for s in plain)
    # a potential within rounding of the threshold may fall to the other side, and what follows it then differs too
    differ = sum(int((a != b).sum()) for a, b in zip(plain, folded, strict=True))
    assert fired / total > 0.02
    assert differ < total / 100_000
    assert (logits.mean(0).argmax(1) == folded_logits.mean(0).argmax(1)).all()
