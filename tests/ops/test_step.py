"""The fused step against `core` in float64: every implementation x form x size, with allocations poisoned by NaN."""

import pytest
import torch

from mpd_agl.core import lif
from mpd_agl.errors import InputError
from mpd_agl.ops import (
    BatchStats,
    CurrentMap,
    NeuronSpec,
    NormSpec,
    StepInput,
    Sync,
    Widths,
    backends_here,
    current_map,
    fused_step,
    probe,
)
from tests.ops.cases import (
    ALL_SURROGATES,
    BUILTIN,
    FORMS,
    HERE,
    LAYOUTS,
    TOLERANCE,
    Case,
    Own,
    Steeper,
    difference,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.param(
    "triton",
    torch.float32,
    DEVICE,
    # The interpreter computes with numpy: spikes of 0 and 1 would hide a value that was never computed.
    marks=[
        pytest.mark.skipif(bool(backends_here(DEVICE)["triton"]), reason="triton cannot run here"),
        pytest.mark.filterwarnings("error::RuntimeWarning"),
    ],
    id="triton",
)
FAST = [pytest.param("eager", torch.float64, "cpu", id="eager-float64")]
FAST += [pytest.param(name, torch.float32, "cpu", id=name) for name in HERE]
SIZES = {  # T, S, shape behind time
    "T1": (1, 1, (7, 5, 3, 4)),
    "T3": (3, 3, (7, 5, 3, 4)),
    "T4S1": (4, 1, (7, 5, 3, 4)),
    "T3N1": (3, 3, (1, 5, 3, 4)),
    "T3S1N1C1": (3, 1, (1, 1, 3, 4)),
    "T6C1": (6, 6, (7, 1)),
}


def on(places, *sizes):
    return [pytest.param(*p.values, *SIZES[s], id=f"{p.id}-{s}", marks=p.marks) for p in places for s in sizes]


@pytest.mark.parametrize("norm", ["batch", "running", None])
@pytest.mark.parametrize(
    ("backend", "dtype", "device", "T", "S", "shape"), [*on(FAST, *SIZES), *on([TRITON], "T3N1", "T3S1N1C1")]
)
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, backend, dtype, device, T, S, shape, norm):
    Case(form, T, S, shape, norm).compare(backend, dtype, device)


