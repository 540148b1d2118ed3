"""The triton backend against `core`: on a GPU where there is one, else in Triton's interpreter (see tests/conftest.py).

The interpreter truncates float32 to bfloat16 where a GPU rounds to nearest: what is stored in bfloat16 may differ by
one unit of its last place, 2**-7. Everything that is kept in float32 is compared as on the other backends.
"""

import pytest
import torch
from torch import nn

from mpd_agl.core import SURROGATES, lif
from mpd_agl.errors import InputError
from mpd_agl.nn import SpikingBlock
from mpd_agl.ops import SharedMoments, backends_here, neuron, tdbn_neuron
from mpd_agl.ops.step import backends
from tests.ops.cases import TOLERANCE, V_TH, difference, make_case, reference
from tests.ops.test_fused import Own, compare
from tests.ops.test_general import LAYOUTS, OPTIONS, Case, surrogate_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if why := backends_here(DEVICE)["triton"]:
    pytest.skip(why, allow_module_level=True)
if DEVICE == "cpu":
    # Spikes that are 0 or 1 hide an inside that was never computed, so numpy's warnings are errors here too.
    pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

from mpd_agl.ops.step import triton as kernels  # noqa: E402


def on_device(*tensors):
    return [a.detach().float().to(DEVICE).requires_grad_() for a in tensors]


@pytest.mark.parametrize(("T", "S"), [(1, 1), (3, 3), (4, 1)])
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_every_surrogate(T, S, surrogate):
    compare(make_case(T, S), "triton", surrogate, device=DEVICE)


@pytest.mark.parametrize(("C", "space", "N"), [(1, (3, 4), 7), (16, (), 7), (70, (1, 1), 2), (5, (3, 4), 1)])
def test_sizes(C, space, N):
    compare(make_case(2, 2, C=C, space=space, N=N), "triton", "triangular", device=DEVICE)


@pytest.mark.parametrize(("T", "S"), [(2, 2), (6, 6), (10, 10), (6, 1), (32, 32)])
def test_steps(T, S):
    compare(make_case(T, S, N=3, space=(2,)), "triton", detach_reset=T == 6, device=DEVICE)


@pytest.mark.parametrize(("T", "S"), [(66, 66), (33, 1)])
def test_more_steps_than_registers_hold(T, S):
    compare(make_case(T, S, N=3, space=()), "triton", "sigmoid", device=DEVICE)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_the_general_neuron(name, norm):
    T, S = (3, 3) if norm else (4, 1)
    Case(T, S, (7, 5, 3, 4), OPTIONS[name], norm=norm, surrogate=surrogate_for(name)).compare("triton", device=DEVICE)


@pytest.mark.parametrize("S", [35, 1])
@pytest.mark.parametrize("name", ["everything", "everything, hard", "state"])
def test_the_general_neuron_over_chunks(name, S):
    Case(35, S, (3, 5), OPTIONS[name], norm=False, surrogate="arctan").compare("triton", device=DEVICE)


@pytest.mark.parametrize(("shape", "channel_dim"), [((6,), 1), ((3, 4, 5), -1), ((2, 5, 3, 4), 2)])
def test_any_rank(shape, channel_dim):
    Case(3, 3, shape, OPTIONS["everything"], channel_dim=channel_dim, norm=False).compare("triton", device=DEVICE)


def test_programs_that_walk_over_several_tiles(monkeypatch):
    """On a small input every tile has a program of its own; a large one shares them, and the order stays fixed."""
    monkeypatch.setattr(kernels, "PROGRAMS", 2)
    compare(make_case(2, 2, N=20), "triton", "arctan-peak", device=DEVICE)  # 4 tiles of 64 rows


def test_the_same_bits_every_time():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 30, 5, 8, generator=g).to(DEVICE)
    args = (torch.ones(5), torch.zeros(5), torch.zeros(5), torch.ones(5), torch.tensor(0.2), torch.ones(2))

    def grads():
        leaves = on_device(x, *args)
        s, mean, var = tdbn_neuron(*leaves, num_steps=2, batch_stats=True, backend="triton")
        return [mean, var, *torch.autograd.grad(s.sum(), [leaves[i] for i in (0, 1, 2, 5, 6)])]

    assert all(torch.equal(a, b) for a, b in zip(grads(), grads(), strict=True))


