"""The general neuron against `core` in float64: resets, input decay, state, tau and v_th per channel, any rank."""

import pytest
import torch

from mpd_agl.core import SURROGATES, batch_moments, lif, tdbn
from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here, neuron, probe, tdbn_neuron
from tests.ops.cases import TOLERANCE, difference
from tests.ops.test_fused import Own

HERE = [name for name, why in backends_here().items() if not why and name in ("native", "eager")]
N, C, SPACE = 7, 5, (3, 4)
OPTIONS = {  # what each case adds to the default; tensors are made by `leaves_of`
    "soft": {"reset": "soft"},
    "decay": {"decay_input": True},
    "soft, decay": {"reset": "soft", "decay_input": True},
    "tau per channel": {"tau": "channel"},
    "v_th per channel": {"v_th": "channel"},
    "v_th learnable": {"v_th": "one"},
    "soft, both per channel": {"reset": "soft", "tau": "channel", "v_th": "channel"},
    "state": {"kept_0": True, "return_state": True},
    "soft, state, no leak": {"reset": "soft", "kept_0": True, "return_state": True, "tau": 1.0},
    "gain": {"gain": True},
    "detached, per channel": {"detach_reset": True, "tau": "channel", "kept_0": True},
    "everything": {
        "reset": "soft",
        "decay_input": True,
        "tau": "channel",
        "v_th": "channel",
        "kept_0": True,
        "return_state": True,
        "gain": True,
        "residual": True,
    },
    "everything, hard": {
        "decay_input": True,
        "tau": "channel",
        "v_th": "channel",
        "kept_0": True,
        "return_state": True,
        "gain": True,
        "residual": True,
    },
}
STEPS = [(1, 1), (3, 3), (4, 1)]


def near_an_edge(v_T, v_th, kappa_T, clear=1e-4):
    """Where rounding could decide: at the threshold, and where the surrogates have a kink."""
    u = (v_T - v_th).abs()
    kappa = kappa_T.view(-1, *[1] * (v_T.dim() - 1))
    return ((u < clear) | ((u - kappa / 2).abs() < clear) | ((u - kappa).abs() < clear)).any(0)


