"""MS-ResNet, SEW-ResNet, the spike-driven transformer and TCJA through create_model, with every norm."""

import math

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.models import create_model
from mpd_agl.models.onestep import OneStep
from mpd_agl.models.plan import InferencePlan, plan_unavailable
from mpd_agl.nn import TdBatchNorm, fold
from mpd_agl.rivals.attention import TCJA
from tests.nn.parts import widths
from tests.refused import refused


def small(name, **options):
    torch.manual_seed(0)
    defaults = {"width_mult": 1 / 16, "image_size": 8, "num_classes": 4, "num_steps": 2, "in_channels": 3}
    return create_model(name, **(defaults | options))


def trained(net, x):
    """Running statistics of the data, gammas and betas that are not where they start."""
    for norm in (m for m in net.modules() if isinstance(m, TdBatchNorm)):
        norm.momentum = 1.0
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "norm" in name:
                p.add_(0.3 * torch.rand_like(p))
        net(x)
    return net.eval()


@pytest.mark.parametrize("norm", ["bn", "tebn", "tab", "mpbn"])
@pytest.mark.parametrize("name", ["ms-resnet18", "sew-resnet18", "statten", "cnn8"])
def test_every_norm_trains_every_network_and_folds(name, norm):
    net, x = small(name, norm=norm), torch.randn(6, 3, 8, 8)
    torch.nn.functional.cross_entropy(net(x).mean(0), torch.arange(6) % 4).backward()
    assert [n for n, p in net.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()] == []
    trained(net, x)
    with torch.no_grad():
        want, out = net(x), fold(net)(x)
    assert float((want[:, 0] - want[:, 1]).abs().max()) > 0  # it tells inputs apart
    torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3)


def test_currents_add_up_along_a_membrane_shortcut():
    net = small("ms-resnet18", norm="bn")
    with torch.no_grad():
        net.stem.norm.weight.fill_(0.6)
        net.stage1.block1.conv2.norm.weight.fill_(0.8)
    root = math.sqrt(1 + 0.2**2)
    assert widths(net.stage1.block1.spike, 2).kappa_T.tolist() == pytest.approx([1.2, 1.2 * root], rel=1e-5)
    assert widths(net.stage1.block2.spike, 2).kappa_T.tolist() == pytest.approx([2.0, 2.0 * root], rel=1e-5)
    # A change of shape starts a new sum: the shortcut's norm, and the block's own, whose gamma starts at 0.
    assert widths(net.stage2.block2.spike, 2).kappa_T.tolist() == pytest.approx([2.0, 2.0 * root], rel=1e-5)


def test_ms_resnet_by_its_equations():
    net, x = small("ms-resnet18", num_steps=3), torch.randn(4, 3, 8, 8)
    trained(net, x).double()
    x = x.double()

    def current(part, s):
        return part.norm(torch.stack([part.synapse(a) for a in s]))

    def fire(neuron, i):
        kept, out = torch.zeros_like(i[0]), []
        for i_t in i:
            v = neuron.tau * kept + i_t
            out.append((v >= neuron.v_th).double())
            kept = v * (1 - out[-1])
        return torch.stack(out)

    with torch.no_grad():
        i = current(net.stem, x.expand(3, -1, -1, -1, -1))
        for stage in (net.stage1, net.stage2, net.stage3, net.stage4):
            for block in stage:
                h = fire(block.conv1.neuron, current(block.conv1, fire(block.spike.neuron, i)))
                i = current(block.conv2, h) + (i if block.shortcut is None else current(block.shortcut, i))
        want = net.readout.linear(fire(net.spike.neuron, i).mean((3, 4)))
        torch.testing.assert_close(net(x), want, rtol=1e-9, atol=1e-9)


def test_measured_widths_where_no_parameter_tells():
    net = small("statten")
    net(torch.randn(4, 3, 8, 8)).sum().backward()
    for name, predicted in {"conv1": True, "blocks.0.q": True, "spike4": False, "blocks.0.attended": False}.items():
        block = net.get_submodule(name)
        assert bool(block.affines()) == predicted, name
        assert (block.neuron.measured is None) == predicted, name
    assert net.get_submodule("blocks.0.attended").neuron.v_th == net.get_submodule("blocks.0.spike").neuron.v_th / 2
    _, std_T = net.spike4.neuron.measured.moments(num_steps=2)
    assert widths(net.spike4, 2).kappa_T.tolist() == pytest.approx((2 * std_T).tolist(), rel=1e-5)


@pytest.mark.parametrize(("name", "behind"), [("resnet18", 2), ("ms-resnet18", 2), ("cnn8", 2), ("vggsnn", 2)])
def test_tcja_stands_behind_the_last_two_stages(name, behind):
    net = small(name, attention="tcja", image_size=16)
    gates = {n: m for n, m in net.named_modules() if isinstance(m, TCJA)}
    assert len(gates) == behind
    if name == "ms-resnet18":
        assert list(gates) == ["stage3.block2.gate", "stage4.block2.gate"]
    if name == "cnn8":
        assert net.order[-6:] == ["conv5", "conv6", "gate8", "pool", "conv7", "gate10"]
    seen = []
    next(iter(gates.values())).register_forward_hook(lambda m, i, o: seen.append((i[0], o)))
    x = torch.randn(4, 3, 16, 16)
    net(x)
    spikes, gated = seen[0]
    assert set(spikes.unique().tolist()) <= (
        {0.0, 1.0} if "sew" not in name and name != "resnet18" else {0.0, 1.0, 2.0, 3.0}
    )
    assert (gated[spikes == 0] == 0).all()
    net.num_steps = 3
    with pytest.raises(InputError, match="TCJA was built for 2 timesteps"):
        net(x)


