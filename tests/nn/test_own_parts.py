"""A user's own surrogate, width rule, neuron, norm and hooks in a block: what is given is what runs."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm

from mpd_agl import core
from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError
from mpd_agl.export.plainstep import plain_network
from mpd_agl.models import create_model, load_weights, save_weights
from mpd_agl.models.plan import plan_unavailable
from mpd_agl.nn import (
    LIF,
    METHODS,
    PLIF,
    Method,
    NormKind,
    SpikingBlock,
    Width,
    Widths,
    fold,
    get_norm,
    over_time,
    register_method,
    register_norm,
)
from mpd_agl.nn.norms import NORMS
from mpd_agl.ops import StepInput, StepOutput
from tests.nn.parts import assert_all_close, conv_block, gradients, inputs, noise, widths

S_TNC = inputs(3, 4, 3, 8, 8)


@dataclass(frozen=True)
class Cosine(Surrogate):
    name: ClassVar[str] = "cosine"

    def grad(self, u: Tensor, kappa: Tensor | float) -> Tensor:
        r = (u / kappa).clamp(-1, 1)
        return (1 + torch.cos(torch.pi * r)) / 2 / kappa


class Twice(nn.Module):
    """No neuron of mpd_agl: fires wherever the current of one step reaches half the threshold."""

    def __init__(self, tau: float = 0.2, v_th: float = 0.5, **_: object) -> None:
        super().__init__()
        self.register_buffer("tau", torch.tensor(tau))
        self.v_th = v_th

    def forward(self, i_TNC: Tensor, widths: Widths) -> Tensor:
        pairs = zip(i_TNC, widths.kappa_T, strict=True)
        return torch.stack([core.spike(i - self.v_th / 2, k) for i, k in pairs])


class FromBatch(Width):
    """A rule that reads the potentials of the batch."""

    needs = "batch"

    def forward(self, potential):
        sums = potential.sums()
        return Widths((2 * sums.moments()[1].sqrt()).float())


class FromMoments(Width):
    """A rule that reads moments, which a lone neuron measures."""

    needs = "moments"

    def forward(self, potential):
        return Widths(3 * potential.moments("exact")[1])


class Centred(nn.Module):
    """A norm of a stranger, which knows time: it takes each sample's own mean off."""

    def forward(self, x_SNC: Tensor, num_steps: int) -> Tensor:
        return x_SNC - x_SNC.flatten(2).mean(2).view(*x_SNC.shape[:2], *[1] * (x_SNC.dim() - 2))


def current(block: SpikingBlock, s_TNC: Tensor) -> Tensor:
    x = over_time(block.synapse, s_TNC)
    return core.tdbn(x, block.norm.weight, block.norm.bias, *core.batch_moments(x), v_th=block.norm.v_th)


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_an_own_surrogate_object_shapes_the_gradient(backend):
    block = conv_block(surrogate=Cosine(), backend=backend)
    want = core.lif(current(block, S_TNC), block.neuron.tau, widths(block, 3).kappa_T, surrogate=Cosine())[0]
    out, named = block(S_TNC), dict(block.named_parameters())
    g = noise(*out.shape)
    assert torch.equal(out, want)
    assert_all_close(gradients(out, named, g), gradients(want, named, g))


@pytest.mark.parametrize("hooked", [False, True])
def test_a_rule_that_needs_the_batch_is_given_it(hooked):
    mine = Method(name="from-batch", neuron=LIF, width=FromBatch, about="")
    block, seen = conv_block(mine), []
    if hooked:
        block.norm.register_forward_hook(lambda m, i, o: None)
    v_T = core.lif(current(block, S_TNC), 0.2, torch.ones(3))[1]
    block.neuron.watch(lambda o: seen.append(o.step.widths.kappa_T))
    block(S_TNC)
    assert seen[0].tolist() == pytest.approx((2 * v_T.flatten(1).std(1, correction=0)).tolist(), rel=1e-4)
    net = create_model("cnn8", method=mine, width_mult=0.0625, image_size=8)
    assert net(torch.randn(4, 3, 8, 8)).shape == (2, 4, 10)


def test_a_rule_that_needs_moments_is_given_predicted_or_measured_ones():
    block, neuron, seen = (
        conv_block(Method(name="m", neuron=LIF, width=FromMoments, about="")),
        LIF(width=FromMoments()),
        [],
    )
    std = float((0.25 * block.norm.weight.square().mean() + block.norm.bias.var(correction=0)).sqrt().detach())
    assert widths(block, 1).kappa_T.tolist() == pytest.approx([3 * std], rel=1e-5)
    neuron.watch(lambda o: seen.append(o.step.widths.kappa_T))
    i_T = noise(2, 40, 6)
    neuron(i_T)
    v_T = core.lif(i_T, 0.2, torch.ones(2))[1].flatten(1)
    assert seen[0].tolist() == pytest.approx((3 * v_T.std(1, correction=0)).tolist(), rel=1e-4)


