"""Every backend against `core`: spikes, gradients, statistics, at awkward sizes, with allocations poisoned by NaN."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from mpd_agl.core import SURROGATES, Rectangular, Surrogate, lif
from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here, neuron, probe, tdbn_neuron
from mpd_agl.ops.step.backends import _auto, resolve
from tests.ops.cases import TOLERANCE, V_TH, difference, make_case, reference

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
HERE = [name for name, why in backends_here().items() if not why and name in ("native", "eager")]
PLACES = [(b, d) for d in DEVICES for b, why in backends_here(d).items() if not why and (b in HERE or d != "cpu")]
NAMES = ("x", "gamma", "beta", "tau", "kappa")


def compare(case, backend, surrogate="rectangular", detach_reset=False, dtype=torch.float32, device="cpu"):
    want = case.leaves(torch.float64)
    s0, _, mean0, var0 = reference(*want, surrogate, detach_reset)
    g0 = torch.autograd.grad(s0, want, case.g)
    got = [a.detach().to(device).requires_grad_() for a in case.leaves(dtype)]
    C = case.x.shape[2]
    s1, mean1, var1 = tdbn_neuron(
        *got[:3],
        torch.zeros(C, device=device),
        torch.ones(C, device=device),
        *got[3:],
        num_steps=case.T,
        batch_stats=True,
        v_th=V_TH,
        surrogate=surrogate,
        detach_reset=detach_reset,
        backend=backend,
    )
    g1 = [a.cpu() for a in torch.autograd.grad(s1, got, case.g.to(device, dtype))]
    assert torch.equal(s1.cpu().double(), s0)
    assert difference(mean1.cpu(), mean0) < 1e-6
    assert difference(var1.cpu(), var0) < 1e-6
    for name, a, b in zip(NAMES, g1, g0, strict=True):
        assert a.shape == b.shape
        assert difference(a, b) < TOLERANCE, f"gradient of {name}"


@pytest.mark.parametrize(("backend", "device"), PLACES)
@pytest.mark.parametrize(("T", "S"), [(1, 1), (2, 2), (3, 3), (4, 4), (6, 6), (10, 10), (2, 1), (3, 1), (6, 1)])
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_against_core(backend, device, T, S, surrogate):
    compare(make_case(T, S), backend, surrogate, device=device)


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("C", [1, 5, 16, 300])
@pytest.mark.parametrize("space", [(), (1, 1), (3, 4)])
def test_sizes(backend, C, space):
    compare(make_case(2, 2, C=C, space=space, N=7), backend)
    compare(make_case(3, 3, C=C, space=space, N=2, seed=1), backend, "triangular")


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("T", [1, 2, 3, 6, 10])
def test_detached_reset(backend, T):
    compare(make_case(T, T), backend, detach_reset=True)


@pytest.mark.parametrize("T", [1, 2, 3, 6, 10])
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_eager_in_float64_to_the_last_digits(T, surrogate):
    case = make_case(T, T)
    want, got = case.leaves(torch.float64), case.leaves(torch.float64)
    s0, _, _, _ = reference(*want, surrogate)
    zero, one = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    s1, _, _ = tdbn_neuron(
        *got[:3], zero, one, *got[3:], num_steps=T, batch_stats=True, surrogate=surrogate, backend="eager"
    )
    g0, g1 = torch.autograd.grad(s0, want, case.g), torch.autograd.grad(s1, got, case.g)
    for a, b in zip(g1, g0, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_against_core():
    if why := backends_here()["compiled"]:
        pytest.skip(why)
    compare(make_case(2, 1), "compiled", "triangular")


@pytest.mark.parametrize("backend", HERE)
def test_running_statistics_in_evaluation(backend):
    case = make_case(3, 3)
    g = torch.Generator().manual_seed(5)
    mean, var = 3 + torch.randn(5, generator=g).double(), 2 + torch.rand(5, generator=g).double()
    want = case.leaves(torch.float64)
    s0, v0, _, _ = reference(*want, stats=(mean, var))
    g0 = torch.autograd.grad(s0, want[:4], case.g)
    got = case.leaves(torch.float32)
    s1, _, _ = tdbn_neuron(
        *got[:3], mean.float(), var.float(), *got[3:], num_steps=3, batch_stats=False, backend=backend
    )
    assert ((v0 - V_TH).abs() > 1e-5).all()
    assert torch.equal(s1.double(), s0)
    for a, b in zip(torch.autograd.grad(s1, got[:4], case.g.float()), g0, strict=True):
        assert difference(a, b) < TOLERANCE


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize(("T", "S"), [(3, 3), (4, 1)])
def test_neuron_alone(backend, T, S):
    case = make_case(T, S)
    i64 = ((case.x - 3) / 4).requires_grad_()
    tau64 = case.tau.clone().requires_grad_()
    s0, v0 = lif(i64.expand(T, *i64.shape[1:]), tau64, case.kappa)
    u = (v0 - V_TH).abs()
    assert float(u.detach().min()) > 1e-6
    g0 = torch.autograd.grad(s0, (i64, tau64), case.g)
    i32, tau32 = i64.detach().float().requires_grad_(), tau64.detach().float().requires_grad_()
    s1 = neuron(i32, tau32, case.kappa.float(), num_steps=T, backend=backend)
    g1 = torch.autograd.grad(s1, (i32, tau32), case.g.float())
    assert torch.equal(s1.double(), s0)
    for a, b in zip(g1, g0, strict=True):
        assert difference(a, b) < TOLERANCE


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize(("T", "S"), [(1, 1), (2, 2), (3, 3), (4, 1), (10, 10)])
def test_what_is_added_to_the_spikes(backend, T, S):
    """SEW-ADD in the same pass: the sum, unchanged gradients of the rest, the gradient from above for the residual."""
    case = make_case(T, S)
    plus = torch.randint(0, 3, case.g.shape).float().requires_grad_()
    rest = (torch.zeros(5), torch.ones(5))
    options = {"num_steps": T, "batch_stats": True, "backend": backend}
    alone, added = case.leaves(torch.float32), case.leaves(torch.float32)
    s0, _, _ = tdbn_neuron(*alone[:3], *rest, *alone[3:], **options)
    s1, _, _ = tdbn_neuron(*added[:3], *rest, *added[3:], **options, residual=plus)
    assert torch.equal(s1, s0 + plus)
    g = case.g.float()
    *g1, g_plus = torch.autograd.grad(s1, [*added, plus], g)
    assert torch.equal(g_plus, g)
    assert all(torch.equal(a, b) for a, b in zip(g1, torch.autograd.grad(s0, alone, g), strict=True))
    with pytest.raises(InputError, match="must have it too, got"):
        tdbn_neuron(*added[:3], *rest, *added[3:], **options, residual=plus[:, :3])


@pytest.mark.parametrize("backend", HERE)
def test_spikes_on_a_large_input_differ_only_within_rounding(backend):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 32, 16, 32, 32, generator=g)
    gamma, beta, tau, kappa = torch.ones(16), torch.zeros(16), torch.tensor(0.2), torch.ones(2)
    doubles = [a.double() for a in (x, gamma, beta, tau, kappa)]
    s0, v0, mean0, var0 = reference(*doubles)
    s1, mean1, var1 = tdbn_neuron(
        x, gamma, beta, beta, gamma, tau, kappa, num_steps=2, batch_stats=True, backend=backend
    )
    differ = s1.double() != s0
    assert int(differ.sum()) < s0.numel() / 100_000
    first = differ[0] | (differ[1] & ~differ[0])
    assert ((v0[0] - V_TH).abs()[differ[0]] < 1e-5).all()
    assert int(first.sum()) <= 10
    assert difference(mean1, mean0) < 1e-6
    assert difference(var1, var0) < 1e-6


@pytest.mark.parametrize("backend", HERE)
def test_statistics_do_not_cancel_far_from_zero(backend):
    g = torch.Generator().manual_seed(0)
    x = 1000 + torch.randn(2, 50, 3, 16, 16, generator=g)
    args = (torch.ones(3), torch.zeros(3), torch.zeros(3), torch.ones(3), torch.tensor(0.2), torch.ones(2))
    _, mean, var = tdbn_neuron(x, *args, num_steps=2, batch_stats=True, backend=backend)
    d = x.double()
    assert difference(mean, d.mean((0, 1, 3, 4))) < 1e-6
    assert difference(var, d.var((0, 1, 3, 4), correction=0)) < 1e-5


@pytest.mark.parametrize("backend", HERE)
def test_any_memory_layout_gives_the_same_numbers(backend):
    """A kernel that assumes channels_last and is handed another layout would mix channels silently."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 6, 5, 3, generator=g)
    args = (torch.rand(6) + 0.5, torch.zeros(6), torch.zeros(6), torch.ones(6), torch.tensor(0.2), torch.ones(2))
    layouts = {
        "contiguous": x,
        "channels_last": x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(2, 4, 6, 5, 3),
        "batch_first": x.transpose(0, 1).contiguous().transpose(0, 1),
        "repeated": x[:1].repeat(2, 1, 1, 1, 1),
        "sliced": torch.cat([x, x], dim=2)[:, :, :6],
    }
    for name, view in layouts.items():
        want = tdbn_neuron(view.contiguous(), *args, num_steps=2, batch_stats=True, backend="eager")[0]
        got = tdbn_neuron(view, *args, num_steps=2, batch_stats=True, backend=backend)[0]
        assert torch.equal(got, want), name
        assert got.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_has_a_float32_membrane(backend, dtype):
    """v stays under the threshold by less than a bfloat16 step: a bf16 membrane would fire."""
    x = torch.full((2, 2, 1), 0.4, dtype=dtype)
    tau = torch.tensor((0.5 - 1e-4) / float(x[0, 0, 0]) - 1)
    s = neuron(x, tau, torch.ones(2), num_steps=2, backend=backend)
    assert s.dtype == dtype
    assert s[1].sum() == 0
    assert neuron(x, tau + 3e-4 / 0.4, torch.ones(2), num_steps=2, backend=backend)[1].sum() == 2
    leaf = torch.randn(2, 8, 4, dtype=dtype).requires_grad_()
    out = tdbn_neuron(
        leaf,
        torch.ones(4),
        torch.zeros(4),
        torch.zeros(4),
        torch.ones(4),
        torch.tensor(0.2),
        torch.ones(2),
        num_steps=2,
        batch_stats=True,
        backend=backend,
    )
    assert out[1].dtype == torch.float32
    out[0].float().sum().backward()
    assert leaf.grad.dtype == dtype


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("S", [3, 1])
def test_probe_is_what_a_slow_count_gives(backend, S):
    case = make_case(3, S)
    _, v, mean, var = reference(case.x, case.gamma, case.beta, case.tau, case.kappa)
    scale = case.gamma * V_TH / torch.sqrt(var + 1e-5)
    got = probe(
        *(a.float() for a in (case.x, mean, scale, case.beta, case.tau, case.kappa)), v_th=V_TH, backend=backend
    )
    shape = (1, 1, -1, 1, 1)
    i = (case.x - mean.view(shape)) * scale.view(shape) + case.beta.view(shape)
    for t in range(3):
        w, i_t = v[t], i[t if S > 1 else 0]
        near = (w - V_TH).abs() < case.kappa[t] / 2
        want = [(w >= V_TH).sum(), near.sum(), w.sum(), (w * w).sum(), i_t.sum(), (i_t * i_t).sum()]
        assert got[t].tolist() == pytest.approx([float(a) for a in want], rel=1e-5, abs=1e-3)


