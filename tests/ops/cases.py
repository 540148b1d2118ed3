"""Steps in every form: leaves in float64, computed by `core` with plain autograd and by `fused_step`."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from mpd_agl.core import Rectangular, Surrogate, batch_moments, get_surrogate, lif, tdbn
from mpd_agl.ops import LOCAL, NeuronSpec, NormSpec, StepInput, StepOutput, Widths, backends_here, fused_step

HERE = [name for name, reason in backends_here().items() if not reason and name != "triton"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Largest difference over the largest value, against float64."""
AMPLITUDE = 0.5


@dataclass(frozen=True)
class Own(Surrogate):
    """A user's surrogate with a parameter of its own: a triangle of any height."""

    height: float = 2.0
    name: ClassVar[str] = "own"

    def grad(self, u, kappa):
        return self.height * (1 - u.abs() / kappa).clamp_min(0) / kappa


class Steeper(Rectangular):
    """A known surrogate's subclass that computes something else."""

    def grad(self, u, kappa):
        return 2 * super().grad(u, kappa)


BUILTIN = [get_surrogate(name) for name in ("rectangular", "triangular", "sigmoid", "arctan")]
ALL_SURROGATES = [*BUILTIN, Own(), Steeper()]
CHANNELS = {"tau": "channel", "v_th": "channel"}
STATE = {"state": True, "want_state": True}
EVERYTHING = {"decay_input": True, **CHANNELS, **STATE, "gain": True, "residual": True, "learn_kappa": True}
FORMS = {
    "uniform": {},
    "learnable kappa": {"learn_kappa": True},
    "gain": {"gain": True},
    "gain, learnable kappa": {"gain": True, "learn_kappa": True},
    "residual": {"residual": True},
    "detached": {"detach_reset": True},
    "decay_input": {"decay_input": True},
    "tau per channel": {"tau": "channel"},
    "v_th per channel": {"v_th": "channel"},
    "v_th learnable": {"v_th": "learnt"},
    "soft": {"reset": "soft"},
    "soft, decay_input, per channel": {"reset": "soft", "decay_input": True, **CHANNELS},
    "state in": {"state": True},
    "state out": {"want_state": True},
    "soft, state, no leak": {"reset": "soft", "tau": 1.0, **STATE},
    "detached, state, per channel": {"detach_reset": True, "tau": "channel", **STATE},
    "everything": EVERYTHING,
    "everything, soft": {"reset": "soft", **EVERYTHING},
}


def surrogate_for(form):
    """Those with kernels in turn, so that each meets several forms; an own one has its backward pass in eager."""
    return BUILTIN[list(FORMS).index(form) % len(BUILTIN)]


def difference(got, want):
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))


