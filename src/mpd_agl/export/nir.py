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
from mpd_agl.nn import Current, Readout, SpikingBlock
from mpd_agl.nn.fold import affine_map

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
        self.pools = 0

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

    def current(self, name: str, current: Current, flow: Flow, *, added_to: Flow | None = None) -> Flow:
        """A normalised current; if it has no synapse, its norm becomes a 1x1 convolution with a diagonal."""
        synapse = current.synapse
        if synapse is None:
            found = affine_map(current.norm)
            if found is None or found[0].dim() != 1:
                raise InputError(f"NIR takes norms that are affine maps, and {name} has another. Use ONNX.")
            scale_C, shift_C = found
            synapse = nn.Conv2d(len(scale_C), len(scale_C), 1)
            # NIR's type check refuses grouped convolutions, so the zeros off the diagonal are written too.
            synapse.weight = nn.Parameter(torch.diag(scale_C)[:, :, None, None])
            synapse.bias = nn.Parameter(shift_C)
        out = self.synapse(name, synapse, flow)
        return out if added_to is None else out + added_to

    def block(
        self,
        name: str,
        block: nn.Module,
        flow: Flow,
        *,
        residual: Flow | None = None,
        current_input: Flow | None = None,
    ) -> Flow:
        """Synapse and neuron; with a residual the output has two nodes."""
        assert isinstance(block, SpikingBlock)
        if block.norm is not None:
            raise InputError(
                f"NIR's nodes know no timesteps, and the norm of {name} differs from step to step. Use ONNX."
            )
        current = flow if block.synapse is None else self.synapse(name, block.synapse, flow)
        if current_input is not None:
            (other,) = block.currents
            assert isinstance(other, Current)
            current = self.current(f"{name.rpartition('.')[0]}.shortcut", other, current_input, added_to=current)
        out = self.add(f"{name}_lif", self.neuron(block.neuron, current.shape), current, current.shape)
        return out if residual is None else out + residual

    def gate(self, name: str, gate: nn.Module, flow: Flow) -> Flow:
        """Not in NIR."""
        raise InputError(f"NIR has no node for {type(gate).__name__}, which {name} is. Use ONNX.")

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

    def pool(self, flow: Flow) -> Flow:
        """2x2 averages."""
        self.pools += 1
        return self.average(f"pool{self.pools}", 2, flow)

    def average(self, name: str, size: int, flow: Flow) -> Flow:
        """Average pooling."""
        import numpy as np

        pair = np.array([size, size])
        node = self.nir.AvgPool2d(kernel_size=pair, stride=pair, padding=np.array([0, 0]))
        return self.add(name, node, flow, (flow.shape[0], flow.shape[1] // size, flow.shape[2] // size))

    def mean(self, flow: Flow) -> Flow:
        """Averages over the map."""
        return self.flat(self.average("average", flow.shape[1], flow) if flow.shape[1] > 1 else flow)

    def readout(self, readout: Readout, flow: Flow) -> Flow:
        """The logits."""
        return self.synapse("readout", readout.linear, flow)

    def flat(self, flow: Flow) -> Flow:
        """One axis."""
        import numpy as np

        node = self.nir.Flatten({"input": np.array(flow.shape)}, start_dim=0, end_dim=-1)
        return self.add("flatten", node, flow, (int(np.prod(flow.shape)),))


def nir_graph(net: Network) -> Any:
    """The graph. Its output is the readout at each timestep; the prediction is the mean over T."""
    check_installed("nir", "nir")
    if not isinstance(net, Network):
        raise InputError(
            f"NIR export knows the networks of mpd_agl.models, got {type(net).__name__}. "
            "Use ONNX: --format onnx, or export_onnx(net, path, example=x)."
        )
    import numpy as np

    net = folded(net).cpu()
    o = net.options
    shape = (o.in_channels, o.image_size, o.image_size)
    graph = GraphBuilder(shape)
    flow = net.describe(graph, Flow(("input",), shape))
    graph.add("output", graph.nir.Output({"output": np.array(flow.shape)}), flow, flow.shape)
    return graph.nir.NIRGraph(graph.nodes, graph.edges)


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