def test_a_backend_that_cannot_run_says_why_and_the_way_out():
    with pytest.raises(InputError, match="backend 'native' cannot run: .*float64.*backend='eager'"):
        resolve("native", torch.device("cpu"), torch.float64)
    with pytest.raises(InputError, match="backend 'native' cannot run: .*on a CPU.*cuda"):
        resolve("native", torch.device("cuda"), torch.float32)
    with pytest.raises(InputError, match="unknown backend 'nativ'. Did you mean 'native'"):
        resolve("nativ", torch.device("cpu"), torch.float32)


def test_auto_says_once_which_and_why(caplog, monkeypatch):
    from mpd_agl.ops.step import backends

    _auto.cache_clear()
    with caplog.at_level("INFO", logger="mpd_agl"):
        first = resolve("auto", torch.device("cpu"), torch.float32)
        again = resolve("auto", torch.device("cpu"), torch.float32)
    assert first is again
    assert len(caplog.records) == 1
    assert first.name in caplog.text
    # without the library the next best is taken, and that is a warning
    _auto.cache_clear()
    caplog.clear()
    monkeypatch.setattr(backends, "why_not", lambda name, *_: "it was not built" if name != "eager" else "")
    assert resolve("auto", torch.device("cpu"), torch.float32).name == "eager"
    assert caplog.records[0].levelname == "WARNING"
    assert "not native: it was not built" in caplog.text
    _auto.cache_clear()


