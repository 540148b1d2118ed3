"""Watched layers: what a monitor attaches to each neuron, and the sums that it keeps of it.

A neuron of `mpd_agl.nn` shows its current, from which `ops.probe` computes the potentials a second time. A neuron
that `mpd_agl.adaptation` reads has a surrogate function that sees every potential, and shows it. Gradients come by
tensor hooks.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.adaptation.adapters import mean_of, read
from mpd_agl.adaptation.spike import AdaptiveSpike, affines_before, take_out
from mpd_agl.adaptation.sums import StepSums, added, currents, longer
from mpd_agl.core.mpd import Moments
from mpd_agl.diagnosis.histogram import Histogram, count, counted_samples, reach
from mpd_agl.diagnosis.snapshot import LayerDetail, LayerSnapshot
from mpd_agl.nn import Affine, Neuron, Observed, SpikingBlock
from mpd_agl.ops import StepInput, Sync, Widths, probe

SumsOf = Callable[[str, bool], "LayerSums | None"]
"""Layer and whether it trains -> where its pass is to be added; None where the monitor skips this pass."""


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


class LayerSums(StepSums):
    """What is known of one layer since the last step: sums per timestep over all passes and uses."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training = training
        self.grads: dict[str, Tensor] = {}
        """At the spikes (`out`) and at what the neuron reads (`in`), per timestep: sum of squares, number of values."""
        self.inputs = [0.0, 0.0]
        """Inputs that are not zero, inputs."""
        self.kappa_T: dict[int, Tensor | float] = {}
        self.facts: dict[str, Any] = {}
        """Fields of the snapshot that a pass knows and that are no sums."""
        self.detail_TB: dict[int, Tensor] = {}
        self.fired_C: Tensor | None = None
        self.samples = self.uses = self.pass_number = 0
        self._starts: dict[int, int] = {}

    def begins(self) -> None:
        """The first timestep of one use of the layer."""
        self._starts = {self.pass_number: self._starts.get(self.pass_number, 0) + 1}
        self.uses = max(self.uses, self._starts[self.pass_number])

    def follow(self, place: str, x: Tensor, t: int, *, time_first: bool) -> None:
        """Take in the gradient of this tensor when it comes."""
        if not x.requires_grad:
            return

        @torch.no_grad()
        def arrived(g: Tensor) -> None:
            g_TN = g.detach() if time_first else g.detach().unsqueeze(0)
            values = g_TN[0].numel()
            dtype = torch.promote_types(g.dtype, torch.float32)
            axes = tuple(range(1, g_TN.dim()))
            norm_T = torch.linalg.vector_norm(g_TN, dim=axes, dtype=dtype) if values else g_TN.new_zeros(len(g_TN))
            rows = nn.functional.pad(norm_T.double().square()[:, None], (0, 1), value=values)
            self.grads[place] = added(self.grads.get(place), nn.functional.pad(rows, (0, 0, t, 0)))

        x.register_hook(arrived)  # type: ignore[no-untyped-call]

    def rms_T(self, place: str) -> list[float]:
        """Root mean squares of the gradients that came."""
        if place not in self.grads:
            return []
        squares_T, values_T = self.grads[place].unbind(1)
        return (squares_T / values_T.clamp_min(1)).sqrt().tolist()

    def share(self, sync: Sync) -> None:
        """Add up what the processes hold that share the batch."""
        T, sums_T7 = self.num_steps, self.table_T7
        grads = [longer(self.grads.get(place, sums_T7.new_zeros(T, 2)), T) for place in ("out", "in")]
        parts = [sums_T7, *grads, sums_T7.new_tensor([self.inputs])]
        all_ = torch.split(sync.sum(torch.cat([part.flatten() for part in parts])), [part.numel() for part in parts])
        self.sums_T7, out, in_, inputs = (a.view_as(part) for a, part in zip(all_, parts, strict=True))
        self.inputs = inputs[0].tolist()
        for place, rows in (("out", out), ("in", in_)):
            if float(rows[:, 1].sum()):
                self.grads[place] = rows

    def snapshot(self, affines: Sequence[Affine], **fields: Any) -> LayerSnapshot:
        """Of what was summed."""
        means_T6 = self.table_T7[:, :6] / self.table_T7[:, 6:]
        T = self.num_steps
        kappa_T = [float(self.kappa_T[t]) for t in range(T) if t in self.kappa_T]
        has_width = len(kappa_T) == T
        active, inputs = self.inputs
        known: dict[str, Any] = {
            "rate_T": means_T6[:, 0].tolist(),
            "available_T": means_T6[:, 1].tolist() if has_width else [],
            "kappa_T": kappa_T if has_width else [],
            "mean_T": means_T6[:, 2].tolist(),
            "var_T": (means_T6[:, 3] - means_T6[:, 2] ** 2).tolist(),
            "rate_in": active / inputs if inputs else None,
            "grad_rms_T": self.rms_T("out"),
            "grad_in_rms_T": self.rms_T("in"),
            "values": int(self.table_T7[0, 6]),
            "uses": self.uses,
            "detail": self._detail(affines),
            "input_mean": None,
            "input_var": None,
        }
        return LayerSnapshot(**known | self.facts | fields)

    def _detail(self, affines: Sequence[Affine]) -> LayerDetail | None:
        if not self.detail_TB:
            return None
        rest = self.facts.get("rest", 0.0)
        low, high = (rest + end for end in reach(self.facts["v_th"] - rest))
        count_TB = [self.detail_TB[t].tolist() for t in sorted(self.detail_TB)]
        gamma_C, beta_C = ([float(f"{v:.5g}") for v in values_C.tolist()] for values_C in _channels(affines))
        fired_C = [] if self.fired_C is None else self.fired_C.tolist()
        return LayerDetail(Histogram(low, high, count_TB, self.samples), gamma_C, beta_C, fired_C)