class Case:
    """A neuron with some options: its leaves in float64, and the calls of `core` and of `kernels` on them."""

    def __init__(self, T, S, shape, options, channel_dim=2, norm=True, surrogate="rectangular", seed=0):
        g = torch.Generator().manual_seed(seed)

        def normal(*size):
            return torch.randn(*size, generator=g, dtype=torch.float64)

        axis = channel_dim % (len(shape) + 1)
        channels = shape[axis - 1] if axis <= len(shape) else 1
        options = dict(options)
        self.T, self.norm, self.axis = T, norm, axis
        self.leaves = {"x": (2 * normal(S, *shape) + 3) if norm else 0.9 * normal(S, *shape) + 0.2}
        if norm:
            self.leaves |= {"gamma": 1 + 0.3 * normal(channels), "beta": 0.1 + 0.2 * normal(channels)}
        tau, v_th = options.pop("tau", 0.3), options.pop("v_th", 0.5)
        self.leaves["tau"] = (
            0.2 + 0.6 * torch.rand(channels, generator=g, dtype=torch.float64)
            if tau == "channel"
            else torch.tensor(tau, dtype=torch.float64)
        )
        if v_th != 0.5:
            self.leaves["v_th"] = (0.4 + 0.3 * torch.rand(channels, generator=g, dtype=torch.float64)).squeeze()
            if v_th == "one":
                self.leaves["v_th"] = torch.tensor(0.6, dtype=torch.float64)
        self.leaves["kappa"] = torch.linspace(0.7, 1.3, T, dtype=torch.float64)
        if options.pop("kept_0", False):
            self.leaves["kept_0"] = 0.5 * normal(*shape)
        if options.pop("residual", False):
            self.leaves["residual"] = torch.randint(0, 3, (T, *shape), generator=g).double()
        self.gain = torch.linspace(0.5, 1.5, T, dtype=torch.float64) if options.pop("gain", False) else None
        self.options = {**options, "surrogate": surrogate, "channel_dim": channel_dim}
        self.g, self.g_kept = 1 + 0.5 * normal(T, *shape), 1 + 0.5 * normal(*shape)
        for _ in range(300):
            v_th = self.leaves.get("v_th", torch.tensor(0.5))
            v_th = v_th.view([-1 if a == axis else 1 for a in range(1, len(shape) + 1)]) if v_th.dim() else v_th
            near = near_an_edge(self.by_core(self.leaves)[1], v_th, self.leaves["kappa"])
            if not near.any():
                return
            x = self.leaves["x"]
            self.leaves["x"] = torch.where(near, (2 * normal(*x.shape) + 3) if norm else normal(*x.shape), x)
        raise AssertionError("no clear case found")

    def moved(self, x):
        """tdBN's own order of axes: channels on axis 2."""
        return x if self.axis == 2 else x.movedim(self.axis, 2)

    def by_core(self, leaves):
        x, rest = leaves["x"], {k: leaves[k] for k in ("v_th", "kept_0") if k in leaves}
        i_T = x.expand(self.T, *x.shape[1:])
        if self.norm:
            moments = batch_moments(self.moved(i_T))
            i = tdbn(self.moved(i_T), leaves["gamma"], leaves["beta"], *moments, v_th=leaves.get("v_th", 0.5))
            i_T = i if self.axis == 2 else i.movedim(2, self.axis)
        options = {**self.options, **rest, "gain_T": self.gain, "return_state": True}
        s, v, kept = lif(i_T, leaves["tau"], leaves["kappa"], **options)
        return s + leaves.get("residual", 0), v, kept

    def by_kernel(self, leaves, backend):
        rest = {k: leaves[k] for k in ("v_th", "kept_0", "residual") if k in leaves}
        dtype, device = leaves["tau"].dtype, leaves["tau"].device
        options = {**self.options, **rest, "num_steps": self.T, "backend": backend}
        options["gain_T"] = None if self.gain is None else self.gain.to(device, dtype)
        if not self.norm:
            out = neuron(leaves["x"], leaves["tau"], leaves["kappa"], **options)
            return out if isinstance(out, tuple) else (out, None)
        channels = len(leaves["gamma"])
        args = [leaves[k] for k in ("x", "gamma", "beta")]
        args += [torch.zeros(channels, device=device), torch.ones(channels, device=device)]
        s, _, _, *kept = tdbn_neuron(*args, leaves["tau"], leaves["kappa"], batch_stats=True, **options)
        return s, kept[0] if kept else None

    def compare(self, backend, dtype=torch.float32, tolerance=TOLERANCE, device="cpu"):
        want_leaves = {k: a.clone().requires_grad_() for k, a in self.leaves.items()}
        got_leaves = {k: a.to(device, dtype).requires_grad_() for k, a in self.leaves.items()}
        s0, _, kept0 = self.by_core(want_leaves)
        s1, kept1 = self.by_kernel(got_leaves, backend)
        assert torch.equal(s1.cpu().double(), s0)
        loss0, loss1 = (s0 * self.g).sum(), (s1 * self.g.to(device, dtype)).sum()
        if "return_state" in self.options:
            assert difference(kept1.cpu(), kept0) < tolerance
            loss0, loss1 = loss0 + (kept0 * self.g_kept).sum(), loss1 + (kept1 * self.g_kept.to(device, dtype)).sum()
        else:
            assert kept1 is None
        want = torch.autograd.grad(loss0, list(want_leaves.values()))
        got = torch.autograd.grad(loss1, list(got_leaves.values()))
        for name, a, b in zip(want_leaves, got, want, strict=True):
            assert a.shape == b.shape, name
            assert difference(a.cpu(), b) < tolerance, f"gradient of {name}"


def surrogate_for(name):
    """The surrogates in turn, so that each meets several options."""
    return list(SURROGATES)[list(OPTIONS).index(name) % 5]


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize(("T", "S"), STEPS)
@pytest.mark.parametrize("name", list(OPTIONS))
def test_behind_tdbn(name, T, S, backend):
    Case(T, S, (N, C, *SPACE), OPTIONS[name], surrogate=surrogate_for(name)).compare(backend)


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize(("T", "S"), STEPS)
@pytest.mark.parametrize("name", list(OPTIONS))
def test_alone(name, T, S, backend):
    Case(T, S, (N, C, *SPACE), OPTIONS[name], norm=False, surrogate=surrogate_for(name)).compare(backend)


@pytest.mark.parametrize("surrogate", list(SURROGATES))
@pytest.mark.parametrize("name", ["everything", "everything, hard"])
def test_every_surrogate_at_every_simd_level(name, surrogate, level):
    Case(3, 3, (N, C, *SPACE), OPTIONS[name], surrogate=surrogate, seed=1).compare("native")


