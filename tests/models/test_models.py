"""The networks: counts by hand, inputs, compile and export, folding on real images, bad input."""

import copy
from dataclasses import replace

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.models import create_model, load_weights, pretrained_card, save_weights
from mpd_agl.nn import SpikingBlock, fold, set_chain
from tests.nn.parts import widths
from tests.refused import refused


def small(name="cnn8", **options):
    torch.manual_seed(0)
    size = {"vgg11": 32, "vgg13": 32, "vgg16": 32}.get(name, 16)
    defaults = {"width_mult": 1 / 32, "image_size": size, "num_classes": 5, "num_steps": 2, "in_channels": 3}
    return create_model(name, **(defaults | options))


NAMES = ("resnet19", "resnet18", "sew-resnet18", "sew-resnet34", "vggsnn", "vgg11", "vgg13", "vgg16", "plain", "cnn8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ann", [False, True])
def test_every_model_trains_on_images_and_frames(name, ann):
    net = small(name, ann=ann)
    size = net.options.image_size
    logits = net(torch.randn(4, 3, size, size))
    assert logits.shape == (1 if ann else 2, 4, 5)
    frames = net(torch.rand(2, 4, 3, size, size))
    assert frames.shape == (2, 4, 5)
    frames.mean(0).logsumexp(-1).sum().backward()
    missing = [n for n, p in net.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert missing == []


@pytest.mark.parametrize("method", ["stbp-tdbn", "lsg", "agr", "mpd-agl-exact", "mpd-quantile", "mpd-gain"])
def test_every_method_trains(method):
    net = small(method=method)
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    torch.nn.functional.cross_entropy(net(x).mean(0), y).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["resnet19", "resnet18"])
def test_the_block_of_zheng_adds_currents_before_one_neuron(name):
    net = small(name, block="zheng", image_size=16)
    seen = []
    block = net.get_submodule("stage1.block1")
    block.register_forward_hook(lambda m, i, o: seen.append(o))
    net(torch.randn(4, 3, 16, 16)).sum().backward()
    assert set(seen[0].unique().tolist()) <= {0.0, 1.0}  # spikes, where SEW-ADD gives integers
    kappa_T = widths(block.conv2, 2).kappa_T
    assert kappa_T[0].item() == pytest.approx(1.0, rel=1e-6)  # two currents of variance v_th^2 / 2 make one of v_th^2


def test_sew_add_gives_small_integers():
    net = small("resnet19")
    seen = []
    net.get_submodule("stage1.block3").register_forward_hook(lambda m, i, o: seen.append(o))
    net(torch.randn(4, 3, 16, 16))
    values = set(seen[0].unique().tolist())
    assert values <= {0.0, 1.0, 2.0, 3.0, 4.0}
    assert 2.0 in values


def test_stateless_and_any_number_of_steps():
    net = small().eval()
    x = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        two = net(x)
        net.num_steps = 6
        six = net(x)
    assert torch.equal(six[:2], two)


def test_a_static_image_meets_the_stem_once():
    net = small(num_steps=4)
    batches = []
    net.conv1.synapse.register_forward_hook(lambda m, i, o: batches.append(o.shape[0]))
    net.conv2.synapse.register_forward_hook(lambda m, i, o: batches.append(o.shape[0]))
    net(torch.randn(3, 3, 16, 16))
    assert batches == [3, 12]


def test_channels_last_throughout():
    net = small("resnet19", width_mult=1 / 16)
    layouts = []
    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d) and module.in_channels > 1:
            module.register_forward_hook(
                lambda m, i, o: layouts.append(
                    i[0].is_contiguous(memory_format=torch.channels_last)
                    and o.is_contiguous(memory_format=torch.channels_last)
                )
            )
    net(torch.randn(4, 3, 16, 16))
    assert all(layouts)
    assert len(layouts) == 19


def test_init_is_a_choice():
    kaiming, default = small(width_mult=1.0, init="kaiming"), small(width_mult=1.0, init="pytorch")
    fan_out, fan_in = 64 * 9, 64 * 9
    assert kaiming.conv2.synapse.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    assert default.conv2.synapse.weight.std().item() == pytest.approx((1 / (3 * fan_in)) ** 0.5, rel=0.05)