@pytest.mark.parametrize("in_channels", [3, 2])
def test_both_stems_and_groups(in_channels):
    net = small("statten", in_channels=in_channels, image_size=16, num_steps=4, attention_steps=4, depth=1)
    frames = torch.rand(4, 3, in_channels, 16, 16).round()
    net(frames).sum().backward()
    assert (net.blocks[0].pool is not None) == (in_channels == 2)
    large = small("statten", in_channels=2, image_size=80)
    seen = []
    large.conv4.register_forward_hook(lambda m, i, o: seen.append(o.shape[-1]))
    large(torch.rand(2, 2, 2, 80, 80))
    assert (small("statten").first_pool, large.first_pool, seen) == (3, 1, [10])


def test_one_step_at_a_time_along_membrane_shortcuts():
    net, x = small("ms-resnet18", num_steps=3), torch.randn(4, 3, 8, 8)
    folded = fold(trained(net, x))
    step, v, logits = OneStep(folded), None, []
    for _ in range(3):
        out, v = step(x, v)
        logits.append(out)
    with torch.no_grad():
        torch.testing.assert_close(torch.stack(logits), folded(x))


def test_recompute_gives_the_same_gradients():
    x = torch.randn(4, 3, 8, 8)
    for name, norm in (("ms-resnet18", "tab"), ("statten", "mpbn")):
        grads = []
        for recompute in (False, True):
            net = small(name, norm=norm, recompute=recompute)
            net(x).square().mean().backward()
            grads.append([p.grad for p in net.parameters()] + list(net.buffers()))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("options", [{"name": "cnn8", "norm": "mpbn"}, {"name": "statten", "norm": "tab", "depth": 1}])
def test_onnx_gives_the_same_logits(options, tmp_path):
    pytest.importorskip("onnxruntime")
    from mpd_agl.export.onnx import export_onnx

    net = small(**options)
    trained(net, torch.randn(8, 3, 8, 8))
    assert export_onnx(net, tmp_path / "net.onnx") < 1e-4


def test_nir_adds_currents_by_edges():
    nir = pytest.importorskip("nir")
    from mpd_agl.export.nir import nir_graph

    net = trained(small("ms-resnet18"), torch.randn(8, 3, 8, 8))
    graph = nir_graph(net)
    into = [a for a, b in graph.edges if b == "stage1_block2_spike_lif"]
    assert sorted(into) == ["stage1_block1_conv2", "stem"]
    assert isinstance(graph.nodes["stage1_block2_spike_lif"], nir.LIF)
    for options, words in (
        ({"norm": "tebn"}, "NIR's nodes know no timesteps"),
        ({"attention": "tcja"}, "NIR has no node for TCJA"),
    ):
        with pytest.raises(InputError, match=words):
            nir_graph(small("cnn8", image_size=16, **options).eval())
    with pytest.raises(InputError, match="does not describe its layers"):
        nir_graph(small("statten").eval())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"norm": "tebn"}, "has StepAffine"),
        ({"norm": "mpbn"}, ""),
        ({"method": "mp-init-trsg"}, "got MPInitTrSG, which has its own"),
        ({"method": "mpr"}, "got MPRNeuron, which has its own"),
        ({"attention": "tcja", "image_size": 16}, "does not know TCJA"),
        ({"name": "ms-resnet34"}, "membrane shortcuts"),
        ({"name": "statten"}, "does not describe its layers"),
        ({"method": "asgl"}, ""),
        ({"method": "deeptage"}, ""),
    ],
)
def test_a_plan_gives_the_networks_logits_or_says_why_not(options, why):
    net = small(**({"name": "cnn8", "width_mult": 0.25} | options))
    size = net.options.image_size
    x = torch.randn(6, 3, size, size)
    trained(net, x)
    found = plan_unavailable(net)
    assert why in found
    assert bool(found) == bool(why)
    if not why:
        with torch.no_grad():
            differ = (InferencePlan(net)(x) - net(x)).abs().amax((0, 2)) > 1e-5
        assert int(differ.sum()) <= 1


def test_refused_combinations():
    for text, options in {
        "unknown norm": {"name": "cnn8", "norm": "layer"},
        "unknown attention 'se'": {"name": "cnn8", "attention": "se"},
        "an ANN has none": {"name": "cnn8", "attention": "tcja", "ann": True},
        "statten has its own attention": {"name": "statten", "attention": "tcja"},
        "needs a multiple of them, got num_steps=2": {"name": "statten", "attention_steps": 3},
        "around the threshold 0.5, got v_th=0.25": {"name": "statten", "method": "mpr"},
        "knows the neurons LIF and PLIF": {"name": "ms-resnet18", "norm": "mpbn", "method": "ds-atgo"},
    }.items():
        with pytest.raises(InputError, match=text):
            small(**options)
    for name, option, value in (
        ("sew-resnet34", "block", "zheng"),
        ("ms-resnet34", "depth", 3),
        ("statten", "block", "zheng"),
        ("cnn8", "attention_steps", 2),
    ):
        with refused("option-of-others", name, f"{option}={value!r}"):
            small(name, **{option: value})
    for options in ({"norm": "tebn"}, {"attention": "tcja", "image_size": 16}):
        with pytest.raises(InputError, match="needs several at once"):
            OneStep(fold(small("cnn8", **options).eval()))
    net = small("cnn8", norm="tab")
    net.num_steps = 4
    with pytest.raises(InputError, match="TAB was built for 2 timesteps .* got 4"):
        net(torch.randn(4, 3, 8, 8))
