"""Inference plans: the network's own logits, in every way to compute, on every SIMD level."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.export.plainstep import plain_network
from mpd_agl.models import create_model
from mpd_agl.models.plan import InferencePlan, plan_unavailable
from mpd_agl.nn import LIF, SpikingBlock, TdBatchNorm, fold
from mpd_agl.ops import backends_here, library
from tests.models.test_models import NAMES

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


@pytest.fixture(params=library.LEVELS)
def level(request):
    before = library.level()
    try:
        library.use_level(request.param)
    except InputError as error:
        pytest.skip(str(error))
    yield request.param
    library.use_level(before)


def network(name, batch=3, **options):
    """A network whose layers all fire, and an input of it."""
    torch.manual_seed(0)
    net = create_model(name, **options).train()
    o = net.options
    frames = (net.num_steps,) if o.in_channels == 2 else ()
    x = torch.randn(*frames, batch, o.in_channels, o.image_size, o.image_size)
    for norm in (m for m in net.modules() if isinstance(m, TdBatchNorm)):
        nn.init.normal_(norm.weight, 1.0, 0.2)
        nn.init.normal_(norm.bias, 0.0, 0.2)
        norm.momentum = 1.0
    with torch.no_grad():
        net(x)
    return net.eval(), x


@torch.no_grad()
def differing(got_TNK, want_TNK):
    """Samples whose logits differ by more than the order of additions in the readout."""
    assert want_TNK.std() > 0.01
    return int(((got_TNK - want_TNK).abs().amax((0, 2)) > 1e-5).sum())


CASES = [
    ("resnet19", {"width_mult": 0.125, "image_size": 16}),
    ("resnet19", {"width_mult": 0.5, "image_size": 8, "num_steps": 3}),
    ("resnet18", {"width_mult": 0.1, "image_size": 11}),
    ("resnet19", {"width_mult": 0.125, "image_size": 12, "block": "zheng"}),
    ("resnet19", {"width_mult": 0.5, "image_size": 8, "block": "zheng"}),
    ("vggsnn", {"width_mult": 0.25, "image_size": 18, "num_steps": 3}),
    ("vgg11", {"width_mult": 0.05, "image_size": 32}),
    ("vgg13", {"width_mult": 0.03, "num_classes": 37}),
    ("cnn8", {"width_mult": 0.3, "image_size": 17, "num_steps": 1, "in_channels": 1}),
    ("sew-resnet34", {"width_mult": 0.05, "image_size": 8}),
    ("plain", {"depth": 6, "image_size": 12, "norm": "bn"}),
    ("resnet19", {"width_mult": 0.125, "image_size": 8, "block": "zheng", "norm": "bn"}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("int8", [False, True])
@torch.no_grad()
def test_a_plan_gives_the_networks_logits(name, options, int8):
    net, x = network(name, **options)
    want = plain_network(net, int8=True)(x) if int8 else net(x)
    got = InferencePlan(net, int8=int8)(x)
    assert got.shape == want.shape
    # A potential within rounding of its threshold may flip a sample.
    assert differing(got, want) <= 1


@pytest.mark.parametrize("int8", [False, True])
@torch.no_grad()
def test_the_dense_way_and_lists_give_the_same_bits_on_every_level(level, int8):
    for options in ({}, {"block": "zheng"}):
        net, x = network("resnet19", width_mult=0.5, image_size=8, **options)
        dense, lists = (InferencePlan(net, int8=int8, most_active=share) for share in (0.0, 1.0))
        found = dense(x)
        assert torch.equal(found, lists(x))
        assert torch.equal(found, InferencePlan(net, int8=int8)(x))
        shares = [share for share in lists.native(1).active() if share is not None]
        assert len(shares) > 8
        assert all(0 < share < 1 for share in shares)
        assert differing(found, plain_network(net, int8=True)(x) if int8 else net(x)) <= 1


@torch.no_grad()
def test_sums_of_whole_weights_are_exact_where_int16_would_overflow(level):
    """All inputs fire and all weights are 127: sums of 64 * 9 * 127 * 2, and of their negatives."""
    net, x = network("resnet19", width_mult=0.5, image_size=8)
    for block in (m for m in net.modules() if isinstance(m, SpikingBlock)):
        block.norm.running_var.fill_(1.0)
        block.norm.weight.data.fill_(2.0)
        block.norm.bias.data.fill_(4.0)  # nearly every neuron fires
        signs = torch.ones(block.synapse.weight.shape[0])
        signs[1::2] = -1
        block.synapse.weight.data.copy_(signs.view(-1, *[1] * (block.synapse.weight.dim() - 1)) * 0.01)
    want = plain_network(net, int8=True)(x)
    for share in (0.0, 1.0):
        plan = InferencePlan(net, int8=True, most_active=share)
        assert torch.equal(plan(x).round(decimals=4), want.round(decimals=4))
    assert max(share for share in plan.native(1).active() if share is not None) > 0.9


@torch.no_grad()
def test_neurons_of_every_form():
    net, x = network("cnn8", width_mult=0.25, image_size=12, num_steps=4)
    forms = (
        {"reset": "soft"},
        {"decay_input": True},
        {"tau": [0.1 + 0.02 * c for c in range(16)], "v_th": [0.4 + 0.02 * c for c in range(16)]},
    )
    for block, form in zip((net.conv1, net.conv2, net.conv2), forms, strict=True):
        other = copy.deepcopy(net)
        name = "conv1" if block is net.conv1 else "conv2"
        other.get_submodule(name).neuron = LIF(**form).eval()
        assert differing(InferencePlan(other)(x), other(x)) == 0
        assert differing(other(x), net(x)) > 0


@torch.no_grad()
def test_any_batch_any_steps_any_threads(monkeypatch):
    net, x = network("resnet19", batch=7, width_mult=0.25, image_size=8)
    plan = InferencePlan(net)
    whole = plan(x)
    for n in (1, 7, 3):
        assert torch.equal(plan(x[:n]), whole[:, :n])
    assert torch.equal(plan(x.to(memory_format=torch.channels_last)), whole)
    monkeypatch.setattr("mpd_agl.ops.plan.native_plan.MOST_BYTES", 300_000)  # in parts
    assert plan.native(1).part_of(7) < 7
    assert torch.equal(plan(x), whole)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(plan(x), whole)
    finally:
        torch.set_num_threads(before)
    plan.num_steps = net.num_steps = 5
    assert differing(plan(x), net(x)) <= 1
    frames = torch.randn(5, 4, 3, 8, 8)
    assert differing(plan(frames), net(frames)) <= 1
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, whole_5) for found in pool.map(plan, [x] * 8) for whole_5 in [plan(x)])
    assert torch.equal(copy.deepcopy(plan)(x), plan(x))


@torch.no_grad()
def test_a_plan_is_a_copy_and_takes_a_folded_network():
    net, x = network("cnn8", width_mult=0.125, image_size=8)
    plan, folded = InferencePlan(net), InferencePlan(fold(net))
    want = plan.run(x)
    assert torch.equal(folded(x), want)
    net.conv1.synapse.weight.zero_()
    assert torch.equal(plan(x), want)
    assert not list(plan.parameters())


def test_what_a_plan_refuses():
    net, x = network("cnn8", width_mult=0.125, image_size=8)
    with pytest.raises(InputError, match="takes images"):
        InferencePlan(net)(x[:, :1])
    with pytest.raises(InputError, match="NaN or Inf"):
        InferencePlan(net)(x * float("nan"))
    with pytest.raises(InputError, match="evaluation mode"):
        InferencePlan(copy.deepcopy(net).train())
    with pytest.raises(InputError, match="networks of mpd_agl.models, got an ANN"):
        InferencePlan(create_model("cnn8", ann=True).eval())
    with pytest.raises(InputError, match="networks of mpd_agl.models, got Linear"):
        InferencePlan(nn.Linear(2, 2))
    net.conv2.synapse.weight.data[0] = float("nan")
    with pytest.raises(InputError, match="weights hold NaN"):
        InferencePlan(net)
    net.conv2.norm = nn.GroupNorm(1, 8).eval()
    assert "conv2 has GroupNorm" in plan_unavailable(net)
    net.conv2.norm = None
    net.conv2.neuron = nn.ReLU().eval()
    assert "neurons of mpd_agl.nn, got ReLU" in plan_unavailable(net)


@pytest.mark.parametrize("name", NAMES)
def test_each_network_has_a_plan(name):
    assert plan_unavailable(create_model(name, width_mult=0.05).eval()) == ""
