"""Sums looked up against the direct convolution in float64: output and every gradient."""

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here, native
from mpd_agl.ops.conv import convolution, lookup
from mpd_agl.ops.conv.convolution import Ways
from tests.ops.cases import difference

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])

TOLERANCE = 1e-6
LOOKUP = Ways("lookup", "lookup")
CASES = [  # N, C_in, C_out, H, W, kernel, stride, padding, largest value, scale
    (3, 16, 32, 7, 9, 3, 1, 1, 1, 1.0),
    (2, 32, 48, 8, 8, 3, 1, 1, 3, 1.0),
    (5, 16, 32, 16, 16, 3, 2, 1, 4, 1.0),
    (2, 64, 32, 11, 11, 1, 2, 0, 2, 1.0),
    (1, 16, 16, 3, 70, 3, 1, 1, 1, 1.0),
    (9, 80, 80, 5, 6, 3, 1, 0, 5, 0.25),
    (2, 16, 16, 1, 1, 3, 1, 1, 15, 1.0),
    (7, 16, 64, 12, 12, 3, 2, 1, 1, 1.0),
    (4, 32, 32, 4, 4, 1, 1, 0, 1, 0.25),
]


def tensors(N, C, C_out, H, W, kernel, stride, padding, most, scale):
    g = torch.Generator().manual_seed(N + C)
    x = (torch.rand(N, C, H, W, generator=g) * (most + 1)).floor().clamp(0, most) * scale
    weight, bias = torch.randn(C_out, C, kernel, kernel, generator=g), torch.randn(C_out, generator=g)
    out = torch.conv2d(x, weight, None, stride, padding).shape
    return x, weight, bias, torch.randn(out, generator=g)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_output_and_every_gradient(level, layout):
    for case in CASES:
        *leaves, grad = tensors(*case)
        stride, padding = case[6:8]
        exact = [a.double().requires_grad_() for a in leaves]
        ours = [(a.contiguous(memory_format=layout) if a.dim() == 4 else a).requires_grad_() for a in leaves]
        y = convolution.conv(*ours, stride=stride, padding=padding, ways=LOOKUP)
        want = torch.conv2d(*exact, stride, padding)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert difference(y, want) < TOLERANCE, case
        found, wanted = torch.autograd.grad(y, ours, grad), torch.autograd.grad(want, exact, grad.double())
        assert difference(found[1], wanted[1]) < TOLERANCE, case
        for a, b in zip(found, wanted, strict=True):
            assert a.shape == b.shape
            assert difference(a, b) < 2e-6, case  # the input gradient is torch's own


def test_bits_of_what_is_a_small_whole_number(level):
    weight, x = torch.zeros(16, 16, 3, 3), torch.zeros(2, 16, 4, 4)
    for value, planes, scale in ((0.0, 1, 1.0), (1.0, 1, 1.0), (3.0, 2, 1.0), (4.0, 3, 1.0), (15.0, 4, 1.0)):
        x[1, 3, 2, 1] = value
        found = lookup.scan(x, weight, 1, 1)
        assert (found.planes.shape[0], found.scale) == (planes, scale)
        assert int((found.planes != 0).sum()) == value.__trunc__().bit_count()
    x[0, 0, 0, 0], x[1, 3, 2, 1] = 0.75, 1.0
    assert lookup.scan(x, weight, 1, 1).scale == 0.25
    for value in (-1.0, 16.0, 0.3, 1e-9, 3e9, float("inf"), float("nan")):
        x[0, 0, 0, 0] = value
        assert lookup.scan(x, weight, 1, 1) is None, value


def test_other_numbers_are_computed_densely(level):
    x, weight, bias, grad = tensors(*CASES[0])
    for a in (x + 0.3, -x):
        leaves = [t.clone().requires_grad_() for t in (a, weight, bias)]
        y = convolution.conv(*leaves, padding=1, ways=Ways("lookup", "lookup"))
        assert torch.equal(y, torch.conv2d(a, weight, bias, padding=1))
        dense = [t.clone().requires_grad_() for t in (a, weight, bias)]
        wanted = torch.autograd.grad(torch.conv2d(*dense, padding=1), dense, grad)
        for found, want in zip(torch.autograd.grad(y, leaves, grad), wanted, strict=True):
            assert difference(found, want) < 1e-5


def test_the_same_bits_for_any_number_of_threads(level):
    x, weight, bias, grad = tensors(40, 32, 32, 8, 8, 3, 1, 1, 2, 1.0)
    bits, threads, found = lookup.scan(x, weight, 1, 1), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            y = lookup.forward(bits, x.shape, weight, bias, 1, 1)
            found.append((y, lookup.weight_grad(bits, x.shape, weight, grad, 1, 1)))
    finally:
        torch.set_num_threads(threads)
    for y, dw in found[1:]:
        assert torch.equal(y, found[0][0])
        assert torch.equal(dw, found[0][1])


def test_what_it_refuses():
    weight, x = torch.zeros(16, 16, 3, 3), torch.zeros(2, 16, 4, 4)
    assert "stride 1 or 2" in lookup.why_not(weight, 3)
    assert "multiples of 16" in lookup.why_not(torch.zeros(16, 8, 3, 3), 1)
    assert "pairs of channels" in lookup.why_not(torch.zeros(512, 512, 1, 1), 1)
    with pytest.raises(InputError, match="cannot be looked up"):
        convolution.conv(torch.zeros(2, 8, 4, 4), torch.zeros(16, 8, 3, 3), padding=1, ways=LOOKUP)
    bits = lookup.scan(x, weight, 1, 1)
    with pytest.raises(InputError, match="bits of this layer's input"):
        lookup.forward(bits, torch.Size((3, 16, 4, 4)), weight, None, 1, 1)
    with pytest.raises(InputError, match="float32 gradient"):
        lookup.weight_grad(bits, x.shape, weight, torch.zeros(2, 16, 4, 5), 1, 1)
    assert native.load()[1] == ""