def _channels(affines: Sequence[Affine]) -> tuple[Tensor, Tensor]:
    """gamma and beta of all channels of the norms whose currents are added; means over steps where each has its own."""
    columns = [(a.gamma_C, a.beta_C) if a.gamma_C.dim() < 2 else (a.gamma_C.mean(0), a.beta_C.mean(0)) for a in affines]
    gamma_C, beta_C = (torch.cat(c) for c in zip(*columns, strict=True)) if columns else (torch.zeros(0),) * 2
    return gamma_C, beta_C


def _affine_facts(
    affines: Sequence[Affine], predicted: Callable[[Moments], tuple[Tensor, Tensor]]
) -> dict[str, float | list[float] | None]:
    """Means over channels, and what Theorem 2 predicts from them; nothing where no norm is known."""
    kinds: tuple[tuple[str, Moments], ...] = (("predicted", "paper"), ("exact", "exact"))
    found: dict[str, Any] = {"gamma_bar": None, "gamma_rms": None, "beta_bar": None}
    found |= {f"{name}_{moment}_T": [] for name, _ in kinds for moment in ("mean", "var")}
    if not affines:
        return found
    gamma_C, beta_C = _channels(affines)
    found["gamma_bar"], found["beta_bar"] = float(gamma_C.mean()), float(beta_C.mean())
    found["gamma_rms"] = float(gamma_C.square().mean().sqrt())
    for name, kind in kinds:
        mean_T, std_T = predicted(kind)
        found |= {f"{name}_mean_T": mean_T.tolist(), f"{name}_var_T": std_T.square().tolist()}
    return found


