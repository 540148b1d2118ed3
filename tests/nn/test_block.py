"""The spiking block against the written equations: width rules, statistics, folding, no state between calls."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, PLIF, BatchNorm, Current, FixedWidth, MPDWidth, SpikingBlock, TdBatchNorm, fold
from tests.nn.parts import assert_all_close, by_equations, conv_block, gradients, inputs, noise, widths

METHODS = ["stbp-tdbn", "trainable-decay", "lsg", "agr", "mpd-agl", "mpd-agl-exact", "mpd-quantile", "mpd-gain"]


@pytest.mark.parametrize("method", METHODS)
def test_block_in_float64_is_the_equations(method):
    block, s_TNC = conv_block(method).double(), inputs(3, 4, 3, 8, 8).double()
    want, out = by_equations(block, s_TNC), block(s_TNC)
    g, named = torch.randn_like(want), dict(block.named_parameters())
    assert torch.equal(out, want)
    assert_all_close(gradients(out, named, g), gradients(want, named, g), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_the_gradient_by_the_input_is_that_of_the_equations(backend, train):
    block, x = conv_block(backend=backend).train(), inputs(3, 4, 3, 8, 8).requires_grad_()
    block(x.detach())  # running statistics
    exact, y = copy.deepcopy(block).double(), x.detach().double().requires_grad_()
    want = by_equations(exact.train(train), y)
    block.train(train)
    g = noise(*want.shape)
    out = block(x)
    assert torch.equal(out.double(), want)
    assert_all_close(gradients(out, {"x": x}, g), {"x": torch.autograd.grad(want, y, g.double())[0].float()})


def test_kappa_carries_no_gradient_into_gamma_or_tau():
    assert not widths(conv_block(), 2).kappa_T.requires_grad


@pytest.mark.parametrize(
    ("method", "want"),
    [
        ("stbp-tdbn", [1.0, 1.0, 1.0]),
        ("trainable-decay", [1.0, 1.0, 1.0]),
        ("lsg", [math.sqrt(1.04)] * 3),
        ("agr", [1.1, 1.1 * math.sqrt(1.04), 1.1 * math.sqrt(1.04)]),
        ("mpd-agl", [1.1, 1.1 * math.sqrt(1.04), 1.1 * math.sqrt(1.04)]),
        # mean square of gamma 1.27, variance of beta 0.02/3
        ("mpd-agl-exact", [2 * math.sqrt(a * (0.25 * 1.27 + 0.02 / 3)) for a in (1, 1.04, 1.04)]),
    ],
)
def test_widths_by_hand(method, want):
    block = conv_block(method, channels=3)
    with torch.no_grad():
        block.norm.weight.copy_(torch.tensor([0.8, 1.1, 1.4]))
        block.norm.bias.copy_(torch.tensor([0.0, 0.1, -0.1]))
    assert widths(block, 3).kappa_T.tolist() == pytest.approx(want, rel=1e-5)


def test_two_currents_before_one_neuron_add_their_variances():
    other = Current(None, TdBatchNorm(3, alpha=0.5))
    block = conv_block(channels=3, currents=[other])
    with torch.no_grad():
        block.norm.weight.fill_(1.2)
        other.norm.weight.fill_(0.8)
    want = 2 * math.sqrt((1.2 * 0.5) ** 2 + (0.8 * 0.25) ** 2)
    assert float(widths(block, 1).kappa_T[0]) == pytest.approx(want, rel=1e-6)


def test_non_positive_gamma_bar_warns_once_and_trains_on():
    block, images = conv_block(), noise(1, 4, 3, 8, 8)
    with torch.no_grad():
        block.norm.weight.fill_(-0.4)
    with pytest.warns(UserWarning, match=r"gamma_bar of a norm is -0.4, .*\|gamma_bar\| is used"):
        out = block(images, num_steps=2)
    block(images, num_steps=2)  # says it once
    out.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters())


@pytest.mark.parametrize("hooked", [False, True])
def test_a_static_image_is_the_repeated_image_with_one_convolution(hooked):
    """Its steps all count in the running variance, also where the norm is called as a module."""
    once, many, calls = conv_block(), conv_block(), []
    once.synapse.register_forward_hook(lambda m, i, o: calls.append(o.shape[0]))
    for block in (once, many):
        if hooked:
            block.norm.register_forward_hook(lambda m, i, o: None)
    images = noise(1, 4, 3, 8, 8)
    a, b = once(images, num_steps=3), many(images.expand(3, -1, -1, -1, -1).contiguous())
    g = torch.randn_like(a)
    assert calls == [4]
    assert torch.equal(a, b)
    assert_all_close(gradients(a, dict(once.named_parameters()), g), gradients(b, dict(many.named_parameters()), g))
    assert_all_close(dict(once.norm.named_buffers()), dict(many.norm.named_buffers()), rtol=1e-6, atol=1e-7)


def test_running_statistics_are_torchs():
    block, bn = conv_block(), nn.BatchNorm2d(6)
    s_TNC = torch.rand(2, 4, 3, 8, 8)
    for _ in range(3):
        block(s_TNC)
        bn(block.synapse(s_TNC.flatten(0, 1)))
    assert_all_close(dict(block.norm.named_buffers()), dict(bn.named_buffers()), rtol=1e-6, atol=1e-6)


def test_bn_is_torchs_over_time_and_batch():
    norm, theirs = BatchNorm(5), nn.BatchNorm2d(5)
    x = torch.randn(3, 4, 5, 2, 2) * 3 + 1
    torch.testing.assert_close(norm(x), theirs(x.flatten(0, 1)).view(x.shape))
    torch.testing.assert_close(norm.running_var, theirs.running_var)


def test_the_norm_module_is_core_tdbn():
    norm, x = TdBatchNorm(5, v_th=0.7, alpha=0.5), noise(3, 4, 5)
    want = core.tdbn(x, norm.weight, norm.bias, *core.batch_moments(x), v_th=0.7, alpha=0.5)
    torch.testing.assert_close(norm(x), want)
    scale_C, shift_C = norm.eval().affine_map()
    torch.testing.assert_close(norm(x), x * scale_C + shift_C)


def test_a_frozen_norm_is_frozen():
    block, x = SpikingBlock(nn.Linear(5, 6, bias=False)), noise(3, 8, 5)
    block.norm.eval()
    out = block(x)
    assert float(block.norm.running_mean.abs().sum()) == 0
    assert torch.equal(out, block.eval()(x))


@pytest.mark.parametrize("norm", ["tdbn", "bn"])
@pytest.mark.parametrize("hooked", [False, True])
def test_the_gradients_of_a_batch_of_one_image(norm, hooked):
    """torch's own batch norm is wrong there if memory orders differ."""
    block = conv_block("stbp-tdbn", norm=norm).to(memory_format=torch.channels_last)
    if hooked:
        block.norm.register_forward_hook(lambda m, i, o: None)
    image = noise(1, 1, 3, 8, 8)
    exact = copy.deepcopy(block).double()
    if hooked:
        exact.norm._forward_hooks.clear()
    want = by_equations(exact, image.double().expand(2, -1, -1, -1, -1))
    g = noise(*want.shape)
    out = block(image.to(memory_format=torch.contiguous_format), num_steps=2)
    assert_all_close(
        gradients(out, dict(block.named_parameters()), g),
        {n: a.float() for n, a in gradients(want, dict(exact.named_parameters()), g.double()).items()},
        rtol=1e-3,
    )


