"""A convolution in every way against float64: output and every gradient, and what the ways share."""

import itertools
import random
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here
from mpd_agl.ops import library as native
from mpd_agl.ops.conv import conv, rule
from mpd_agl.ops.conv.conv import convolve, linear
from mpd_agl.ops.conv.rule import Sizes, Ways
from tests.ops.cases import difference

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])

SHAPES = [  # N, C_in, C_out, H, W
    (7, 5, 5, 9, 11),
    (1, 1, 1, 1, 1),
    (1, 16, 32, 7, 5),
    (2, 128, 128, 6, 6),
    (3, 130, 40, 5, 8),
    (2, 16, 300, 2, 1),
    (1, 33, 16, 5, 70),
    (9, 24, 33, 3, 3),
]
LAYERS = [(3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (3, 1, 0), (3, 1, 2), (5, 2, 2), (1, 1, 1), (1, 2, 1)]
"""Kernel, stride, padding."""
KINDS = ["binary", "integers", "quarters"]


def spikes(shape, rate, kind="binary", seed=0):
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(shape, generator=g) < rate).float()
    if kind == "integers":
        x *= torch.randint(1, 4, shape, generator=g)
    elif kind == "quarters":
        x *= torch.randint(1, 9, shape, generator=g) / 4
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x


def noise(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(x, weight, bias, run, tolerance, dx_tolerance=1e-5, **layer):
    """Output and all gradients of `run(x, weight, bias)` against float64; dense gradients are torch's own."""
    leaves = [a.clone().requires_grad_() for a in (x, weight, bias)]
    exact = [a.double().requires_grad_() for a in (x, weight, bias)]
    y = run(*leaves)
    want = F.conv2d(*exact, **layer) if x.dim() == 4 else F.linear(*exact)
    assert y.shape == want.shape
    assert difference(y, want) < tolerance
    g = noise(*want.shape, seed=3)
    found, wanted = torch.autograd.grad(y, leaves, g), torch.autograd.grad(want, exact, g.double())
    for a, b, limit in zip(found, wanted, (dx_tolerance, tolerance, tolerance), strict=True):
        assert a.shape == b.shape
        assert difference(a, b) < limit or a.abs().max() == b.abs().max() == 0
    return y


@pytest.mark.parametrize("impl", ["event", "auto", "dense"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_every_gradient(shape, rate, kind, impl):
    N, C, C_out, H, W = shape
    x = spikes((N, C, H, W), rate, kind)
    for K, stride, padding in LAYERS:
        if min(H, W) + 2 * padding >= K:
            weight = noise(C_out, C, K, K).contiguous(memory_format=torch.channels_last)
            layer = {"stride": stride, "padding": padding}
            run = lambda *leaves, layer=layer: convolve(*leaves, **layer, impl=impl)  # noqa: E731
            y = compare(x, weight, noise(C_out), run, 1e-6 if impl == "event" else 1e-5, **layer)
            assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("impl", ["event", "auto", "dense"])
@pytest.mark.parametrize(("N", "C", "K"), [(1, 1, 1), (7, 5, 10), (130, 300, 40)])
def test_linear_layers(N, C, K, impl):
    for kind in KINDS:
        run = lambda *leaves: linear(*leaves, impl=impl)  # noqa: E731
        compare(spikes((N, C), 0.2, kind), noise(K, C), noise(K), run, 2e-6)


def odd_strides(x, rng):
    """The same numbers in another memory order; where a size is 1, its stride may be any."""
    kind = rng.randrange(4)
    if kind == 0 or x.dim() != 4:
        return x
    if kind == 1:
        return torch.stack([x, x], -1)[..., 0]
    if kind == 2:
        return x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    y = x.contiguous(memory_format=torch.channels_last)
    strides = [rng.choice((1, 7, 96)) if size == 1 else s for size, s in zip(y.shape, y.stride(), strict=True)]
    return y.as_strided(y.shape, strides)


@pytest.mark.parametrize("seed", range(3))
def test_random_layers_inputs_and_strides(seed):
    rng = random.Random(seed)
    for case in range(120):
        N, C, C_out = rng.choice((1, 2, 7)), rng.choice((1, 5, 16, 33, 256)), rng.choice((3, 16, 32))
        K, stride, padding = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2, 3)), rng.randrange(3)
        H, W = (rng.choice((1, 3, 4, 7, 12)) for _ in range(2))
        if min(H, W) + 2 * padding < K:
            continue
        x = spikes((N, C, H, W), rng.choice((0.0, 0.1, 0.3, 1.0)), rng.choice(KINDS), case)
        layer = {"stride": stride, "padding": padding}
        impl = rng.choice(("auto", "event"))

        def run(x, weight, bias, layer=layer, impl=impl):
            y = convolve(odd_strides(x, rng), weight, bias, **layer, impl=impl)
            y.register_hook(lambda grad: odd_strides(grad, rng))
            return y

        compare(x, noise(C_out, C, K, K), noise(C_out), run, 1e-4, 1e-4, **layer)


def test_every_mixture_of_ways_is_the_same_function(level):
    x, weight, bias = spikes((4, 16, 6, 6), 0.3), noise(32, 16, 3, 3), noise(32)
    every = ("dense", "winograd", "event")
    for ways in itertools.product(every, every[:2], every):
        run = lambda *leaves, ways=ways: conv.compute(*leaves, 1, 1, Ways(*ways))  # noqa: E731
        compare(x, weight, bias, run, 5e-6, padding=1)


def test_zeros_are_skipped_in_wide_layers_where_few_inputs_are_active():
    weight = noise(16, 256, 3, 3).requires_grad_()
    for rate, skips in ((0.1, True), (0.2, False)):
        y = convolve(spikes((2, 256, 8, 8), rate), weight, padding=1)
        assert (y.grad_fn.geometry[3].forward == "event") is skips, rate
        assert len(y.grad_fn.saved_tensors) == (3 if skips else 2)


def test_a_frozen_weight_keeps_no_input():
    x, weight = spikes((2, 16, 6, 6), 0.2).requires_grad_(), noise(16, 16, 3, 3)
    for impl in ("auto", "event"):
        y = convolve(x, weight, padding=1, impl=impl)
        assert [a.shape for a in y.grad_fn.saved_tensors] == [weight.shape]
        want = torch.nn.grad.conv2d_input(x.shape, weight.double(), torch.ones_like(y).double(), padding=1)
        assert difference(torch.autograd.grad(y.sum(), x)[0], want) < 1e-5


@pytest.mark.parametrize("impl", ["auto", "event"])
def test_a_sample_alone_and_in_a_batch_has_the_same_bits(impl, level):
    """Without gradients; the other samples have other rates, up to fully active. Dense layers are torch's own."""
    if impl == "auto" and level == "base":
        pytest.skip("every layer is torch's own")
    layers = [
        (16, 16, 12, 3, 1, 1),
        (32, 48, 7, 3, 1, 1),
        (256, 16, 6, 3, 1, 1),
        (256, 32, 6, 3, 2, 1),
        (300, 8, 4, 1, 2, 0),
    ]
    layers += [(5, 7, 9, 3, 1, 1), (3, 4, 9, 5, 2, 2), (20, 8, 6, 1, 1, 0)] if impl == "event" else []
    for C, C_out, size, K, stride, padding in layers:
        rates = torch.linspace(0.1, 1.0, 32)
        x, weight, bias = (
            torch.cat([spikes((1, C, size, size), r, seed=i) for i, r in enumerate(rates)]),
            noise(C_out, C, K, K),
            noise(C_out),
        )
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            alone, *others = (
                convolve(x[:n], weight, bias, stride=stride, padding=padding, impl=impl) for n in (1, 2, 7, 32)
            )
        for y in others:
            assert torch.equal(y[:1], alone), (C, C_out, size, K)


@pytest.mark.parametrize("impl", ["auto", "event"])
def test_the_same_bits_for_any_number_of_threads(impl, level):
    x, weight = spikes((9, 256, 10, 10), 0.2), noise(48, 256, 3, 3)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            leaf = weight.clone().requires_grad_()
            y = convolve(x, leaf, padding=1, impl=impl)
            found.append((y, torch.autograd.grad(y, leaf, noise(*y.shape))[0]))
    finally:
        torch.set_num_threads(threads)
    if impl == "event" or level != "base":
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_weight_written_through_data_is_read_as_it_is():
    """Nothing of a weight is kept between calls."""
    x, weight = spikes((2, 32, 8, 8), 0.2), noise(32, 32, 3, 3).requires_grad_(False)
    for impl in ("auto", "event", "dense"):
        with torch.no_grad():
            for _ in range(3):
                before = convolve(x, weight, padding=1, impl=impl)
            weight.data.mul_(2)
            assert difference(convolve(x, weight, padding=1, impl=impl), 2 * before) < 1e-6
            weight.numpy()[:] = 0
            assert not convolve(x, weight, padding=1, impl=impl).any()
        weight = noise(32, 32, 3, 3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_reaches_the_output_where_inputs_are_zero(bad):
    x, weight = torch.zeros(1, 256, 4, 4), noise(16, 256, 3, 3)
    weight[3, 5, 1, 1] = bad
    for impl in ("auto", "event", "dense"):
        for grad in (False, True):
            y = convolve(x, weight.clone().requires_grad_(grad), padding=1, impl=impl)
            assert torch.isnan(y[:, 3]).all(), impl


def test_nan_in_the_input_reaches_the_output():
    x = spikes((1, 16, 4, 4), 0.5)
    x[0, 2, 1, 1] = float("nan")
    for impl in ("auto", "event"):
        assert torch.isnan(convolve(x, torch.ones(16, 16, 3, 3), padding=1, impl=impl)[0, :, 1, 1]).all()


def test_strided_1x1_convolutions_are_computed_on_the_pixels_that_they_read():
    """Under 8 channels torch's own backward of a strided 1x1 convolution writes out of bounds in channels_last."""
    for C, C_out, padding, layout in itertools.product(
        (1, 4, 20), (3, 16), (0, 1), (torch.channels_last, torch.contiguous_format)
    ):
        x, weight = noise(3, C, 9, 8).contiguous(memory_format=layout), noise(C_out, C, 1, 1)
        run = lambda x, w, b, padding=padding: convolve(x, w, b, stride=2, padding=padding, impl="dense")  # noqa: E731
        y = compare(x, weight, noise(C_out), run, 1e-6, stride=2, padding=padding)
        # The backward pass of this node, and of no other convolution, is torch's: it has stride 1.
        node = y.grad_fn
        assert node.name() == "ConvolutionBackward0"
        assert list(node._saved_stride) == [1, 1]
    assert torch.equal(y, F.conv2d(x, weight, noise(C_out), 2, padding))


def test_gradients_of_gradients_are_computed_or_refused():
    x, weight = spikes((2, 16, 5, 5), 0.3), noise(16, 16, 3, 3)
    for impl, computed in (("dense", True), ("auto", True), ("event", False)):
        found = []
        for run, dtype in (
            (partial(convolve, padding=1, impl=impl), torch.float32),
            (partial(F.conv2d, padding=1), torch.float64),
        ):
            a, w = x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
            y = run(a, w).square().sum()
            if not computed and dtype == torch.float32:
                with pytest.raises(InputError, match="gradients of gradients"):
                    torch.autograd.grad(y, (a, w), create_graph=True)
                break
            dx, dw = torch.autograd.grad(y, (a, w), create_graph=True)
            found.append((dx, dw, *torch.autograd.grad(dx.square().sum() + dw.pow(3).sum(), (a, w))))
        else:
            assert all(difference(p, q) < 1e-5 for p, q in zip(*found, strict=True)), impl


def test_a_penalty_on_the_input_gradient_of_a_frozen_weight_is_computed():
    x, weight, found = spikes((2, 16, 5, 5), 0.3), noise(16, 16, 3, 3), []
    for impl, dtype in (("event", torch.float32), ("dense", torch.float64)):
        a = x.to(dtype).requires_grad_()
        y = convolve(a, weight.to(dtype), padding=1, impl=impl).square().sum()
        (dx,) = torch.autograd.grad(y, a, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), a)[0])
    assert difference(*found) < 1e-5


