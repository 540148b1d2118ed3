"""The event-driven convolution's order of additions, spelled out in slow Python: what event.cpp computes, bit by bit.

Forward: per output pixel, over blocks of 128 input channels, then taps: the even and the odd entries of the active list
(values of 1 first) are summed from 0 in float32, and both sums, added, go to the pixel's total; the bias comes last.
Weight gradient: space is cut into windows; in each, the gradient rows of the positions with 1, then of other active
ones, are summed from 0, then added to the chunk's total; chunks are added at the end, in order.
"""

import itertools

import torch

BLOCK, WINDOW, POSITIONS = 128, 256, 128


def forward(x, weight, bias, stride, pad):
    N, C, H, W = x.shape
    C_out, _, K, _ = weight.shape
    OH, OW = (H + 2 * pad - K) // stride + 1, (W + 2 * pad - K) // stride + 1
    y = torch.zeros(N, C_out, OH, OW)
    for n, oy, ox in ((n, oy, ox) for n in range(N) for oy in range(OH) for ox in range(OW)):
        total = torch.zeros(C_out)
        for first in range(0, C, BLOCK):
            for ky, kx in ((ky, kx) for ky in range(K) for kx in range(K)):
                iy, ix = oy * stride + ky - pad, ox * stride + kx - pad
                if 0 <= iy < H and 0 <= ix < W:
                    chains = [torch.zeros(C_out), torch.zeros(C_out)]
                    active = [c for c in range(first, min(C, first + BLOCK)) if x[n, c, iy, ix] != 0]
                    for i, c in enumerate(sorted(active, key=lambda c: x[n, c, iy, ix] != 1)):
                        chains[i % 2] += x[n, c, iy, ix] * weight[:, c, ky, kx]
                    total += chains[0] + chains[1]
        y[n, :, oy, ox] = total if bias is None else total + bias
    return y


def windows(N, H, W, K, stride, pad):
    """Lists of (n, r, q): at tap ky the input row is `r stride + ky % stride - pad`, the output `r - ky // stride`."""
    reach = -(-K // stride)
    R, Q = (H - 1 + pad) // stride + 1, (W - 1 + pad) // stride + 1
    wide = min(Q, POSITIONS if reach == 1 else 32)
    tall = min(R, max(1, min(POSITIONS // wide, WINDOW // (wide + reach - 1) - (reach - 1))))
    images = max(1, min(POSITIONS // (tall * wide), WINDOW // ((tall + reach - 1) * (wide + reach - 1))))
    if tall == R and wide == Q and images > 1:
        return [
            [(n, r, q) for n in range(first, min(N, first + images)) for r in range(R) for q in range(Q)]
            for first in range(0, N, images)
        ]
    return [
        [(n, r, q) for r in range(r0, min(R, r0 + tall)) for q in range(q0, min(Q, q0 + wide))]
        for n in range(N)
        for r0 in range(0, R, tall)
        for q0 in range(0, Q, wide)
    ]


def weight_grad(x, grad, K, stride, pad, row):
    """`row` is the number of output channels in a block: it sets the number of chunks."""
    N, C, H, W = x.shape
    C_out, OH, OW = grad.shape[1:]
    cut = windows(N, H, W, K, stride, pad) if (K, stride) != (1, 1) else windows(1, 1, N * H * W, 1, 1, 0)
    if (K, stride) == (1, 1):
        x = x.permute(1, 0, 2, 3).reshape(1, C, 1, -1)
        grad = grad.permute(1, 0, 2, 3).reshape(1, C_out, 1, -1)
        H, W, OH, OW = 1, x.shape[3], 1, x.shape[3]
    tasks = -(-C_out // row) * -(-C // BLOCK)
    chunks = max(1, min(-(-16 // tasks), len(cut) // 4))
    per_chunk = -(-len(cut) // chunks)
    totals = []
    for first in range(0, chunks * per_chunk, per_chunk):
        dw = torch.zeros(C_out, C, K, K)
        for places in cut[first : first + per_chunk]:
            for ky, kx in ((ky, kx) for ky in range(K) for kx in range(K)):
                part = torch.zeros(C_out, C)
                for ones, (n, r, q) in itertools.product((True, False), places):
                    iy, ix = r * stride + ky % stride - pad, q * stride + kx % stride - pad
                    oy, ox = r - ky // stride, q - kx // stride
                    if 0 <= iy < H and 0 <= ix < W and 0 <= oy < OH and 0 <= ox < OW:
                        values = x[n, :, iy, ix]
                        part += grad[n, :, oy, ox, None] * torch.where((values == 1) == ones, values, 0)
                dw[:, :, ky, kx] += part
        totals.append(dw)
    out = totals[0]
    for dw in totals[1:]:
        out += dw
    return out
