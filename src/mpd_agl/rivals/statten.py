"""A spike-driven transformer with STAtten attention (Yao et al., NeurIPS 2023; Lee et al., CVPR 2025).

Stem: four 3x3 convolutions to 1/8, 1/4, 1/2 and all of the width, with 3x3 max pooling of stride 2 behind the last two,
or behind all four for inputs of more than 64 pixels; then a 3x3 convolution that tells positions apart. Blocks with
membrane shortcuts: Q, K and V are spikes of 1x1 convolutions, `c Q (K^T V)` drives a neuron with half the threshold,
and a 1x1 convolution leads back; then two 1x1 convolutions, four times as wide between. Head: neurons on the map's
mean. With two input channels (events), Q, K and V are pooled, and the attention's spikes gate the block's own.

What the width rule needs: neurons behind a convolution and its norm have predicted moments. Those that read a pooled
map, the attention or the sum of it all do not: no parameter tells the variance of a maximum, of a product of spikes or
of a spatial mean. Theirs are measured (`nn.MeasuredMoments`).
"""

import math

from pydantic import Field
from torch import Tensor, nn

from mpd_agl.errors import InputError
from mpd_agl.models.base import Network, readout
from mpd_agl.models.options import NetworkOptions
from mpd_agl.nn import over_time
from mpd_agl.rivals.attention import SpikeAttention

HEADS = 8


class MaxPool(nn.Module):
    """3x3 max pooling at each timestep: of spikes, spikes."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride, padding=1)

    def forward(self, x_TNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """The largest of each neighbourhood."""
        return over_time(self.pool, x_TNCHW)


class Block(nn.Module):
    """Attention and MLP on a stream of currents."""

    def __init__(self, net: "SpikeTransformer", channels: int, steps: int) -> None:
        super().__init__()
        o = net.options
        self.spike = net.neuron_block(channels)
        self.q, self.k, self.v = (net.conv(channels, channels, kernel=1) for _ in range(3))
        self.pool = MaxPool(1) if o.in_channels == 2 else None
        self.attention = SpikeAttention(math.gcd(HEADS, channels), steps, events=o.in_channels == 2)
        self.attended = net.neuron_block(channels, v_th=o.v_th / 2)
        self.project = net.current(net.synapse(channels, channels, kernel=1), channels)
        self.spike_mlp = net.neuron_block(channels)
        self.fc1 = net.conv(channels, 4 * channels, kernel=1)
        self.fc2 = net.current(net.synapse(4 * channels, channels, kernel=1), channels)

    def forward(self, x_TNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """The currents behind the block."""
        s_TNCHW = self.spike(x_TNCHW, num_steps)
        q, k, v = (layer(s_TNCHW, num_steps) for layer in (self.q, self.k, self.v))
        if self.pool is not None:
            q, k, v, s_TNCHW = (self.pool(a) for a in (q, k, v, s_TNCHW))
        a_TNCHW = self.attended(self.attention(q, k, v), num_steps)
        if self.pool is not None:
            a_TNCHW = a_TNCHW * s_TNCHW + s_TNCHW
        x_TNCHW = x_TNCHW + self.project(a_TNCHW, num_steps)
        out: Tensor = x_TNCHW + self.fc2(self.fc1(self.spike_mlp(x_TNCHW, num_steps), num_steps), num_steps)
        return out


class StattenOptions(NetworkOptions):
    """Options of `statten`."""

    depth: int = Field(default=2, ge=1)
    """Blocks of attention and MLP."""
    attention_steps: int = Field(default=0, ge=0)
    """Timesteps that attend to one another; 0: 2 (4 from 16 steps on), or 1 where num_steps is odd."""


class SpikeTransformer(Network):
    """stem - blocks - mean over the map - neuron - readout. `depth` blocks, 512 channels times `width_mult`."""

    def __init__(self, options: StattenOptions) -> None:
        super().__init__("statten", options)
        o, T = options, options.num_steps
        if o.attention != "none":
            raise InputError(f"statten has its own attention, got attention={o.attention!r}. Leave it out.")
        steps = 1 if o.ann else o.attention_steps or (1 if T % 2 else 4 if T >= 16 and T % 4 == 0 else 2)
        if T % steps and not o.ann:
            raise InputError(
                f"attention over {steps} timesteps at a time needs a multiple of them, got num_steps={T}. "
                f"Use attention_steps={math.gcd(T, steps)}, or another T."
            )
        size, before, pools = o.image_size, o.in_channels, 4 if o.image_size > 64 else 2
        channels = [o.channels(64), o.channels(128), o.channels(256), o.channels(512)]
        for number, after in enumerate(channels[:3], 1):
            self.add_module(f"conv{number}", self.conv(before, after))
            before = after
        self.conv4 = self.current(self.synapse(before, channels[3]), channels[3])
        self.pool, self.first_pool = MaxPool(2), 4 - pools + 1
        self.spike4 = self.neuron_block(channels[3])
        self.position = self.current(self.synapse(channels[3], channels[3]), channels[3])
        self.blocks = nn.ModuleList(Block(self, channels[3], steps) for _ in range(o.depth))
        self.spike = self.neuron_block(channels[3])
        self.readout = readout(channels[3], options)
        if size < 2**pools:
            raise InputError(f"statten halves the image {pools} times and needs image_size >= {2**pools}, got {size}.")

    def run(self, x_SNCHW: Tensor, num_steps: int) -> Tensor:
        """logits_TNK."""
        s_TNCHW = x_SNCHW
        for number in range(1, 5):
            pooled = [self.pool] if number >= self.first_pool else []
            s_TNCHW = self.stage([self.get_submodule(f"conv{number}"), *pooled], s_TNCHW, num_steps)
        i_TNCHW = s_TNCHW + self.stage([self.spike4, self.position], s_TNCHW, num_steps)
        for block in self.blocks:
            i_TNCHW = self.stage([block], i_TNCHW, num_steps)
        logits_TNK: Tensor = self.readout(self.spike(i_TNCHW.mean((3, 4)), num_steps))
        return logits_TNK