class OldRule(Width):
    """As rules of 0.2 were."""

    def forward(self, potential):
        return torch.ones(potential.num_steps)


class NoNeuron(nn.Module):
    def forward(self, i_TNC, widths):
        return i_TNC


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LIF(width=OldRule())(noise(3, 4, 5)), "returns Widths.*, got Tensor from OldRule"),
        (lambda: conv_block(Method(name="o", neuron=LIF, width=OldRule, about=""))(S_TNC), "got Tensor from OldRule"),
        (lambda: LIF(width=nn.Identity()), "derives from mpd_agl.nn.Width, got Identity"),
        (lambda: conv_block(Method(name="i", neuron=LIF, width=nn.Identity, about="")), "nn.Width, got Identity"),
        (lambda: conv_block(neuron=NoNeuron()), "takes neurons of mpd_agl.nn, got NoNeuron"),
    ],
)
def test_parts_that_are_none_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def assigned() -> Tensor:
    block = conv_block()
    block.neuron = Twice()
    return block(S_TNC)


TWICE = Method(name="twice", neuron=Twice, width=METHODS["mpd-agl"].width, about="")


@pytest.mark.parametrize("make", [lambda: conv_block(TWICE), lambda: conv_block(neuron=Twice()), assigned])
def test_a_module_that_is_no_neuron_is_refused(make):
    with pytest.raises(InputError, match=r"takes neurons of mpd_agl.nn, got Twice.*write its run\(step\)"):
        make()


def own_run(self, step: StepInput) -> StepOutput:
    spikes = (step.currents() > 0).to(step.x.dtype) + 0 * step.x
    return step.output(spikes, step.x[-1])


def own_forward(self, i_SNC, *args, **options):
    return LIF.forward(self, i_SNC, *args, **options) * 3


def by_object(neuron: LIF, name: str, function) -> LIF:
    setattr(neuron, name, function.__get__(neuron))
    return neuron


NEURONS = {
    "run": lambda: type("Mine", (LIF,), {"run": own_run})(),
    "forward": lambda: type("Mine", (PLIF,), {"forward": own_forward})(),
    "the object's run": lambda: by_object(LIF(), "run", own_run),
    "the object's forward": lambda: by_object(LIF(), "forward", own_forward),
}


@pytest.mark.parametrize("which", NEURONS)
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_neuron_that_computes_otherwise_is_no_kernels_and_is_not_exported(which, backend):
    block = conv_block(neuron=NEURONS[which]())
    block.neuron.backend = backend
    i_T = current(block, S_TNC)
    lif = core.lif(i_T, 0.2, torch.ones(3))[0]
    want = 3 * lif if "forward" in which else (i_T > 0).float()
    assert not torch.equal(want, lif)
    assert torch.equal(block(S_TNC), want)
    assert torch.equal(block.with_state(S_TNC, None)[0], want)
    with pytest.raises(InputError, match="the equations of LIF and PLIF"):
        plain_network(nn.Sequential(block).eval())
    net = create_model("cnn8", width_mult=0.0625, image_size=8)
    net.conv3.neuron = NEURONS[which]()
    assert "the equations of LIF and PLIF" in plan_unavailable(net.eval())


def test_another_norm_takes_its_place_and_sets_the_width():
    block = conv_block(norm=nn.BatchNorm2d(6), neuron=LIF(v_th=1.0))
    gamma_bar = float(block.norm.weight.detach().mean())
    assert widths(block, 2).kappa_T.tolist() == pytest.approx([2 * gamma_bar, 2 * gamma_bar * 1.04**0.5], rel=1e-5)
    bn = nn.BatchNorm2d(6)
    bn.load_state_dict(block.norm.state_dict())
    i_T = over_time(bn, over_time(block.synapse, S_TNC))
    assert torch.equal(block(S_TNC), core.lif(i_T, 0.2, torch.ones(3), v_th=1.0)[0])
    folded = fold(block.eval())
    assert folded.norm is None
    assert int((folded(S_TNC) != block(S_TNC)).sum()) <= 1


def test_a_strangers_norm_is_called_with_time_and_its_moments_are_measured():
    block = conv_block(None, norm=Centred(), neuron=LIF(method="mpd-agl"))
    x = over_time(block.synapse, S_TNC)
    out = block(S_TNC)
    assert torch.equal(out, core.lif(Centred()(x, 3), 0.2, torch.ones(3))[0])
    assert block.affines() is None
    assert block.neuron.measured.known == 3
    with pytest.raises(InputError, match="no norm before the neuron to predict"):
        conv_block(norm=Centred())(S_TNC)