class NativeProbe:
    """Watches a neuron of `mpd_agl.nn`, alone or in a block."""

    def __init__(self, sums_of: SumsOf, detail: bool, name: str, neuron: Neuron, block: SpikingBlock | None) -> None:
        self.sums_of, self.detail, self.name = sums_of, detail, name
        self.neuron, self.block = neuron, block
        self._handles = [neuron.watch(self.on_neuron)]
        if block is not None and block.synapse is not None:
            self._handles.append(block.register_forward_hook(Hook(self.on_forward), with_kwargs=True))

    def detach(self) -> None:
        """No longer watch it."""
        for handle in self._handles:
            handle.remove()

    def affines(self) -> Sequence[Affine]:
        """Of the norms before the neuron."""
        return (self.block.affines() if self.block is not None else None) or ()

    @torch.no_grad()
    def on_neuron(self, seen: Observed) -> None:
        """The neuron has fired, T steps."""
        sums = self.sums_of(self.name, self.neuron.training)
        if sums is None:
            return
        step, neuron, details = seen.step, self.neuron, seen.output.details
        x_SNC, kappa_T, v_th = step.x.detach(), self._widths(seen), neuron.v_th
        if details is None:
            state = None if step.state is None else step.state.detach()
            sums_T6 = probe(x_SNC, seen.current, neuron.constants(), kappa_T, state)
        else:
            v_th = v_th if details.v_th_T is None else details.v_th_T.double()[:, None]
            sums_T6 = _sums_of_potentials(details.potentials, x_SNC, kappa_T, v_th)
        sums.begins()
        sums.add(0, sums_T6, x_SNC[0].numel())
        sums.kappa_T.update(enumerate(kappa_T))
        sums.follow("out", seen.output.spikes, 0, time_first=True)
        sums.follow("in", step.x, 0, time_first=True)
        affines = self.affines()
        potential = neuron.potential(step._replace(state=None), affines)
        sums.facts = {"tau": float(neuron.tau.mean()), "v_th": float(mean_of(v_th))}
        sums.facts |= _affine_facts(affines, potential.moments)
        if self.detail and x_SNC.shape[1]:
            self._details(sums, seen)

    @torch.no_grad()
    def on_forward(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The block is done: count its inputs."""
        if (sums := self.sums_of(self.name, self.neuron.training)) is not None:
            s_in = args[0] if args else kwargs["s_SNC"]
            sums.inputs = [sums.inputs[0] + float(torch.count_nonzero(s_in)), sums.inputs[1] + s_in.numel()]

    def _widths(self, seen: Observed) -> Tensor:
        """The pass's own, or those that it would have had with gradients."""
        step, details, neuron = seen.step, seen.output.details, self.neuron
        if details is not None and details.kappa_T is not None:
            return details.kappa_T
        rule = neuron.width if self.block is None else self.block.width
        if step.widths is not None and (rule is None or seen.output.spikes.requires_grad):
            return step.widths.kappa_T.detach()
        assert rule is not None
        training, neuron.training = neuron.training, False  # a look must not move the running moments
        try:
            found: Widths = rule(neuron.potential(step, self.affines() or None, lambda: seen.current))
        finally:
            neuron.training = training
        return found.kappa_T.detach()

    def _details(self, sums: LayerSums, seen: Observed) -> None:
        """Histograms, and the spikes of each channel; of several uses the last."""
        step, output = seen.step, seen.output
        sums.samples = n = counted_samples(step.x[0, 0].numel(), step.x.shape[1])
        axis = 2 if self.block is not None else self.neuron.channel_dim % step.x.dim()
        if output.details is not None:
            v_TNC = output.details.potentials[:, :n]
        else:
            i_TNC = currents(step.x[:, :n].detach(), seen.current, step.num_steps, axis)
            state = None if step.state is None else step.state[:n].detach()
            v_TNC = self.neuron.potentials(StepInput(i_TNC, step.num_steps, state=state))
        sums.detail_TB = {t: count(v_NC, sums.facts["v_th"]) for t, v_NC in enumerate(v_TNC)}
        s_TNC = output.spikes if step.residual is None else output.spikes - step.residual
        fired = s_TNC.detach() > 0.5 * self.neuron.height
        sums.fired_C = fired.sum([a for a in range(fired.dim()) if a != axis])

    def snapshot(self, sums: LayerSums) -> LayerSnapshot:
        """Of what was summed."""
        if sums.training and self.neuron.sync.is_shared:  # other processes hold parts of this batch
            sums.share(self.neuron.sync)
        mean, square = (float((sums.table_T7[:, k] / sums.table_T7[:, 6]).mean()) for k in (4, 5))
        return sums.snapshot(self.affines(), input_mean=mean, input_var=square - mean**2)


class ForeignProbe:
    """Watches a neuron that `mpd_agl.adaptation` reads, by its surrogate function."""

    def __init__(self, sums_of: SumsOf, detail: bool, name: str, neuron: nn.Module, spike: AdaptiveSpike) -> None:
        self.sums_of, self.detail, self.name = sums_of, detail, name
        self.neuron, self.spike = neuron, spike
        watching = spike.watch(self.on_neuron, lambda: self._sums() is not None)
        self._handles = [watching, neuron.register_forward_hook(Hook(self.on_forward))]

    def detach(self) -> None:
        """No longer watch it; the last of several monitors puts the neuron's own function back."""
        for handle in self._handles:
            handle.remove()
        if self.spike.only_watches and not self.spike.has_watchers:
            take_out(self.neuron, self.spike)

    def _sums(self) -> LayerSums | None:
        return self.sums_of(self.name, self.neuron.training)

    def affines(self, num_steps: int = 1) -> list[Affine]:
        """Of the norms before the neuron, where they are known."""
        return [a for norm in self.spike.norms for a in affines_before(norm, num_steps) or ()]

    @torch.no_grad()
    def on_neuron(self, t: int, u: Tensor, s: Tensor) -> None:
        """The neuron fires at timestep t."""
        if (sums := self._sums()) is None:
            return
        if t == 0:
            sums.begins()
        if t == 0 or not sums.facts:
            sums.facts = self._facts()
        if (kappa := self.spike.kappa_at(t)) is not None:
            sums.kappa_T[t] = kappa
        u_N, fired = u.detach(), s.detach() != 0
        sums.add_step(t, u_N, fired, sums.facts["v_th"], kappa)
        sums.follow("out", s, t, time_first=False)
        sums.follow("in", u, t, time_first=False)
        if self.detail and u.numel():
            self._details(sums, t, u_N, fired)

    def on_forward(self, neuron: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A fused neuron shows potentials without a graph: there, the gradient is its whole output's."""
        if self.spike.fusion is not None and (sums := self._sums()) is not None:
            is_sequence = read(neuron).steps(neuron, args, {}) is not None
            sums.follow("out", output, self.spike.time, time_first=is_sequence)

    def _facts(self) -> dict[str, Any]:
        membrane, T = read(self.neuron).membrane(self.neuron), self.spike.num_steps
        v_th, rest, tau = (
            None if a is None else float(mean_of(a)) for a in (membrane.v_th, membrane.rest, membrane.kept)
        )
        affine = _affine_facts(self.affines(T), lambda kind: self.spike.predicted_moments(membrane, T, kind))
        return {"tau": tau, "v_th": v_th, "rest": rest, **affine}

    def _details(self, sums: LayerSums, t: int, u_N: Tensor, fired: Tensor) -> None:
        """A histogram, and the spikes of each channel: axis 1, behind the batch."""
        sums.samples = counted_samples(u_N[0].numel(), u_N.shape[0])
        distance = sums.facts["v_th"] - sums.facts["rest"]
        count_B = count(u_N[: sums.samples] + distance, distance)
        sums.detail_TB[t] = sums.detail_TB[t] + count_B if t in sums.detail_TB else count_B
        fired_C = fired.sum([a for a in range(fired.dim()) if a != 1]) if fired.dim() > 1 else fired.sum()[None]
        before = sums.fired_C
        sums.fired_C = fired_C if before is None or before.shape != fired_C.shape else before + fired_C

    def snapshot(self, sums: LayerSums) -> LayerSnapshot:
        """Of what was summed."""
        return sums.snapshot(self.affines())


def _sums_of_potentials(v_TNC: Tensor, i_SNC: Tensor, kappa_T: Tensor, v_th: Tensor | float) -> Tensor:
    """What `ops.probe` gives, from potentials that are known."""
    v_TM, i_TM = v_TNC.double().flatten(1), i_SNC.expand_as(v_TNC).double().flatten(1)
    u_TM = v_TM - v_th
    near_TM = u_TM.abs() < kappa_T.double()[:, None] / 2
    rows = ((u_TM >= 0).double(), near_TM.double(), v_TM, v_TM * v_TM, i_TM, i_TM * i_TM)
    return torch.stack([row.sum(1) for row in rows], 1)