@pytest.mark.parametrize(("T", "S"), [(2, 2), (4, 1)])
@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("form", ["uniform", "learnable kappa", "detached", "everything", "everything, soft"])
@pytest.mark.parametrize("surrogate", ALL_SURROGATES, ids=lambda s: type(s).__name__)
def test_every_surrogate(surrogate, form, backend, dtype, device, T, S):
    Case(form, T, S, (7, 5), surrogate=surrogate, seed=1).compare(backend, dtype, device)


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("form", ["uniform", "everything"])
@pytest.mark.parametrize(
    ("T", "S", "shape"), [(2, 2, (2, 300)), (2, 2, (7, 16, 1, 1)), (10, 10, (7, 5)), (35, 35, (7, 3)), (35, 1, (7, 3))]
)
def test_many_channels_and_steps(T, S, shape, form, backend, dtype, device):
    Case(form, T, S, shape, surrogate="arctan").compare(backend, dtype, device)


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize(
    ("shape", "channel_dim"), [((6,), 1), ((3, 4, 5), -1), ((3, 4, 5), 2), ((2, 3, 4, 5), -1), ((2, 5, 2, 3, 2), 2)]
)
@pytest.mark.parametrize("form", ["uniform", "everything, soft"])
def test_any_rank_and_channel_axis(form, shape, channel_dim, backend, dtype, device):
    Case(form, shape=shape, channel_dim=channel_dim, norm=None).compare(backend, dtype, device)
    if channel_dim == 2:
        Case(form, shape=shape).compare(backend, dtype, device)


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("form", ["state in", "everything", "everything, soft", "soft, state, no leak"])
def test_two_halves_with_a_state_between_are_the_whole(form, backend, dtype, device):
    case = Case(form, 4, 4, (3, 5), norm=None)
    case.want_state = True
    whole, parts = case.in_dtype(dtype, device), case.in_dtype(dtype, device)
    out, spikes, state = case.run_step(whole, backend), [], parts["state"]
    kappa, gain = case.kappa, case.gain
    for half in (slice(0, 2), slice(2, 4)):
        case.T, case.kappa, case.gain = 2, kappa[half], None if gain is None else gain[half]
        cut = {k: a[half] if k in ("x", "kappa", "residual") else a for k, a in parts.items()}
        s, state, *_ = case.run_step({**cut, "state": state}, backend)
        spikes.append(s)
    assert torch.equal(torch.cat(spikes), out.spikes)
    assert difference(state, out.state) < TOLERANCE[dtype]
    want = torch.autograd.grad(case.loss(out.spikes, out.state), list(whole.values()))
    got = torch.autograd.grad(case.loss(torch.cat(spikes), state), list(parts.values()))
    for key, a, b in zip(whole, got, want, strict=True):
        assert difference(a, b) < TOLERANCE[dtype], key


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("form", ["uniform", "everything, soft"])
@pytest.mark.parametrize("norm", ["batch", None])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_formats_change_no_number(layout, norm, form, backend, dtype, device):
    """Spikes and state have the memory order of a dense input; kernels that mix up axes give other numbers."""
    case = Case(form, shape=(4, 5, 3, 2), norm=norm)
    want = case.in_dtype(dtype)
    x, residual = LAYOUTS[layout](want["x"]), want.get("residual")
    given = {**case.in_dtype(dtype, device), "x": LAYOUTS[layout](case.leaves["x"].to(device, dtype)).requires_grad_()}
    if residual is not None:
        given["residual"] = LAYOUTS[layout](residual.detach().to(device)).requires_grad_()
        want["residual"] = given["residual"].detach().cpu().contiguous().requires_grad_()
    want["x"] = x.detach().contiguous().requires_grad_()
    out, plain = case.run_step(given, backend), case.run_step(want, "eager")
    assert torch.equal(out.spikes.cpu(), plain.spikes)
    if norm is None and layout in ("contiguous", "channels_last", "reversed"):
        assert out.spikes.stride() == given["x"].stride()
        assert out.state is None or out.state.stride() == given["x"][0].stride()
    if norm:
        assert out.spikes.movedim(2, -1).is_contiguous()
    found = torch.autograd.grad(case.loss(out.spikes, out.state), list(given.values()))
    expected = torch.autograd.grad(case.loss(plain.spikes, plain.state), list(want.values()))
    for name, a, b in zip(given, found, expected, strict=True):
        assert difference(a, b) < TOLERANCE[dtype], name


