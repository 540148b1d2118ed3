"""Recomputation: less is kept, every number stays the same to the last bit."""

import weakref

import pytest
import torch
from torch.nn import functional as F

from mpd_agl.diagnosis import Monitor
from mpd_agl.models import create_model
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv.event import ActiveLists

NATIVE = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


def step(name, recompute, **options):
    torch.manual_seed(0)
    net = create_model(name, recompute=recompute, width_mult=0.125, image_size=16, **options).train()
    T, frames = net.num_steps, name == "vggsnn"
    shape = (4, net.options.in_channels, 16, 16)
    x = torch.randn((T, *shape) if frames else shape, generator=torch.Generator().manual_seed(1))
    kept = []

    def pack(a):
        kept.append(a.numel() * a.element_size())
        return a

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda a: a):
        loss = F.cross_entropy(net(x).mean(0), torch.arange(4))
    kept = sum(kept)
    loss.backward()
    return loss, {n: p.grad for n, p in net.named_parameters()}, dict(net.named_buffers()), kept


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet19", {}),
        ("resnet19", {"backend": "eager"}),
        ("resnet19", {"block": "zheng"}),
        ("resnet19", {"method": "asgl"}),  # draws random numbers in the forward pass
        ("vggsnn", {"num_steps": 3}),
        ("cnn8", {"method": "psg"}),
        pytest.param("resnet19", {"conv_impl": "event"}, marks=NATIVE),
        pytest.param("resnet19", {"conv_impl": "event", "block": "zheng"}, marks=NATIVE),
        ("resnet18", {"ann": True}),
    ],
)
def test_loss_gradients_and_statistics_are_the_same_bits_and_less_is_kept(name, options):
    loss, grads, buffers, kept = step(name, False, **options)
    again_loss, again_grads, again_buffers, kept_less = step(name, True, **options)
    assert torch.equal(loss, again_loss)
    assert [n for n in grads if not torch.equal(grads[n], again_grads[n])] == []
    assert [n for n in buffers if not torch.equal(buffers[n], again_buffers[n])] == []
    assert kept_less < kept / 3


def test_statistics_are_updated_once_and_stay_the_networks_own():
    net = create_model("cnn8", width_mult=0.125, image_size=16, recompute=True).train()
    before = dict(net.named_buffers())
    F.cross_entropy(net(torch.randn(4, 3, 16, 16)).mean(0), torch.arange(4)).backward()
    assert all(b is before[n] for n, b in net.named_buffers())
    assert int(net.get_submodule("conv3").norm.num_batches_tracked) == 1
    assert not any(m.repeating for m in net.modules() if hasattr(m, "repeating"))


def test_a_monitor_sees_one_pass_and_keeps_nothing():
    snapshots = []
    for recompute in (False, True):
        torch.manual_seed(0)
        net = create_model("resnet19", width_mult=0.125, image_size=16, recompute=recompute).train()
        monitor = Monitor(net, every=1)
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        F.cross_entropy(net(x).mean(0), torch.arange(4)).backward()
        snapshots.append(monitor.step())
    assert snapshots[0] == snapshots[1]


def test_evaluation_is_the_plain_call():
    net = create_model("cnn8", width_mult=0.125, image_size=16, recompute=True).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        a = net(x)
    assert torch.equal(a, net(x).detach())


@NATIVE
def test_a_recomputed_part_keeps_no_active_lists():
    found = {}
    for recompute in (False, True):
        net = create_model("resnet19", width_mult=0.125, image_size=16, recompute=recompute, conv_impl="event").train()
        made = []
        original = ActiveLists.__init__

        def noted(self, *a, original=original, made=made):
            original(self, *a)
            made.append(weakref.ref(self.index))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ActiveLists, "__init__", noted)
            loss = F.cross_entropy(net(torch.randn(4, 3, 16, 16)).mean(0), torch.arange(4))
        found[recompute] = sum(r() is not None for r in made)
        loss.backward()
    assert found == {False: 18, True: 0}  # 16 convolutions of the blocks, 2 of the shortcuts
