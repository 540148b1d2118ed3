"""Exported networks give our logits: ONNX through ONNX Runtime, NIR through a small interpreter of its equations."""

from graphlib import TopologicalSorter

import pytest
import torch
from torch import nn

from mpd_agl.cli import main
from mpd_agl.errors import InputError
from mpd_agl.export.plainstep import PlainNeuron, WholeSynapse, plain_network, whole
from mpd_agl.models import create_model
from mpd_agl.nn import LIF, Current, Readout, SpikingBlock, TdBatchNorm, fold, over_time


def network(name, **options):
    torch.manual_seed(0)
    net = create_model(name, **{"width_mult": 0.0625, "image_size": 16, "backend": "eager", **options}).train()
    shape = (8, net.options.in_channels, net.options.image_size, net.options.image_size)
    x = torch.randn((net.num_steps, *shape) if name == "vggsnn" else shape)
    for norm in net.modules():
        if isinstance(norm, TdBatchNorm):
            norm.momentum = 1.0
    with torch.no_grad():
        net(x)
    return net.eval(), x


CASES = [("resnet19", {}), ("resnet19", {"block": "zheng", "num_steps": 3}), ("vggsnn", {"num_steps": 3}), ("cnn8", {})]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_plain_operators_give_the_networks_logits(name, options):
    net, x = network(name, **options)
    net, x = net.double(), x.double()
    with torch.no_grad():
        expected = net(x)
        assert expected.std() > 0.01
        torch.testing.assert_close(plain_network(net)(x), expected, rtol=1e-6, atol=1e-6)  # tau goes through a float


def test_whole_weights_are_near_and_the_arithmetic_is_exact():
    torch.manual_seed(0)
    conv = nn.Conv2d(24, 5, 3, padding=1, stride=2)
    q, scale_C = whole(conv.weight.detach())
    assert q.dtype == torch.int8
    assert q.abs().amax((1, 2, 3)).tolist() == [127] * 5
    error = (q * scale_C.view(-1, 1, 1, 1) - conv.weight).abs()
    assert bool((error <= scale_C.view(-1, 1, 1, 1) / 2 + 1e-9).all())
    s = torch.randint(0, 5, (3, 24, 8, 8))
    integers = nn.functional.conv2d(s.double(), q.double(), None, 2, 1)
    bias = conv.bias.detach().view(-1, 1, 1)
    expected = integers.float() * scale_C.view(-1, 1, 1) + bias
    assert torch.equal(WholeSynapse(conv)(s.float()), expected)


@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("decay_input", [False, True])
def test_a_plain_neuron_follows_the_options_of_its_neuron(reset, decay_input):
    torch.manual_seed(0)
    tau_C, v_th_C = torch.tensor([0.2, 0.5, 0.9]), torch.tensor([0.5, 1.0, 0.7])
    neuron = LIF()
    neuron.tau, neuron.v_th, neuron.reset, neuron.decay_input = tau_C, v_th_C, reset, decay_input
    i_TNC = torch.randn(6, 4, 3) + 0.4
    kept, spikes = torch.zeros(4, 3), []
    for i_NC in i_TNC:
        v = tau_C * kept + (i_NC * (1 - tau_C) if decay_input else i_NC)
        spikes.append((v >= v_th_C).float())
        kept = v * (1 - spikes[-1]) if reset == "hard" else v - v_th_C * spikes[-1]
    expected = torch.stack(spikes)
    assert 0.1 < expected.mean() < 0.9
    assert torch.equal(PlainNeuron(neuron)(i_TNC), expected)
    one = PlainNeuron(neuron)(i_TNC[:1], num_steps=6)
    assert torch.equal(one, PlainNeuron(neuron)(i_TNC[:1].expand(6, 4, 3)))


def test_int8_leaves_synapses_that_read_currents_alone():
    net, _ = network("ms-resnet18")
    plain = plain_network(net, int8=True)
    dense = {n for n, m in plain.named_modules() if isinstance(m, nn.Conv2d)}
    assert dense == {"stem.synapse", *(f"stage{k}.block1.shortcut.synapse" for k in (2, 3, 4))}
    assert sum(isinstance(m, WholeSynapse) for m in plain.modules()) == 16
    assert type(plain.readout.linear) is nn.Linear


