"""Watched layers: what a monitor attaches to each neuron, and the sums that it keeps of it.

A neuron of `mpd_agl.nn` shows its current, from which `ops.probe` computes the potentials a second time. A neuron
that `mpd_agl.adaptation` reads has a surrogate function that sees every potential. Gradients come by tensor hooks.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl import core, ops
from mpd_agl.adaptation.adapters import adapter_of
from mpd_agl.adaptation.spike import AdaptiveSpike, affine_before, take_out
from mpd_agl.core.mpd import Moments
from mpd_agl.diagnosis.histogram import Histogram, count, counted_samples, histogram, reach
from mpd_agl.diagnosis.snapshot import LayerDetail, LayerSnapshot
from mpd_agl.nn import Neuron, Pass, SpikingBlock, predicted
from mpd_agl.nn.moments import Affine

SumsOf = Callable[[str, bool], "Sums | None"]
"""Layer and whether it trains -> where its pass is to be added; None where nobody looks at it."""


class Hook:
    """A forward hook of a monitor. It stays with the network it was made for.

    A network's hooks are copied and pickled with it: there, a function of the standard library takes this one's place
    that does nothing.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        """As torch calls hooks."""
        self.call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _padded(sums_TK: Tensor, num_steps: int) -> Tensor:
    return nn.functional.pad(sums_TK, (0, 0, 0, num_steps - sums_TK.shape[0])) if len(sums_TK) < num_steps else sums_TK


class Sums:
    """What is known of one layer since the last step: sums per timestep over all passes and uses."""

    def __init__(self, training: bool) -> None:
        self.training = training
        self.sums_T7: Tensor | None = None
        """Per timestep: spikes, available neurons, sums of v, v^2, i and i^2, and the number of potentials."""
        self.grads: dict[str, Tensor] = {}
        """At the spikes (`out`) and at what the neuron reads (`in`), per timestep: sum of squares, number of values."""
        self.inputs = [0.0, 0.0]
        """Inputs that are not zero, inputs."""
        self.kappa_T: dict[int, Tensor | float] = {}
        self.facts: dict[str, Any] = {}
        """Fields of the snapshot that a pass knows and that are no sums."""
        self.detail_TB: dict[int, Tensor] = {}
        self.fired_C: Tensor | None = None
        self.samples = 0
        self.pass_number = 0
        self._starts: dict[int, int] = {}

    def begins(self) -> None:
        """The first timestep of one use of the layer."""
        self._starts = {self.pass_number: self._starts.get(self.pass_number, 0) + 1}
        self.uses = max(self.uses, self._starts[self.pass_number])

    uses = 0

    def add(self, t: int, sums_T6: Tensor, values: int) -> None:
        """The sums of some timesteps from t on."""
        rows = nn.functional.pad(sums_T6.double(), (0, 1), value=values)
        rows = nn.functional.pad(rows, (0, 0, t, 0))
        self.sums_T7 = _sum(self.sums_T7, rows)

    def follow(self, place: str, x: Tensor, t: int, *, time_first: bool) -> None:
        """Take in the gradient of this tensor when it comes."""
        if not x.requires_grad:
            return

        def arrived(g: Tensor) -> None:
            with torch.no_grad():
                g_TN = g.detach() if time_first else g.detach().unsqueeze(0)
                values = g_TN[0].numel()
                axes = tuple(range(1, g_TN.dim()))
                dtype = torch.promote_types(g.dtype, torch.float32)
                norm_T = torch.linalg.vector_norm(g_TN, dim=axes, dtype=dtype) if values else g_TN.new_zeros(len(g_TN))
                rows = nn.functional.pad(norm_T.double().square()[:, None], (0, 1), value=values)
                self.grads[place] = _sum(self.grads.get(place), nn.functional.pad(rows, (0, 0, t, 0)))

        x.register_hook(arrived)  # type: ignore[no-untyped-call]

    def rms_T(self, place: str) -> list[float]:
        """Root mean squares of the gradients that came."""
        if place not in self.grads:
            return []
        squares_T, values_T = self.grads[place].unbind(1)
        return (squares_T / values_T.clamp_min(1)).sqrt().tolist()

    def share(self, replicas: ops.Replicas) -> None:
        """Add up what the processes hold that share the batch."""
        assert self.sums_T7 is not None
        T = self.sums_T7.shape[0]
        zero_T2 = self.sums_T7.new_zeros(T, 2)
        grads = [_padded(self.grads.get(place, zero_T2), T) for place in ("out", "in")]
        own = [self.sums_T7, *grads, zero_T2.new_tensor([self.inputs])]
        all_ = replicas.sum(torch.cat([part.flatten() for part in own]))
        sums, out, in_, inputs = torch.split(all_, [part.numel() for part in own])
        self.sums_T7 = sums.view(T, 7)
        self.inputs = inputs.tolist()
        for place, rows in (("out", out.view(T, 2)), ("in", in_.view(T, 2))):
            if float(rows[:, 1].sum()):
                self.grads[place] = rows


