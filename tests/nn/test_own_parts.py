"""A user's own surrogate, width rule, neuron, norm and hooks in a block: what is given is what runs."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpd_agl import core
from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError
from mpd_agl.models import create_model, load_weights, save_weights
from mpd_agl.nn import (
    LIF,
    METHODS,
    Method,
    SpikingBlock,
    TdBatchNorm,
    Width,
    fold,
    over_time,
    recompute,
    register_method,
)


@dataclass(frozen=True)
class Cosine(Surrogate):
    name: ClassVar[str] = "cosine"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        r = (u / kappa).clamp(-1, 1)
        return (1 + torch.cos(torch.pi * r)) / 2 / kappa

    def soft_step(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        r = (u / kappa).clamp(-1, 1)
        return (1 + r + torch.sin(torch.pi * r) / torch.pi) / 2


class Twice(nn.Module):
    """Not one of ours: fires wherever the current of one step reaches half the threshold."""

    def __init__(self, tau: float = 0.2, v_th: float = 0.5, **_: object) -> None:
        super().__init__()
        self.register_buffer("tau", torch.tensor(tau))
        self.v_th = v_th

    def forward(self, i_TNC: Tensor, kappa_T: Tensor) -> Tensor:
        return torch.stack([core.spike(i - self.v_th / 2, k) for i, k in zip(i_TNC, kappa_T, strict=True)])


class FromBatch(Width):
    """A rule that needs measured potentials: the spread of this very batch."""

    needs_batch = True

    def forward(self, potential):
        sums = potential.batch
        if sums is None:
            return torch.ones(potential.num_steps)
        mean_T = sums.sum_T / sums.values
        return (2 * (sums.square_T / sums.values - mean_T.square()).sqrt()).float()


def conv(**options) -> SpikingBlock:
    torch.manual_seed(0)
    return SpikingBlock(nn.Conv2d(3, 6, 3, padding=1, bias=False), **options)


def current(block: SpikingBlock, s_TNC: Tensor) -> Tensor:
    x = over_time(block.synapse, s_TNC)
    n = block.norm
    return core.tdbn(x, n.weight, n.bias, *core.batch_moments(x), v_th=n.v_th, alpha=n.alpha, eps=n.eps)


S_TNC = (torch.rand(3, 4, 3, 8, 8, generator=torch.Generator().manual_seed(1)) < 0.3).float()


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_an_own_surrogate_object_shapes_the_gradient(backend):
    block = conv(surrogate=Cosine(), backend=backend)
    kappa_T = block.kappa(3)
    i_T = current(block, S_TNC)
    want = core.lif(i_T, block.neuron.tau, kappa_T, surrogate=Cosine())[0]
    out = block(S_TNC)
    g = torch.randn_like(out)
    assert torch.equal(out, want)
    for a, b in zip(
        torch.autograd.grad(out, list(block.parameters()), g),
        torch.autograd.grad(want, list(block.parameters()), g),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_rule_that_needs_the_batch_is_given_it():
    mine = Method(name="from-batch", neuron=LIF, width=FromBatch, about="")
    block = conv(method=mine)
    v_T = core.lif(current(block, S_TNC), 0.2, torch.ones(3))[1]
    want = 2 * v_T.flatten(1).std(1, correction=0)
    seen = []
    block.neuron.watchers.append(lambda p: seen.append(p.kappa_T))
    block(S_TNC)
    assert seen[0].tolist() == pytest.approx(want.tolist(), rel=1e-4)
    net = create_model("cnn8", method=mine, width_mult=0.0625, image_size=8)
    assert net(torch.randn(4, 3, 8, 8)).shape == (2, 4, 10)


@pytest.mark.parametrize("how", ["method", "argument", "assigned"])
def test_the_neuron_that_is_given_is_the_neuron_that_runs(how):
    if how == "method":
        block = conv(method=Method(name="twice", neuron=Twice, width=lambda: METHODS["mpd-agl"].width(), about=""))
    elif how == "argument":
        block = conv(neuron=Twice())
    else:
        block = conv()
        block.neuron = Twice()
    want = (current(block, S_TNC) >= 0.25).float()
    out = block(S_TNC)
    assert torch.equal(out, want)
    assert not torch.equal(out, conv()(S_TNC))
    out.sum().backward()
    assert float(block.synapse.weight.grad.abs().sum()) > 0
    with pytest.raises(InputError, match="Twice is not a neuron of mpd_agl.nn, so this block cannot carry its state"):
        block(S_TNC, state=None)


def test_another_norm_takes_its_place_and_sets_the_width():
    block = conv(norm=nn.BatchNorm2d(6), neuron=LIF(v_th=1.0))
    with torch.no_grad():
        block.norm.weight.copy_(torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]))
    assert block.kappa(2).tolist() == pytest.approx([2 * 0.75, 2 * 0.75 * 1.04**0.5], rel=1e-5)
    bn = nn.BatchNorm2d(6)
    bn.load_state_dict(block.norm.state_dict())
    i_T = over_time(bn, over_time(block.synapse, S_TNC))
    assert torch.equal(block(S_TNC), core.lif(i_T, 0.2, torch.ones(3), v_th=1.0)[0])
    folded = fold(block.eval())
    assert folded.norm is None
    assert int((folded(S_TNC) != block(S_TNC)).sum()) <= 1


def test_hooks_on_norm_and_neuron_fire_with_what_they_are_named_for():
    plain, block = conv(), conv()
    seen = {}
    block.norm.register_forward_hook(lambda m, i, o: seen.update(norm=o))
    block.neuron.register_forward_hook(lambda m, i, o: seen.update(current=i[0], spikes=o))
    out = block(S_TNC)
    torch.testing.assert_close(seen["norm"], current(plain, S_TNC), rtol=1e-5, atol=1e-5)
    assert seen["current"] is seen["norm"]
    assert torch.equal(seen["spikes"], out)
    assert torch.equal(out, plain(S_TNC))
    torch.testing.assert_close(block.norm.running_var, plain.norm.running_var)


def test_one_timestep_without_a_word_is_refused():
    with pytest.raises(InputError, match=r"got one timestep and starts at rest at every call. Pass num_steps=T"):
        conv()(torch.randn(1, 4, 3, 8, 8))


def test_torchs_checkpoint_over_blocks_is_refused_and_ours_counts_once():
    first, second = conv(), SpikingBlock(nn.Conv2d(6, 6, 3, padding=1, bias=False))
    images = torch.randn(1, 4, 3, 8, 8)

    def both(x):
        return second(first(x, num_steps=2))

    out = checkpoint(both, images, use_reentrant=False)
    with pytest.raises(InputError, match="torch.utils.checkpoint computes this block a second time"):
        out.sum().backward()
    first, second = conv(), SpikingBlock(nn.Conv2d(6, 6, 3, padding=1, bias=False))
    recompute([first, second], images, 2).sum().backward()
    assert (int(first.norm.num_batches_tracked), int(second.norm.num_batches_tracked)) == (1, 1)


def test_a_static_input_counts_all_its_steps_in_the_running_variance():
    """ASGL's path calls the norm as a module: the variance of T equal inputs is that of one, its count is not."""
    x = torch.randn(1, 3, 5)
    one, many = TdBatchNorm(5), TdBatchNorm(5)
    one(x, 4)
    many(x.expand(4, -1, -1))
    torch.testing.assert_close(one.running_var, many.running_var)
    torch.testing.assert_close(one.running_mean, many.running_mean)
    assert not torch.allclose(one.running_var, 0.9 + 0.1 * x[0].var(0))


