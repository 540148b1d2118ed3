"""MS-ResNet (Hu et al., TNNLS 2024): a membrane shortcut carries currents, not spikes.

A block is neuron - convolution - norm - neuron - convolution - norm, and its output is added to its input: currents
are added up along the network, and each block's first neuron reads the sum. Where the shape changes, a 1x1 convolution
and a norm start a new sum; that convolution reads currents, so it multiplies.

What the width rule needs: the sum of normalised currents has the sum of their means, and, the currents taken as
independent, the sum of their variances: `sum_k beta_k` and `sum_k (gamma_k v_th)^2` over the norms since the last
change of shape. The rule reads them there (`SpikingBlock.sources`). The norm at the end of a block starts at gamma = 0,
as in the authors' code: a new block adds nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from mpd_agl.models.base import Network, NetworkOptions, readout
from mpd_agl.models.graph import Builder, Flow


class MsBlock(nn.Module):
    """`x + norm(conv(LIF(norm(conv(LIF(x))))))`, currents in and out."""

    def __init__(
        self, net: Network, in_channels: int, out_channels: int, stride: int, sources: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.spike = net.neuron_block(in_channels, sources)
        self.conv1 = net.conv(in_channels, out_channels, stride=stride)
        self.gate: nn.Module | None = None
        self.conv2 = net.current(net.synapse(out_channels, out_channels), out_channels)
        changes = stride != 1 or in_channels != out_channels
        shortcut = net.synapse(in_channels, out_channels, kernel=1, stride=stride, dense=True) if changes else None
        self.shortcut = net.current(shortcut, out_channels) if changes else None
        if self.shortcut is not None:
            self.shortcut.takes_spikes = False
        assert self.conv2.norm is not None
        nn.init.zeros_(self.conv2.norm.get_parameter("weight"))
        first = sources if self.shortcut is None else [self.shortcut.norm]
        self.sources: list[nn.Module] = [*first, self.conv2.norm]

    def forward(self, x_SNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents behind the block."""
        s_TNCHW = self.conv1(self.spike(x_SNCHW, num_steps), num_steps)
        if self.gate is not None:
            s_TNCHW = self.gate(s_TNCHW, num_steps)
        shortcut = x_SNCHW if self.shortcut is None else self.shortcut(x_SNCHW, num_steps)
        out: Tensor = self.conv2(s_TNCHW, num_steps) + shortcut
        return out

    def describe(self, name: str, build: Builder[Flow], flow: Flow) -> Flow:
        """For NIR."""
        spikes = build.block(f"{name}.conv1", self.conv1, build.block(f"{name}.spike", self.spike, flow))
        if self.gate is not None:
            spikes = build.gate(f"{name}.gate", self.gate, spikes)
        shortcut = flow if self.shortcut is None else build.current(f"{name}.shortcut", self.shortcut, flow)
        return build.current(f"{name}.conv2", self.conv2, spikes, added_to=shortcut)


class MsResNet(Network):
    """stem current - stages of blocks - neuron - average pool - readout.

    A gate (`attention`) stands behind the last neuron of a stage, inside its last block.
    """

    def __init__(self, name: str, options: NetworkOptions, blocks: Sequence[int]) -> None:
        super().__init__(name, options)
        self.refuse_depth()
        self.refuse_unused("block", "attention_steps")
        channels = options.channels(64)
        self.stem = self.current(self.synapse(options.in_channels, channels), channels)
        sources: list[nn.Module] = [self.stem.norm]  # type: ignore[list-item]
        self.num_stages = len(blocks)
        for number, count in enumerate(blocks, 1):
            out = options.channels(64 * 2 ** (number - 1))
            stage: OrderedDict[str, nn.Module] = OrderedDict()
            for b in range(1, count + 1):
                block = MsBlock(self, channels, out, 2 if number > 1 and b == 1 else 1, sources)
                stage[f"block{b}"] = block
                channels, sources = out, block.sources
            block.gate = self.gate(out, self.num_stages - number)
            self.add_module(f"stage{number}", nn.Sequential(stage))
        self.spike = self.neuron_block(channels, sources)
        self.readout = readout(channels, options)

    def run(self, x_SNCHW: Tensor, num_steps: int) -> Tensor:
        """logits_TNK."""
        i_SNCHW = self.stage([self.stem], x_SNCHW, num_steps)
        for number in range(1, self.num_stages + 1):
            for block in self.get_submodule(f"stage{number}").children():
                i_SNCHW = self.stage([block], i_SNCHW, num_steps)
        logits_TNK: Tensor = self.readout(self.stage([self.spike], i_SNCHW, num_steps).mean((3, 4)))
        return logits_TNK

    def describe(self, build: Builder[Flow], flow: Flow) -> Flow:
        """For NIR."""
        flow = build.current("stem", self.stem, flow)
        for number in range(1, self.num_stages + 1):
            for name, block in self.get_submodule(f"stage{number}").named_children():
                flow = block.describe(f"stage{number}.{name}", build, flow)  # type: ignore[operator]
        return build.readout(self.readout, build.mean(build.block("spike", self.spike, flow)))


def ms_resnet18(options: NetworkOptions) -> MsResNet:
    """MS-ResNet-18 with the 3x3 stem of small images: 2-2-2-2."""
    return MsResNet("ms-resnet18", options, (2, 2, 2, 2))


def ms_resnet34(options: NetworkOptions) -> MsResNet:
    """MS-ResNet-34: 3-4-6-3."""
    return MsResNet("ms-resnet34", options, (3, 4, 6, 3))
