"""Event-driven convolution against dense autograd in float64, and against its own order of additions bit by bit."""

import itertools
from dataclasses import replace

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import active, convolution
from tests.ops import active_reference
from tests.ops.cases import difference

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])

TOLERANCE = 1e-6
SHAPES = [  # N, C_in, C_out, H, W
    (7, 5, 5, 9, 11),
    (1, 1, 1, 1, 1),
    (2, 128, 128, 12, 12),
    (3, 130, 40, 8, 8),
    (2, 16, 300, 2, 1),
    (1, 8, 16, 5, 70),
    (9, 24, 33, 3, 3),
]
CONV_IMPLS = [
    (3, 1, 1),
    (3, 2, 1),
    (1, 1, 0),
    (1, 2, 0),
    (3, 1, 0),
    (5, 2, 2),
    (1, 1, 1),
    (1, 2, 1),
]  # kernel, stride, padding


def spikes(shape, rate, kind="binary", seed=0):
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(shape, generator=g) < rate).float()
    if kind == "integers":
        x *= torch.randint(1, 4, shape, generator=g)
    elif kind == "quarters":
        x *= torch.randint(1, 9, shape, generator=g) / 4
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x


def compare(x, weight, bias, stride, padding):
    """Output, and the gradients of input, weight and bias, against float64."""
    leaves = [a.clone().requires_grad_() for a in (x, weight, bias)]
    exact = [a.double().requires_grad_() for a in (x, weight, bias)]
    y = convolution.conv(*leaves, stride=stride, padding=padding)
    want = torch.conv2d(*exact, stride, padding) if x.dim() == 4 else torch.nn.functional.linear(*exact)
    assert y.shape == want.shape
    assert y.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)
    assert difference(y, want) < TOLERANCE
    g = torch.randn(want.shape, generator=torch.Generator().manual_seed(3))
    (dx, *ours), (want_dx, *wanted) = torch.autograd.grad(y, leaves, g), torch.autograd.grad(want, exact, g.double())
    assert difference(dx, want_dx) < 1e-5  # torch's own dense one
    for a, b in zip(ours, wanted, strict=True):
        assert a.shape == b.shape
        assert difference(a, b) < TOLERANCE or a.abs().max() == b.abs().max() == 0


@pytest.mark.parametrize("kind", ["binary", "integers", "quarters"])
@pytest.mark.parametrize("rate", [0.0, 0.14, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_every_gradient(shape, rate, kind):
    N, C, C_out, H, W = shape
    x = spikes((N, C, H, W), rate, kind)
    for K, stride, padding in CONV_IMPLS:
        if min(H, W) + 2 * padding >= K:
            g = torch.Generator().manual_seed(1)
            weight, bias = torch.randn(C_out, C, K, K, generator=g), torch.randn(C_out, generator=g)
            compare(x, weight.contiguous(memory_format=torch.channels_last), bias, stride, padding)


@pytest.mark.parametrize("kind", ["binary", "quarters"])
@pytest.mark.parametrize(("N", "F", "K"), [(1, 1, 1), (7, 5, 10), (130, 300, 40)])
def test_linear_layers(N, F, K, kind):
    g = torch.Generator().manual_seed(1)
    compare(spikes((N, F), 0.2, kind), torch.randn(K, F, generator=g), torch.randn(K, generator=g), 1, 0)


def test_the_documented_order_of_additions_bit_by_bit(level):
    row = {"base": 16, "avx2": 32, "avx512": 64}[level]
    for (N, C, C_out, H, W), (K, stride, pad) in itertools.product(
        [(3, 5, 5, 7, 6), (1, 131, 3, 3, 4), (13, 2, 40, 4, 4)], CONV_IMPLS[:4]
    ):
        g = torch.Generator().manual_seed(2)
        x = (
            spikes((N, C, H, W), 0.4) * torch.tensor([1.0, 2.0])[torch.randint(0, 2, (C, 1, 1), generator=g)]
        )  # exact products
        weight, bias = torch.randn(C_out, C, K, K, generator=g), torch.randn(C_out, generator=g)
        y = convolution.conv(x, weight, bias, stride=stride, padding=pad)
        assert torch.equal(y, active_reference.forward(x, weight, bias, stride, pad))
        grad = torch.randn(y.shape, generator=g)
        dw = active.weight_grad(active.scan(x), x.shape, weight, grad, stride, pad)
        assert torch.equal(dw, active_reference.weight_grad(x, grad, K, stride, pad, row))


def test_the_same_bits_for_any_number_of_threads():
    x, weight = spikes((9, 70, 10, 10), 0.2), torch.randn(50, 70, 3, 3, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(9, 50, 10, 10, generator=torch.Generator().manual_seed(2))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(
                (
                    convolution.conv(x, weight, padding=1),
                    active.weight_grad(active.scan(x), x.shape, weight, grad, 1, 1),
                )
            )
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("channels", [1, 5, 8, 128, 129, 300])
def test_lists_hold_the_active_channels_and_their_values(channels):
    x = spikes((6, channels), 0.3, "quarters")
    found = active.scan(x)
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
    assert found.rate == pytest.approx(float((x != 0).float().mean()), abs=1e-7)
    assert active.scan((x != 0).float()).value is None


def test_values_of_one_add_the_same_bits_as_no_values():
    x, weight = spikes((3, 40, 6, 6), 0.3), torch.randn(8, 40, 3, 3, generator=torch.Generator().manual_seed(1))
    want = convolution.conv(x, weight, padding=1)
    x[2, :, 5, 5] = 2  # now the lists hold values; the outputs of the images before it read only ones
    assert active.scan(x).value is not None
    assert torch.equal(convolution.conv(x, weight, padding=1)[:2], want[:2])


def test_any_memory_layout_gives_the_same_numbers():
    x, weight = spikes((3, 6, 5, 5), 0.3), torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(1))
    want = convolution.conv(x, weight, padding=1)
    assert torch.equal(convolution.conv(x.contiguous(), weight, padding=1), want)
    last = weight.contiguous(memory_format=torch.channels_last)
    assert torch.equal(convolution.conv(x, last, padding=1, packed=active.pack(last)), want)


def test_nan_in_the_input_reaches_the_output():
    x = spikes((1, 4, 4, 4), 0.5)
    x[0, 2, 1, 1] = float("nan")
    assert torch.isnan(convolution.conv(x, torch.ones(2, 4, 3, 3), padding=1)[0, :, 1, 1]).all()


def test_what_it_cannot_do_is_said():
    assert "float64" in active.why_not(torch.zeros(1, 1, dtype=torch.float64))
    with pytest.raises(InputError, match="up to 5 x 5"):
        convolution.conv(torch.zeros(1, 2, 9, 9), torch.zeros(1, 2, 7, 7))
    with pytest.raises(InputError, match="does not fit"):
        convolution.conv(torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 3, 3))
    with pytest.raises(InputError, match="float64"):
        active.scan(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="takes 3 channels"):
        convolution.conv(torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 3, 3))
    with pytest.raises(InputError, match="stride 0"):
        convolution.conv(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 3, 3), stride=0)