def test_neurons_that_are_all_alike_take_dense_memory_without_a_copy(monkeypatch):
    from mpd_agl.ops.step.layout import Layout

    rows, views = Layout.rows, []
    monkeypatch.setattr(
        Layout, "rows", lambda self, x: views.append(rows(self, x).data_ptr() == x.data_ptr()) or rows(self, x)
    )
    x = torch.randn(2, 3, 4, 5, 6)
    for view in (x, LAYOUTS["channels_last"](x), LAYOUTS["reversed"](x), x[:1]):
        fused_step(None, NeuronSpec(tau=0.3, v_th=0.5), StepInput(view, 2))
    assert views == [True] * 4


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("S", [3, 1])
@pytest.mark.parametrize("norm", ["batch", "running", None])
@pytest.mark.parametrize("form", ["uniform", "soft", "decay_input", "everything", "everything, soft"])
def test_probe_is_a_slow_count(form, norm, S, backend, dtype, device):
    case = Case(form, 3, S, (7, 5, 3, 4), norm)
    leaves = case.in_dtype(dtype, device)
    _, v, _, stats = case.run_core(case.leaves)
    neuron = NeuronSpec(tau=leaves["tau"], v_th=leaves.get("v_th", 0.5), **case.neuron, backend=backend)
    current, i = None, case.leaves["x"]
    if norm:
        mean, var = (a.to(leaves["tau"]) for a in case.running)
        spec = {"weight": leaves["weight"], "bias": leaves["bias"], "mean": mean, "var": var, "amplitude": 0.5}
        current = current_map(NormSpec(**spec, batch_stats=norm == "batch"), leaves["x"].detach(), backend)
        scale = case.leaves["weight"] * 0.5 / (stats[1] + 1e-5).sqrt()
        for a, b in zip(current, (stats[0], scale, case.leaves["bias"]), strict=True):
            assert difference(a, b) < TOLERANCE[dtype]
        i = (i - stats[0].view(-1, 1, 1)) * scale.view(-1, 1, 1) + case.leaves["bias"].view(-1, 1, 1)
    got = probe(leaves["x"], current, neuron, case.kappa.to(leaves["tau"]), leaves.get("state"))
    v_th = case.leaves.get("v_th", torch.full((5,), 0.5))
    u = v - v_th.view(-1, 1, 1)
    for t in range(3):
        w, i_t = v[t], i[t if S > 1 else 0]
        want = [(u[t] >= 0).sum(), (u[t].abs() < case.kappa[t] / 2).sum(), w.sum(), (w * w).sum()]
        want += [i_t.sum(), (i_t * i_t).sum()]
        assert got[t].tolist() == pytest.approx([float(a) for a in want], rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("backend", HERE)
def test_statistics_do_not_cancel_far_from_zero(backend):
    x = 1000 + torch.randn(2, 50, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    norm = NormSpec(weight=torch.ones(3), bias=torch.zeros(3), mean=torch.zeros(3), var=torch.ones(3), batch_stats=True)
    stats = fused_step(norm, NeuronSpec(tau=0.2, v_th=0.5, backend=backend), StepInput(x, 2)).stats
    d = x.double()
    assert difference(stats.mean_C, d.mean((0, 1, 3, 4))) < 1e-6
    assert difference(stats.var_C, d.var((0, 1, 3, 4), correction=0)) < 1e-5


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST[1:], TRITON])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_input_has_a_float32_membrane(half, backend, dtype, device):
    # v stays below the threshold by less than a bfloat16 step: a bfloat16 membrane would fire
    x = torch.full((2, 2, 1), 0.4, dtype=half, device=device)
    tau = (0.5 - 1e-4) / float(x[0, 0, 0]) - 1
    fired = [
        fused_step(None, NeuronSpec(tau=a, v_th=0.5, backend=backend), StepInput(x, 2)).spikes[1].sum()
        for a in (tau, tau + 3e-4 / 0.4)
    ]
    assert [int(a) for a in fired] == [0, 2]
    case = Case("everything, soft", shape=(4, 5))
    x = case.leaves["x"].to(half)
    found = []
    for given in (x.to(device), x.float()):
        leaves = {**case.in_dtype(torch.float32, given.device), "x": given.detach().requires_grad_()}
        out = case.run_step(leaves, backend if given.dtype == half else "eager")
        assert (out.spikes.dtype, out.state.dtype, out.stats.mean_C.dtype) == (given.dtype, *[torch.float32] * 2)
        loss = (out.spikes.float() * case.g.to(half).to(device).float().to(given.device)).sum() + out.state.sum()
        found.append((out, dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))))
    (out, grads), (want, want_grads) = found
    assert grads["x"].dtype == half
    assert torch.equal(out.spikes.float().cpu(), want.spikes)
    assert difference(out.state, want.state) < 1e-5
    unit = 2.0**-7 if half == torch.bfloat16 else 2.0**-10
    for name, a in grads.items():  # dx is stored in the input's dtype
        assert difference(a, want_grads[name]) < (2 * unit if name in ("x", "residual") else 1e-5), name


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
def test_far_from_the_threshold_gradients_are_right(backend, dtype, device):
    """v from -1e4 to 1e4, with a width of its own at each step."""
    i = torch.tensor([-1e4, -30.0, 0.0, 0.5, 30.0, 1e4], dtype=torch.float64).expand(2, 6)
    for surrogate in BUILTIN:
        want, got = i.clone().requires_grad_(), i.to(device, dtype).requires_grad_()
        k0, k1 = (torch.tensor([0.01, 2.0]).to(a).requires_grad_() for a in (want, got))
        s = lif(want, 0.2, k0, surrogate=surrogate, detach_reset=True)[0]
        neuron = NeuronSpec(tau=0.2, v_th=0.5, surrogate=surrogate, detach_reset=True, backend=backend)
        out = fused_step(None, neuron, StepInput(got, 2, Widths(k1)))
        found, expected = torch.autograd.grad(out.spikes.sum(), (got, k1)), torch.autograd.grad(s.sum(), (want, k0))
        assert all(difference(a, b) < TOLERANCE[dtype] for a, b in zip(found, expected, strict=True)), surrogate.name


