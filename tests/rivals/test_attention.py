"""TCJA and STAtten's attention against loops in float64, and short cases by hand."""

import math

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.rivals.attention import TCJA, SpikeAttention, spike_attention, tcja


def tcja_slow(x, weight_t, weight_c):
    T, N, C, H, W = x.shape
    y = torch.zeros_like(x)

    def mean(n, t, c):
        inside = 0 <= t < T and 0 <= c < C
        return sum(x[t, n, c, h, w] for h in range(H) for w in range(W)) / (H * W) if inside else 0.0

    for n in range(N):
        for t in range(T):
            for c in range(C):
                k_t, k_c = weight_t.shape[2], weight_c.shape[2]
                a = sum(weight_t[t, s, k] * mean(n, s, c + k - (k_t - 1) // 2) for s in range(T) for k in range(k_t))
                b = sum(weight_c[c, d, k] * mean(n, t + k - (k_c - 1) // 2, d) for d in range(C) for k in range(k_c))
                y[t, n, c] = x[t, n, c] / (1 + torch.exp(-a * b))
    return y


def test_tcja_is_its_equation():
    torch.manual_seed(0)
    x = torch.rand(3, 2, 3, 1, 2, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(3, 3, k, dtype=torch.float64, requires_grad=True) for k in (4, 3)]
    want, out = tcja_slow(x, *weights), tcja(x, *weights)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    g = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, [x, *weights], g) for y in (out, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_tcja_by_hand():
    x = torch.tensor([[[[[1.0, 0.0]]]], [[[[1.0, 1.0]]]]])  # T = 2, one channel; means 1/2 and 1
    weight_t = torch.tensor([[[1.0], [2.0]], [[0.0], [1.0]]])  # a = (1/2 + 2, 1)
    weight_c = torch.tensor([[[3.0]]])  # b = (3/2, 3)
    gates = [1 / (1 + math.exp(-2.5 * 1.5)), 1 / (1 + math.exp(-3.0))]
    assert tcja(x, weight_t, weight_c).flatten().tolist() == pytest.approx([gates[0], 0.0, gates[1], gates[1]])


def attention_slow(q, k, v, heads, steps):
    T, N, C, H, W = q.shape
    D, out = C // heads, torch.zeros_like(q)
    flat = [a.reshape(T, N, C, H * W) for a in (q, k, v)]
    for t in range(T):
        group = range(t // steps * steps, t // steps * steps + steps)
        for n in range(N):
            for head in range(heads):
                for token in range(H * W):
                    for e in range(D):
                        total = 0.0
                        for s in group:
                            for m in range(H * W):
                                likeness = sum(
                                    flat[0][t, n, head * D + d, token] * flat[1][s, n, head * D + d, m]
                                    for d in range(D)
                                )
                                total = total + likeness * flat[2][s, n, head * D + e, m]
                        out[t, n, head * D + e, token // W, token % W] = total
    return out


def test_attention_is_its_equation():
    torch.manual_seed(0)
    qkv = [torch.randn(4, 2, 4, 1, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    want, out = attention_slow(*qkv, 2, 2), spike_attention(*qkv, heads=2, steps=2)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    g = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, qkv, g) for y in (out, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_attention_by_hand_and_its_scale():
    # One head of one channel, one pixel, two steps: out_t = q_t (k_1 v_1 + k_2 v_2).
    q, k, v = (torch.tensor(a).view(2, 1, 1, 1, 1) for a in ([1.0, 0.0], [1.0, 1.0], [1.0, 1.0]))
    assert SpikeAttention(1, 2, events=False)(q, k, v).flatten().tolist() == [2.0, 0.0]
    assert SpikeAttention(1, 1, events=False)(q, k, v).flatten().tolist() == [1.0, 0.0]
    assert SpikeAttention(1, 2, events=True)(q, k, v).flatten().tolist() == [1.0, 0.0]  # 1/(H^2 B)
    big = [a.expand(2, 1, 1, 4, 4) for a in (q, k, v)]
    assert float(SpikeAttention(1, 2, events=False)(*big).max()) == 32 / 4
    assert SpikeAttention(1, 2, events=False).active_share(q, k, v) == (1.0 + 0.5) / 2
    assert SpikeAttention(1, 2, events=False).macs_per_step(big[0]) == 2 * 16


def test_another_number_of_timesteps_is_refused():
    with pytest.raises(InputError, match="TCJA was built for 4 timesteps .* got 2"):
        TCJA(3, 4)(torch.rand(2, 1, 3, 2, 2))
    with pytest.raises(InputError, match="attention over 2 timesteps .* got 3"):
        SpikeAttention(1, 2, events=False)(*[torch.rand(3, 1, 2, 2, 2)] * 3)


def test_operations_of_a_gate():
    # conv_t: T*T*4 weights over C channels for T steps; conv_c: C*C*4 a step; and C*H*W products.
    assert TCJA(3, 2).macs_per_step(torch.zeros(2, 1, 3, 5, 5)) == 2 * 4 * 3 + 3 * 3 * 4 + 3 * 25