@pytest.mark.parametrize("impl", ["auto", "event"])
def test_torchs_defaults_do_not_reach_the_kernels(impl):
    leaves = [a.requires_grad_() for a in (spikes((2, 16, 5, 5), 0.3), noise(16, 16, 3, 3), noise(16))]
    grad = noise(2, 16, 5, 5)

    def run():
        y = convolve(*leaves, padding=1, impl=impl)
        return [y, *torch.autograd.grad(y, leaves, grad)]

    want = run()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = run()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(a.dtype == torch.float32 and torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_any_memory_layout_gives_the_same_numbers():
    x, weight = spikes((3, 32, 7, 7), 0.3), noise(16, 32, 3, 3)
    for impl in ("auto", "event"):
        want = convolve(x, weight, padding=1, impl=impl)
        last = weight.contiguous(memory_format=torch.channels_last)
        strided = torch.stack([x, x], -1)[..., 1]
        for a, w in ((x.contiguous(), weight), (x, last), (strided, last)):
            assert torch.equal(convolve(a, w, padding=1, impl=impl), want)


def test_other_dtypes_autocast_and_empty_batches_are_dense():
    x, weight = spikes((2, 16, 5, 5), 0.2), noise(16, 16, 3, 3)
    for impl in ("auto", "event"):
        assert torch.equal(convolve(x.double(), weight.double(), impl=impl), F.conv2d(x.double(), weight.double()))
        with torch.autocast("cpu", torch.bfloat16):
            assert convolve(x, weight, impl=impl).dtype == torch.bfloat16
        assert convolve(x[:0], weight, impl=impl).shape == (0, 16, 3, 3)
        assert convolve(x, noise(16, 16, 3, 1), impl=impl).shape == (2, 16, 3, 5)  # not square
        assert convolve(x.to("meta"), weight.to("meta"), impl=impl).device.type == "meta"


def test_compiled_and_exported_layers_are_dense():
    weight = noise(16, 16, 3, 3)

    class Layer(torch.nn.Module):
        def forward(self, x):
            return convolve(x, weight, padding=1, impl="event")

    x, layer = spikes((2, 16, 5, 5), 0.2), Layer()
    want = layer(x)
    graph = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [torch.ops.aten.conv2d.default]
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    for y in (graph.module()(x), compiled(leaf)):
        assert difference(y, want) < 1e-6
    assert compiled(leaf).grad_fn.name() == "ConvolutionBackward0"


def test_what_it_refuses():
    x, weight = torch.zeros(2, 3, 4, 4), torch.zeros(5, 3, 3, 3)
    for message, run in {
        "unknown conv_impl 'events'.*event": lambda: convolve(x, weight, impl="events"),
        "a convolution takes .*got an input": lambda: convolve(x[0], weight),
        "got an input .2, 2, 4, 4": lambda: convolve(x[:, :2], weight),
        r"takes a bias \(5,\), got \(3,\)": lambda: convolve(x, weight, torch.zeros(3)),
        "does not fit an input": lambda: convolve(x[:, :, :2, :2], weight),
        "stride 0": lambda: convolve(x, weight, stride=0),
        "padding -1": lambda: convolve(x, weight, padding=-1),
    }.items():
        with pytest.raises(InputError, match=message):
            run()


def test_event_needs_the_native_kernels(monkeypatch):
    x, weight = spikes((2, 16, 5, 5), 0.2), noise(16, 16, 3, 3)
    monkeypatch.setattr(native, "load", lambda: (None, "the native library is missing"))
    assert torch.equal(convolve(x, weight), F.conv2d(x, weight))
    with pytest.raises(InputError, match="conv_impl 'event' cannot run: the native library is missing"):
        convolve(x, weight, impl="event")


W, D, E = "winograd", "dense", "event"


@pytest.mark.parametrize(
    ("sizes", "with_grad", "without"),
    [  # kernel, stride, padding, c_in, c_out, height, width
        ((3, 1, 1, 16, 16, 32, 32), (W, W, W, 0.0), W),
        ((3, 1, 1, 64, 64, 6, 6), (W, W, W, 0.0), W),
        ((3, 1, 1, 128, 256, 24, 24), (W, W, W, 0.0), W),
        ((3, 1, 1, 256, 256, 16, 16), (W, W, W, 0.15), E),
        ((3, 1, 1, 512, 512, 8, 8), (W, W, W, 0.15), E),
        ((3, 1, 1, 512, 528, 8, 8), (W, W, D, 0.15), E),
        ((3, 1, 1, 24, 16, 32, 32), (D, D, D, 0.0), D),  # not multiples of 16
        ((3, 1, 1, 16, 24, 32, 32), (D, D, D, 0.0), D),
        ((3, 1, 3, 16, 16, 32, 32), (D, D, D, 0.0), D),  # padding
        ((3, 1, 1, 16, 16, 5, 5), (D, D, D, 0.0), D),  # four tiles for 25 outputs
        ((3, 2, 1, 64, 128, 16, 16), (D, D, D, 0.0), D),
        ((3, 2, 1, 128, 256, 16, 16), (D, D, D, 0.3), E),
        ((1, 1, 0, 256, 512, 8, 8), (D, D, D, 0.3), E),
        ((1, 1, 0, 64, 128, 8, 8), (D, D, D, 0.0), D),
        ((1, 1, 0, 512, 256, 1, 1), (D, D, D, 0.0), D),  # a linear layer
        ((7, 1, 3, 256, 256, 8, 8), (D, D, D, 0.0), D),
    ],
)
def test_the_rule(sizes, with_grad, without):
    for simd in ("avx2", "avx512"):
        assert rule.choose(Sizes(*sizes), simd=simd, dtype=torch.float32, grad=True) == Ways(*with_grad)
        assert rule.choose(Sizes(*sizes), simd=simd, dtype=torch.float32, grad=False).forward == without
    for grad in (True, False):
        assert rule.choose(Sizes(*sizes), simd="avx512", dtype=torch.bfloat16, grad=grad) == Ways()
        assert rule.choose(Sizes(*sizes), simd="base", dtype=torch.float32, grad=grad) == Ways()


def test_without_gradients_the_rule_counts_nothing():
    """The share of active inputs is the batch's: a sample's way must not depend on it."""
    for c_in, size, kernel, stride in itertools.product((16, 256, 512), (1, 4, 16), (1, 3), (1, 2)):
        ways = rule.choose(
            Sizes(kernel, stride, 1, c_in, 256, size, size), simd="avx512", dtype=torch.float32, grad=False
        )
        assert ways.event_below == 0 or ways.forward == "dense" == ways.weight_grad, ways