def test_create_graph_differentiates_the_equations_again():
    block = conv_block().double()
    x = noise(3, 2, 3, 4, 4).double().requires_grad_()
    found = []
    for run in (block, lambda x: by_equations(block, x)):
        (g_x,) = torch.autograd.grad((run(x) * noise(3, 2, 6, 4, 4).double()).sum(), x, create_graph=True)
        found.append(gradients(g_x.square().sum(), {"x": x, **dict(block.named_parameters())}, torch.ones(())))
    assert float(found[1]["x"].abs().max()) > 0
    assert_all_close(*found, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_copies_pickles_and_state_dicts_give_the_same_spikes(method):
    block, images = conv_block(method), noise(1, 4, 3, 8, 8)
    block(images, num_steps=2).sum().backward()
    want = block.eval()(images, num_steps=2)
    buffer = io.BytesIO()
    torch.save(block.state_dict(), buffer)
    loaded = SpikingBlock(nn.Conv2d(3, 6, 3, padding=1, bias=False), method=method)
    loaded.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    ema = torch.optim.swa_utils.AveragedModel(block, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    ema.update_parameters(block)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), loaded, ema):
        assert torch.equal(other.eval()(images, num_steps=2), want)


def test_a_part_used_twice_gets_both_gradients_and_counts_twice():
    first, second = conv_block(), conv_block()
    second.norm, second.neuron = first.norm, first.neuron
    s_TNC = inputs(3, 4, 3, 8, 8)
    exact = copy.deepcopy(nn.ModuleList([first, second])).double()
    want = by_equations(exact[0], s_TNC.double()) + 2 * by_equations(exact[1], s_TNC.double().flip(0))
    out = first(s_TNC) + 2 * second(s_TNC.flip(0))
    named, doubled = dict(first.named_parameters()), dict(exact[0].named_parameters())
    g = noise(*out.shape)
    assert torch.equal(out.double(), want)
    assert_all_close(gradients(out, named, g), {n: a.float() for n, a in gradients(want, doubled, g.double()).items()})
    assert int(first.norm.num_batches_tracked) == 2


