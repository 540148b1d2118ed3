"""Winograd's form against the direct convolution in float64: output and every gradient."""

import itertools

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import conv, winograd
from mpd_agl.ops.conv.rule import Ways
from tests.ops.cases import difference

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])

TOLERANCE = 5e-6
"""Of the largest value."""
WINOGRAD = Ways("winograd", "winograd", "winograd")
SHAPES = [  # N, C_in, C_out, H, W
    (3, 16, 32, 7, 9),
    (1, 48, 16, 1, 1),
    (2, 16, 16, 2, 3),
    (25, 32, 48, 8, 8),
    (2, 288, 16, 6, 5),
    (1, 16, 16, 3, 200),
]


def tensors(N, C, C_out, H, W, padding):
    g = torch.Generator().manual_seed(N + C)
    x, weight = torch.randn(N, C, H, W, generator=g), torch.randn(C_out, C, 3, 3, generator=g)
    bias, grad = (
        torch.randn(shape, generator=g) for shape in (C_out, (N, C_out, H + 2 * padding - 2, W + 2 * padding - 2))
    )
    return x, weight, bias, grad


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_output_and_every_gradient(level, layout):
    for shape, padding in itertools.product(SHAPES, (0, 1, 2)):
        if min(shape[3:]) + 2 * padding < 3:
            continue
        *leaves, grad = tensors(*shape, padding)
        exact = [a.double().requires_grad_() for a in leaves]
        ours = [(a.contiguous(memory_format=layout) if a.dim() == 4 else a).requires_grad_() for a in leaves]
        y, want = conv.compute(*ours, 1, padding, WINOGRAD), torch.conv2d(*exact, padding=padding)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert difference(y, want) < TOLERANCE
        found, wanted = torch.autograd.grad(y, ours, grad), torch.autograd.grad(want, exact, grad.double())
        for a, b in zip(found, wanted, strict=True):
            assert a.shape == b.shape
            assert difference(a, b) < TOLERANCE


@pytest.mark.parametrize(("images", "channels", "size"), [(40, 32, 16), (1, 256, 8), (2, 512, 8)])
def test_a_layer_of_resnet19(images, channels, size):
    x, weight, _, grad = tensors(images, channels, channels, size, size, 1)
    x = (x > 1).float()
    exact = [a.double().requires_grad_() for a in (x, weight)]
    want = torch.conv2d(*exact, padding=1)
    want_dx, want_dw = torch.autograd.grad(want, exact, grad.double())
    assert difference(winograd.forward(x, weight, None, 1), want) < TOLERANCE
    assert difference(winograd.input_grad(weight, grad, 1), want_dx) < TOLERANCE
    assert difference(winograd.weight_grad(x, weight, grad, 1), want_dw) < TOLERANCE


def test_a_weight_gradient_over_many_images_adds_sums_and_not_single_products():
    x, weight, _, grad = tensors(200, 16, 16, 32, 32, 1)
    x = (x > 1).float()
    want = torch.nn.grad.conv2d_weight(x.double(), weight.shape, grad.double(), padding=1)
    assert difference(winograd.weight_grad(x, weight, grad, 1), want) < 3e-6  # torch's own: 3e-6


@pytest.mark.parametrize("images", [9, 60])  # of one block of tiles in the weight gradient, and of five
def test_the_same_bits_for_any_number_of_threads(level, images):
    x, weight, bias, grad = tensors(images, 16, 48, 11, 10, 1)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = winograd.forward(x, weight, bias, 1)
            found.append((y, winograd.input_grad(weight, grad, 1), winograd.weight_grad(x, weight, grad, 1)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_not_a_number_stays_in_its_tiles():
    x, weight, _, _ = tensors(1, 16, 16, 8, 8, 1)
    x[0, 3, 0, 0] = float("nan")
    y = winograd.forward(x, weight, None, 1)
    assert torch.isnan(y[0, :, 0, 0]).all()
    assert not torch.isnan(y[:, :, 4:]).any()
    assert not torch.isnan(y[:, :, :, 4:]).any()
    x[0, 3, 0, 0], x[0, 3, 4, 4] = 0, float("inf")  # four tiles read it
    assert not torch.isfinite(winograd.forward(x, weight, None, 1)[0, :, 3:6, 3:6]).any()


def test_what_it_does_not_take():
    assert winograd.knows((16, 32, 3, 3), 1, 2)
    others = [((16, 16, 3, 3), 2, 1), ((16, 24, 3, 3), 1, 1), ((24, 16, 3, 3), 1, 1), ((16, 16, 3, 3), 1, 3)]
    for shape, stride, padding in (*others, ((16, 16, 1, 1), 1, 0), ((16, 16, 3, 1), 1, 1), ((16, 16), 1, 0)):
        assert not winograd.knows(shape, stride, padding), shape


def test_tensors_that_do_not_fit_are_refused():
    x, weight, bias, grad = tensors(2, 16, 16, 5, 5, 1)
    wrong = [
        lambda: winograd.forward(x.double(), weight, None, 1),
        lambda: winograd.forward(x, weight.double(), None, 1),
        lambda: winograd.forward(torch.cat([x, x], 1), weight, None, 1),
        lambda: winograd.forward(x, weight, bias[:4], 1),
        lambda: winograd.forward(x, weight[:8], None, 1),
        lambda: winograd.forward(x, weight, None, -1),
        lambda: winograd.weight_grad(x, weight, grad[:, :, 1:], 1),
        lambda: winograd.weight_grad(x[:0], weight, grad[:0], 1),
        lambda: winograd.input_grad(weight, grad[:, :8], 1),
    ]
    for run in wrong:
        with pytest.raises(InputError, match=r"takes a float32|does not know"):
            run()
