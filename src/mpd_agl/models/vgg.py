"""Plain convolutional networks as data.

A number is a 3x3 convolution with that many channels, `P` is 2x2 average pooling (2AP).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models.base import Network, NetworkOptions, Pool, readout
from mpd_agl.models.graph import Builder, Flow
from mpd_agl.nn import set_chain

Plan = Sequence[int | Literal["P"]]

VGGSNN: Plan = (64, 128, "P", 256, 256, "P", 512, 512, "P", 512, 512, "P")
VGG11: Plan = (64, "P", 128, "P", 256, 256, "P", 512, 512, "P", 512, 512, "P")
VGG13: Plan = (64, 64, "P", 128, 128, "P", 256, 256, "P", 512, 512, "P", 512, 512, "P")
VGG16: Plan = (64, 64, "P", 128, 128, "P", 256, 256, 256, "P", 512, 512, 512, "P", 512, 512, 512, "P")
CNN8: Plan = (64, 64, "P", 128, 128, "P", 256, 256, "P", 256)


class ConvNet(Network):
    """conv1 to convN with pooling between, hidden linear layers fc1 and so on, readout.

    `average` pools what is left of the image to 1x1.
    """

    def __init__(
        self, name: str, options: NetworkOptions, plan: Plan, *, hidden: Sequence[int] = (), average: bool = False
    ) -> None:
        super().__init__(name, options)
        self.refuse_unused("block", "attention_steps")
        if name != "plain":
            self.refuse_depth()
        channels, size, number = options.in_channels, options.image_size, 0
        self.order: list[str] = []
        for index, item in enumerate(plan):
            if item == "P":
                size //= 2
                self._add_gate(plan, index, channels)
                self.order.append("pool")
                continue
            number += 1
            out = options.channels(int(item))
            self.add_module(f"conv{number}", self.conv(channels, out))
            self.order.append(f"conv{number}")
            channels = out
        if plan[-1] != "P":
            self._add_gate(plan, len(plan), channels)
        if size < 1:
            raise InputError(
                f"{name} halves the image {plan.count('P')} times and needs image_size of at least "
                f"{2 ** plan.count('P')}, "
                f"got {options.image_size}."
            )
        self.pool, self.average = Pool(), average
        features = channels if average else channels * size * size
        self.num_hidden = len(hidden)
        for h, count in enumerate(hidden, 1):
            self.add_module(f"fc{h}", self.linear(features, options.channels(count)))
            features = options.channels(count)
        self.readout = readout(features, options)
        set_chain(self, number + self.num_hidden)  # no shortcut anywhere

    def _add_gate(self, plan: Plan, end: int, channels: int) -> None:
        """The attention behind the stage that ends there: a stage is the convolutions up to a pooling."""
        stages_left = sum(a == "P" != b for a, b in pairwise(plan[end:]))
        if (gate := self.gate(channels, stages_left)) is not None:
            self.add_module(f"gate{end}", gate)
            self.order.append(f"gate{end}")

    def stages(self) -> Iterator[list[nn.Module]]:
        """Each convolution, with the pooling behind it."""
        parts: list[nn.Module] = []
        for name in self.order:
            if name != "pool" and parts:
                yield parts
                parts = []
            parts.append(self.get_submodule(name))
        yield parts

    def run(self, x_SNCHW: Tensor, num_steps: int) -> Tensor:
        """logits_TNK."""
        s_TNCHW = x_SNCHW
        for parts in self.stages():
            s_TNCHW = self.stage(parts, s_TNCHW, num_steps)
        s_TNF: Tensor = s_TNCHW.mean((3, 4)) if self.average else s_TNCHW.flatten(2)
        for h in range(1, self.num_hidden + 1):
            s_TNF = self.get_submodule(f"fc{h}")(s_TNF, num_steps)
        logits_TNK: Tensor = self.readout(s_TNF)
        return logits_TNK

    def describe(self, build: Builder[Flow], flow: Flow) -> Flow:
        """For plans and NIR."""
        for name in self.order:
            part = self.get_submodule(name)
            if name == "pool":
                flow = build.pool(flow)
            else:
                flow = build.block(name, part, flow) if name.startswith("conv") else build.gate(name, part, flow)
        flow = build.mean(flow) if self.average else build.flat(flow)
        for h in range(1, self.num_hidden + 1):
            flow = build.block(f"fc{h}", self.get_submodule(f"fc{h}"), flow)
        return build.readout(self.readout, flow)


def vggsnn(options: NetworkOptions) -> ConvNet:
    """VGGSNN (Deng et al. 2022), the paper's network for CIFAR10-DVS."""
    return ConvNet("vggsnn", options, VGGSNN)


def vgg13(options: NetworkOptions) -> ConvNet:
    """VGG-13, the paper's network for Tiny-ImageNet: two hidden layers of 4096."""
    return ConvNet("vgg13", options, VGG13, hidden=(4096, 4096))


def vgg11(options: NetworkOptions) -> ConvNet:
    """VGG-11 with VGG-13's classifier."""
    return ConvNet("vgg11", options, VGG11, hidden=(4096, 4096))


def vgg16(options: NetworkOptions) -> ConvNet:
    """VGG-16 with VGG-13's classifier."""
    return ConvNet("vgg16", options, VGG16, hidden=(4096, 4096))


def plain(options: NetworkOptions) -> ConvNet:
    """`depth` layers without any shortcut: 3x3 convolutions of 16 channels and the readout (24 layers by default).

    An image of more than 16 pixels a side is halved behind a quarter of the layers, and behind further quarters while
    it is still larger. A gradient has only one way through such a network: its layers show whether they pass it on.
    """
    depth = options.depth or 24
    if depth < 2:
        raise InputError(f"plain needs at least 2 layers, a convolution and the readout, got depth={depth}.")
    plan: list[int | Literal["P"]] = []
    size = options.image_size
    for layer in range(1, depth):
        plan.append(16)
        if size > 16 and layer % max(1, depth // 4) == 0:
            plan.append("P")
            size //= 2
    return ConvNet("plain", options, plan)


def cnn8(options: NetworkOptions) -> ConvNet:
    """CNN-8, our reading of the paper's "8-layer vanilla SNN" (Figure 2): seven convolutions and the readout."""
    return ConvNet("cnn8", options, CNN8, average=True)