def test_asgl_shows_its_own_potentials():
    block = conv(method="asgl")
    seen = []
    block.neuron.watchers.append(seen.append)
    torch.manual_seed(3)
    out = block(S_TNC)
    (shown,) = seen
    kept_T = torch.cat([torch.zeros(1, *out.shape[1:]), (shown.v_TNC * (1 - out))[:-1]])
    torch.testing.assert_close(shown.v_TNC, block.neuron.tau * kept_T + shown.x_SNC)


def test_a_registered_method_is_known_by_its_name_and_a_taken_name_is_refused():
    mine = register_method(Method(name="wide", neuron=LIF, width=lambda: METHODS["lsg"].width(), about=""))
    try:
        assert conv(method="wide").kappa(1).tolist() == pytest.approx([1.04**0.5])
        assert register_method(mine) is mine
        with pytest.raises(InputError, match="there is a method 'wide' already"):
            register_method(Method(name="wide", neuron=LIF, width=FromBatch, about=""))
    finally:
        del METHODS["wide"]


def test_weights_of_a_network_with_own_objects_are_saved(tmp_path):
    options = {"width_mult": 0.0625, "image_size": 8, "surrogate": Cosine()}
    mine = Method(name="own", neuron=LIF, width=FromBatch, about="")
    net, other = (create_model("cnn8", method=mine, **options) for _ in range(2))
    save_weights(net, tmp_path / "own.safetensors")
    load_weights(other, tmp_path / "own.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_in_half_precision_trains(dtype):
    net = create_model("cnn8", width_mult=0.0625, image_size=8).to(dtype)
    net(torch.randn(4, 3, 8, 8, dtype=dtype)).float().mean(0).logsumexp(1).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    assert net.get_submodule("conv1").norm.running_var.dtype == dtype


def test_nan_in_evaluation_is_refused():
    net = create_model("cnn8", width_mult=0.0625, image_size=8).eval()
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="the input holds 1 NaN or Inf values"):
        net(x)
