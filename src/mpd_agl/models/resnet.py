"""Spiking ResNets: ResNet-19 (3-3-2 basic blocks of 128, 256, 512, then 256 FC) and ResNet-18 (2-2-2-2 of 64 to 512).

The paper's table prints x3 for ResNet-19's last stage; its energy table counts 2285.35 M operations, which is 3-3-2.
"""

import math
from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from mpd_agl.models.base import Network, readout
from mpd_agl.models.graph import Builder, Flow
from mpd_agl.models.options import NetworkOptions


class ResNetOptions(NetworkOptions):
    """Options of ResNet-18 and ResNet-19."""

    block: Literal["sew", "zheng"] = "sew"
    """Spikes added behind the neurons (SEW-ADD), or currents added before one neuron (Zheng et al. 2021)."""


class SewBlock(nn.Module):
    """SEW-ADD basic block: `LIF(tdBN(conv(LIF(tdBN(conv(s)))))) + shortcut(s)`; the output is a small integer, not a
    bit.
    """

    def __init__(self, net: Network, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = net.conv(in_channels, out_channels, stride=stride)
        self.conv2 = net.conv(out_channels, out_channels)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = net.conv(in_channels, out_channels, kernel=1, stride=stride) if changes else None

    def forward(self, s_TNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """Spike counts."""
        shortcut = s_TNCHW if self.shortcut is None else self.shortcut(s_TNCHW, num_steps)
        out: Tensor = self.conv2(self.conv1(s_TNCHW, num_steps), num_steps, residual=shortcut)
        return out

    def describe(self, name: str, build: Builder[Flow], flow: Flow) -> Flow:
        """For plans and NIR."""
        shortcut = flow if self.shortcut is None else build.block(f"{name}.shortcut", self.shortcut, flow)
        spikes = build.block(f"{name}.conv1", self.conv1, flow)
        return build.block(f"{name}.conv2", self.conv2, spikes, residual=shortcut)


class ZhengBlock(nn.Module):
    """Basic block of Zheng et al. 2021: two normalised currents (alpha = 1/sqrt 2 each) are added before one neuron.

    Their variances add, and the width rule uses that sum. An identity shortcut carries spikes; its tdBN makes them a
    current too.
    """

    def __init__(self, net: Network, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        alpha = 1 / math.sqrt(2)
        self.conv1 = net.conv(in_channels, out_channels, stride=stride)
        synapse = net.synapse(out_channels, out_channels)
        changes = stride != 1 or in_channels != out_channels
        shortcut = net.synapse(in_channels, out_channels, kernel=1, stride=stride) if changes else None
        self.conv2 = net.block(synapse, alpha, currents=[net.current(shortcut, out_channels, alpha)])

    def forward(self, s_TNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """Spikes, 0 or 1."""
        out: Tensor = self.conv2(self.conv1(s_TNCHW, num_steps), num_steps, current_inputs=[s_TNCHW])
        return out

    def describe(self, name: str, build: Builder[Flow], flow: Flow) -> Flow:
        """For plans and NIR."""
        spikes = build.block(f"{name}.conv1", self.conv1, flow)
        return build.block(f"{name}.conv2", self.conv2, spikes, current_input=flow)


class ResNet(Network):
    """stem - stages of basic blocks - average pool - [256 FC] - readout."""

    def __init__(
        self, name: str, options: NetworkOptions, *, stem: int, stages: tuple[tuple[int, int], ...], hidden: int | None
    ) -> None:
        super().__init__(name, options)
        block = ZhengBlock if isinstance(options, ResNetOptions) and options.block == "zheng" else SewBlock
        block = SewBlock if options.ann else block
        channels = options.channels(stem)
        self.stem = self.conv(options.in_channels, channels)
        for number, (count, blocks) in enumerate(stages, 1):
            out = options.channels(count)
            stage: OrderedDict[str, nn.Module] = OrderedDict()
            for b in range(1, blocks + 1):
                stride = 2 if number > 1 and b == 1 else 1
                stage[f"block{b}"] = block(self, channels, out, stride)
                channels = out
            if (gate := self.gate(channels, len(stages) - number)) is not None:
                stage["gate"] = gate
            self.add_module(f"stage{number}", nn.Sequential(stage))
        self.num_stages = len(stages)
        self.fc1 = None
        if hidden is not None:
            self.fc1 = self.block(nn.Linear(channels, options.channels(hidden), bias=False), spikes=False)
            channels = options.channels(hidden)
        self.readout = readout(channels, options)

    def run(self, x_SNCHW: Tensor, num_steps: int) -> Tensor:
        """logits_TNK."""
        s_TNCHW = self.stage([self.stem], x_SNCHW, num_steps)
        for number in range(1, self.num_stages + 1):
            for block in self.get_submodule(f"stage{number}").children():
                s_TNCHW = self.stage([block], s_TNCHW, num_steps)
        s_TNF = s_TNCHW.mean((3, 4))
        if self.fc1 is not None:
            s_TNF = self.fc1(s_TNF, num_steps)
        logits_TNK: Tensor = self.readout(s_TNF)
        return logits_TNK

    def describe(self, build: Builder[Flow], flow: Flow) -> Flow:
        """For plans and NIR."""
        flow = build.block("stem", self.stem, flow)
        for number in range(1, self.num_stages + 1):
            for name, part in self.get_submodule(f"stage{number}").named_children():
                path = f"stage{number}.{name}"
                if isinstance(part, SewBlock | ZhengBlock):
                    flow = part.describe(path, build, flow)
                else:
                    flow = build.gate(path, part, flow)
        flow = build.mean(flow)
        if self.fc1 is not None:
            flow = build.block("fc1", self.fc1, flow)
        return build.readout(self.readout, flow)


def resnet19(options: NetworkOptions) -> ResNet:
    """ResNet-19 of Zheng et al. 2021, as the paper counts it: 3-3-2."""
    return ResNet("resnet19", options, stem=128, stages=((128, 3), (256, 3), (512, 2)), hidden=256)


def resnet18(options: NetworkOptions) -> ResNet:
    """ResNet-18 with a 3x3 stem for small images."""
    return ResNet("resnet18", options, stem=64, stages=((64, 2), (128, 2), (256, 2), (512, 2)), hidden=None)


def sew_resnet(name: str, blocks: tuple[int, int, int, int], options: NetworkOptions) -> ResNet:
    """SEW-ResNet (Fang et al., NeurIPS 2021) with the 3x3 stem of small images: spikes are added behind the neurons."""
    return ResNet(name, options, stem=64, stages=tuple(zip((64, 128, 256, 512), blocks, strict=True)), hidden=None)


def sew_resnet18(options: NetworkOptions) -> ResNet:
    """SEW-ResNet-18: 2-2-2-2."""
    return sew_resnet("sew-resnet18", (2, 2, 2, 2), options)


def sew_resnet34(options: NetworkOptions) -> ResNet:
    """SEW-ResNet-34: 3-4-6-3."""
    return sew_resnet("sew-resnet34", (3, 4, 6, 3), options)
