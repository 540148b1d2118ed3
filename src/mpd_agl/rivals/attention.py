"""Attention between spikes: TCJA's gates, and STAtten's products of spikes.

Shapes: x_TNCHW; L tokens (pixels), D channels of one head. Both know how many multiply-accumulates they take for one
image and timestep (`macs_per_step`), so that the energy count can show them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpd_agl.errors import InputError


def tcja(x_TNCHW: Tensor, weight_t: Tensor, weight_c: Tensor) -> Tensor:
    """Temporal-channel joint attention (Zhu et al., TNNLS 2024): `y = x sigmoid(a b)`.

    With m_tc the spatial mean of x: `a_tc = sum_{s,k} weight_t[t, s, k] m_{s, c+k}` runs along the channels and mixes
    all timesteps, `b_tc = sum_{d,k} weight_c[c, d, k] m_{t+k, d}` runs along time and mixes all channels. k counts from
    `-(K - 1) // 2` on, and m is 0 outside.
    """
    mean_NTC = x_TNCHW.mean((3, 4)).transpose(0, 1)
    a_NTC, b_NCT = (
        F.conv1d(F.pad(m, ((k - 1) // 2, k // 2)), weight)
        for m, weight, k in (
            (mean_NTC, weight_t, weight_t.shape[2]),
            (mean_NTC.transpose(1, 2), weight_c, weight_c.shape[2]),
        )
    )
    gate_TNC = torch.sigmoid(a_NTC * b_NCT.transpose(1, 2)).transpose(0, 1)
    return x_TNCHW * gate_TNC[..., None, None]


class TCJA(nn.Module):
    """The gate behind a neuron. It sees all T timesteps at once, so it is built for one T. Its output is no spikes."""

    tied_to_steps = True
    operations = "gate"

    def __init__(self, channels: int, num_steps: int, *, kernel_t: int = 4, kernel_c: int = 4) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.conv_t = nn.Conv1d(num_steps, num_steps, kernel_t, bias=False)
        self.conv_c = nn.Conv1d(channels, channels, kernel_c, bias=False)

    def forward(self, x_TNCHW: Tensor, num_steps: int | None = None) -> Tensor:
        """Spikes times their gates."""
        if x_TNCHW.shape[0] != self.num_steps:
            raise InputError(
                f"TCJA was built for {self.num_steps} timesteps and mixes all of them, got {x_TNCHW.shape[0]}. "
                f"Create the model with num_steps={x_TNCHW.shape[0]}, or without attention."
            )
        return tcja(x_TNCHW, self.conv_t.weight, self.conv_c.weight)

    def macs_per_step(self, x_TNCHW: Tensor) -> int:
        """Two convolutions along channels and time, and one product for each neuron."""
        along = (self.conv_t.weight.numel() * x_TNCHW.shape[2] // self.num_steps) + self.conv_c.weight.numel()
        return along + x_TNCHW[0, 0].numel()


def spike_attention(q_TNCHW: Tensor, k_TNCHW: Tensor, v_TNCHW: Tensor, *, heads: int, steps: int) -> Tensor:
    """STAtten (Lee et al., CVPR 2025): `Q (K^T V)` without softmax, over the tokens of `steps` consecutive timesteps.

    `out[t, l, e] = sum_d q[t, l, d] sum_{s, m} k[s, m, d] v[s, m, e]`, s over the steps of t's group and m over the
    pixels, for each head's channels d and e.
    """
    T, N, C, H, W = q_TNCHW.shape

    def tokens(x_TNCHW: Tensor) -> Tensor:
        x = x_TNCHW.reshape(T // steps, steps, N, heads, C // heads, H * W)
        return x.permute(0, 2, 3, 1, 5, 4).flatten(3, 4)  # groups, N, heads, tokens, D

    q, k, v = (tokens(x) for x in (q_TNCHW, k_TNCHW, v_TNCHW))
    out = q @ (k.transpose(-1, -2) @ v)
    out_TNCHW: Tensor = (
        out.view(-1, N, heads, steps, H * W, C // heads).permute(0, 3, 1, 2, 5, 4).reshape(T, N, C, H, W)
    )
    return out_TNCHW


class SpikeAttention(nn.Module):
    """`c Q (K^T V)`: a current. c is 1/H for images and 1/(H^2 B) for events, H the map's side and B the steps."""

    operations = "attention"

    def __init__(self, heads: int, steps: int, *, events: bool) -> None:
        super().__init__()
        self.heads, self.steps, self.events = heads, steps, events
        self.tied_to_steps = steps > 1

    def forward(self, q_TNCHW: Tensor, k_TNCHW: Tensor, v_TNCHW: Tensor) -> Tensor:
        """The current of all T steps."""
        T, _, _, H, _ = q_TNCHW.shape
        if T % self.steps:
            raise InputError(
                f"attention over {self.steps} timesteps at a time needs a multiple of them, got {T}. "
                "Create the model with another num_steps or attention_steps."
            )
        scale = 1 / (H * H * self.steps) if self.events else 1 / H
        return scale * spike_attention(q_TNCHW, k_TNCHW, v_TNCHW, heads=self.heads, steps=self.steps)

    def macs_per_step(self, q_TNCHW: Tensor, *_: Tensor) -> int:
        """`K^T V` and `Q (K^T V)`: each multiplies every token's channels with those of its head."""
        return 2 * q_TNCHW[0, 0].numel() * (q_TNCHW.shape[2] // self.heads)

    def active_share(self, q_TNCHW: Tensor, k_TNCHW: Tensor, v_TNCHW: Tensor) -> float:
        """The share of those products that are not 0: k and v both spike, or q does."""

        D = q_TNCHW.shape[2] // self.heads

        def spikes(x: Tensor) -> Tensor:
            """Of each token and head."""
            return (x != 0).double().view(*x.shape[:2], self.heads, D, -1).sum(3)

        both = spikes(k_TNCHW) * spikes(v_TNCHW) / (D * D)
        return float((both + spikes(q_TNCHW) / D).mean() / 2)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return f"heads={self.heads}, steps={self.steps}"