def test_what_is_added_to_the_spikes():
    case = make_case(3, 3)
    plus = torch.randint(0, 3, case.g.shape).float().to(DEVICE).requires_grad_()
    x, gamma, beta, tau, kappa = on_device(case.x, case.gamma, case.beta, case.tau, case.kappa)
    stats = torch.zeros(5, device=DEVICE), torch.ones(5, device=DEVICE)
    options = {"num_steps": 3, "batch_stats": True, "backend": "triton"}
    s0 = tdbn_neuron(x, gamma, beta, *stats, tau, kappa, **options)[0]
    s1 = tdbn_neuron(x, gamma, beta, *stats, tau, kappa, **options, residual=plus)[0]
    assert torch.equal(s1, s0 + plus)
    g = case.g.float().to(DEVICE)
    assert torch.equal(torch.autograd.grad(s1, plus, g)[0], g)


def test_running_statistics_in_evaluation():
    case = make_case(3, 3)
    g = torch.Generator().manual_seed(5)
    mean, var = 3 + torch.randn(5, generator=g).double(), 2 + torch.rand(5, generator=g).double()
    want = case.leaves(torch.float64)
    s0, _, _, _ = reference(*want, stats=(mean, var))
    got = on_device(case.x, case.gamma, case.beta, mean, var, case.tau, case.kappa)
    s1 = tdbn_neuron(*got, num_steps=3, batch_stats=False, backend="triton")[0]
    assert torch.equal(s1.cpu().double(), s0)
    g0 = torch.autograd.grad(s0, want[:4], case.g)
    g1 = torch.autograd.grad(s1, [*got[:3], got[5]], case.g.float().to(DEVICE))
    assert all(difference(a.cpu(), b) < TOLERANCE for a, b in zip(g1, g0, strict=True))


def test_statistics_do_not_cancel_far_from_zero():
    x = 1000 + torch.randn(2, 50, 3, 16, generator=torch.Generator().manual_seed(0))
    x[0, 0, :] = 1e4  # an outlier in front misleads sums that are shifted by the first value
    mean, var = kernels.moments(x.movedim(2, -1).reshape(2, -1, 3).contiguous().to(DEVICE))
    d = x.double()
    assert difference(mean.cpu(), d.mean((0, 1, 3))) < 1e-6
    assert difference(var.cpu(), d.var((0, 1, 3), correction=0)) < 1e-6


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_any_layout(layout):
    g = torch.Generator().manual_seed(0)
    x = LAYOUTS[layout](torch.randn(3, 4, 5, 3, 2, generator=g))
    for tau in (torch.linspace(0.2, 0.8, 5), torch.tensor(0.3)):
        want = neuron(x, tau, torch.ones(3), num_steps=3, backend="eager")
        got = neuron(x.to(DEVICE), tau.to(DEVICE), torch.ones(3, device=DEVICE), num_steps=3, backend="triton")
        assert torch.equal(got.cpu(), want)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_a_float32_membrane_and_float32_sums(dtype, still):
    case = make_case(4, 1 if still else 4)
    x = case.x.to(dtype)
    rest = [a.float() for a in (case.gamma, case.beta, torch.zeros(5), torch.ones(5), case.tau, case.kappa)]
    g = case.g.to(dtype)

    def run(backend, device):
        leaves = [a.to(device).requires_grad_() for a in (x, *rest)]
        s, mean, var = tdbn_neuron(*leaves, num_steps=4, batch_stats=True, backend=backend)
        found = torch.autograd.grad(s, [leaves[i] for i in (0, 1, 2, 5, 6)], g.to(device))
        return [a.cpu() for a in (s, mean, var, *found)]

    s0, mean0, var0, dx0, *sums0 = run("eager", "cpu")
    s1, mean1, var1, dx1, *sums1 = run("triton", DEVICE)
    assert s1.dtype == dx1.dtype == dtype
    assert torch.equal(s1, s0)
    for a, b in zip((mean1, var1, *sums1), (mean0, var0, *sums0), strict=True):
        assert a.dtype == torch.float32
        assert difference(a, b) < TOLERANCE
    unit = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10
    assert difference(dx1, dx0) < 2 * unit  # dv and dx are stored in the input's dtype


def test_half_precision_does_not_fire_by_rounding():
    x = torch.full((2, 2, 1), 0.4, dtype=torch.bfloat16, device=DEVICE)
    tau = torch.tensor((V_TH - 1e-4) / float(x[0, 0, 0]) - 1, device=DEVICE)
    ones = torch.ones(2, device=DEVICE)
    assert neuron(x, tau, ones, num_steps=2, backend="triton")[1].sum() == 0
    assert neuron(x, tau + 3e-4 / 0.4, ones, num_steps=2, backend="triton")[1].sum() == 2


