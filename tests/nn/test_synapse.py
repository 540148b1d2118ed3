"""Synapses of blocks and networks: torch's own modules, computed by `ops.conv`, and called where they must be."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import Current, SpikingBlock, TdBatchNorm, fold, synapse, synapse_output
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import event

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


def network(conv, model="cnn8", seed=0, **options):
    torch.manual_seed(seed)
    return create_model(model, **{"width_mult": 0.25, "image_size": 16, **options}, conv_impl=conv)


def spikes(*shape, rate=0.2):
    x = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) < rate).float()
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@pytest.fixture
def computed(monkeypatch):
    """What `ops.conv` computes: (input, weight, implementation, output) of each call."""
    found, convolve = [], synapse.convolve

    def noted(x, weight, *a, impl, **k):
        found.append((x.detach(), weight, k, impl, convolve(x, weight, *a, impl=impl, **k)))
        return found[-1][-1]

    monkeypatch.setattr(synapse, "convolve", noted)
    return found


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("cnn8", {}),
        ("resnet19", {}),
        ("resnet19", {"block": "zheng"}),
        ("vgg11", {"image_size": 32, "width_mult": 0.05}),
    ],
)
def test_layers_are_torchs_own_and_the_first_one_is_dense(model, options, computed):
    dense, events = network("dense", model, **options), network("event", model, **options)
    assert {k: v.shape for k, v in dense.state_dict().items()} == {k: v.shape for k, v in events.state_dict().items()}
    assert all(
        torch.equal(a, b) for a, b in zip(dense.state_dict().values(), events.state_dict().values(), strict=True)
    )
    assert {type(m) for m in events.modules() if isinstance(m, nn.Conv2d)} == {nn.Conv2d}
    events(torch.randn(2, 3, events.options.image_size, events.options.image_size))
    convolutions = [m.weight for m in events.modules() if isinstance(m, nn.Conv2d)]
    assert {id(weight) for _, weight, *_ in computed} == {id(weight) for weight in convolutions}
    assert [impl for *_, impl, _ in computed] == ["dense"] + ["event"] * (len(convolutions) - 1)


@pytest.mark.parametrize("block", ["sew", "zheng"])
@pytest.mark.parametrize("impl", ["auto", "event"])
def test_every_layer_of_a_network_computes_what_the_dense_one_does(block, impl, computed):
    """On the inputs that really flow: a spike that flips at the threshold would make whole networks differ."""
    net = network(impl, "resnet19", width_mult=0.125, block=block).train()
    net(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)))
    assert len(computed) == 19
    for x, weight, k, _, y in computed:
        exact = F.conv2d(x.double(), weight.detach().double(), None, **k)
        assert float((y.detach() - exact).abs().max() / exact.abs().max()) < (1e-6 if impl == "event" else 5e-6)


def test_a_synapse_keeps_its_class_and_its_place():
    conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    weight = conv.weight
    block = SpikingBlock(conv)
    assert block.synapse is conv
    assert type(conv) is nn.Conv2d
    assert conv.weight is weight
    assert copy.deepcopy(block)(spikes(3, 16, 6, 6).unsqueeze(0), num_steps=2).shape == (2, 3, 16, 6, 6)
    with pytest.raises(InputError, match="unknown conv_impl 'events'.*event"):
        SpikingBlock(nn.Conv2d(4, 8, 3), conv_impl="events")
    with pytest.raises(InputError, match="unknown conv_impl 'events'.*event"):
        network("events")


@pytest.mark.parametrize(
    "other",
    [
        {"groups": 2},
        {"dilation": 2},
        {"padding": "same"},
        {"padding_mode": "circular", "padding": 1},
        {"stride": (1, 2)},
        {"kernel_size": (3, 1)},
        {"kernel_size": 7, "padding": 3},
    ],
)
def test_what_the_kernels_do_not_know_is_torchs(other):
    conv = nn.Conv2d(16, 16, **{"kernel_size": 3, **other})
    x = spikes(2, 16, 8, 8)
    for impl in ("auto", "event"):
        assert torch.equal(synapse_output(conv, x, impl), conv(x))


def test_a_synapse_with_hooks_or_of_another_class_is_called():
    class Own(nn.Conv2d):
        def forward(self, x):
            return super().forward(x) + 1

    x, seen = spikes(2, 16, 8, 8), []
    hooked = nn.Conv2d(16, 16, 3)
    hooked.register_forward_hook(lambda m, i, o: seen.append(o) or o * 2)
    own, normed = Own(16, 16, 3), parametrizations.spectral_norm(nn.Conv2d(16, 16, 3))
    assert torch.equal(synapse_output(hooked, x, "event"), 2 * F.conv2d(x, hooked.weight, hooked.bias))
    assert len(seen) == 1
    assert torch.equal(synapse_output(own, x, "event"), F.conv2d(x, own.weight, own.bias) + 1)
    before = normed.parametrizations.weight[0]._u.clone()
    synapse_output(normed, x, "event")
    assert not torch.equal(normed.parametrizations.weight[0]._u, before)  # a power iteration of the training forward


def test_a_current_computes_as_it_is_asked(computed):
    conv, x = nn.Conv2d(16, 16, 3, padding=1), spikes(2, 16, 6, 6)
    for impl in ("auto", "dense", "event"):
        Current(conv, TdBatchNorm(16), impl)(x.unsqueeze(0))
    assert [impl for *_, impl, _ in computed] == ["auto", "dense", "event"]


@pytest.mark.parametrize("write", ["data", "numpy"])
def test_a_frozen_network_follows_its_weights(write):
    """Of a block in evaluation and of a folded one, also written past torch's version counter."""
    x = spikes(1, 2, 32, 8, 8)
    for made in (lambda b: b, fold):
        block = SpikingBlock(nn.Conv2d(32, 32, 3, padding=1)).eval()
        block.norm.running_var.fill_(0.01)
        block = made(block).requires_grad_(False)
        with torch.no_grad():
            for _ in range(40):
                assert block(x, num_steps=2).any()
            weight, bias = block.synapse.weight, block.synapse.bias
            for a in (weight, bias):
                a.data.zero_() if write == "data" else a.numpy().fill(0)
            assert torch.equal(block(x, num_steps=2), copy.deepcopy(block)(x, num_steps=2))
            assert not block(x, num_steps=2).any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_spikes_changed_in_place_are_read_as_they_are(mode):
    block, conv = SpikingBlock(nn.Conv2d(3, 8, 1)).eval(), nn.Conv2d(8, 4, 3, padding=1, bias=False)
    x = torch.randn(1, 2, 3, 6, 6)
    with mode():
        s = block(x, num_steps=1)[0]
        assert float(synapse_output(conv, s, "event").abs().sum()) > 0
        s.zero_()
        assert float(synapse_output(conv, s, "event").abs().sum()) == 0


