"""Event-driven convolution: its lists, and its order of additions bit by bit."""

import itertools
from dataclasses import replace

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import event
from mpd_agl.ops.conv.conv import convolve
from tests.ops import event_reference
from tests.ops.test_conv import spikes

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])
LAYERS = [(3, 1, 1), (3, 2, 1), (1, 1, 0), (5, 2, 2)]
"""Kernel, stride, padding."""


def test_the_documented_order_of_additions_bit_by_bit(level):
    row = {"base": 16, "avx2": 32, "avx512": 64}[level]
    for (N, C, C_out, H, W), (K, stride, pad) in itertools.product(
        [(3, 5, 5, 7, 6), (1, 131, 3, 3, 4), (13, 2, 40, 4, 4)], LAYERS
    ):
        g = torch.Generator().manual_seed(2)
        x = (
            spikes((N, C, H, W), 0.4) * torch.tensor([1.0, 2.0])[torch.randint(0, 2, (C, 1, 1), generator=g)]
        )  # exact products
        weight, bias = torch.randn(C_out, C, K, K, generator=g), torch.randn(C_out, generator=g)
        y = convolve(x, weight, bias, stride=stride, padding=pad, impl="event")
        assert torch.equal(y, event_reference.forward(x, weight, bias, stride, pad))
        grad = torch.randn(y.shape, generator=g)
        dw = event.weight_grad(event.scan(x), x.shape, weight, grad, stride, pad)
        assert torch.equal(dw, event_reference.weight_grad(x, grad, K, stride, pad, row))


@pytest.mark.parametrize("channels", [1, 5, 8, 128, 129, 300])
def test_lists_hold_the_active_channels_and_their_values(channels):
    x = spikes((6, channels), 0.3, "quarters")
    found = event.scan(x)
    for row in range(6):
        got = {}
        for block in range(found.index.shape[1]):
            n = int(found.count[row, block])
            index, ones = found.index[row, block, :n].tolist(), int(found.ones[row, block])
            values = [1.0] * ones + found.value[row, block, ones:n].tolist()
            assert index == sorted(index, key=lambda i: (values[index.index(i)] != 1, i))
            assert ones % 2 == 0 or ones == n
            got |= {128 * block + i: v for i, v in zip(index, values, strict=True)}
        assert got == {c: float(v) for c, v in enumerate(x[row]) if v != 0}
    assert int(found.count.sum()) == int((x != 0).sum())
    rate = float((x != 0).float().mean())
    assert event.scan(x, rate - 1e-3) is None
    assert event.scan(x, rate + 1e-3) is not None
    assert event.scan((x != 0).float()).value is None


def test_values_of_one_add_the_same_bits_as_no_values():
    x, weight = spikes((3, 40, 6, 6), 0.3), torch.randn(8, 40, 3, 3, generator=torch.Generator().manual_seed(1))
    want = convolve(x, weight, padding=1, impl="event")
    x[2, :, 5, 5] = 2  # now the lists hold values; the outputs of the images before it read only ones
    assert event.scan(x).value is not None
    assert torch.equal(convolve(x, weight, padding=1, impl="event")[:2], want[:2])


def test_what_the_kernels_would_misread_is_refused():
    x, weight = spikes((2, 16, 5, 5), 0.3), torch.randn(4, 16, 3, 3)
    lists, grad = event.scan(x), torch.randn(2, 4, 5, 5)
    valued, bigger = event.scan(2 * x), torch.Size((3, 16, 5, 5))
    rest = (weight, None, 1, 1)
    wrong = [
        lambda: event.forward(lists, bigger, *rest),
        lambda: event.forward(replace(lists, index=lists.index[:, :, :8]), x.shape, *rest),
        lambda: event.forward(replace(lists, index=lists.index.float()), x.shape, *rest),
        lambda: event.forward(replace(valued, ones=None), x.shape, *rest),
        lambda: event.forward(replace(valued, value=valued.value[:1]), x.shape, *rest),
        lambda: event.forward(lists, x.shape, weight, torch.zeros(3), 1, 1),
        lambda: event.forward(lists, x.shape, weight.double(), None, 1, 1),
        lambda: event.weight_grad(lists, bigger, weight, torch.randn(3, 4, 5, 5), 1, 1),
        lambda: event.weight_grad(lists, x.shape, weight, grad[:1], 1, 1),
        lambda: event.weight_grad(lists, x.shape, weight, grad.double(), 1, 1),
        lambda: event.weight_grad(lists, x.shape, weight, grad, 1, 0),
        lambda: event.scan(x.double()),
        lambda: event.scan(x[:0]),
    ]
    for run in wrong:
        with pytest.raises(InputError):
            run()


def test_lists_are_saved_tensors_that_hooks_see():
    x, weight = spikes((2, 16, 5, 5), 0.3), torch.randn(4, 16, 3, 3).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda a: kept.append(a.shape) or a, lambda a: a):
        convolve(x, weight, padding=1, impl="event")
    assert kept == [weight.shape, (50, 1, 16), (50, 1)]