def trained_a_little(name="resnet19", steps=6, **options):
    net = small(name, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    size = net.options.image_size
    x, y = torch.randn(16, 3, size, size), torch.arange(16) % 5
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x).mean(0), y).backward()
        optimizer.step()
    return net.eval(), x


@pytest.mark.parametrize(
    ("name", "options"), [("resnet19", {}), ("cnn8", {}), ("resnet19", {"block": "zheng"}), ("vgg11", {})]
)
def test_folded_network_fires_the_same_spikes(name, options):
    net, x = trained_a_little(name, **options)
    folded = fold(net)
    spikes, folded_spikes = [], []
    for which, store in ((net, spikes), (folded, folded_spikes)):
        for m in which.modules():
            if isinstance(m, SpikingBlock):
                m.register_forward_hook(lambda m, i, o, store=store: store.append(o))
        with torch.no_grad():
            which(x)
    total = sum(s.numel() for s in spikes)
    differ = sum(int((a != b).sum()) for a, b in zip(spikes, folded_spikes, strict=True))
    assert differ <= total / 100_000 + 2
    assert sum(float(s.sum()) for s in spikes) > 0
    assert not any(m.norm for m in folded.modules() if isinstance(m, SpikingBlock))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its tracer
def test_compile_and_export_of_the_evaluation_graph():
    net, x = trained_a_little(steps=2)
    with torch.no_grad():
        want = net(x)
        program = torch.export.export(net, (x,))
        got = program.module()(x)
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled, want, rtol=1e-5, atol=1e-5)
    targets = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert not any("mpd_agl" in t for t in targets)  # plain operators alone: every runtime can read it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_of_a_training_step():
    net, plain = small(), small()
    plain.load_state_dict(net.state_dict())
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    compiled = torch.compile(net, backend="aot_eager")
    losses = [torch.nn.functional.cross_entropy(n(x).mean(0), y) for n in (compiled, plain)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[0], losses[1])
    for (name, a), (_, b) in zip(net.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own graph breaks
def test_compile_of_a_chain_that_bounds_its_gradients(monkeypatch):
    torch.manual_seed(0)
    blocks = (SpikingBlock(torch.nn.Linear(32, 32, bias=False), method="mpd-gain") for _ in range(6))
    plain = torch.nn.Sequential(*blocks).train()
    compiled = torch.compile(copy.deepcopy(plain), backend="aot_eager")
    x_TNF, g_TNF = (torch.randn(2, 16, 32) for _ in range(2))

    def gradients(net, layers):
        set_chain(net, layers)
        net.zero_grad()
        (net(x_TNF.clone().requires_grad_()) * g_TNF).sum().backward()
        return {name.removeprefix("_orig_mod."): p.grad.clone() for name, p in net.named_parameters()}

    for layers in (6, 3000):  # the second is noticed by what was compiled for the first; there the bound acts
        want, got = gradients(plain, layers), gradients(compiled, layers)
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-6, msg=name)
    monkeypatch.setattr("mpd_agl.nn.bounded_gradient.bound_factor", lambda *_: torch.ones((), dtype=torch.float64))
    free = gradients(plain, 3000)
    first = "0.synapse.weight"
    assert want[first].norm() < 0.9 * free[first].norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast_keeps_spikes_binary_and_gradients_finite(dtype):
    net = small()
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    with torch.autocast("cpu", dtype=dtype):
        logits = net(x)
    torch.nn.functional.cross_entropy(logits.float().mean(0), y).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    assert net.conv1.norm.running_mean.dtype == torch.float32