def test_a_folded_network_runs_in_inference_mode():
    net, x = network("event", width_mult=0.125).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        want = fold(net)(x)
    with torch.inference_mode():
        assert torch.equal(fold(net)(x), want)
        assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("impl", ["auto", "event"])
def test_a_folded_network_gives_the_dense_ones_logits(impl):
    dense, other = network("dense"), network(impl).eval()
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for _ in range(30):  # running statistics with which all layers fire
        dense.train()(x)
    other.load_state_dict(dense.eval().state_dict())
    exact = fold(dense.double())(x.double())
    assert exact.std(1).max() > 0.01
    assert torch.allclose(fold(other)(x).double(), exact, atol=1e-5)


@pytest.mark.parametrize("impl", ["auto", "event"])
def test_a_sample_alone_and_in_a_batch_gives_the_same_logits(impl):
    """In evaluation nothing about the batch decides how a layer is computed."""
    net = network(impl, "resnet19", width_mult=1 / 8, image_size=32).train()
    g = torch.Generator().manual_seed(1)
    x = torch.randn(32, 3, 32, 32, generator=g) * torch.linspace(0.2, 3, 32).view(-1, 1, 1, 1)
    with torch.no_grad():
        for _ in range(3):
            net(x)
        net.eval()
        alone, *others = (net(x[:n])[:, :1] for n in (1, 2, 7, 32))
    for logits in others:
        torch.testing.assert_close(logits, alone, rtol=0, atol=1e-5)


def test_compiled_and_exported_networks():
    net = network("event", width_mult=0.125).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        want = net(x)
        exported = torch.export.export(net, (x,)).module()
        assert torch.allclose(exported(x), want, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo instantiates autograd functions
def test_a_compiled_block_trains_as_the_block_does():
    torch.manual_seed(0)
    block = SpikingBlock(nn.Conv2d(16, 16, 3, padding=1, bias=False), backend="eager")
    x, found = spikes(4, 16, 6, 6).unsqueeze(0), []
    for made in (copy.deepcopy(block), torch.compile(copy.deepcopy(block), backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        made(leaf, num_steps=2).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_evaluation_scans_no_input_of_a_narrow_layer(monkeypatch):
    monkeypatch.setattr(event, "scan", lambda *a: pytest.fail("scanned"))
    net = network("auto")
    net(torch.randn(4, 3, 16, 16)).sum().backward()
    with torch.no_grad():
        net.eval()(torch.randn(2, 3, 16, 16))
