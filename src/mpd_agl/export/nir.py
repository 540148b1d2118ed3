"""A trained network (VGG, CNN-8, ResNet) as a NIR graph: convolution, LIF, pooling, affine; tdBN is folded.

NIR's LIF is continuous: `tau dv/dt = -v + R i`. A forward Euler step of `DT` is our Eq. 2
when `tau_nir = DT/(1 - tau)` and `R = tau_nir/DT`, because then `v <- tau v + i`. Tools that read NIR take the same DT.
NIR fires at `v > v_th`, ours at `>=`.

A node adds up what its edges bring. So a sum needs no node of its own: SEW-ADD is edges from several neurons into the
next synapse, and the block of Zheng et al. 2021 is edges from two synapses into one neuron.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.export.export import check_installed, write_export
from mpd_agl.export.plainstep import PlainNeuron, folded
from mpd_agl.models import Network
from mpd_agl.models.ms_resnet import MsBlock, MsResNet
from mpd_agl.models.resnet import ResNet, SewBlock, ZhengBlock
from mpd_agl.models.vgg import ConvNet
from mpd_agl.nn import Current, SpikingBlock

DT = 1e-4
"""Seconds of one timestep, as snnTorch and others read NIR."""


@dataclass(frozen=True)
class Flow:
    """What goes from layer to layer: the sum of these nodes' outputs, and the shape of one sample of it."""

    nodes: tuple[str, ...]
    shape: tuple[int, ...]

    def __add__(self, other: "Flow") -> "Flow":
        assert self.shape == other.shape
        return Flow(self.nodes + other.nodes, self.shape)