def test_an_empty_input_is_a_sentence():
    with pytest.raises(InputError, match=r"at least one value, got an empty input of shape \(2, 0, 5\)"):
        neuron(torch.empty(2, 0, 5), torch.tensor(0.2), torch.ones(2), num_steps=2)


@dataclass(frozen=True)
class Own(Surrogate):
    """A user's surrogate, with a parameter of its own and no soft step: a triangle of any height."""

    height: float = 1.0
    name: ClassVar[str] = "own"

    def grad(self, u, kappa):
        return self.height * (1 - u.abs() / kappa).clamp_min(0) / kappa


class Steeper(Rectangular):
    """A known surrogate's subclass that computes something else."""

    def grad(self, u, kappa):
        return 2 * super().grad(u, kappa)


@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("backend", ["auto", *HERE])
def test_a_users_own_surrogate_on_every_backend(backend, reset):
    i = torch.randn(3, 6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kappa = torch.ones(3, requires_grad=True)

    def grads(surrogate, backend):
        s = neuron(i, 0.2, kappa, num_steps=3, surrogate=surrogate, backend=backend, reset=reset, detach_reset=True)
        return torch.autograd.grad(s.sum(), (i, kappa))

    for own in (Own(), Own(2.0), Steeper()):
        s, _ = lif(i, 0.2, kappa, surrogate=own, reset=reset, detach_reset=True)
        for a, b in zip(grads(own, backend), torch.autograd.grad(s.sum(), (i, kappa)), strict=True):
            assert difference(a, b) < TOLERANCE
    for a, b in zip(grads(Own(), backend), grads("triangular", backend), strict=True):
        assert difference(a, b) < TOLERANCE
    assert difference(grads(Steeper(), backend)[0], grads("rectangular", backend)[0]) > 0.1


def test_steps_and_widths_must_agree():
    with pytest.raises(
        InputError, match="over 3 timesteps takes an input of 3 or 1 timesteps and 3 widths, got an input of 2"
    ):
        neuron(torch.randn(2, 4, 5), torch.tensor(0.2), torch.ones(3), num_steps=3)
