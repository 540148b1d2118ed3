"""Any checkpoint over a block or a neuron: nothing is counted twice, and every number is that of a plain pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl.models import create_model
from mpd_agl.nn import LIF, MPDWidth, Neuron, SpikingBlock, recompute, set_chain
from tests.nn.checkpoints import CALLS, assert_checkpoint_changes_nothing
from tests.nn.parts import conv_block, inputs, noise

S_TNC = inputs(3, 4, 3, 8, 8)


def measured():
    torch.manual_seed(0)
    return nn.Linear(5, 6), LIF(method="mpd-agl"), nn.Linear(6, 6), LIF(method="mpd-gain", tau=0.5)


def foreign_norm():
    block = conv_block(norm=nn.BatchNorm2d(6))
    return (block,)


def chain():
    torch.manual_seed(0)
    blocks = nn.ModuleList(SpikingBlock(nn.Linear(8, 8, bias=False), method="mpd-gain") for _ in range(3))
    set_chain(blocks, 40)
    return tuple(blocks)


def hooked():
    block = conv_block()
    for part in (block.synapse, block.norm, block.neuron):
        part.register_forward_hook(lambda m, i, o: None)
    return (block,)


MAKES = {
    "block": (lambda: (conv_block(),), S_TNC),
    "bn": (lambda: (conv_block(norm="bn"),), S_TNC),
    "eager": (lambda: (conv_block(backend="eager"),), S_TNC),
    "foreign norm": (foreign_norm, S_TNC),
    "hooks": (hooked, S_TNC),
    "measured moments": (measured, noise(3, 8, 5)),
    "without synapse": (lambda: (SpikingBlock(None, channels=6),), noise(3, 8, 6)),
    "bounded gradients": (chain, inputs(3, 8, 8)),
}


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("name", MAKES)
def test_a_checkpoint_changes_nothing(name, how):
    make, x = MAKES[name]
    # 12 steps: the potential's moments are measured with the first and the eleventh
    assert_checkpoint_changes_nothing(make, x, how, steps=12 if "without" in name or "measured" in name else 2)


def step(name, recompute, **options):
    torch.manual_seed(0)
    net = create_model(name, recompute=recompute, width_mult=0.125, image_size=16, **options).train()
    T, frames = net.num_steps, name == "vggsnn"
    shape = (4, net.options.in_channels, 16, 16)
    x = noise(*((T, *shape) if frames else shape), seed=1)
    kept, shown = [], []
    for neuron in (m for m in net.modules() if isinstance(m, Neuron)):
        neuron.watch(lambda o: shown.append(o.step.widths.kappa_T.tolist()))

    def pack(a):
        kept.append(a.numel() * a.element_size())
        return a

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda a: a):
        loss = F.cross_entropy(net(x).mean(0), torch.arange(4))
    kept = sum(kept)
    loss.backward()
    found = {"loss": loss, **{n: p.grad for n, p in net.named_parameters()}, **dict(net.named_buffers())}
    return found, kept, shown


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet19", {}),
        ("resnet19", {"backend": "eager"}),
        ("resnet19", {"block": "zheng"}),
        ("vggsnn", {"num_steps": 3}),
        ("resnet18", {"ann": True}),
    ],
)
def test_a_network_that_recomputes_gives_the_same_bits_and_keeps_less(name, options):
    (want, kept, shown), (got, kept_less, shown_again) = (step(name, again, **options) for again in (False, True))
    assert [n for n in want if not torch.equal(want[n], got[n])] == []
    assert kept_less < kept / 3
    assert shown == shown_again


def test_buffers_stay_the_networks_own_and_evaluation_is_the_plain_call():
    net = create_model("cnn8", width_mult=0.125, image_size=16, recompute=True).train()
    before, x = dict(net.named_buffers()), noise(4, 3, 16, 16)
    F.cross_entropy(net(x).mean(0), torch.arange(4)).backward()
    assert all(b is before[n] for n, b in net.named_buffers())
    assert int(net.get_submodule("conv3").norm.num_batches_tracked) == 1
    with torch.no_grad():
        want = net.eval()(x)
    assert torch.equal(net(x).detach(), want)


class ForeignPart(nn.Module):
    """A part of a network that counts statistics by itself, at every call."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x_TNCHW, num_steps):
        return self.norm(x_TNCHW.flatten(0, 1)).unflatten(0, x_TNCHW.shape[:2])


def test_a_second_pass_counts_nothing_in_parts_of_other_libraries():
    plain, part = ForeignPart(), ForeignPart()
    x = S_TNC.clone().requires_grad_()
    plain(x, 3).square().sum().backward()
    recompute([part], x, 3).square().sum().backward()
    assert int(part.norm.num_batches_tracked) == 1
    for a, b in zip(part.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_rule_with_moments_alone_measures_in_training_without_gradients():
    """As batch norms do; so the first pass of a reentrant checkpoint measures."""
    neuron = LIF(width=MPDWidth())
    with torch.no_grad():
        for seed in range(3):
            neuron(noise(3, 50, 4, seed=seed))
    assert neuron.measured.known == 3
    assert float((neuron.measured.var[:3] - noise(3, 50, 4).flatten(1).var(1)).abs().max()) < 0.5