@pytest.mark.parametrize("T", [1, 2, 3, 4, 6, 10])
@pytest.mark.parametrize("surrogate", ["rectangular", "sigmoid"])
def test_a_gain_in_the_default_form_at_every_simd_level(surrogate, T, level):
    case = Case(T, T, (N, C, *SPACE), OPTIONS["gain"], surrogate=surrogate, seed=2)
    del case.leaves["kappa"]  # no gradient of the width: the kernels that know T at compile time
    kappa = torch.linspace(0.7, 1.3, T, dtype=torch.float64)
    want, got = ({k: a.to(d).requires_grad_() for k, a in case.leaves.items()} for d in (torch.float64, torch.float32))
    s0, s1 = case.by_core({**want, "kappa": kappa})[0], case.by_kernel({**got, "kappa": kappa.float()}, "native")[0]
    assert torch.equal(s1.double(), s0)
    expected = torch.autograd.grad((s0 * case.g).sum(), list(want.values()))
    found = torch.autograd.grad((s1 * case.g.float()).sum(), list(got.values()))
    for name, a, b in zip(want, found, expected, strict=True):
        if T > 1 or name != "tau":
            assert difference(a, b) < TOLERANCE, f"gradient of {name}"


@pytest.mark.parametrize("name", list(OPTIONS))
def test_eager_in_float64_to_the_last_digits(name):
    for norm in (True, False):
        case = Case(3, 3, (N, C), OPTIONS[name], norm=norm, surrogate="triangular")
        case.compare("eager", torch.float64, 1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_with_a_users_own_surrogate():
    if why := backends_here()["compiled"]:
        pytest.skip(why)
    Case(2, 2, (N, C), OPTIONS["everything"], surrogate=Own(2.0)).compare("compiled")


RANKS = [  # shape behind time, channel_dim
    ((6,), 1),
    ((7, 5), -1),
    ((3, 4, 5), -1),
    ((3, 5, 4), 2),
    ((2, 5, 3, 4), 2),
    ((2, 3, 4, 5), -1),
    ((2, 5, 2, 3, 2), 2),
]


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize(("shape", "channel_dim"), RANKS)
@pytest.mark.parametrize("name", ["soft", "state", "everything", "decay"])
def test_any_rank(name, shape, channel_dim, backend):
    Case(3, 3, shape, OPTIONS[name], channel_dim=channel_dim, norm=False).compare(backend)
    if len(shape) > 1:
        Case(3, 3, shape, OPTIONS[name], channel_dim=channel_dim, norm=True).compare(backend)


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape),
    "batch_first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "reversed": lambda x: x.permute(0, 4, 3, 2, 1).contiguous().permute(0, 4, 3, 2, 1),
}


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_the_layout_comes_back_and_changes_no_number(layout, per_channel, backend):
    g = torch.Generator().manual_seed(0)
    x = LAYOUTS[layout](torch.randn(3, 4, 5, 3, 2, generator=g))
    tau = torch.linspace(0.2, 0.8, 5) if per_channel else torch.tensor(0.3)
    kept_0, residual = torch.randn(4, 5, 3, 2, generator=g), torch.randn(3, 4, 5, 3, 2, generator=g)
    options = {"num_steps": 3, "kept_0": kept_0, "residual": residual, "return_state": True, "reset": "soft"}
    want, want_kept = neuron(x.contiguous(), tau, torch.ones(3), backend="eager", **options)
    leaf = x.detach().requires_grad_()
    got, kept = neuron(leaf, tau, torch.ones(3), backend=backend, **options)
    assert torch.equal(got, want)
    assert torch.equal(kept, want_kept) or difference(kept, want_kept) < TOLERANCE
    if layout in ("contiguous", "channels_last", "reversed"):
        assert got.stride() == x.stride()
        assert kept.stride() == x[0].stride()
    (dx,) = torch.autograd.grad((got * residual).sum(), leaf)
    plain = x.contiguous().requires_grad_()
    again, _ = neuron(plain, tau, torch.ones(3), backend="eager", **options)
    assert difference(dx, torch.autograd.grad((again * residual).sum(), plain)[0]) < TOLERANCE