class GraphBuilder:
    """Nodes and edges of the graph; every method adds a layer behind a flow and returns the flow behind it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        import nir
        import numpy as np

        self.nir = nir
        self.nodes: dict[str, Any] = {"input": nir.Input({"input": np.array(shape)})}
        self.edges: list[tuple[str, str]] = []

    def add(self, name: str, node: Any, flow: Flow, shape: tuple[int, ...]) -> Flow:
        """A node; NIR names have no dots."""
        name = name.replace(".", "_")
        self.nodes[name] = node
        self.edges += [(before, name) for before in flow.nodes]
        return Flow((name,), shape)

    def synapse(self, name: str, synapse: nn.Module | None, flow: Flow) -> Flow:
        """A convolution or a linear layer."""
        if isinstance(synapse, nn.Linear):
            node = self.nir.Affine(weight=_array(synapse.weight), bias=_array(synapse.bias))
            return self.add(name, node, flow, (synapse.out_features,))
        assert isinstance(synapse, nn.Conv2d)
        node = self.nir.Conv2d(
            input_shape=flow.shape[1:],
            weight=_array(synapse.weight),
            stride=synapse.stride,
            padding=synapse.padding,
            dilation=synapse.dilation,
            groups=synapse.groups,
            bias=_array(synapse.bias),
        )
        with torch.no_grad():
            shape = synapse(torch.zeros(1, *flow.shape)).shape[1:]
        return self.add(name, node, flow, tuple(shape))

    def current(self, name: str, current: Current, flow: Flow) -> Flow:
        """A second current of a neuron; if it has no synapse, its tdBN becomes a 1x1 convolution with a diagonal."""
        synapse = current.synapse
        if synapse is None:
            assert current.norm is not None
            scale_C, shift_C = current.norm.affine()
            synapse = nn.Conv2d(len(scale_C), len(scale_C), 1)
            # NIR's type check refuses grouped convolutions, so the zeros beside the diagonal are written too.
            synapse.weight = nn.Parameter(torch.diag(scale_C)[:, :, None, None])
            synapse.bias = nn.Parameter(shift_C)
        return self.synapse(name, synapse, flow)

    def block(self, name: str, block: nn.Module, flow: Flow, second: Flow | None = None) -> Flow:
        """Synapse and neuron; `second` is a current that is added before the neuron."""
        assert isinstance(block, SpikingBlock)
        current = self.synapse(name, block.synapse, flow)
        if second is not None:
            current = current + second
        return self.add(f"{name}_lif", self.neuron(block.neuron, current.shape), current, current.shape)

    def neuron(self, neuron: nn.Module, shape: tuple[int, ...]) -> Any:
        """NIR's LIF: one value for each neuron."""
        plain = PlainNeuron(neuron)
        if plain.soft_reset:
            raise InputError("NIR's LIF resets to a potential, got a neuron with reset='soft'. Use ONNX.")
        # Per neuron: the sum with zeros gives every value the shape of the layer.
        tau, v_th = (
            (torch.as_tensor(plain.shaped(k, 1 + len(shape)), dtype=torch.float64) + torch.zeros(1, *shape))[0].numpy()
            for k in ("tau", "v_th")
        )
        if (tau >= 1).any():
            raise InputError("NIR's LIF leaks, got a neuron with tau=1. Use ONNX.")
        tau_nir = DT / (1 - tau)
        r = tau_nir / DT
        return self.nir.LIF(
            tau=tau_nir, r=0 * r + 1 if plain.decay_input else r, v_leak=0 * r, v_threshold=v_th, v_reset=0 * r
        )

    def pool(self, name: str, size: int, flow: Flow) -> Flow:
        """Average pooling."""
        import numpy as np

        pair = np.array([size, size])
        node = self.nir.AvgPool2d(kernel_size=pair, stride=pair, padding=np.array([0, 0]))
        return self.add(name, node, flow, (flow.shape[0], flow.shape[1] // size, flow.shape[2] // size))

    def flatten(self, flow: Flow) -> Flow:
        """One axis."""
        import numpy as np

        node = self.nir.Flatten({"input": np.array(flow.shape)}, start_dim=0, end_dim=-1)
        return self.add("flatten", node, flow, (int(np.prod(flow.shape)),))


def nir_graph(net: Network) -> Any:
    """The graph. Its output is the readout at each timestep; the prediction is the mean over T."""
    check_installed("nir", "nir")
    if isinstance(net, Network) and (net.options.norm in ("tebn", "tab") or net.options.attention != "none"):
        raise InputError(
            f"NIR's nodes know no timesteps, got norm={net.options.norm!r} and attention={net.options.attention!r}. "
            "Use ONNX."
        )
    if not isinstance(net, ConvNet | ResNet | MsResNet):
        raise InputError(
            f"NIR export knows the VGG networks, CNN-8 and the ResNets, got {type(net).__name__}. "
            "Use ONNX: --format onnx, or export_onnx(net, path, example=x)."
        )
    import numpy as np

    net = folded(net).cpu()
    o = net.options
    shape = (o.in_channels, o.image_size, o.image_size)
    graph = GraphBuilder(shape)
    flow = Flow(("input",), shape)
    if isinstance(net, MsResNet):
        flow = _ms_resnet(graph, net, flow)
    else:
        flow = _resnet(graph, net, flow) if isinstance(net, ResNet) else _convnet(graph, net, flow)
    flow = graph.synapse("readout", net.readout.linear, flow)
    graph.add("output", graph.nir.Output({"output": np.array(flow.shape)}), flow, flow.shape)
    return graph.nir.NIRGraph(graph.nodes, graph.edges)


def _convnet(graph: GraphBuilder, net: ConvNet, flow: Flow) -> Flow:
    pools = 0
    for name in net.order:
        if name == "pool":
            pools += 1
            flow = graph.pool(f"pool{pools}", 2, flow)
        else:
            flow = graph.block(name, net.get_submodule(name), flow)
    if net.average and flow.shape[1] > 1:
        flow = graph.pool("average", flow.shape[1], flow)
    flow = graph.flatten(flow)
    for h in range(1, net.num_hidden + 1):
        flow = graph.block(f"fc{h}", net.get_submodule(f"fc{h}"), flow)
    return flow


def _resnet(graph: GraphBuilder, net: ResNet, flow: Flow) -> Flow:
    flow = graph.block("stem", net.stem, flow)
    for name, block in net.named_modules():
        if isinstance(block, SewBlock):
            out = graph.block(f"{name}.conv2", block.conv2, graph.block(f"{name}.conv1", block.conv1, flow))
            flow = out + (flow if block.shortcut is None else graph.block(f"{name}.shortcut", block.shortcut, flow))
        elif isinstance(block, ZhengBlock):
            assert isinstance(block.conv2, SpikingBlock)
            (shortcut,) = block.conv2.currents
            assert isinstance(shortcut, Current)
            second = graph.current(f"{name}.shortcut", shortcut, flow)
            flow = graph.block(f"{name}.conv2", block.conv2, graph.block(f"{name}.conv1", block.conv1, flow), second)
    if flow.shape[1] > 1:
        flow = graph.pool("average", flow.shape[1], flow)
    flow = graph.flatten(flow)
    return flow if net.fc1 is None else graph.block("fc1", net.fc1, flow)


def _ms_resnet(graph: GraphBuilder, net: MsResNet, flow: Flow) -> Flow:
    """Currents that are added up are edges of all their synapses into the next neuron."""

    def fire(name: str, block: nn.Module, stream: Flow) -> Flow:
        assert isinstance(block, SpikingBlock)
        return graph.add(f"{name}_lif", graph.neuron(block.neuron, stream.shape), stream, stream.shape)

    stream = graph.current("stem", net.stem, flow)
    for name, block in net.named_modules():
        if isinstance(block, MsBlock):
            spikes = graph.block(f"{name}.conv1", block.conv1, fire(f"{name}.spike", block.spike, stream))
            shortcut = block.shortcut
            kept = stream if shortcut is None else graph.current(f"{name}.shortcut", shortcut, stream)
            stream = graph.current(f"{name}.conv2", block.conv2, spikes) + kept
    flow = fire("spike", net.spike, stream)
    return graph.flatten(graph.pool("average", flow.shape[1], flow) if flow.shape[1] > 1 else flow)


def _array(values: torch.Tensor | None) -> Any:
    assert values is not None
    return values.detach().contiguous().numpy()


def export_nir(net: Network, path: Path) -> None:
    """Write the graph as NIR's HDF5 file."""
    graph = nir_graph(net)
    import nir

    content = io.BytesIO()
    nir.write(content, graph)
    write_export(path, content.getvalue())
