"""A trained plain network (VGG, CNN-8) as a NIR graph: conv - LIF - pool - ... - affine, tdBN folded.

NIR's LIF is continuous: `tau dv/dt = -v + R i`. A forward Euler step of `DT` is our Eq. 2 when `tau_nir = DT/(1 - tau)` and
`R = tau_nir/DT`: then `v <- tau v + i`. Tools that read NIR take the same DT. NIR fires at `v > v_th`, ours at `>=`.
"""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpd_agl.errors import InputError
from mpd_agl.interop.wholefile import whole_file
from mpd_agl.models import Network
from mpd_agl.models.vgg import ConvNet
from mpd_agl.nn import SpikingBlock, fold

DT = 1e-4
"""Seconds of one timestep, as snnTorch and others read NIR."""


def nir_graph(net: Network) -> Any:
    """The graph; readout per timestep, the prediction is the mean over T."""
    if find_spec("nir") is None:
        raise InputError("NIR needs the package nir, which is not installed. Run pip install -e .[nir].")
    if not isinstance(net, ConvNet) or net.options.ann:
        raise InputError(
            f"NIR export knows the plain spiking networks (VGG, CNN-8), got {net.name}. Use --format onnx."
        )
    import nir
    import numpy as np

    folded = fold(net.cpu().eval()) if not _is_folded(net) else net
    size, channels = net.options.image_size, net.options.in_channels
    nodes: dict[str, Any] = {"input": nir.Input({"input": np.array([channels, size, size])})}
    shape: tuple[int, ...] = (channels, size, size)
    pools = 0

    def neurons(block: SpikingBlock, name: str) -> None:
        tau = DT / (1 - float(block.neuron.tau))
        full = np.ones(shape, dtype=np.float64)
        nodes[f"{name}_lif"] = nir.LIF(
            tau=tau * full, r=tau / DT * full, v_leak=0 * full, v_threshold=block.neuron.v_th * full, v_reset=0 * full
        )

    for name in folded.order:
        if name == "pool":
            pools += 1
            nodes[f"pool{pools}"] = _pool(nir, 2)
            shape = (shape[0], shape[1] // 2, shape[2] // 2)
            continue
        block = folded.get_submodule(name)
        assert isinstance(block, SpikingBlock)
        conv = block.synapse
        assert isinstance(conv, nn.Conv2d)
        assert conv.bias is not None
        nodes[name] = nir.Conv2d(
            input_shape=shape[1:],
            weight=_array(conv.weight),
            stride=conv.stride,
            padding=conv.padding,
            dilation=conv.dilation,
            groups=conv.groups,
            bias=_array(conv.bias),
        )
        shape = (conv.out_channels, shape[1], shape[2])
        neurons(block, name)
    if folded.average and shape[1] > 1:
        nodes["average"] = _pool(nir, shape[1])
        shape = (shape[0], 1, 1)
    nodes["flatten"] = nir.Flatten({"input": np.array(shape)}, start_dim=0, end_dim=-1)
    for h in range(1, folded.num_hidden + 1):
        block = folded.get_submodule(f"fc{h}")
        assert isinstance(block, SpikingBlock)
        assert isinstance(block.synapse, nn.Linear)
        nodes[f"fc{h}"] = nir.Affine(weight=_array(block.synapse.weight), bias=_array(block.synapse.bias))
        shape = (block.synapse.out_features,)
        neurons(block, f"fc{h}")
    nodes["readout"] = nir.Affine(weight=_array(folded.readout.linear.weight), bias=_array(folded.readout.linear.bias))
    nodes["output"] = nir.Output({"output": np.array([net.options.num_classes])})
    names = list(nodes)
    return nir.NIRGraph(nodes, list(pairwise(names)))


def _is_folded(net: Network) -> bool:
    return all(m.norm is None for m in net.modules() if isinstance(m, SpikingBlock))


def _array(values: torch.Tensor | None) -> Any:
    assert values is not None
    return values.detach().contiguous().numpy()


def _pool(nir: Any, size: int) -> Any:
    import numpy as np

    return nir.AvgPool2d(kernel_size=np.array([size, size]), stride=np.array([size, size]), padding=np.array([0, 0]))


def export_nir(net: Network, path: Path) -> None:
    """Write the graph as NIR's HDF5 file, whole or not at all."""
    graph = nir_graph(net)
    import nir

    with whole_file(path) as beside:
        nir.write(str(beside), graph)