def _sum(a_TK: Tensor | None, b_TK: Tensor) -> Tensor:
    """Of sums per timestep; one may have more timesteps."""
    if a_TK is None:
        return b_TK
    T = max(len(a_TK), len(b_TK))
    return _padded(a_TK, T) + _padded(b_TK, T)


def _snapshot(sums: Sums, detail: LayerDetail | None, **fields: Any) -> LayerSnapshot:
    assert sums.sums_T7 is not None
    means_T6 = sums.sums_T7[:, :6] / sums.sums_T7[:, 6:]
    T = means_T6.shape[0]
    kappa_T = [float(sums.kappa_T[t]) for t in range(T) if t in sums.kappa_T]
    has_width = len(kappa_T) == T
    active, inputs = sums.inputs
    known: dict[str, Any] = {
        "rate_T": means_T6[:, 0].tolist(),
        "available_T": means_T6[:, 1].tolist() if has_width else [],
        "kappa_T": kappa_T if has_width else [],
        "mean_T": means_T6[:, 2].tolist(),
        "var_T": (means_T6[:, 3] - means_T6[:, 2] ** 2).tolist(),
        "rate_in": active / inputs if inputs else None,
        "grad_rms_T": sums.rms_T("out"),
        "grad_in_rms_T": sums.rms_T("in"),
        "values": int(sums.sums_T7[0, 6]),
        "uses": sums.uses,
        "detail": detail,
    }
    return LayerSnapshot(**known, **{"input_mean": None, "input_var": None, **sums.facts, **fields})


def _affine_facts(affines: list[Affine]) -> dict[str, Any]:
    """gamma and beta over the channels of all norms whose currents are added."""
    if not affines:
        return {"gamma_bar": None, "gamma_rms": None, "beta_bar": None}
    gamma_C = torch.cat([_mean_over_steps(a.gamma_C) for a in affines])
    beta_C = torch.cat([_mean_over_steps(a.beta_C) for a in affines])
    gamma_rms = float(gamma_C.square().mean().sqrt())
    return {"gamma_bar": float(gamma_C.mean()), "gamma_rms": gamma_rms, "beta_bar": float(beta_C.mean())}


def _mean_over_steps(values: Tensor) -> Tensor:
    """Per channel, of a norm that may have values for every step (TEBN, TAB)."""
    return values.mean(0) if values.dim() == 2 else values


_NOTHING_PREDICTED: dict[str, list[float]] = {
    f"{kind}_{moment}_T": [] for kind in ("predicted", "exact") for moment in ("mean", "var")
}


def _predictions(moments: Callable[[Moments], tuple[Tensor, Tensor]]) -> dict[str, list[float]]:
    found = dict(_NOTHING_PREDICTED)
    kinds: tuple[tuple[str, Moments], ...] = (("predicted", "paper"), ("exact", "exact"))
    for name, kind in kinds:
        mean_T, std_T = moments(kind)
        found |= {f"{name}_mean_T": mean_T.tolist(), f"{name}_var_T": std_T.square().tolist()}
    return found