def test_far_from_the_threshold_everything_is_finite():
    """v from -1e4 to 1e4, against the reference; a width of its own at each step."""
    i = torch.tensor([-1e4, -30.0, 0.0, 0.5, 30.0, 1e4]).expand(2, 6).double()
    for name in SURROGATES:
        want, got = i.clone().requires_grad_(), i.float().to(DEVICE).requires_grad_()
        k0, k1 = (torch.tensor([0.01, 2.0], dtype=a.dtype, device=a.device, requires_grad=True) for a in (want, got))
        s0, _ = lif(want, 0.2, k0, surrogate=name, detach_reset=True)
        s1 = neuron(got, 0.2, k1, num_steps=2, surrogate=name, detach_reset=True, backend="triton")
        for a, b in zip(
            torch.autograd.grad(s1.sum(), (got, k1)), torch.autograd.grad(s0.sum(), (want, k0)), strict=True
        ):
            assert difference(a.cpu(), b) < TOLERANCE, name


def test_a_users_own_surrogate_gets_its_backward_pass_from_plain_pytorch():
    i = torch.randn(3, 6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    s0, _ = lif(i, 0.2, torch.ones(3), surrogate=Own(2.0))
    d = i.detach().to(DEVICE).requires_grad_()
    s1 = neuron(d, 0.2, torch.ones(3, device=DEVICE), num_steps=3, surrogate=Own(2.0), backend="triton")
    assert difference(torch.autograd.grad(s1.sum(), d)[0].cpu(), torch.autograd.grad(s0.sum(), i)[0]) < TOLERANCE


class TwoAlike:
    """The other process holds the same part of the batch."""

    def sum(self, x):
        return 2 * x


def test_statistics_that_processes_share():
    case = make_case(3, 3)
    found = []
    for backend in ("eager", "triton"):
        leaves = on_device(case.x, case.gamma, case.beta, torch.zeros(5), torch.ones(5), case.tau, case.kappa)
        mean, var = backends.resolve(backend, torch.device(DEVICE), torch.float32).moments(
            leaves[0].detach().movedim(2, -1).reshape(3, -1, 5).contiguous()
        )
        total = torch.tensor(2.0 * case.x.numel() / 5, device=DEVICE)
        shared = SharedMoments(mean, var, total, TwoAlike())
        s, _, _ = tdbn_neuron(*leaves, num_steps=3, batch_stats=True, backend=backend, shared=shared)
        found.append([s, *torch.autograd.grad(s, [leaves[i] for i in (0, 1, 2, 5)], case.g.float().to(DEVICE))])
    assert all(difference(a.cpu(), b.cpu()) < TOLERANCE for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_block_under_autocast_with_a_scaled_loss(dtype):
    """conv in half precision, the fused step on it, GradScaler around: the gradients of the plain backend."""
    x = torch.randn(2, 4, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = []
    for backend in ("eager", "triton"):
        torch.manual_seed(0)
        block = SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False), backend=backend).to(DEVICE)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
        with torch.autocast(DEVICE, dtype=dtype):
            s = block(x)
        assert s.dtype == dtype
        scaler.scale((s.float() * x.mean(2, keepdim=True)).sum()).backward()
        found.append([s, *(p.grad / 1024 for p in block.parameters())])
    assert torch.equal(found[0][0], found[1][0])
    for a, b in zip(*(f[1:] for f in found), strict=True):
        assert difference(b.cpu(), a.cpu()) < (2e-2 if dtype == torch.bfloat16 else 3e-3)


def test_what_the_kernels_would_misread_is_a_sentence():
    x, one, tau = torch.randn(2, 4, 8, device=DEVICE), torch.ones(8, device=DEVICE), torch.tensor(0.2, device=DEVICE)
    with pytest.raises(InputError, match=r"one device, got x on \w+.* and tau on meta. Move it: tau.to"):
        kernels.forward(x, one, one, one, tau.to("meta"), 0.5, 2, None)
    with pytest.raises(InputError, match=r"take mean as a contiguous .* of shape \(8,\), got \(7,\)"):
        kernels.forward(x, one[:7], one, one, tau, 0.5, 2, None)
    with pytest.raises(InputError, match=r"take scale as .* got \(8,\), torch.float64"):
        kernels.forward(x, one, one.double(), one, tau, 0.5, 2, None)
    with pytest.raises(InputError, match=r"take x as .* not contiguous"):
        kernels.moments(x.transpose(0, 1))
    with pytest.raises(InputError, match=r"a filled input \(3 or 1, rows, channels\) over 3 steps, got \(2, 4, 8\)"):
        kernels.forward(x, one, one, one, tau, 0.5, 3, None)
