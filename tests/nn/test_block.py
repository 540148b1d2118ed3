"""The spiking block against the written equations, width rules, statelessness."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.nn import (
    LIF,
    METHODS,
    PLIF,
    Current,
    FixedWidth,
    LearnableWidth,
    MPDWidth,
    SpikingBlock,
    TdBatchNorm,
    fold,
    over_time,
)

FUSED = [m.name for m in METHODS.values() if m.name != "asgl" and not (m.replaces_neuron or m.max_steps)]


def conv_block(method="mpd-agl", channels=6, **options):
    torch.manual_seed(0)
    block = SpikingBlock(nn.Conv2d(3, channels, 3, padding=1, bias=False), method=method, **options)
    with torch.no_grad():
        block.norm.weight.copy_(1 + 0.3 * torch.randn(channels))
        block.norm.bias.copy_(0.2 * torch.randn(channels))
    return block


def by_equations(block, s_TNC, kappa_T):
    x = over_time(block.synapse, s_TNC)
    n = block.norm
    i = core.tdbn(x, n.weight, n.bias, *core.batch_moments(x), v_th=n.v_th, alpha=n.alpha, eps=n.eps)
    neuron = block.neuron
    potential = block._potential(len(kappa_T), None, None, None) if block.affines() else None
    gain_T = None if potential is None else block.width.with_gain(potential)[1]
    return core.lif(i, neuron.tau, kappa_T, v_th=neuron.v_th, surrogate=neuron.surrogate, gain_T=gain_T)[0]


@pytest.mark.parametrize("method", FUSED)
def test_block_in_float64_is_the_equations(method):
    block = conv_block(method, backend="eager").double()
    s_TNC = (torch.rand(3, 4, 3, 8, 8) < 0.3).double()
    kappa_T = block.kappa(3, x_SNC=over_time(block.synapse, s_TNC)).double()
    want = by_equations(block, s_TNC, kappa_T)
    parameters = list(block.parameters())
    g = torch.randn_like(want)
    g_want = torch.autograd.grad(want, parameters, g, allow_unused=True)
    out = block(s_TNC)
    g_out = torch.autograd.grad(out, parameters, g, allow_unused=True)
    assert torch.equal(out, want)
    for (name, _), a, b in zip(block.named_parameters(), g_out, g_want, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8, msg=name)


def test_kappa_carries_no_gradient_into_gamma_or_tau():
    block = conv_block()
    kappa_T = block.kappa(2)
    assert not kappa_T.requires_grad
    assert conv_block("psg").kappa(2).requires_grad


@pytest.mark.parametrize(
    ("method", "want"),
    [
        ("stbp-tdbn", [1.0, 1.0, 1.0]),
        ("trainable-decay", [1.0, 1.0, 1.0]),
        ("lsg", [math.sqrt(1.04)] * 3),
        ("agr", [1.1, 1.1 * math.sqrt(1.04), 1.1 * math.sqrt(1.04)]),
        ("mpd-agl", [1.1, 1.1 * math.sqrt(1.04), 1.1 * math.sqrt(1.04)]),
        ("mpd-agl-exact", [2 * math.sqrt(s) for s in (0.3225 + 0.02, 1.04 * 0.3425, 1.04 * 0.3425)]),
        ("psg", [1.0, 1.0, 1.0]),
        ("asgl", [1.0, 1.0, 1.0]),
    ],
)
def test_widths_by_hand(method, want):
    block = conv_block(method, channels=3)
    with torch.no_grad():
        block.norm.weight.copy_(torch.tensor([0.8, 1.1, 1.4]))  # mean 1.1, mean square 1.27
        block.norm.bias.copy_(torch.tensor([0.0, 0.1, -0.1]))
    if method == "mpd-agl-exact":
        variance = 0.25 * 1.27 + 0.02 / 3
        want = [2 * math.sqrt(variance), 2 * math.sqrt(1.04 * variance), 2 * math.sqrt(1.04 * variance)]
    assert block.kappa(3).tolist() == pytest.approx(want, rel=1e-5)


def test_deeptage_width_from_the_potentials():
    block = conv_block("deeptage")
    s_TNC = (torch.rand(3, 4, 3, 8, 8) < 0.3).float()
    x = over_time(block.synapse, s_TNC)
    n = block.norm
    i = core.tdbn(x, n.weight, n.bias, *core.batch_moments(x))
    _, v_T = core.lif(i, block.neuron.tau, torch.ones(3))
    sigma_T = (v_T - 0.5).flatten(1).norm(dim=1)
    want = 0.25 * sigma_T / sigma_T[0] + 0.75
    assert block.kappa(3, x_SNC=x).tolist() == pytest.approx(want.tolist(), rel=1e-5)
    assert block.neuron.surrogate.name == "arctan-peak"


def test_two_currents_before_one_neuron_add_their_variances():
    other = Current(None, TdBatchNorm(3, alpha=0.5))
    block = conv_block(channels=3, currents=[other])
    with torch.no_grad():
        block.norm.weight.fill_(1.2)
        other.norm.weight.fill_(0.8)
    want = 2 * math.sqrt((1.2 * 0.5) ** 2 + (0.8 * 0.25) ** 2)
    assert float(block.kappa(1)[0]) == pytest.approx(want, rel=1e-6)


def test_non_positive_gamma_bar_warns_once_and_trains_on():
    block = conv_block()
    with torch.no_grad():
        block.norm.weight.fill_(-0.4)
    images = torch.randn(1, 4, 3, 8, 8)
    with pytest.warns(UserWarning, match=r"gamma_bar of a norm is -0.4, .*\|gamma_bar\| is used"):
        out = block(images, num_steps=2)
    block(images, num_steps=2)  # says it once
    out.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters())


@pytest.mark.parametrize(("method", "start", "parameter"), [("psg", 0.001, "kappa"), ("asgl", 1000.0, "slope")])
def test_a_learnable_width_out_of_bounds_is_kept_within_and_can_come_back(method, start, parameter):
    block = conv_block(method)
    with torch.no_grad():
        getattr(block.width, parameter).fill_(start)
    kappa_T = block.kappa(2)
    assert kappa_T.detach().tolist() == pytest.approx([core.KAPPA_MIN * 0.5] * 2)
    kappa_T.sum().backward()
    assert float(getattr(block.width, parameter).grad) != 0


def test_asgl_mixes_in_training_and_spikes_in_evaluation():
    block = conv_block("asgl")
    images = torch.randn(1, 8, 3, 8, 8)
    torch.manual_seed(0)
    out = block(images, num_steps=2)
    soft = (out > 0) & (out < 1)
    assert (
        0.02 < float(soft.float().mean()) < 0.2
    )  # a fifth of the outputs are soft; inside the interval they are fractions
    out.sum().backward()
    assert block.width.slope.grad is not None
    assert float(block.width.slope.grad) != 0
    block.eval()
    assert set(block(images, num_steps=2).unique().tolist()) <= {0.0, 1.0}


def test_a_static_image_is_the_repeated_image_with_one_convolution():
    block = conv_block()
    images = torch.randn(1, 4, 3, 8, 8)
    calls = []
    block.synapse.register_forward_hook(lambda m, i, o: calls.append(o.shape[0]))
    once = block(images, num_steps=3)
    g = torch.randn_like(once)
    g_once = torch.autograd.grad(once, list(block.parameters()), g)
    stats_once = block.norm.running_mean.clone(), block.norm.running_var.clone()
    other = conv_block()
    many = other(images.expand(3, -1, -1, -1, -1).contiguous())
    g_many = torch.autograd.grad(many, list(other.parameters()), g)
    assert calls == [4]
    assert torch.equal(once, many)
    for a, b in zip(g_once, g_many, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stats_once[0], other.norm.running_mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(stats_once[1], other.norm.running_var, rtol=1e-6, atol=1e-7)


def test_running_statistics_are_torchs():
    block, bn = conv_block(), nn.BatchNorm2d(6)
    s_TNC = torch.rand(2, 4, 3, 8, 8)
    for _ in range(3):
        block(s_TNC)
        bn(block.synapse(s_TNC.flatten(0, 1)))
    torch.testing.assert_close(block.norm.running_mean, bn.running_mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(block.norm.running_var, bn.running_var, rtol=1e-6, atol=1e-6)
    assert block.norm.num_batches_tracked == 3


def test_the_norm_module_is_core_tdbn():
    norm = TdBatchNorm(5, v_th=0.7, alpha=0.5)
    x = torch.randn(3, 4, 5)
    want = core.tdbn(x, norm.weight, norm.bias, *core.batch_moments(x), v_th=0.7, alpha=0.5)
    torch.testing.assert_close(norm(x), want)
    norm.eval()
    scale, shift = norm.affine()
    torch.testing.assert_close(norm(x), x * scale + shift)


@pytest.mark.parametrize("method", list(METHODS))
def test_copies_pickles_and_state_dicts_give_the_same_spikes(method):
    block = conv_block(method)
    images, T = torch.randn(1, 4, 3, 8, 8), METHODS[method].max_steps or 2
    block(images, num_steps=T).sum().backward()
    block.eval()
    want = block(images, num_steps=T)
    assert torch.equal(copy.deepcopy(block)(images, num_steps=T), want)
    assert torch.equal(pickle.loads(pickle.dumps(block))(images, num_steps=T), want)
    buffer = io.BytesIO()
    torch.save(block.state_dict(), buffer)
    other = SpikingBlock(nn.Conv2d(3, 6, 3, padding=1, bias=False), method=method)
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    assert torch.equal(other.eval()(images, num_steps=T), want)
    ema = torch.optim.swa_utils.AveragedModel(block, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    ema.update_parameters(block)
    assert torch.equal(ema.eval()(images, num_steps=T), want)


def test_stateless():
    block = conv_block().eval()
    images = torch.randn(1, 4, 3, 8, 8)
    with torch.no_grad():
        first = block(images, num_steps=4)
        assert torch.equal(block(images, num_steps=4), first)
        assert torch.equal(block(images, num_steps=2), first[:2])  # causal: a longer T adds steps, changes none


def test_neurons_alone():
    i_T = torch.randn(3, 4, 5)
    s_T = LIF(tau=0.3)(i_T, torch.ones(3))
    assert torch.equal(s_T, core.lif(i_T, 0.3, torch.ones(3))[0])
    plif = PLIF(tau=0.3)
    assert float(plif.rho.detach()) == pytest.approx(math.log(0.3 / 0.7))
    assert float(plif.tau.detach()) == pytest.approx(0.3)
    assert torch.equal(plif(i_T, torch.ones(3)), s_T)


def test_fold_gives_the_same_spikes():
    block = conv_block()
    s_TNC = (torch.rand(2, 16, 3, 16, 16) < 0.3).float()
    for _ in range(5):
        block(s_TNC)
    with pytest.raises(InputError, match="evaluation mode, got one that is training"):
        fold(block)
    block.eval()
    folded = fold(block)
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
        (lambda: LearnableWidth(-1.0), "kappa must be positive, got -1.0"),
        (lambda: MPDWidth("exakt"), "unknown moments 'exakt'. Did you mean 'exact'"),
        (lambda: conv_block("mpd_agl"), "unknown method 'mpd_agl'. Did you mean 'mpd-agl'"),
        (
            lambda: conv_block("deeptage", surrogate="sigmoid"),
            "has its own surrogate 'arctan-peak', got surrogate='sigmoid'",
        ),
        (lambda: SpikingBlock(nn.ReLU()), "a synapse must be nn.Conv2d or nn.Linear, got ReLU"),
        (
            lambda: conv_block()(torch.randn(4, 3, 8, 8)),
            r"takes \(4, N, 3, H, W\).* got \(4, 3, 8, 8\). .*unsqueeze\(0\)",
        ),
        (lambda: conv_block()(torch.randn(1, 4, 2, 8, 8), 2), r"got \(1, 4, 2, 8, 8\)"),
        (lambda: conv_block()(torch.randn(1, 4, 3, 8, 8), num_steps=0), "num_steps must be at least 1, got 0"),
        (lambda: conv_block()(torch.randint(0, 9, (1, 4, 3, 8, 8)), 2), "takes floating-point input, got torch.int64"),
        (lambda: conv_block()(torch.full((1, 4, 3, 8, 8), float("nan")), 2), "tdBN layer holds NaN or Inf"),
        (lambda: conv_block()(torch.randn(1, 0, 3, 8, 8), 2), "got an empty input"),
        (lambda: TdBatchNorm(3)(torch.randn(2, 4, 5)), r"takes \(T, N, 3\).* got \(2, 4, 5\)"),
        (lambda: TdBatchNorm(3)(torch.randn(1, 1, 3)), "at least 2 values per channel, got 1"),
    ],
)
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