def test_int8_takes_the_shortcuts_that_are_currents_too():
    net, x = network("resnet19", block="zheng", num_steps=3)
    plain = plain_network(net, int8=True)
    first = lambda net: next(m for m in net.modules() if isinstance(m, Current) and m.synapse is not None)  # noqa: E731
    shortcut, folded = first(plain), first(fold(net))
    assert type(shortcut.synapse) is WholeSynapse
    s_TNC = torch.randint(0, 2, (3, 2, folded.synapse.in_channels, 8, 8)).float()
    with torch.no_grad():
        expected = folded(s_TNC)
        torch.testing.assert_close(shortcut(s_TNC), expected, rtol=0, atol=float(expected.abs().max()) / 50)
        assert plain(x).shape == net(x).shape


@pytest.mark.parametrize(("name", "options"), [("resnet19", {}), ("vggsnn", {"num_steps": 3})])
@pytest.mark.parametrize("int8", [False, True])
def test_onnx_runtime_gives_our_logits_at_any_batch(name, options, int8, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    import onnx

    from mpd_agl.export.onnx import OPSET, check_export, export_onnx, run_onnx

    net, x = network(name, **options)
    frames, path = name == "vggsnn", tmp_path / "net.onnx"
    assert export_onnx(net, path, frames=frames, int8=int8) < 1e-4
    plain = plain_network(net, int8=int8)
    for count in (1, 5):
        part = x[:, :count] if frames else x[:count]
        with torch.no_grad():
            expected = plain(part)
        torch.testing.assert_close(run_onnx(path, part, threads=1), expected, rtol=1e-4, atol=1e-4)
    assert check_export(plain, path, x, batch_axis=int(frames)) < 1e-4
    model = onnx.load(path)
    assert [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")] == [OPSET]
    assert {node.op_type for node in model.graph.node} >= {"Conv", "Where", "GreaterOrEqual"}
    assert [i.name for i in model.graph.input] == ["x"]
    int8_weights = [i for i in model.graph.initializer if i.data_type == onnx.TensorProto.INT8]
    assert (len(int8_weights) > 3) == int8


class OwnNetwork(nn.Module):
    """As a user writes it: blocks of ours, a layer and a sum of torch's, no options."""

    def __init__(self, num_steps=3):
        super().__init__()
        self.num_steps = num_steps
        self.conv1 = SpikingBlock(nn.Conv2d(2, 8, 3, padding=1, bias=False), backend="eager")
        self.conv2 = SpikingBlock(nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), method="lsg", backend="eager")
        self.pool = nn.AvgPool2d(2)
        self.fc = nn.Linear(8 * 5 * 5, 16)
        self.neuron = LIF(tau=0.5, backend="eager")
        self.readout = Readout(16, 4)

    def forward(self, images):
        s = self.conv1(images.unsqueeze(0), self.num_steps)
        s = over_time(self.pool, self.conv2(s, residual=s))
        return self.readout(self.neuron(2 * self.fc(s.flatten(2)), num_steps=self.num_steps))


def own_network():
    torch.manual_seed(0)
    net, x = OwnNetwork(), torch.randn(6, 2, 10, 10)
    with torch.no_grad():
        net(x)
    return net.eval(), x


@pytest.mark.parametrize("int8", [False, True])
def test_onnx_of_an_own_network(int8, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    from mpd_agl.export.onnx import export_onnx, run_onnx

    net, x = own_network()
    assert export_onnx(net, tmp_path / "net.onnx", example=x, int8=int8) < 1e-4
    with torch.no_grad():
        expected = plain_network(net, int8=int8)(x)
        if not int8:
            torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.01
    torch.testing.assert_close(run_onnx(tmp_path / "net.onnx", x), expected, rtol=1e-4, atol=1e-4)


def test_an_own_network_that_cannot_be_exported_is_a_sentence(tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    from mpd_agl.export.onnx import export_onnx

    net, x = own_network()
    with pytest.raises(InputError, match=r"own OwnNetwork needs an example of its input. Use export_onnx\(net, path"):
        export_onnx(net, tmp_path / "a.onnx")
    with pytest.raises(InputError, match=r"made of mpd_agl.nn.SpikingBlock, and Linear has none"):
        export_onnx(nn.Linear(2, 2), tmp_path / "a.onnx", example=torch.randn(3, 2))
    net.forward = lambda images: net.readout(net.fc(net.conv1(images[None], int(images.sum() > 0) + 1).flatten(2)))
    with pytest.raises(InputError, match=r"torch cannot trace OwnNetwork.forward for ONNX \(.+\). Use SpikingBlock"):
        export_onnx(net, tmp_path / "a.onnx", example=x)
    assert list(tmp_path.iterdir()) == []


def interpret(graph, x_NCHW, num_steps, dt):
    """NIR's equations by forward Euler: a node's input is the sum of what its edges bring."""
    before = {name: [a for a, b in graph.edges if b == name] for name in graph.nodes}
    order, state, logits = list(TopologicalSorter(before).static_order()), {}, []
    tensor = lambda a: torch.as_tensor(a, dtype=torch.float64)  # noqa: E731
    for _ in range(num_steps):
        out = {}
        for name in order:
            node = graph.nodes[name]
            kind = type(node).__name__
            a = x_NCHW if kind == "Input" else sum(out[b] for b in before[name])
            if kind == "Conv2d":
                stride, padding = (tuple(int(k) for k in pair) for pair in (node.stride, node.padding))
                groups = int(node.groups)
                a = nn.functional.conv2d(a, tensor(node.weight), tensor(node.bias), stride, padding, groups=groups)
            elif kind == "AvgPool2d":
                a = nn.functional.avg_pool2d(a, tuple(int(k) for k in node.kernel_size))
            elif kind == "Affine":
                a = nn.functional.linear(a, tensor(node.weight), tensor(node.bias))
            elif kind == "Flatten":
                a = a.flatten(1)
            elif kind == "LIF":
                v = state.get(name, torch.zeros_like(a))
                v = v + dt / tensor(node.tau) * (tensor(node.v_leak) - v + tensor(node.r) * a)
                a = (v > tensor(node.v_threshold)).double()
                state[name] = torch.where(a > 0, tensor(node.v_reset), v)
            else:
                assert kind in ("Input", "Output")
            out[name] = a
        logits.append(out["output"])
    return torch.stack(logits)


NIR_CASES = [
    ("cnn8", {"num_steps": 3}),
    ("vgg11", {"image_size": 32}),
    ("resnet19", {"num_steps": 3}),
    ("resnet18", {}),
    ("resnet19", {"block": "zheng"}),
]


@pytest.mark.parametrize(("name", "options"), NIR_CASES)
def test_nir_equations_give_our_logits(name, options, tmp_path):
    nir = pytest.importorskip("nir")
    from mpd_agl.export.nir import DT, export_nir

    net, x = network(name, **options)
    export_nir(net, tmp_path / "net.nir")
    graph = nir.read(str(tmp_path / "net.nir"))
    with torch.no_grad():
        expected = fold(net).double()(x.double())
    assert expected.std() > 0.01
    torch.testing.assert_close(interpret(graph, x.double(), net.num_steps, DT), expected, rtol=1e-5, atol=1e-6)


def test_nir_sums_spikes_as_edges_into_one_node():
    pytest.importorskip("nir")
    from mpd_agl.export.nir import nir_graph

    net, _ = network("resnet18")
    edges = nir_graph(net).edges
    into = lambda name: {a for a, b in edges if b == name}  # noqa: E731
    assert into("stage1_block1_conv1") == {"stem_lif"}
    assert into("stage1_block2_conv1") == {"stem_lif", "stage1_block1_conv2_lif"}
    both = into("stage2_block1_conv1")
    assert both == {"stem_lif", "stage1_block1_conv2_lif", "stage1_block2_conv2_lif"}
    assert into("stage2_block1_shortcut") == both
    assert into("stage2_block2_conv1") == {"stage2_block1_conv2_lif", "stage2_block1_shortcut_lif"}


def test_refusals(tmp_path, capsys):
    with pytest.raises(InputError, match="ANN"):
        plain_network(create_model("cnn8", width_mult=0.0625, image_size=16, ann=True).eval())
    assert main(["export", str(tmp_path / "none"), "--format", "onnx", "-o", str(tmp_path / "a.onnx")]) == 2
    assert main(["export", str(tmp_path), "--format", "nir", "--int8", "-o", str(tmp_path / "a.nir")]) == 2
    assert "--int8 goes with --format onnx" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.onnx").write_text("mine")
    assert main(["export", str(tmp_path), "--format", "onnx", "-o", str(tmp_path / "a.onnx")]) == 2
    assert "a.onnx exists. Name another file, or add --overwrite." in capsys.readouterr().err
    assert (tmp_path / "a.onnx").read_text() == "mine"