def test_frozen_parameters_change_no_other_gradient():
    whole, frozen, s_TNC = conv_block(), conv_block(), inputs(3, 4, 3, 8, 8)
    for name in ("norm.weight", "norm.bias", "neuron.rho"):
        frozen.get_parameter(name).requires_grad_(False)
    out = frozen(s_TNC)
    g = torch.randn_like(out)
    want = gradients(whole(s_TNC), {"w": whole.synapse.weight}, g)
    assert_all_close(gradients(out, {"w": frozen.synapse.weight}, g), want, rtol=0, atol=0)
    assert [n for n, p in frozen.named_parameters() if p.requires_grad] == ["synapse.weight"]


def test_autocast_rounds_the_synapse_and_keeps_the_membrane_in_float32():
    block, s_TNC = conv_block(), inputs(3, 4, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = block(s_TNC)
        x = block.synapse(s_TNC.flatten(0, 1)).view(3, 4, 6, 8, 8)
    assert (out.dtype, x.dtype) == (torch.bfloat16, torch.bfloat16)
    n = block.norm
    i = core.tdbn(x.float(), n.weight, n.bias, *core.batch_moments(x.float()))
    want = core.lif(i, block.neuron.tau, widths(block, 3).kappa_T)[0]
    assert torch.equal(out.float(), want)
    out.float().sum().backward()
    assert float(block.synapse.weight.grad.abs().max()) > 0
    assert n.running_mean.dtype == torch.float32


def test_stateless():
    block, images = conv_block().eval(), noise(1, 4, 3, 8, 8)
    with torch.no_grad():
        first = block(images, num_steps=4)
        assert torch.equal(block(images, num_steps=4), first)
        assert torch.equal(block(images, num_steps=2), first[:2])  # causal: a longer T adds steps, changes none


def test_neurons_alone():
    i_T = noise(3, 4, 5)
    s_T = LIF(tau=0.3)(i_T)
    assert torch.equal(s_T, core.lif(i_T, 0.3, torch.ones(3))[0])
    plif = PLIF(tau=0.3)
    assert float(plif.rho.detach()) == pytest.approx(math.log(0.3 / 0.7))
    assert float(plif.tau.detach()) == pytest.approx(0.3)
    assert torch.equal(plif(i_T), s_T)


def test_fold_gives_the_same_spikes():
    block, s_TNC = conv_block(), inputs(2, 16, 3, 16, 16)
    for _ in range(5):
        block(s_TNC)
    with pytest.raises(InputError, match="evaluation mode, got one that is training"):
        fold(block)
    folded = fold(block.eval())
    with torch.no_grad():
        differ = folded(s_TNC) != block(s_TNC)
    assert int(differ.sum()) <= s_TNC.numel() // 100_000 + 1
    assert folded.norm is None
    assert torch.equal(folded(s_TNC), folded(s_TNC))  # with gradients enabled too
    assert block.norm is not None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LIF(tau=0.0), "tau, .* must lie between 0 and 1, got 0.0. The paper uses 0.2."),
        (lambda: PLIF(tau=1.0), "a learnable tau must lie between 0 and 1, got 1.000"),
        (lambda: LIF(v_th=0.0), "v_th must be positive, .*, got 0.0. The paper uses 0.5."),
        (lambda: TdBatchNorm(3, v_th=-1), "v_th must be positive, got -1"),
        (lambda: LIF(surrogate="atan"), "unknown surrogate 'atan'. Did you mean 'arctan'"),
        (lambda: LIF(backend="cuda"), "unknown backend 'cuda'"),
        (lambda: FixedWidth(0.0), "kappa must be positive, got 0.0"),
        (lambda: MPDWidth("exakt"), "unknown moments 'exakt'. Did you mean 'exact'"),
        (lambda: conv_block("mpd_agl"), "unknown method 'mpd_agl'. Did you mean 'mpd-agl'"),
        (lambda: SpikingBlock(nn.ReLU()), "a synapse must be nn.Conv2d or nn.Linear, got ReLU"),
        (lambda: SpikingBlock(nn.Linear(2, 2), norm="ln"), "unknown norm 'ln'"),
        (
            lambda: conv_block()(torch.randn(4, 3, 8, 8)),
            r"takes \(4, N, 3, H, W\).* got \(4, 3, 8, 8\). .*unsqueeze\(0\)",
        ),
        (lambda: conv_block()(torch.randn(1, 4, 2, 8, 8), 2), r"got \(1, 4, 2, 8, 8\)"),
        (lambda: conv_block()(torch.randn(1, 4, 3, 8, 8)), "got one timestep and starts at rest at every call"),
        (lambda: conv_block()(torch.randn(1, 4, 3, 8, 8), num_steps=0), "num_steps must be at least 1, got 0"),
        (lambda: conv_block()(torch.randint(0, 9, (1, 4, 3, 8, 8)), 2), "takes floating-point input, got torch.int64"),
        (lambda: conv_block()(torch.full((1, 4, 3, 8, 8), float("nan")), 2), "a norm holds NaN or Inf"),
        (lambda: conv_block()(torch.randn(1, 0, 3, 8, 8), 2), "at least 2 values per channel"),
        (lambda: TdBatchNorm(3)(torch.randn(2, 4, 5)), r"takes \(T, N, 3\).* got \(2, 4, 5\)"),
        (lambda: TdBatchNorm(3)(torch.randn(1, 1, 3)), "at least 2 values per channel, got 1"),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_block_refuses_options_that_a_given_part_makes_void():
    linear = nn.Linear(5, 6)
    for options, words in (
        ({"tau": 0.5}, "tau would have no effect, since neuron= is given"),
        ({"v_th": 1.0, "surrogate": "arctan"}, "v_th, surrogate would have no effect, since neuron= is given"),
        ({"detach_reset": False}, "detach_reset would"),
        ({"backend": "eager"}, "backend would"),
    ):
        with pytest.raises(InputError, match=words):
            SpikingBlock(linear, neuron=LIF(), **options)
    with pytest.raises(InputError, match="method would have no effect, since neuron= is given"):
        SpikingBlock(linear, neuron=LIF(method="mpd-agl"), method="lsg")
    with pytest.raises(InputError, match="alpha would have no effect, since norm= is given"):
        SpikingBlock(linear, norm=nn.LayerNorm(6), alpha=0.5)
    with pytest.raises(InputError, match="channels are on axis 2, got a neuron with channel_dim=-1"):
        SpikingBlock(linear, neuron=LIF(channel_dim=-1))
    block = SpikingBlock(linear, neuron=LIF(v_th=1.0), method="lsg")  # a neuron without a rule takes the block's
    assert type(block.width).__name__ == "LSGWidth"
    assert (block.neuron.v_th, block.norm.v_th, float(block.neuron.tau)) == (1.0, 1.0, pytest.approx(0.2))
