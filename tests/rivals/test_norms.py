"""TEBN, TAB and MPBN against slow computations in float64; their widths; folding."""

import math

import pytest
import torch
from torch import nn

from mpd_agl import core
from mpd_agl.errors import InputError
from mpd_agl.nn import LIF, SpikingBlock, StepAffine, fold, predicted
from mpd_agl.rivals.mpbn import FoldedLIF
from mpd_agl.rivals.step_norms import TAB, TEBN
from tests.nn.parts import assert_all_close, gradients, inputs, noise, widths

NORMS = ("tebn", "tab", "mpbn")


def stirred(norm):
    """Parameters that are not where they start."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in norm.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return norm.double()


def check(norm, x, want, num_steps=None):
    """Values, and the gradients of the input and of every parameter."""
    out, named = norm(x, num_steps), {"x": x, **dict(norm.named_parameters())}
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
    g = torch.randn_like(want)
    assert_all_close(gradients(out, named, g), gradients(want, named, g), rtol=1e-8, atol=1e-10)


def slow_bn(values, gamma, beta, eps):
    """One channel's values, normalised one by one."""
    mean = sum(values) / len(values)
    var = sum((v - mean) ** 2 for v in values) / len(values)
    return lambda v: gamma * (v - mean) / (var + eps) ** 0.5 + beta


@pytest.mark.parametrize("steps_given", [3, 1])
def test_tebn_is_its_equation(steps_given):
    T, N, C = 3, 3, 2
    norm = stirred(TEBN(C, T))
    x = torch.randn(steps_given, N, C, 1, 2, dtype=torch.float64, requires_grad=True)
    x_T = x.expand(T, -1, -1, -1, -1)
    columns = []
    for c in range(C):
        of = slow_bn(list(x_T[:, :, c].flatten()), norm.weight[c], norm.bias[c], norm.eps)
        columns.append(torch.stack([norm.scale[t] * of(x_T[t, :, c]) for t in range(T)]))
    check(norm, x, torch.stack(columns, 2), T)


@pytest.mark.parametrize("steps_given", [3, 1])
def test_tab_normalises_each_step_over_the_steps_up_to_it(steps_given):
    T, N, C = 3, 3, 2
    norm = stirred(TAB(C, T))
    x = torch.randn(steps_given, N, C, 1, 2, dtype=torch.float64, requires_grad=True)
    x_T = x.expand(T, -1, -1, -1, -1)
    steps = []
    for t in range(T):
        columns = []
        for c in range(C):
            of = slow_bn(list(x_T[: t + 1, :, c].flatten()), norm.weight[t, c], norm.bias[t, c], norm.eps)
            columns.append(norm.scale[t] ** 2 * of(x_T[t, :, c]))
        steps.append(torch.stack(columns, 1))
    check(norm, x, torch.stack(steps), T)


def test_tab_by_hand_and_its_running_statistics():
    norm = TAB(1, 2, eps=0.0, momentum=1.0)
    with torch.no_grad():
        norm.scale.copy_(torch.tensor([1.0, 2.0]))
        norm.bias[1] = 0.5
    x = torch.tensor([[[0.0], [2.0]], [[4.0], [6.0]]])  # step 1: 0, 2; up to step 2: 0, 2, 4, 6
    # step 1: mean 1, variance 1; step 2: mean 3, variance 5, and 2^2 times (x - 3)/sqrt 5 + 1/2
    want = torch.tensor([[[-1.0], [1.0]], [[4 * (1 / math.sqrt(5) + 0.5)], [4 * (3 / math.sqrt(5) + 0.5)]]])
    torch.testing.assert_close(norm(x), want)
    torch.testing.assert_close(norm.running_mean, torch.tensor([[1.0], [3.0]]))
    torch.testing.assert_close(norm.running_var, torch.tensor([[1.0 * 2 / 1], [5.0 * 4 / 3]]))
    norm.eval()
    unbiased = torch.tensor([2.0, 20 / 3]).sqrt()
    torch.testing.assert_close(norm(x)[1, 0, 0], 4 * (1 / unbiased[1] + 0.5))


def conv_block(norm, method="mpd-agl", channels=4, num_steps=3, **options):
    torch.manual_seed(0)
    synapse = nn.Conv2d(2, channels, 3, padding=1, bias=False)
    block = SpikingBlock(synapse, method=method, norm=norm, num_steps=num_steps, backend="eager", **options)
    with torch.no_grad():
        for name, p in block.named_parameters():
            if "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
    return block


def mpbn_slow(block, s_TNC, kappa_T):
    """MPBN from its equations: a loop over time, statistics by hand."""
    n, neuron, p = block.norm, block.neuron, block.neuron.potential_norm
    x = torch.stack([block.synapse(s) for s in s_TNC])

    def normed(v, weight, bias, axes, eps):
        mean = v.mean(axes, keepdim=True)
        var = (v - mean).square().mean(axes, keepdim=True)
        shape = [1] * v.dim()
        shape[-3] = -1
        return weight.view(shape) * (v - mean) / (var + eps).sqrt() + bias.view(shape)

    i = normed(x, n.weight, n.bias, (0, 1, 3, 4), n.eps)
    kept, out = torch.zeros_like(i[0]), []
    for t in range(len(s_TNC)):
        v = neuron.tau * kept + i[t]
        u = normed(v, p.weight, p.bias, (0, 2, 3), p.eps) - neuron.v_th
        s = core.spike(u, kappa_T[t], neuron.surrogate)
        kept = v * (1 - s)
        out.append(s)
    return torch.stack(out)