@pytest.mark.parametrize("backend", HERE)
def test_trajectories_by_hand(backend):
    def run(current, state=None, **neuron):
        out = fused_step(
            None, NeuronSpec(**{"v_th": 0.5, **neuron}, backend=backend), StepInput(current, 3, None, None, state, True)
        )
        return [*out.spikes.flatten().tolist(), float(out.state)]

    # soft: v = 0.4; 0.5*0.4+0.4 = 0.6 fires, keeps 0.1; 0.5*0.1+0.4 = 0.45
    assert run(torch.full((3, 1), 0.4), tau=0.5, reset="soft") == pytest.approx([0, 1, 0, 0.45])
    # decay_input, tau 0.75: v = 0.25*1.8 = 0.45; 0.3375+0.45 = 0.7875 fires, keeps 0; 0.45
    assert run(torch.full((3, 1), 1.8), tau=0.75, decay_input=True) == pytest.approx([0, 1, 0, 0.45])
    # no leak, from 0.3: 0.3+0.1 = 0.4; 0.5 fires at >=, keeps 0; 0.1
    assert run(torch.full((3, 1), 0.1), torch.tensor([0.3]), tau=1.0, v_th=0.49999) == pytest.approx([0, 1, 0, 0.1])


def test_without_widths_spikes_are_the_same_and_a_backward_pass_is_refused():
    x = torch.randn(2, 3, 4, requires_grad=True)
    neuron = NeuronSpec(tau=0.2, v_th=0.5)
    out = fused_step(None, neuron, StepInput(x, 2))
    assert torch.equal(out.spikes, fused_step(None, neuron, StepInput(x, 2, Widths(torch.ones(2)))).spikes)
    with pytest.raises(InputError, match="widths=Widths"):
        out.spikes.sum().backward()


@pytest.mark.parametrize("backend", HERE)
def test_an_empty_input_gives_empty_spikes_and_zero_gradients(backend):
    tau = torch.tensor(0.2, requires_grad=True)
    x = torch.empty(2, 0, 5, requires_grad=True)
    out = fused_step(None, NeuronSpec(tau=tau, v_th=0.5, backend=backend), StepInput(x, 2, Widths(torch.ones(2))))
    assert out.spikes.shape == (2, 0, 5)
    assert [a.tolist() for a in torch.autograd.grad(out.spikes.sum(), (x, tau))] == [[[], []], 0.0]


X, ONE = torch.randn(2, 4, 8), torch.ones(8)
NORM = {"weight": ONE, "bias": ONE, "mean": ONE, "var": ONE}
K = Widths(torch.ones(2))


def step(x=X, T=2, widths=K, norm=None, tau=0.2, v_th=0.5, residual=None, state=None, **neuron):
    norm = None if norm is None else NormSpec(**{**NORM, **norm})
    return fused_step(norm, NeuronSpec(tau=tau, v_th=v_th, **neuron), StepInput(x, T, widths, residual, state))