class OwnLayer:
    """A neuron of `mpd_agl.nn`, alone or in a block. Its potentials are computed from its current a second time, by
    `ops.probe`."""

    def __init__(self, sums_of: SumsOf, detail: bool, name: str, neuron: Neuron, block: SpikingBlock | None) -> None:
        self.sums_of, self.detail, self.name = sums_of, detail, name
        self.neuron, self.block = neuron, block
        self._seen: Pass | None = None
        neuron.watchers.append(self.saw)
        self._handle = (block or neuron).register_forward_hook(Hook(self.ran), with_kwargs=True)

    def detach(self) -> None:
        """No longer watch it."""
        self._handle.remove()
        self.neuron.watchers.remove(self.saw)

    def saw(self, seen: Pass) -> None:
        """The neuron fires."""
        self._seen = seen

    @torch.no_grad()
    def ran(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The block, or the neuron, is done."""
        seen, self._seen = self._seen, None
        sums = self.sums_of(self.name, module.training) if seen is not None else None
        if sums is None or seen is None:
            return
        neuron, x_SNC = self.neuron, seen.x_SNC.detach()
        axis = 2 if self.block is not None else neuron.channel_axis(x_SNC)
        T, C = seen.kappa_T.shape[0], x_SNC.shape[axis]
        to_current = seen.current_map or (x_SNC.new_zeros(C), x_SNC.new_ones(C), x_SNC.new_zeros(C))
        kappa_T = self._widths(seen, T)
        state: dict[str, Any] = {} if seen.kept_0 is None else {"kept_0": seen.kept_0.detach()}
        if seen.v_TNC is None:
            options = {"backend": neuron.backend, **neuron.probed(), **state, "channel_dim": axis}
            sums_T6 = ops.probe(x_SNC, *to_current, neuron.tau, kappa_T, **options)
        else:
            v_th = neuron.v_th if seen.theta_T is None else seen.theta_T.double()[:, None]
            sums_T6 = _sums_of_potentials(seen.v_TNC, x_SNC, kappa_T, v_th)
        sums.begins()
        sums.add(0, sums_T6, x_SNC[0].numel())
        sums.kappa_T.update(enumerate(kappa_T))
        if self.block is not None and self.block.synapse is not None:
            s_in = args[0] if args else kwargs["s_SNC"]
            sums.inputs = [sums.inputs[0] + float(torch.count_nonzero(s_in)), sums.inputs[1] + s_in.numel()]
        spikes = output[0] if isinstance(output, tuple) else output
        sums.follow("out", spikes, 0, time_first=True)
        sums.follow("in", seen.x_SNC, 0, time_first=True)
        self._facts(sums, T)
        if seen.theta_T is not None:
            sums.facts["v_th"] = float(seen.theta_T.mean())
        if self.detail and x_SNC.shape[1]:
            residual = kwargs.get("residual")
            self._details(sums, seen, to_current, spikes if residual is None else spikes - residual, state)

    def _widths(self, seen: Pass, num_steps: int) -> Tensor:
        """The pass's own, or those that it would have had with gradients."""
        if seen.has_width:
            return seen.kappa_T.detach()
        neuron, training = self.neuron, self.neuron.training
        neuron.training = False  # a look must not move the running moments
        try:
            with torch.enable_grad():
                if self.block is None:
                    return neuron.kappa(seen.x_SNC.detach(), num_steps, seen.kept_0).detach()
                x = "i_SNC" if seen.current_map is None else "x_SNC"
                return self.block.kappa(num_steps, **{x: seen.x_SNC.detach()}).detach()
        finally:
            neuron.training = training

    def _facts(self, sums: Sums, num_steps: int) -> None:
        neuron = self.neuron
        affines = [] if self.block is None else self.block.affines()
        v_th = neuron.v_th
        sums.facts = {
            "tau": float(neuron.tau.mean()),
            "v_th": float(v_th.detach().mean()) if isinstance(v_th, Tensor) else v_th,
            **_affine_facts(affines),
            **_NOTHING_PREDICTED,
        }
        if affines:
            scale = 1 - neuron.tau.detach().mean() if neuron.decay_input else 1.0
            sums.facts |= _predictions(lambda kind: predicted(affines, neuron.tau, num_steps, kind, input_scale=scale))

    def _details(
        self,
        sums: Sums,
        seen: Pass,
        to_current: tuple[Tensor, Tensor, Tensor],
        s_TNC: Tensor,
        state: dict[str, Any],
    ) -> None:
        """Histograms, and the spikes of each channel; of several uses the last."""
        neuron, x_SNC, T = self.neuron, seen.x_SNC.detach(), seen.kappa_T.shape[0]
        v_th = sums.facts["v_th"]
        axis = 2 if self.block is not None else neuron.channel_axis(x_SNC)
        plain = neuron.reset == "hard" and not neuron.decay_input and axis == 2 and not state
        sums.samples = counted_samples(x_SNC[0, 0].numel(), x_SNC.shape[1])
        if seen.v_TNC is not None:
            count_TB = [count(v_NC, v_th).tolist() for v_NC in seen.v_TNC[:, : sums.samples]]
        elif plain and isinstance(neuron.v_th, float) and not neuron.tau.dim():
            count_TB = histogram(x_SNC, *to_current, neuron.tau, v_th=v_th, num_steps=T).count_TB
        else:
            shape = [-1 if a == axis else 1 for a in range(x_SNC.dim())]
            mean_C, scale_C, beta_C = (a.view(shape) for a in to_current)
            i_SNC = (x_SNC[:, : sums.samples] - mean_C) * scale_C + beta_C
            first = {k: v[: sums.samples] for k, v in state.items()}
            i_TNC = i_SNC.expand(T, *i_SNC.shape[1:])
            v_TNC = core.lif(i_TNC, neuron.tau, seen.kappa_T, **neuron.dynamics(), **first)[1]
            count_TB = [count(v_NC, v_th).tolist() for v_NC in v_TNC]
        sums.detail_TB = {t: torch.tensor(count_B) for t, count_B in enumerate(count_TB)}
        height = v_th if neuron.scaled else 1.0  # of a spike
        fired = s_TNC.detach() > 0.5 * height
        if neuron.is_noisy and seen.v_TNC is not None:  # ASGL's outputs are no spikes
            fired = seen.v_TNC >= v_th
        sums.fired_C = fired.sum([a for a in range(fired.dim()) if a != axis])

    def snapshot(self, sums: Sums) -> LayerSnapshot:
        """Of what was summed."""
        if sums.training and self.neuron.replicas is not None:  # other processes hold parts of this batch
            sums.share(self.neuron.replicas)
        assert sums.sums_T7 is not None
        mean_T, square_T = (sums.sums_T7[:, k] / sums.sums_T7[:, 6] for k in (4, 5))
        mean, square = mean_T.mean(), square_T.mean()
        affines = [] if self.block is None else self.block.affines()
        return _snapshot(sums, _detail(sums, affines), input_mean=float(mean), input_var=float(square - mean**2))


def _detail(sums: Sums, affines: list[Affine]) -> LayerDetail | None:
    if not sums.detail_TB:
        return None
    rest = sums.facts.get("rest", 0.0)
    low, high = (rest + end for end in reach(sums.facts["v_th"] - rest))
    return LayerDetail(
        Histogram(low, high, [sums.detail_TB[t].tolist() for t in sorted(sums.detail_TB)], sums.samples),
        [v for a in affines for v in _short(_mean_over_steps(a.gamma_C))],
        [v for a in affines for v in _short(_mean_over_steps(a.beta_C))],
        [] if sums.fired_C is None else sums.fired_C.tolist(),
    )


class ForeignLayer:
    """A neuron that `mpd_agl.adaptation` reads. Its surrogate function sees every potential, and shows it."""

    def __init__(self, sums_of: SumsOf, detail: bool, name: str, neuron: nn.Module, spike: AdaptiveSpike) -> None:
        self.sums_of, self.detail, self.name = sums_of, detail, name
        self.neuron, self.spike = neuron, spike
        spike.watchers.append(self.saw)
        self._handle = neuron.register_forward_hook(Hook(self.ran))

    def detach(self) -> None:
        """No longer watch it; the last of several monitors puts the neuron's own function back."""
        self._handle.remove()
        self.spike.watchers.remove(self.saw)
        if self.spike.only_watches and not self.spike.watchers:
            take_out(self.neuron, self.spike)

    @property
    def is_looking(self) -> bool:
        """Whether this pass is one of those that are looked at."""
        return self.sums_of(self.name, self.neuron.training) is not None

    @torch.no_grad()
    def saw(self, t: int, u: Tensor, s: Tensor) -> None:
        """The neuron fires at timestep t."""
        sums = self.sums_of(self.name, self.neuron.training)
        if sums is None:
            return
        if t == 0:
            sums.begins()
            self._facts(sums)
        elif not sums.facts:
            self._facts(sums)
        v_th: float = sums.facts["v_th"]
        values, u_N, fired = u.numel(), u.detach(), s.detach() != 0
        var, mean = torch.var_mean(u_N.to(torch.promote_types(u.dtype, torch.float32)), correction=0)
        mean = mean.double() + v_th
        kappa = self.spike.kappa_at(t)
        inside = mean.new_zeros(())
        if kappa is not None:
            inside = (u_N.abs() < kappa / 2).sum()
            sums.kappa_T[t] = kappa
        nothing = mean.new_zeros(())
        row = [fired.sum(), inside, mean * values, (var.double() + mean * mean) * values, nothing, nothing]
        sums.add(t, torch.stack([r.double() for r in row])[None], values)
        sums.follow("out", s, t, time_first=False)
        sums.follow("in", u, t, time_first=False)
        if self.detail and values:
            self._details(sums, t, u_N + v_th, fired)

    def ran(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A fused neuron shows potentials without a graph: there, the gradient is its whole output's."""
        if getattr(self.spike, "fusion", None) is None or not isinstance(output, Tensor):
            return
        adapter, sums = adapter_of(module), self.sums_of(self.name, module.training)
        if adapter is not None and sums is not None:
            is_sequence = adapter.steps(module, args, {}) is not None
            sums.follow("out", output, self.spike._time, time_first=is_sequence)

    def _facts(self, sums: Sums) -> None:
        adapter = adapter_of(self.neuron)
        assert adapter is not None
        membrane = adapter.membrane(self.neuron)
        v_th, rest, kept = (
            float(torch.as_tensor(a).detach().float().mean()) if a is not None else None
            for a in (membrane.v_th, membrane.rest, membrane.kept)
        )
        affines = [a for norm in self.spike.norms if (a := affine_before(norm)) is not None]
        sums.facts = {"tau": kept, "v_th": v_th, "rest": rest, **_affine_facts(affines), **_NOTHING_PREDICTED}
        if affines:
            T = self.spike.num_steps
            tau = torch.as_tensor(kept)
            sums.facts |= _predictions(lambda kind: self.spike._predicted_moments(membrane, tau, kind, T))

    def _details(self, sums: Sums, t: int, v_N: Tensor, fired: Tensor) -> None:
        """A histogram, and the spikes of each channel: axis 1, behind the batch."""
        sums.samples = counted_samples(v_N[0].numel(), v_N.shape[0])
        rest = sums.facts["rest"]
        count_B = count(v_N[: sums.samples] - rest, sums.facts["v_th"] - rest)
        sums.detail_TB[t] = sums.detail_TB[t] + count_B if t in sums.detail_TB else count_B
        fired_C = fired.sum([a for a in range(fired.dim()) if a != 1]) if fired.dim() > 1 else fired.sum()[None]
        before = sums.fired_C
        sums.fired_C = fired_C if before is None or before.shape != fired_C.shape else before + fired_C

    def snapshot(self, sums: Sums) -> LayerSnapshot:
        """Of what was summed."""
        return _snapshot(sums, _detail(sums, [a for n in self.spike.norms if (a := affine_before(n)) is not None]))


def _sums_of_potentials(v_TNC: Tensor, i_SNC: Tensor, kappa_T: Tensor, v_th: Tensor | float) -> Tensor:
    """What `ops.probe` gives, from potentials at hand."""
    v_TM, i_TM = v_TNC.double().flatten(1), i_SNC.expand_as(v_TNC).double().flatten(1)
    u_TM = v_TM - v_th
    near_TM = u_TM.abs() < kappa_T.double()[:, None] / 2
    rows = ((u_TM >= 0).double(), near_TM.double(), v_TM, v_TM * v_TM, i_TM, i_TM * i_TM)
    return torch.stack([row.sum(1) for row in rows], 1)


def _short(x_C: Tensor) -> list[float]:
    return [float(f"{v:.5g}") for v in x_C.tolist()]