class Shifted(type(get_norm("tdbn").norm(1, v_th=1.0, alpha=1.0, num_steps=None))):
    """A subclass of tdBN with a forward of its own: it must be called."""

    def forward(self, x_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        return super().forward(x_SNC, num_steps) + 1


def test_a_norm_registers_and_a_subclass_with_its_own_forward_is_called(monkeypatch):
    monkeypatch.setattr("mpd_agl.nn.norms.NORMS", dict(NORMS))
    register_norm(NormKind(name="shifted", norm=lambda C, v_th, **_: Shifted(C, v_th=v_th), about=""))
    with pytest.raises(InputError, match="there is a norm 'shifted' already"):
        register_norm(NormKind(name="shifted", norm=Shifted, about=""))
    block = conv_block("stbp-tdbn", norm="shifted")
    assert torch.equal(block(S_TNC), core.lif(current(block, S_TNC) + 1, 0.2, torch.ones(3))[0])
    net = nn.Sequential(block).eval()
    for again in (fold(net), plain_network(net)):
        assert torch.equal(again(S_TNC), net(S_TNC))


class TwiceNormed(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_subclass_of_torchs_norm_with_its_own_forward_is_not_folded():
    net = nn.Sequential(conv_block(norm=TwiceNormed(6)))
    net(S_TNC)
    assert torch.equal(fold(net.eval())(S_TNC), net(S_TNC))


PARTS = ("synapse", "norm", "neuron", "block")


def hooks(block: SpikingBlock, part: str, seen: list) -> list:
    module = block if part == "block" else block.get_submodule(part)
    return [
        module.register_forward_hook(lambda m, i, o: seen.append(("forward", i[0], o))),
        module.register_forward_pre_hook(lambda m, i: seen.append(("pre", i[0]))),
        module.register_full_backward_hook(lambda m, i, o: seen.append(("backward", o[0]))),
    ]


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_hooks_fire_once_and_change_nothing(part, with_state):
    plain, hooked, seen = conv_block(), conv_block(), []
    handles = hooks(hooked, part, seen)
    found = []
    for block in (plain, hooked):
        x = S_TNC.clone().requires_grad_()
        out, state = block.with_state(x, None) if with_state else (block(x), None)
        g = noise(*out.shape)
        grads = gradients(out, {"x": x, **dict(block.named_parameters())}, g)
        found.append(({"out": out, **grads} | ({} if state is None else {"state": state}), dict(block.named_buffers())))
    assert torch.equal(found[0][0]["out"], found[1][0]["out"])
    for want, got in zip(*found, strict=True):
        assert_all_close(got, want, rtol=1e-4, atol=1e-5)
    assert [name for name, *_ in seen] == ["pre", "forward", "backward"]
    (_, i, o), (_, g_o) = seen[1:]
    shown = {
        "synapse": (S_TNC.flatten(0, 1), over_time(plain.synapse, S_TNC).flatten(0, 1)),
        "norm": (over_time(plain.synapse, S_TNC), current(plain, S_TNC)),
        "neuron": (current(plain, S_TNC), found[0][0]["out"]),
        "block": (S_TNC, found[0][0]["out"]),
    }[part]
    assert_all_close({"in": i, "out": o}, dict(zip(("in", "out"), shown, strict=True)))
    if part in ("neuron", "block"):
        assert torch.equal(g_o, noise(*o.shape))
    for handle in handles:
        handle.remove()
    hooked(S_TNC)
    assert len(seen) == 3


def test_a_hook_on_all_modules_sees_norm_and_neuron_and_its_answer_is_used():
    block, seen = conv_block(), []

    def see(module, args, out):
        seen.append(module)
        return 2 * out if module is block.neuron else None

    want = 2 * block(S_TNC)
    handle = register_module_forward_hook(see)
    try:
        assert torch.equal(block(S_TNC), want)
    finally:
        handle.remove()
    assert {block.synapse, block.norm, block.neuron, block} <= set(seen)


def test_a_parametrised_norm_and_synapse_are_called():
    block = conv_block("stbp-tdbn")
    want = block(S_TNC)
    weight_norm(block.synapse)
    torch.nn.utils.parametrize.register_parametrization(block.norm, "weight", nn.Identity())
    assert int((block(S_TNC) != want).sum()) <= 1
    block(S_TNC).sum().backward()
    assert float(block.norm.parametrizations.weight.original.grad.abs().max()) > 0


def test_a_registered_method_is_known_by_its_name_and_a_taken_name_is_refused():
    mine = register_method(Method(name="wide", neuron=LIF, width=METHODS["lsg"].width, about=""))
    try:
        assert widths(conv_block("wide"), 1).kappa_T.tolist() == pytest.approx([1.04**0.5])
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
