"""Layers that may skip zeros: the same numbers, the same parameters, a choice that is kept."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.nn import (
    Choice,
    EventConv2d,
    EventLinear,
    SpikingBlock,
    event_layers,
    fold,
    over_time,
)
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import active as kernel
from mpd_agl.ops.conv import costs

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


def network(conv, model="cnn8", seed=0, **options):
    torch.manual_seed(seed)
    return create_model(model, **{"width_mult": 0.25, "image_size": 16, **options}, conv_impl=conv)


def spikes(*shape, rate=0.2):
    x = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) < rate).float()
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("cnn8", {}),
        ("resnet19", {}),
        ("resnet19", {"block": "zheng"}),
        ("vgg11", {"image_size": 32, "width_mult": 0.05}),
    ],
)
def test_parameters_are_torchs_own_and_the_first_layer_stays_dense(model, options):
    dense, event = network("dense", model, **options), network("event", model, **options)
    assert {k: v.shape for k, v in dense.state_dict().items()} == {k: v.shape for k, v in event.state_dict().items()}
    assert all(torch.equal(a, b) for a, b in zip(dense.state_dict().values(), event.state_dict().values(), strict=True))
    assert not event_layers(dense)
    convolutions = [m for m in event.modules() if isinstance(m, nn.Conv2d)]
    assert type(convolutions[0]) is nn.Conv2d
    assert all(isinstance(m, EventConv2d) for m in convolutions[1:] if m.in_channels >= 8 or m.kernel_size == (3, 3))


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_gives_dense_numbers_and_gradients(training):
    for layer, x in (
        (EventConv2d(20, 12, 3, 2, padding=1, conv_impl="event"), spikes(3, 20, 9, 9)),
        (EventLinear(20, 12, conv_impl="event"), spikes(6, 20)),
    ):
        layer.train(training)
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, want = layer(leaf), layer.dense(other)
        torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
        g = torch.randn_like(want)
        got = torch.autograd.grad(y, [leaf, *layer.parameters()], g)
        for a, b in zip(got, torch.autograd.grad(want, [other, *layer.parameters()], g), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", ["sew", "zheng"])
def test_every_layer_of_a_network_computes_what_the_dense_one_does(block):
    """On the inputs that really flow: a spike that flips at the threshold would make whole networks differ."""
    net = network("event", "resnet19", width_mult=0.125, block=block).train()
    seen = []
    for name, layer in event_layers(net).items():
        layer.register_forward_hook(lambda m, i, o, name=name: seen.append((name, m, i[0].detach(), o.detach())))
    net(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)))
    assert sorted(name for name, *_ in seen) == sorted(event_layers(net))
    for name, layer, x, y in seen:
        exact = F.conv2d(x.double(), layer.weight.detach().double(), None, layer.stride, layer.padding)
        assert float((y - exact).abs().max() / exact.abs().max()) < 1e-6, name


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_spikes_changed_in_place_are_read_as_they_are(mode):
    block = SpikingBlock(nn.Conv2d(3, 8, 1)).eval()
    layer = EventConv2d(8, 4, 3, padding=1, bias=False, conv_impl="event")
    x = torch.randn(1, 2, 3, 6, 6)
    with mode():
        s = block(x, num_steps=1)
        assert float(over_time(layer, s).abs().sum()) > 0
        s.zero_()
        assert float(over_time(layer, s).abs().sum()) == 0


def test_an_input_buffer_that_is_filled_anew_is_read_anew():
    layer = EventConv2d(8, 4, 3, padding=1, bias=False, conv_impl="event").requires_grad_(False)
    array = spikes(3, 8, 5, 5).numpy()
    memory = torch.from_numpy(array)
    for x in (memory.expand(2, 3, 8, 5, 5), memory.unsqueeze(0)):  # flattened to a copy, and to a view
        array[:] = spikes(3, 8, 5, 5).numpy()
        assert float(over_time(layer, x).abs().sum()) > 0
        array[:] = 0
        assert float(over_time(layer, x).abs().sum()) == 0


def test_a_folded_network_runs_in_inference_mode():
    net, x = network("event", width_mult=0.125).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        want = fold(net)(x)
    with torch.inference_mode():
        assert torch.equal(fold(net)(x), want)
        assert torch.equal(net(x), net(x))


def test_a_folded_network_gives_the_dense_ones_logits():
    dense, event = network("dense"), network("event").eval()
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for _ in range(30):  # running statistics with which all layers fire
        dense.train()(x)
    event.load_state_dict(dense.eval().state_dict())
    exact = fold(dense.double())(x.double())
    assert exact.std(1).max() > 0.01
    assert torch.allclose(fold(event)(x).double(), exact, atol=1e-5)
    folded = fold(event)
    with torch.no_grad():
        before = folded(x)
        assert torch.equal(folded(x), before)  # with kept weights
        layer = event_layers(folded)["conv2"]
        layer.weight.mul_(0)
        assert not torch.equal(folded(x), before)  # a changed weight is packed anew
        assert copy.deepcopy(layer)._packed is None


def test_auto_takes_the_fastest_of_each_pass_and_keeps_its_choice(monkeypatch):
    def times(*forward_weight_input):
        names = zip(("forward", "weight_grad", "input_grad"), forward_weight_input, strict=False)
        return {name: dict(zip(("dense", "event"), ms, strict=False)) for name, ms in names}

    evaluation = times((9.0, 1.0))
    training = times((9.0, 8.0), (3.0, 2.0), (7.0,))  # two passes by events save 2 ms, and their lists cost 4
    later = times((9.0, 1.0), (3.0, 4.0), (7.0,))
    predicted = iter((evaluation, training, later))
    monkeypatch.setattr(costs, "predict", lambda layer, rate, known, packs, planes: next(predicted))
    monkeypatch.setattr(costs, "predict_lists", lambda layer: 4.0)
    layer = EventConv2d(16, 8, 3, padding=1, bias=False, conv_impl="auto")
    x = spikes(2, 16, 6, 6)
    with torch.no_grad():
        layer(x)
    assert (layer.choice.taken, layer.choice.lists_ms) == ({"forward": "event"}, 4.0)
    assert (layer.choice.speed_up, layer.choice.training) == (9 / (1 + 4), False)
    assert layer.choice.rate == pytest.approx(float(x.mean()))
    layer(x)  # the first training call looks at the gradients too
    assert layer.choice.taken == {"forward": "dense", "weight_grad": "dense", "input_grad": "dense"}
    assert (layer.choice.speed_up, layer.choice.training) == (1.0, True)
    layer.every = 3
    layer(x)
    layer(x)
    with torch.no_grad():
        layer(x)  # evaluation follows training's choice and does not count
    assert layer.choice.taken["forward"] == "dense"
    layer(x)
    assert layer.choice.taken == {"forward": "event", "weight_grad": "dense", "input_grad": "dense"}
    assert layer.choice.speed_up == (9 + 3 + 7) / (1 + 4 + 3 + 7)
    assert next(predicted, None) is None


def test_another_way_must_be_clearly_quicker(monkeypatch):
    layer, x = EventConv2d(16, 8, 3, padding=1, conv_impl="auto"), spikes(2, 16, 6, 6)
    monkeypatch.setattr(costs, "predict_lists", lambda layer: 0.0)
    for event, way in ((0.96, "dense"), (0.94, "event")):
        monkeypatch.setattr(costs, "predict", lambda *a, event=event, **k: {"forward": {"dense": 1.0, "event": event}})
        assert layer.predict(x, training=False).taken == {"forward": way}


def test_a_plain_synapse_of_a_block_chooses_too():
    conv = nn.Conv2d(16, 8, 3, padding=1, bias=False)
    weight = conv.weight
    block = SpikingBlock(conv)
    assert block.synapse is conv
    assert isinstance(conv, EventConv2d)
    assert conv.weight is weight
    assert (conv.conv_impl, conv.stride_1d, conv.padding_1d) == ("auto", 1, 1)
    assert type(SpikingBlock(nn.Conv2d(4, 8, 3), conv_impl="dense").synapse) is nn.Conv2d
    for other in (
        {"groups": 2},
        {"dilation": 2},
        {"padding": "same"},
        {"padding_mode": "circular"},
        {"stride": (1, 2)},
    ):
        assert type(SpikingBlock(nn.Conv2d(4, 8, 3, **other)).synapse) is nn.Conv2d
    assert type(SpikingBlock(nn.Conv2d(4, 8, 7)).synapse) is nn.Conv2d
    assert isinstance(SpikingBlock(nn.Linear(4, 8)).synapse, EventLinear)
    assert copy.deepcopy(block)(spikes(3, 16, 6, 6).unsqueeze(0), num_steps=2).shape == (2, 3, 8, 6, 6)


@pytest.mark.parametrize(
    "taken", [("winograd", "event", "winograd"), ("dense", "winograd", "dense"), ("event", "dense", "winograd")]
)
def test_a_choice_of_ways_computes_the_same_layer(taken):
    ms = {"forward": {"dense": 1.0}, "weight_grad": {"dense": 1.0}, "input_grad": {"dense": 1.0}}
    taken = dict(zip(ms, taken, strict=True))
    layer = EventConv2d(16, 32, 3, padding=1, conv_impl="auto")
    layer.choice = Choice(0.5, {n: {taken[n]: 1.0, **found} for n, found in ms.items()}, 0.0, taken)
    layer.every = 0
    x, y = spikes(2, 16, 6, 6).requires_grad_(), spikes(2, 16, 6, 6).double().requires_grad_()
    exact = copy.deepcopy(layer).double()
    out, want = layer(x), exact(y)
    g = torch.randn(want.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(out, (x, layer.weight, layer.bias), g)
    wanted = torch.autograd.grad(want, (y, exact.weight, exact.bias), g.double())
    for a, b in zip((out, *found), (want, *wanted), strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(layer(x), out)


@pytest.mark.parametrize("way", ["event", "winograd"])
def test_a_folded_layer_keeps_its_packed_weight_until_it_changes(way):
    layer = EventConv2d(16, 16, 3, padding=1, conv_impl="auto").eval().requires_grad_(False)
    layer.choice = Choice(0.5, {"forward": {way: 1.0}}, 0.0, {"forward": way})
    x = spikes(2, 16, 6, 6)
    with torch.no_grad():
        first = layer(x)
        kept = layer._packed[2]
        assert kept is not None
        assert torch.equal(layer(x), first)
        assert layer._packed[2] is kept
        layer.weight.mul_(2)
        assert torch.allclose(layer(x) - layer.bias[:, None, None], 2 * (first - layer.bias[:, None, None]), atol=1e-5)
        assert layer._packed[2] is not kept


def test_a_layer_whose_weight_is_frozen_keeps_nothing_for_it(monkeypatch):
    layer = EventConv2d(16, 16, 3, padding=1, conv_impl="auto")
    taken = {"forward": "winograd", "weight_grad": "event", "input_grad": "winograd"}
    layer.choice, layer.every = Choice(0.5, {n: {w: 1.0} for n, w in taken.items()}, 0.0, taken), 0
    layer.weight.requires_grad_(False)
    monkeypatch.setattr(kernel, "scan", lambda x: pytest.fail("scanned"))
    x = spikes(2, 16, 6, 6).requires_grad_()
    layer(x).sum().backward()
    assert x.grad is not None


def test_a_choice_that_was_never_measured_is_refused():
    with pytest.raises(ValueError, match="a choice of"):
        Choice(0.5, {"forward": {"dense": 1.0}}, 0.0, {"forward": "event"})


def test_other_dtypes_and_autocast_take_the_dense_layer():
    layer = EventConv2d(4, 3, 3, padding=1, conv_impl="event")
    x = spikes(2, 4, 5, 5)
    assert torch.equal(layer.double()(x.double()), layer.dense(x.double()))
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_compiled_and_exported_networks():
    net = network("event", width_mult=0.125).eval()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    x = torch.randn(2, 3, 16, 16)
    want = net(x)
    exported = torch.export.export(net, (x,)).module()
    assert torch.allclose(exported(x), want, atol=1e-5)
    layer = event_layers(net)["conv2"]
    s = spikes(2, layer.in_channels, 16, 16)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    # torch 2.10 takes a compiled layer for an exported one, and that is dense.
    assert torch.allclose(compiled(s), layer(s), rtol=0, atol=1e-6)


def test_an_unknown_way_is_named():
    with pytest.raises(InputError, match="unknown conv_impl 'events'.*event"):
        network("events")