def test_weights_biases_and_lists_that_do_not_belong_are_refused():
    x, weight = torch.zeros(2, 3, 4, 4), torch.zeros(5, 3, 3, 3)
    for wrong in (weight.double(), weight.to("meta")):
        with pytest.raises(InputError, match=f"a float32 weight on the CPU, got {wrong.dtype} on {wrong.device}"):
            convolution.conv(x, wrong)
    with pytest.raises(InputError, match="a float32 bias on the CPU, got torch.float64"):
        convolution.conv(x, weight, torch.zeros(5, dtype=torch.float64))
    with pytest.raises(InputError, match=r"takes a bias \(5,\), got \(3,\)"):
        convolution.conv(x, weight, torch.zeros(3))
    with pytest.raises(InputError, match="lists of 16 rows of 3 channels are not those"):
        convolution.conv(x, weight, lists=active.scan(x[:1]))
    with pytest.raises(InputError, match="lists of 32 rows of 2 channels are not those"):
        convolution.conv(x, weight, lists=active.scan(x[:, :2]))


def test_every_public_function_checks_what_it_reads():
    x, weight = spikes((2, 16, 5, 5), 0.3), torch.randn(4, 16, 3, 3)
    lists, grad = active.scan(x), torch.randn(2, 4, 5, 5)
    valued, packed = active.scan(2 * x), active.pack(weight)
    rest = (weight, None, 1, 1)
    wrong = [
        lambda: active.forward(lists, x.shape, *rest, packed=packed[:-1]),
        lambda: active.forward(lists, x.shape, *rest, packed=packed.double()),
        lambda: active.forward(lists, x.shape, *rest, packed=torch.zeros(2 * len(packed))[::2]),
        lambda: active.forward(lists, torch.Size((3, 16, 5, 5)), *rest),
        lambda: active.forward(replace(lists, index=lists.index[:, :, :8]), x.shape, *rest),
        lambda: active.forward(replace(lists, index=lists.index.float()), x.shape, *rest),
        lambda: active.forward(replace(valued, ones=None), x.shape, *rest),
        lambda: active.forward(replace(valued, value=valued.value[:1]), x.shape, *rest),
        lambda: active.forward(lists, x.shape, weight, torch.zeros(3), 1, 1),
        lambda: active.forward(lists, x.shape, torch.randn(4, 16, 7, 7), None, 1, 3),
        lambda: active.weight_grad(lists, x.shape, weight, grad[:1], 1, 1),
        lambda: active.weight_grad(lists, x.shape, weight, grad.double(), 1, 1),
        lambda: active.weight_grad(lists, x.shape, weight, grad, 1, 0),
        lambda: active.pack(torch.zeros(3)),
        lambda: active.pack(torch.zeros(2, 2, 3, 3).double()),
        lambda: active.scan(torch.zeros(2, 3, 4)),
    ]
    for run in wrong:
        with pytest.raises(InputError):
            run()


def test_lists_are_saved_tensors_that_hooks_see():
    x, weight = spikes((2, 16, 5, 5), 0.3), torch.randn(4, 16, 3, 3).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda a: kept.append(a.shape) or a, lambda a: a):
        convolution.conv(x, weight, padding=1)
    assert kept == [weight.shape, (50, 1, 16), (50, 1)]


def test_operators_trace_and_differentiate():
    x, weight = spikes((2, 6, 5, 5), 0.3).requires_grad_(), torch.randn(4, 6, 3, 3).requires_grad_()
    torch.library.opcheck(active.conv_op, (x, weight, None, 2, 1))
    y = active.conv_op(x, weight, None, 2, 1)
    g = torch.randn_like(y)
    want = torch.autograd.grad(torch.conv2d(x, weight, None, 2, 1), (x, weight), g)
    got = torch.autograd.grad(y, (x, weight), g)
    assert all(difference(a, b) < TOLERANCE for a, b in zip(got, want, strict=True))