class Case:
    """A step of one form on random leaves, drawn until no potential is near the threshold or a surrogate's kink."""

    def __init__(self, form, T=3, S=3, shape=(7, 5, 3, 4), norm="batch", surrogate=None, channel_dim=2, seed=0):
        g = torch.Generator().manual_seed(seed)

        def normal(*size):
            return torch.randn(*size, generator=g, dtype=torch.float64)

        def uniform(low, high):
            return low + (high - low) * torch.rand(shape[channel_dim - 1], generator=g, dtype=torch.float64)

        def redrawn():
            return 2 * normal(S, *shape) + 3 if norm else normal(S, *shape) + 0.2

        o = {"tau": 0.3, "v_th": 0.5, **FORMS[form]}
        channel_dim %= len(shape) + 1
        self.sync, self.T, self.norm, self.want_state = LOCAL, T, norm, o.get("want_state", False)
        self.neuron = {k: o[k] for k in ("reset", "decay_input", "detach_reset") if k in o}
        self.neuron |= {"surrogate": get_surrogate(surrogate or surrogate_for(form)), "channel_dim": channel_dim}
        C, one = shape[channel_dim - 1], torch.tensor(1.0, dtype=torch.float64)
        self.leaves = {"x": redrawn(), "tau": uniform(0.2, 0.8) if o["tau"] == "channel" else o["tau"] * one}
        if norm:
            self.leaves |= {"weight": 1 + 0.3 * normal(C), "bias": 0.1 + 0.2 * normal(C)}
        if o["v_th"] != 0.5:
            self.leaves["v_th"] = uniform(0.4, 0.7) if o["v_th"] == "channel" else 0.6 * one
        self.kappa = torch.linspace(0.7, 1.3, T, dtype=torch.float64)
        if "learn_kappa" in o:
            self.leaves["kappa"] = self.kappa
        if "state" in o:
            self.leaves["state"] = 0.5 * normal(*shape)
        if "residual" in o:
            self.leaves["residual"] = torch.randint(0, 3, (T, *shape), generator=g).double()
        self.gain = torch.linspace(0.5, 1.5, T, dtype=torch.float64) if "gain" in o else None
        self.running = 3 + 0.3 * normal(C), 4 * uniform(0.5, 1.5)
        self.g, self.g_state = 1 + 0.5 * normal(T, *shape), 1 + 0.5 * normal(*shape)  # sums of g do not cancel
        along = [1] * len(shape)
        along[channel_dim - 1] = -1
        for _ in range(300):
            v_th = self.leaves.get("v_th", 0.5 * one)
            u = (self.potentials() - (v_th.view(along) if v_th.dim() else v_th)).abs()
            kappa = self.kappa.view(-1, *[1] * len(shape))
            near = ((u < 1e-4) | ((u - kappa / 2).abs() < 1e-4) | ((u - kappa).abs() < 1e-4)).any(0)
            if not near.any():
                return
            self.leaves["x"] = torch.where(near, redrawn(), self.leaves["x"])
        raise AssertionError("no clear case found")

    def in_dtype(self, dtype, device="cpu"):
        return {k: a.detach().clone().to(device, dtype).requires_grad_() for k, a in self.leaves.items()}

    def run_core(self, leaves):
        """Spikes, potentials, state, statistics."""
        i_T, stats = leaves["x"].expand(self.T, *leaves["x"].shape[1:]), None
        if self.norm:
            stats = batch_moments(i_T) if self.norm == "batch" else self.running
            i_T = tdbn(i_T, leaves["weight"], leaves["bias"], *stats, v_th=AMPLITUDE)
        options = {**self.neuron, **{k: leaves[k] for k in ("v_th", "state") if k in leaves}, "gain_T": self.gain}
        s, v, state = lif(i_T, leaves["tau"], leaves.get("kappa", self.kappa), **options)
        return s + leaves.get("residual", 0), v, state, stats

    def potentials(self):
        return self.run_core(self.leaves)[1]

    def run_step(self, leaves, backend) -> StepOutput:
        tau, norm = leaves["tau"], None
        if self.norm:
            mean, var = (a.to(tau) for a in self.running)
            norm = {"weight": leaves["weight"], "bias": leaves["bias"], "mean": mean, "var": var}
            norm = NormSpec(**norm, amplitude=AMPLITUDE, batch_stats=self.norm == "batch", sync=self.sync)
        neuron = NeuronSpec(tau=tau, v_th=leaves.get("v_th", 0.5), **self.neuron, backend=backend)
        widths = Widths(leaves.get("kappa", self.kappa.to(tau)), None if self.gain is None else self.gain.to(tau))
        parts = {k: leaves[k] for k in ("residual", "state") if k in leaves}
        return fused_step(norm, neuron, StepInput(leaves["x"], self.T, widths, **parts, want_state=self.want_state))

    def loss(self, spikes, state):
        g, g_state = self.g.to(spikes), self.g_state.to(spikes)
        return (spikes * g).sum() + ((state * g_state).sum() if self.want_state else 0)

    def compare(self, backend, dtype=torch.float32, device="cpu"):
        """Spikes, state, statistics and every gradient."""
        tolerance = TOLERANCE[dtype]
        want, got = self.in_dtype(torch.float64), self.in_dtype(dtype, device)
        s, _, state, stats = self.run_core(want)
        out = self.run_step(got, backend)
        assert torch.equal(out.spikes.cpu().double(), s)
        assert (out.state is not None) == self.want_state
        assert (out.stats is not None) == (self.norm == "batch")
        if out.state is not None:
            assert difference(out.state, state) < tolerance
        if out.stats is not None:
            assert difference(out.stats.mean_C, stats[0]) < tolerance
            assert difference(out.stats.var_C, stats[1]) < tolerance
            assert int(out.stats.rows) == self.leaves["x"].numel() // len(self.leaves["weight"])
        expected = torch.autograd.grad(self.loss(s, state), list(want.values()))
        found = torch.autograd.grad(self.loss(out.spikes, out.state), list(got.values()))
        for name, a, b in zip(want, found, expected, strict=True):
            assert a.shape == b.shape, name
            assert difference(a, b) < tolerance, f"gradient of {name}"


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape),
    "batch_first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "repeated": lambda x: x[:1].expand(x.shape),
    "reversed": lambda x: x.permute(0, 4, 3, 2, 1).contiguous().permute(0, 4, 3, 2, 1),
}