REFUSED = {  # values that the message must hold, and the call
    "bias": (r"bias .*\(8,\).*\(1,\)", lambda b: step(norm={"bias": torch.zeros(1)}, backend=b)),
    "weight": (r"weight .*\(8,\).*\(7,\)", lambda b: step(norm={"weight": torch.zeros(7)}, backend=b)),
    "mean": (r"mean .*\(8,\).*\(9,\)", lambda b: step(norm={"mean": torch.zeros(9)}, backend=b)),
    "tau": (r"tau .*\(8,\).*\(3,\)", lambda b: step(tau=torch.rand(3), backend=b)),
    "v_th": (r"v_th .*\(8,\).*\(8, 1\)", lambda b: step(v_th=torch.rand(8, 1), backend=b)),
    "state": (r"state .*\(4, 8\).*\(8,\)", lambda b: step(state=torch.zeros(8), backend=b)),
    "residual": (r"residual .*\(2, 4, 8\).*\(2, 3, 8\)", lambda b: step(residual=X[:, :3], backend=b)),
    "gain": (r"\(2,\).*\(3,\)", lambda b: step(widths=Widths(K.kappa_T, torch.ones(3)), backend=b)),
    "kappa": (r"\(2,\).*\(2, 1\)", lambda b: step(widths=Widths(torch.ones(2, 1)), backend=b)),
    "reset": ("'sof'.*'soft'", lambda b: step(reset="sof", backend=b)),
    "channel_dim": (r"5 .*\(2, 4, 8\)", lambda b: step(tau=torch.rand(8), channel_dim=5, backend=b)),
    "channel_dim behind a norm": ("axis 2.*1", lambda b: step(norm={}, channel_dim=1, backend=b)),
    "rank": (r"\(2,\)", lambda b: step(X[:, 0, 0], backend=b)),
    "rank behind a norm": (r"\(2, 4\)", lambda b: step(X[:, :, 0], norm={}, backend=b)),
    "integers": (r"torch.int64", lambda b: step(X.long(), backend=b)),
    "steps": (r"3 timesteps.*\(2, 4, 8\)", lambda b: step(T=3, widths=Widths(torch.ones(3)), backend=b)),
    "no steps": (r"0 timesteps", lambda b: step(T=0, backend=b)),
    "probe's scale": (
        r"scale.*\(8,\).*\(1,\)",
        lambda b: probe(X, CurrentMap(ONE, ONE[:1], ONE), NeuronSpec(tau=0.2, v_th=0.5, backend=b), K.kappa_T),
    ),
    "probe's kappa": (
        r"\(2, 4, 8\)",
        lambda b: probe(X, None, NeuronSpec(tau=0.2, v_th=0.5, backend=b), torch.ones(3)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("backend", HERE)
def test_what_does_not_fit_is_refused_with_its_values(name, backend):
    values, run = REFUSED[name]
    with pytest.raises(InputError, match=values):
        run(backend)


# Gradients of gradients

SECOND_ORDER = {  # form, norm
    "LIF": ("uniform", None),
    "statistics of the batch": ("learnable kappa", "batch"),
    "running statistics": ("decay_input", "running"),
    "gain and threshold": ("v_th learnable", "batch"),
    "state and residual": ("everything", "batch"),
    "soft": ("everything, soft", None),
    "detached": ("detached, state, per channel", "batch"),
}


def penalty(case, spikes, state, leaves):
    grads = torch.autograd.grad(case.loss(spikes, state), leaves, create_graph=True)
    return sum(g.square().sum() for g in grads)


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("S", [3, 1])
@pytest.mark.parametrize("name", SECOND_ORDER)
def test_create_graph_gives_the_gradients_of_the_written_equations(name, S, backend, dtype, device):
    form, norm = SECOND_ORDER[name]
    case = Case(form, 3, S, (7, 5), norm, surrogate="sigmoid", seed=1)
    want, got = case.in_dtype(torch.float64), case.in_dtype(dtype, device)
    spikes, _, state, _ = case.run_core(want)
    out = case.run_step(got, backend)
    first = penalty(case, spikes, state, list(want.values()))
    found = penalty(case, out.spikes, out.state, list(got.values()))
    assert difference(found, first) < TOLERANCE[dtype]
    for key, a, b in zip(
        want,
        torch.autograd.grad(found, list(got.values()), materialize_grads=True, allow_unused=True),
        torch.autograd.grad(first, list(want.values()), materialize_grads=True, allow_unused=True),
        strict=True,
    ):
        assert difference(a, b) < TOLERANCE[dtype], key


@pytest.mark.parametrize("backend", HERE)
def test_create_graph_where_the_inputs_depend_on_each_other(backend):
    """State, width and weight are functions of tau: each way to tau counts once."""
    case = Case("decay_input", 4, 4, (7, 5), None, surrogate="triangular")

    def grads(dtype, run):
        x, tau = (a.to(dtype).requires_grad_() for a in (case.leaves["x"], case.leaves["tau"]))
        kappa = 1 + tau * torch.ones(2, dtype=dtype)
        s0, state = run(x[:2], tau, kappa, None)
        s1, _ = run(x[2:], tau, kappa, state)
        found = torch.autograd.grad((torch.cat([s0, s1]) * case.g.to(dtype)).sum(), (x, tau), create_graph=True)
        return [*found, *torch.autograd.grad(sum(a.square().sum() for a in found), (x, tau))]

    def by_core(x, tau, kappa, state):
        s, _, state = lif(x, tau, kappa, surrogate="triangular", decay_input=True, state=state)
        return s, state

    def by_step(x, tau, kappa, state):
        neuron = NeuronSpec(tau=tau, v_th=0.5, decay_input=True, surrogate=BUILTIN[1], backend=backend)
        return fused_step(None, neuron, StepInput(x, 2, Widths(kappa), None, state, True))[:2]

    for a, b in zip(grads(torch.float32, by_step), grads(torch.float64, by_core), strict=True):
        assert difference(a, b) < TOLERANCE[torch.float32]


class TwoAlike(Sync):
    """Another process holds the same part of the batch."""

    is_shared = True

    def sum(self, x):
        return 2 * x

    def stats(self, mean_C, var_C, rows):
        return BatchStats(mean_C, var_C, 2 * rows)


@pytest.mark.parametrize(("backend", "dtype", "device"), [*FAST, TRITON])
@pytest.mark.parametrize("S", [3, 1])
def test_a_batch_that_processes_share(S, backend, dtype, device):
    """Each process has the gradient of the sum of all losses: here, of the whole batch that holds its part twice."""
    case = Case("uniform", 3, S, (7, 5))
    want, got = case.in_dtype(torch.float64), case.in_dtype(dtype, device)
    twice = {**want, "x": torch.cat([want["x"], want["x"]], 1)}
    s = case.run_core(twice)[0]
    expected = torch.autograd.grad((s * torch.cat([case.g, case.g], 1)).sum(), list(want.values()))
    case.sync = TwoAlike()
    out = case.run_step(got, backend)
    assert torch.equal(out.spikes.cpu().double(), s[:, :7])
    assert int(out.stats.rows) == 14 * S
    found = torch.autograd.grad(case.loss(out.spikes, None), list(got.values()), retain_graph=True)
    for name, a, b in zip(want, found, expected, strict=True):
        assert difference(a, b / 2) < TOLERANCE[dtype], name
    with pytest.raises(InputError, match="create_graph"):
        torch.autograd.grad(out.spikes.sum(), got["x"], create_graph=True)


@pytest.mark.parametrize("backend", ["auto", *HERE])
def test_a_subclass_of_a_surrogate_is_not_taken_for_it(backend):
    assert [type(a) for a in ALL_SURROGATES[-2:]] == [Own, Steeper]
    x = torch.randn(3, 6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def dx(surrogate):
        neuron = NeuronSpec(tau=0.2, v_th=0.5, surrogate=surrogate, detach_reset=True, backend=backend)
        return torch.autograd.grad(fused_step(None, neuron, StepInput(x, 3, Widths(torch.ones(3)))).spikes.sum(), x)[0]

    assert difference(dx(Own(1.0)), dx(BUILTIN[1])) < 1e-5
    assert difference(dx(Steeper()), dx(BUILTIN[0])) > 0.1