@pytest.mark.parametrize("method", ["stbp-tdbn", "mpd-agl"])
def test_mpbn_is_its_equations(method):
    block, s = conv_block("mpbn", method).double(), inputs(3, 5, 2, 4, 4).double()
    want, out = mpbn_slow(block, s, widths(block, 3).kappa_T.double()), block(s)
    assert torch.equal(out, want)
    assert 0.05 < float(out.detach().mean()) < 0.95
    g, named = torch.randn_like(want), dict(block.named_parameters())
    assert_all_close(gradients(out, named, g), gradients(want, named, g), rtol=1e-7, atol=1e-9)
    assert {n for n in block.state_dict() if n.startswith("neuron.potential_norm.")} == {
        f"neuron.potential_norm.{n}" for n in block.norm.state_dict()
    }


def test_widths_that_belong_to_each_norm():
    tau, root = 0.2, math.sqrt(1 + 0.2**2)
    for name, want in {
        "bn": [2.2, 2.2 * root, 2.2 * root],
        "mpbn": [2.2, 2.2, 2.2],  # the potential itself is normalised: nothing leaks into its spread
    }.items():
        block = SpikingBlock(nn.Linear(3, 4), norm=name)
        norm = block.neuron.potential_norm if name == "mpbn" else block.norm
        nn.init.constant_(norm.weight, 1.1)
        assert widths(block, 3).kappa_T.tolist() == pytest.approx(want, rel=1e-5)
    tebn = SpikingBlock(nn.Linear(3, 4), norm="tebn", num_steps=3)
    tab = SpikingBlock(nn.Linear(3, 4), norm="tab", num_steps=3)
    with torch.no_grad():
        tebn.norm.scale.copy_(torch.tensor([1.0, 0.5, 2.0]))
        tab.norm.scale.copy_(torch.tensor([1.0, 0.5, 2.0]).sqrt())
    later = [2 * math.sqrt(a * a + tau * tau * b * b) for a, b in ((0.5, 1.0), (2.0, 0.5))]
    for block in (tebn, tab):  # step t has its own spread, and tau times that of the step before
        assert widths(block, 3).kappa_T.tolist() == pytest.approx([2.0, *later], rel=1e-5)


def test_moments_per_step_are_those_of_drawn_currents():
    norm = stirred(TEBN(6, 2)).float()
    (affine,) = norm.affines()
    torch.testing.assert_close(affine.beta_C, norm(torch.zeros(2, 3, 6)).detach().mean(1))
    tau = torch.tensor(0.7)
    mean_T, std_T = predicted([affine], tau, 2, "exact")
    generator, v = torch.Generator().manual_seed(0), torch.zeros(200_000, 6)
    for t in range(2):
        v = tau * v + affine.beta_C[t] + affine.gamma_C[t] * torch.randn(v.shape, generator=generator)
        assert float(v.mean()) == pytest.approx(float(mean_T[t]), abs=0.01)
        # The mixture over channels: a channel keeps its beta from step to step, which the moments take as independent.
        apart = sum(tau ** (2 * (t - j)) * affine.beta_C[j].var(correction=0) for j in range(t + 1))
        between = v.mean(0).var(correction=0) - apart
        assert float(v.var() - between) == pytest.approx(float(std_T[t] ** 2), rel=0.02)


@pytest.mark.parametrize("make", [TEBN, TAB])
def test_a_batch_of_one_is_normalised_as_its_row_of_a_larger_one(make):
    norm, x = stirred(make(3, 3)), noise(1, 2, 3, 4, 4).double()
    norm(x, 3)
    norm.eval()
    torch.testing.assert_close(norm(x[:, :1], 3), norm(x, 3)[:, :1])


@pytest.mark.parametrize("name", NORMS)
def test_folding_keeps_every_spike(name):
    block = conv_block(name, channels=16).double()
    with torch.no_grad():
        block.norm.weight[..., 1] *= -1
        if name == "mpbn":
            block.neuron.potential_norm.weight[0] = -0.8  # fires below its threshold
            block.neuron.potential_norm.weight[1] = 0.0
            block.neuron.potential_norm.bias[2] = 2.0  # a threshold under 0
    s = inputs(3, 6, 2, 5, 5).double()
    for _ in range(30):
        block(s)
    net = nn.Sequential(block).eval()
    folded = fold(net)
    with torch.no_grad():
        want, out = net(s), folded(s)
    assert torch.equal(out, want)
    assert 0.05 < float(want.mean()) < 0.95
    assert (folded[0].norm is None) == (name not in ("tebn", "tab"))
    assert isinstance(folded[0].norm, StepAffine) == (name in ("tebn", "tab"))
    if name == "mpbn":
        assert isinstance(folded[0].neuron, FoldedLIF)
        assert (folded[0].neuron.v_th < 0).any()
        assert (want[:, :, 0] != 0).any()


def test_refused():
    for text, call in {
        "needs num_steps=T": lambda: SpikingBlock(nn.Linear(2, 2), norm="tab"),
        "built for 3 timesteps .* got 2": lambda: SpikingBlock(nn.Linear(2, 2), norm="tebn", num_steps=3)(
            torch.rand(2, 2, 2)
        ),
        "TAB was built for 3 .* got 1": lambda: TAB(2, 3)(torch.rand(1, 2, 2)),
        "fires on normalised ones": lambda: conv_block("mpbn", "deeptage")(inputs(3, 5, 2, 4, 4)),
        "knows the neurons LIF and PLIF": lambda: SpikingBlock(nn.Linear(2, 2), norm="mpbn", method="trsg"),
        "makes the block's neuron, got one as well": lambda: SpikingBlock(nn.Linear(2, 2), norm="mpbn", neuron=LIF()),
        "parameters for 3 timesteps, got 5": lambda: widths(SpikingBlock(nn.Linear(2, 2), norm="tab", num_steps=3), 5),
    }.items():
        with pytest.raises(InputError, match=text):
            call()