def test_weights_round_trip_and_refuse_another_network(tmp_path):
    net, x = trained_a_little("cnn8", steps=2)
    file = tmp_path / "net.safetensors"
    save_weights(net, file)
    other = small().eval()
    load_weights(other, file)
    assert torch.equal(other(x), net(x))
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]
    first = file.read_bytes()
    for _ in range(8):
        save_weights(net, file)
        assert file.read_bytes() == first  # the same weights, the same bytes
    before = {k: v.clone() for k, v in small("resnet19").state_dict().items()}
    wrong = small("resnet19")
    with pytest.raises(InputError, match=r"written by cnn8\) does not fit this resnet19: \d+ tensors missing \(first "):
        load_weights(wrong, file)
    assert all(torch.equal(v, before[k]) for k, v in wrong.state_dict().items())
    with pytest.raises(
        InputError, match=r"of another shape \(first conv1.synapse.weight: \(2, 3, 3, 3\), not \(4, 3, 3, 3\)\)"
    ):
        load_weights(small(width_mult=1 / 16), file)
    with pytest.raises(InputError, match="the file is not there"):
        load_weights(net, tmp_path / "nothing")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="is not a readable safetensors file"):
        load_weights(net, file)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: create_model("resnet-19"), "unknown model 'resnet-19'. Did you mean 'resnet19'"),
        (lambda: create_model("resnet19", methode="lsg"), "unknown model option 'methode'. Did you mean 'method'"),
        (lambda: small(method="mpdagl"), "unknown method 'mpdagl'. Did you mean 'mpd-agl"),
        (lambda: small(surrogate="triangle"), "unknown surrogate 'triangle'. Did you mean 'triangular'"),
        (
            lambda: small(num_steps=0),
            "num_steps must be greater than or equal to 1, got 0",
        ),
        (lambda: small(width_mult=0), "width_mult must be greater than 0, got 0"),
        (lambda: small(v_th=0.0), "v_th must be greater than 0, got 0.0"),
        (lambda: small(tau=1.0), "tau must be less than 1, got 1.0"),
        (lambda: small(init="xavier"), "init must be one of kaiming, pytorch, got 'xavier'"),
        (lambda: small("resnet18", block="sewe"), "block must be one of sew, zheng, got 'sewe'. Did you mean 'sew'"),
        (lambda: small("vgg13", image_size=16), "needs image_size of at least 32, got 16"),
        (
            lambda: small()(torch.randn(3, 16, 16)),
            r"takes images \(N, 3, 16, 16\) or frames \(2, N, 3, 16, 16\), got \(3, 16, 16\)",
        ),
        (lambda: small()(torch.randn(4, 1, 16, 16)), r"got \(4, 1, 16, 16\). Pass in_channels"),
        (lambda: small()(torch.randn(4, 3, 32, 32)), r"got \(4, 3, 32, 32\)"),
        (lambda: small()(torch.randn(4, 2, 3, 16, 16)), r"runs 2 timesteps, got frames of 4: .* time-major"),
        (
            lambda: small()(torch.randint(0, 255, (4, 3, 16, 16))),
            r"takes floating-point input, got torch.int64.*x.float\(\) / 255",
        ),
        (lambda: small()(torch.randn(1, 3, 16, 16)), "training needs a batch of at least 2 .*got 1"),
        (lambda: small()(torch.randn(0, 3, 16, 16)), "at least one sample, got an empty batch"),
        (lambda: small()(torch.full((4, 3, 16, 16), float("nan"))), "the input holds 3072 NaN or Inf values"),
        (
            lambda: small()(torch.cat([torch.randn(3, 3, 16, 16), torch.full((1, 3, 16, 16), float("inf"))])),
            "holds 768 NaN or Inf",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_card_of_0_2_is_read_and_an_option_that_is_gone_is_refused():
    card = pretrained_card("cifar10")
    old = replace(card, options={**card.options, "leak": "two", "gamma_start": 1.0})
    assert not create_model("resnet19", pretrained=old).training
    with pytest.raises(InputError, match="trained with leak='full', which no network has any more"):
        create_model("resnet19", pretrained=replace(card, options={**card.options, "leak": "full"}))


@pytest.mark.parametrize("method", ["mpd-agl", "mpd-gain", "trainable-decay"])
def test_networks_are_built_without_memory(method):
    with torch.device("meta"):
        net = small(method=method)
    assert {p.device.type for p in net.parameters()} == {"meta"}
    assert net.state_dict().keys() == small(method=method).state_dict().keys()


def test_bad_input_changes_nothing():
    net = small()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(InputError):
        net(torch.full((4, 3, 16, 16), float("nan")))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_plain_is_as_deep_as_asked_and_others_refuse_a_depth() -> None:
    net = create_model("plain", depth=9, image_size=14, in_channels=1)
    synapses = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(synapses) == 9
    assert net(torch.randn(2, 1, 14, 14)).shape == (2, 2, 10)
    with refused("option-of-others", "plain", "depth=9", "resnet19"):
        create_model("resnet19", depth=9, width_mult=0.0625)
    with refused("bad-option", "depth", 1):
        create_model("plain", depth=1)