def test_neurons_that_are_all_alike_run_on_the_memory_as_it_lies(monkeypatch):
    from mpd_agl.ops.step import fused

    seen = []
    rows = fused._Layout.rows
    monkeypatch.setattr(
        fused._Layout, "rows", lambda self, x: seen.append(rows(self, x).data_ptr() == x.data_ptr()) or rows(self, x)
    )
    x = torch.randn(2, 3, 4, 5, 6)
    for view in (x, LAYOUTS["channels_last"](x), LAYOUTS["reversed"](x), x[:1]):
        neuron(view, 0.3, torch.ones(2), num_steps=2)
    assert seen == [True] * 4


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("name", ["state", "everything", "soft, state, no leak"])
def test_two_halves_with_a_state_between_are_the_whole(name, backend):
    case = Case(4, 4, (N, C), {**OPTIONS[name], "return_state": True}, norm=False)
    whole, parts = ({k: a.float().requires_grad_() for k, a in case.leaves.items()} for _ in range(2))
    s, kept = case.by_kernel(whole, backend)
    gain, spikes, state = case.gain, [], parts["kept_0"]
    for half in (slice(0, 2), slice(2, 4)):
        case.T, case.gain = 2, None if gain is None else gain[half]
        cut = {k: a[half] if k in ("x", "kappa", "residual") else a for k, a in parts.items()}
        out, state = case.by_kernel({**cut, "kept_0": state}, backend)
        spikes.append(out)
    assert torch.equal(torch.cat(spikes), s)
    assert difference(state, kept) < TOLERANCE
    g, g_kept = case.g.float(), case.g_kept.float()
    want = torch.autograd.grad((s * g).sum() + (kept * g_kept).sum(), list(whole.values()))
    got = torch.autograd.grad((torch.cat(spikes) * g).sum() + (state * g_kept).sum(), list(parts.values()))
    for key, a, b in zip(whole, got, want, strict=True):
        assert difference(a, b) < TOLERANCE, key


def test_only_the_state_has_a_gradient():
    i = torch.tensor([[0.2, 0.1]], requires_grad=True)
    for backend in HERE:
        _, kept = neuron(i, 0.5, torch.ones(1), num_steps=1, return_state=True, backend=backend, detach_reset=True)
        assert torch.autograd.grad(kept.sum(), i)[0].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("backend", HERE)
def test_trajectories_by_hand(backend):
    # soft: v = 0.4; 0.5*0.4+0.4 = 0.6 fires, keeps 0.1; 0.5*0.1+0.4 = 0.45
    options = {"num_steps": 3, "return_state": True, "backend": backend}
    s, kept = neuron(torch.full((3, 1), 0.4), 0.5, torch.ones(3), reset="soft", **options)
    assert s.flatten().tolist() == [0, 1, 0]
    assert float(kept) == pytest.approx(0.45)
    # decay_input, tau 0.75: v = 0.25*1.8 = 0.45; 0.3375+0.45 = 0.7875 fires, keeps 0; 0.45
    s, kept = neuron(torch.full((3, 1), 1.8), 0.75, torch.ones(3), decay_input=True, **options)
    assert s.flatten().tolist() == [0, 1, 0]
    assert float(kept) == pytest.approx(0.45)
    # no leak, from 0.3: 0.3+0.1 = 0.4; 0.5 fires at >=, keeps 0; 0.1
    s, kept = neuron(torch.full((3, 1), 0.1), 1.0, torch.ones(3), kept_0=torch.tensor([0.3]), v_th=0.49999, **options)
    assert s.flatten().tolist() == [0, 1, 0]
    assert float(kept) == pytest.approx(0.1)


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in(backend, dtype):
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    tau = torch.linspace(0.1, 0.9, 5)
    s, kept = neuron(x, tau, torch.ones(3), num_steps=3, reset="soft", return_state=True, backend=backend)
    want, want_kept = neuron(x.float(), tau, torch.ones(3), num_steps=3, reset="soft", return_state=True)
    assert (s.dtype, kept.dtype) == (dtype, torch.float32)
    assert torch.equal(s.float(), want)
    assert difference(kept, want_kept) < TOLERANCE
    (s.float().sum() + kept.sum()).backward()
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("S", [3, 1])
@pytest.mark.parametrize("name", ["soft", "decay", "everything", "everything, hard"])
def test_probe_is_what_a_slow_count_gives(name, S, backend):
    case = Case(3, S, (N, C, *SPACE), OPTIONS[name], norm=False)
    _, v, _ = case.by_core(case.leaves)
    v_th = case.leaves.get("v_th", torch.full((C,), 0.5, dtype=torch.float64))
    keys = {"reset", "decay_input"} & case.options.keys()
    kept_0 = case.leaves.get("kept_0")
    got = probe(
        case.leaves["x"].float(),
        *(torch.zeros(C), torch.ones(C), torch.zeros(C)),
        case.leaves["tau"].float(),
        case.leaves["kappa"].float(),
        v_th=v_th.float(),
        kept_0=None if kept_0 is None else kept_0.float(),
        backend=backend,
        **{k: case.options[k] for k in keys},
    )
    for t in range(3):
        w, i = v[t], case.leaves["x"][t if S > 1 else 0]
        u = w - v_th.view(-1, 1, 1)
        want = [(u >= 0).sum(), (u.abs() < case.leaves["kappa"][t] / 2).sum(), w.sum(), (w * w).sum()]
        want += [i.sum(), (i * i).sum()]
        assert got[t].tolist() == pytest.approx([float(a) for a in want], rel=1e-5, abs=1e-3)


def test_norm_v_th_parts_the_norm_from_the_threshold():
    g = torch.Generator().manual_seed(0)
    x, gamma, beta = torch.randn(2, 6, 3, generator=g), torch.rand(3, generator=g) + 0.5, torch.zeros(3)
    v_th = torch.tensor([0.4, 0.6, 0.8], requires_grad=True)
    rest = (torch.zeros(3), torch.ones(3), 0.3, torch.ones(2))
    s, mean, var = tdbn_neuron(x, gamma, beta, *rest, num_steps=2, batch_stats=True, v_th=v_th, norm_v_th=1.0)
    i = tdbn(x, gamma, beta, mean, var, v_th=1.0)
    want = neuron(i, 0.3, torch.ones(2), num_steps=2, v_th=v_th)
    assert torch.equal(s, want)
    assert difference(*(torch.autograd.grad(a.sum(), v_th)[0] for a in (s, want))) < TOLERANCE


def test_what_does_not_fit_is_a_sentence():
    x, k = torch.randn(2, 4, 8), torch.ones(2)
    rest = (torch.zeros(8), torch.ones(8), torch.tensor(0.2), k)
    norm = {"num_steps": 2, "batch_stats": True}
    alone = {"num_steps": 2}
    wrong = {
        r"beta must hold one value per channel, \(8,\).*got \(1,\)": lambda b: tdbn_neuron(
            x, torch.ones(8), torch.zeros(1), *rest, **norm, backend=b
        ),
        r"gamma must hold one value per channel": lambda b: tdbn_neuron(
            x, torch.ones(7), torch.zeros(8), *rest, **norm, backend=b
        ),
        r"running_mean must hold": lambda b: tdbn_neuron(
            x, torch.ones(8), torch.zeros(8), torch.zeros(9), *rest[1:], **norm, backend=b
        ),
        r"tau must hold one value or one value per channel, \(8,\).*got \(3,\)": lambda b: neuron(
            x, torch.rand(3), k, **alone, backend=b
        ),
        r"v_th must hold one value or one value per channel": lambda b: neuron(
            x, 0.2, k, v_th=torch.rand(8, 1), **alone, backend=b
        ),
        r"kept_0 must have the shape of one timestep, \(4, 8\), got \(8,\)": lambda b: neuron(
            x, 0.2, k, kept_0=torch.zeros(8), **alone, backend=b
        ),
        r"gain_T must hold one factor per timestep, \(2,\), got \(3,\)": lambda b: neuron(
            x, 0.2, k, gain_T=torch.ones(3), **alone, backend=b
        ),
        r"2 widths, got an input of 2 and widths of shape \(2, 1\)": lambda b: neuron(
            x, 0.2, torch.ones(2, 1), **alone, backend=b
        ),
        r"unknown reset 'sof'. Did you mean 'soft'": lambda b: neuron(x, 0.2, k, reset="sof", **alone, backend=b),
        r"channel_dim=5 is no axis behind time": lambda b: neuron(
            x, torch.rand(8), k, channel_dim=5, **alone, backend=b
        ),
        r"floating-point currents \(T, N, ...\), got \(2,\)": lambda b: neuron(x[:, 0, 0], 0.2, k, **alone, backend=b),
        r"scale must hold one value per channel": lambda b: probe(
            x, torch.zeros(8), torch.ones(1), torch.zeros(8), 0.2, k, backend=b
        ),
    }
    for backend in HERE:
        for sentence, run in wrong.items():
            with pytest.raises(InputError, match=sentence):
                run(backend)
