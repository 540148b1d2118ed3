"""Monitors: where gradients live and die, per layer and timestep. They only look, fit into any training loop, and cost little.

A snapshot is taken from every `every`-th step: firing rates, the share of neurons in the gradient-available interval, widths, the measured
moments of the potential beside those that Theorems 1 and 2 predict, and the gradients that reach the spikes.

A monitor watches the neurons of `mpd_agl.nn`, alone or in a `SpikingBlock`, and those that `mpd_agl.adapt` reads:
SpikingJelly's, snnTorch's, Norse's and one's own (`register_neuron`). It keeps sums, never potentials, so its memory does
not grow with the network, the timesteps or the steps.
"""

import contextlib
import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mpd_agl import core, kernels
from mpd_agl.adapt.adapters import adapter_of
from mpd_agl.adapt.spike import AdaptiveSpike, adaptive_spikes, affine_before, take_out, watch_only
from mpd_agl.analysis.histogram import Histogram, count, counted_samples, histogram, reach
from mpd_agl.core.mpd import Moments
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn import Neuron, Pass, SpikingBlock, predicted
from mpd_agl.nn.moments import Affine

Mode = Literal["training", "evaluation"]
WHEN = ("training", "evaluation", "both")


@dataclass(frozen=True)
class LayerSnapshot:
    """One layer at one step. `_T` lists have one value per timestep; `predicted_*` come from gamma, beta and tau alone.

    What needs a norm before the neuron is an empty list or None where there is none.
    """

    rate_T: list[float]
    """Share of neurons that fire."""
    available_T: list[float]
    """Share of neurons with |v - v_th| < kappa/2: those that a gradient can pass. Empty where the surrogate has no width."""
    kappa_T: list[float]
    """The surrogate's widths: area over peak of its derivative. Empty where it has none."""
    mean_T: list[float]
    """Mean of the membrane potential before reset."""
    var_T: list[float]
    predicted_mean_T: list[float]
    """Theorem 2, the paper's moments."""
    predicted_var_T: list[float]
    exact_mean_T: list[float]
    """Theorem 2 with the exact mixture moments."""
    exact_var_T: list[float]
    input_mean: float | None
    """Mean of the pre-synaptic input over all timesteps (Theorem 1's subject); None in neurons of other libraries."""
    input_var: float | None
    rate_in: float | None
    """Share of inputs that are not zero; None where the monitor does not know the synapse."""
    tau: float | None
    """Share of the potential that is kept from step to step; None where the neuron's decay is of another kind."""
    gamma_bar: float | None
    gamma_rms: float | None
    beta_bar: float | None
    detail: "LayerDetail | None" = None
    """Only where the monitor was asked for it."""
    grad_rms_T: list[float] = field(default_factory=list)
    """Root mean square over neurons and samples of dL/ds_t, the gradient that reaches the spikes; empty without a backward pass.

    A single-step neuron whose reset is not detached has the reset's part in it. A scaled loss (float16) gives scaled gradients."""
    grad_in_rms_T: list[float] = field(default_factory=list)
    """The same at what the neuron reads: its current, or the synapse's output where norm and neuron run as one kernel. One value where one
    timestep of input stands for all."""
    v_th: float = math.nan
    """The threshold; the mean over channels where each has its own."""
    rest: float = 0.0
    """The potential at rest."""
    values: int = 0
    """Neurons times samples: the number of potentials per timestep."""
    uses: int = 1
    """How often the network uses this layer in one pass; the sums are over all uses."""


@dataclass(frozen=True)
class LayerDetail:
    """What is too much for every snapshot of a long run."""

    potential: Histogram
    """The membrane potential before reset."""
    gamma_C: list[float]
    """Each channel's gamma, to 5 digits; where two currents are added, both layers' channels. Empty without a norm."""
    beta_C: list[float]
    fired_C: list[int] = field(default_factory=list)
    """Spikes of each channel, over the batch, the timesteps and the places."""


@dataclass(frozen=True)
class Snapshot:
    """All layers at one step, in network order."""

    step: int
    layers: dict[str, LayerSnapshot]
    mode: Mode = "training"
    """The passes that were looked at: with the layers in training mode, or in evaluation mode."""
    ran: tuple[str, ...] = ()
    """The layers in the order in which they ran."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        layers = {n: asdict(s) for n, s in self.layers.items()}
        return {"step": self.step, "mode": self.mode, "ran": list(self.ran), "layers": layers}


class Monitor:
    """Collects snapshots from a spiking network, in anyone's own loop: call `step()` after each training step.

    `when` chooses the passes: "training" (the default), "evaluation" or "both", which gives a snapshot of each. `detail` adds histograms of
    the potentials, spikes per channel, and every channel's gamma and beta. Neurons that cannot be watched are in `not_watched`, with the
    reason. `close()` leaves the network as it was; copies and pickles of a watched network are not watched.

    >>> from mpd_agl.models import create_model
    >>> net = create_model("cnn8", width_mult=0.125, image_size=16)
    >>> monitor = Monitor(net, every=1)
    >>> _ = net(torch.randn(4, 3, 16, 16)), monitor.step()
    >>> list(monitor.history[-1].layers)[:2], len(monitor.history[-1].layers["conv1"].kappa_T)
    (['conv1', 'conv2'], 2)
    """

    def __init__(
        self,
        net: nn.Module,
        every: int = 50,
        *,
        when: Literal["training", "evaluation", "both"] = "training",
        detail: bool = False,
    ) -> None:
        if every < 1:
            raise InputError(f"every must be at least 1, got {every}. 50 costs under 3 percent of training time.")
        if when not in WHEN:
            raise unknown_name("when", when, WHEN)
        self.every, self.steps, self.when, self.detail = every, 0, when, detail
        self.history: list[Snapshot] = []
        self.not_watched: dict[str, str] = {}
        """Spiking neurons that are not watched, and why."""
        self._sums: dict[tuple[Mode, str], _Sums] = {}
        self._passes = 0
        self._watched: dict[str, _OwnLayer | _ForeignLayer] = {}
        self._attach(net)
        self.layers = list(self._watched)
        if not self.layers:
            found = "".join(f" {name}: {why}." for name, why in list(self.not_watched.items())[:3])
            raise InputError(
                "Monitor found no SpikingBlock and no neuron that it can watch in this network. Build it from mpd_agl.nn, SpikingJelly, "
                f"snnTorch or Norse, or make your own neuron known by mpd_agl.adapt.register_neuron.{found}"
            )
        self._root = net.register_forward_pre_hook(_Hook(self._pass_begins))

    def _attach(self, net: nn.Module) -> None:
        in_blocks = {m.neuron for m in net.modules() if isinstance(m, SpikingBlock)}
        adapted = {neuron: spike for _, neuron, spike in adaptive_spikes(net)}
        for name, module in list(net.named_modules()):
            block = module if isinstance(module, SpikingBlock) else None
            neuron: nn.Module = module if block is None else block.neuron
            if isinstance(neuron, Neuron):
                if block is not None or neuron not in in_blocks:
                    self._watched[name] = _OwnLayer(self, name, neuron, block)
            elif block is not None and adapter_of(neuron) is None:
                self.not_watched[name] = (
                    f"{type(neuron).__name__} is none of mpd_agl.nn's neurons; register_neuron makes it known"
                )
            elif block is None and adapter_of(neuron) is not None:
                spike = adapted.get(neuron) or watch_only(neuron)
                if isinstance(spike, str):
                    self.not_watched[name] = spike
                else:
                    self._watched[name] = _ForeignLayer(self, name, neuron, spike)

    @property
    def active(self) -> bool:
        """Whether the coming forward pass is looked at."""
        return self.steps % self.every == 0

    def step(self) -> Snapshot | None:
        """Call once after each training step; returns the snapshot of that step, if one was taken.

        With `when="both"` there may be two, of evaluation and of training: both are in `history`, the one of training is returned.
        """
        taken = None
        for mode in ("evaluation", "training"):
            names = [n for n in self.layers if (mode, n) in self._sums]
            if names:
                ran = tuple(n for m, n in self._sums if m == mode)
                layers = {n: self._watched[n].snapshot(self._sums[mode, n]) for n in names}
                taken = Snapshot(self.steps, layers, mode, ran)
                self.history.append(taken)
        self._sums = {}
        self.steps += 1
        return taken

    def close(self) -> None:
        """Detach from the network."""
        self._root.remove()
        for layer in self._watched.values():
            layer.detach()
        self._watched, self._sums = {}, {}

    def _pass_begins(self, *_: Any) -> None:
        self._passes += 1

    def _sums_of(self, name: str, training: bool) -> "_Sums | None":
        """Where a layer's pass is to be added; None where nobody looks at it."""
        mode: Mode = "training" if training else "evaluation"
        # A forward pass inside a backward pass is a second one, of torch.utils.checkpoint.
        if not self.active or self.when not in (mode, "both") or torch._C._current_graph_task_id() != -1:
            return None
        sums = self._sums.setdefault((mode, name), _Sums(mode == "training"))
        sums.pass_number = self._passes
        return sums


class _Hook:
    """A forward hook of a monitor. It stays with the network it was made for.

    A network's hooks are copied and pickled with it: there, a function of the standard library takes this one's place that does nothing.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        self.call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _padded(sums_TK: Tensor, num_steps: int) -> Tensor:
    return nn.functional.pad(sums_TK, (0, 0, 0, num_steps - sums_TK.shape[0])) if len(sums_TK) < num_steps else sums_TK


class _Sums:
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

    def share(self, replicas: kernels.Replicas) -> None:
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
                self.grads[place] = rows[rows[:, 1] > 0]


def _sum(a_TK: Tensor | None, b_TK: Tensor) -> Tensor:
    """Of sums per timestep; one may have more timesteps."""
    if a_TK is None:
        return b_TK
    T = max(len(a_TK), len(b_TK))
    return _padded(a_TK, T) + _padded(b_TK, T)


def _snapshot(sums: _Sums, detail: LayerDetail | None, **fields: Any) -> LayerSnapshot:
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
    gamma_C, beta_C = torch.cat([a.gamma_C for a in affines]), torch.cat([a.beta_C for a in affines])
    gamma_rms = float(gamma_C.square().mean().sqrt())
    return {"gamma_bar": float(gamma_C.mean()), "gamma_rms": gamma_rms, "beta_bar": float(beta_C.mean())}


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


class _OwnLayer:
    """A neuron of `mpd_agl.nn`, alone or in a block. Its potentials are computed from its current a second time, by `kernels.probe`."""

    def __init__(self, monitor: Monitor, name: str, neuron: Neuron, block: SpikingBlock | None) -> None:
        self.monitor, self.name, self.neuron, self.block = monitor, name, neuron, block
        self._seen: Pass | None = None
        neuron.watchers.append(self.saw)
        self._handle = (block or neuron).register_forward_hook(_Hook(self.ran), with_kwargs=True)

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
        sums = self.monitor._sums_of(self.name, module.training) if seen is not None else None
        if sums is None or seen is None:
            return
        neuron, x_SNC = self.neuron, seen.x_SNC.detach()
        T, C = seen.kappa_T.shape[0], x_SNC.shape[2 if self.block is not None else neuron.channel_dim]
        to_current = seen.current_map or (x_SNC.new_zeros(C), x_SNC.new_ones(C), x_SNC.new_zeros(C))
        kappa_T = self._widths(seen, T)
        state: dict[str, Any] = {} if seen.kept_0 is None else {"kept_0": seen.kept_0.detach()}
        if seen.v_TNC is None:
            options = {"backend": neuron.backend, **neuron.probed(), **state}
            sums_T6 = kernels.probe(x_SNC, *to_current, neuron.tau, kappa_T, **options)
        else:
            sums_T6 = _sums_of_potentials(seen.v_TNC, x_SNC, kappa_T, neuron.v_th)
        sums.begins()
        sums.add(0, sums_T6, x_SNC[0].numel())
        sums.kappa_T.update(enumerate(kappa_T))
        if self.block is not None:
            s_in = args[0] if args else kwargs["s_SNC"]
            sums.inputs = [sums.inputs[0] + float(torch.count_nonzero(s_in)), sums.inputs[1] + s_in.numel()]
        spikes = output[0] if isinstance(output, tuple) else output
        sums.follow("out", spikes, 0, time_first=True)
        sums.follow("in", seen.x_SNC, 0, time_first=True)
        self._facts(sums, T)
        if self.monitor.detail and x_SNC.shape[1]:
            residual = kwargs.get("residual")
            self._details(sums, seen, to_current, spikes if residual is None else spikes - residual, state)

    def _widths(self, seen: Pass, num_steps: int) -> Tensor:
        """The pass's own, or those that it would have had with gradients."""
        if seen.has_width:
            return seen.kappa_T.detach()
        neuron, measured, calls = self.neuron, copy.deepcopy(self.neuron.measured), self.neuron._calls
        try:
            with torch.enable_grad():
                if self.block is None:
                    return neuron.kappa(seen.x_SNC.detach(), num_steps, seen.kept_0).detach()
                x = "i_SNC" if seen.current_map is None else "x_SNC"
                return self.block.kappa(num_steps, **{x: seen.x_SNC.detach()}).detach()
        finally:  # a look must not move the running moments
            neuron.measured, neuron._calls = measured, calls

    def _facts(self, sums: _Sums, num_steps: int) -> None:
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
        sums: _Sums,
        seen: Pass,
        to_current: tuple[Tensor, Tensor, Tensor],
        s_TNC: Tensor,
        state: dict[str, Any],
    ) -> None:
        """Histograms, and the spikes of each channel; of several uses the last."""
        neuron, x_SNC, T = self.neuron, seen.x_SNC.detach(), seen.kappa_T.shape[0]
        v_th = sums.facts["v_th"]
        axis = 2 if self.block is not None else neuron.channel_dim
        plain = neuron.reset == "hard" and not neuron.decay_input and axis == 2 and not state
        sums.samples = counted_samples(x_SNC[0, 0].numel(), x_SNC.shape[1])
        if plain and isinstance(neuron.v_th, float) and not neuron.tau.dim():
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
        fired = s_TNC.detach() > 0.5 if seen.v_TNC is None else seen.v_TNC >= v_th  # ASGL's outputs are no spikes
        sums.fired_C = fired.sum([a for a in range(fired.dim()) if a != axis])

    def snapshot(self, sums: _Sums) -> LayerSnapshot:
        """Of what was summed."""
        if sums.training and self.neuron.replicas is not None:  # other processes hold parts of this batch
            sums.share(self.neuron.replicas)
        assert sums.sums_T7 is not None
        mean_T, square_T = (sums.sums_T7[:, k] / sums.sums_T7[:, 6] for k in (4, 5))
        mean, square = mean_T.mean(), square_T.mean()
        affines = [] if self.block is None else self.block.affines()
        return _snapshot(sums, _detail(sums, affines), input_mean=float(mean), input_var=float(square - mean**2))


def _detail(sums: _Sums, affines: list[Affine]) -> LayerDetail | None:
    if not sums.detail_TB:
        return None
    rest = sums.facts.get("rest", 0.0)
    low, high = (rest + end for end in reach(sums.facts["v_th"] - rest))
    return LayerDetail(
        Histogram(low, high, [sums.detail_TB[t].tolist() for t in sorted(sums.detail_TB)], sums.samples),
        [v for a in affines for v in _short(a.gamma_C)],
        [v for a in affines for v in _short(a.beta_C)],
        [] if sums.fired_C is None else sums.fired_C.tolist(),
    )


class _ForeignLayer:
    """A neuron that `mpd_agl.adapt` reads. Its surrogate function sees every potential, and shows it."""

    def __init__(self, monitor: Monitor, name: str, neuron: nn.Module, spike: AdaptiveSpike) -> None:
        self.monitor, self.name, self.neuron, self.spike = monitor, name, neuron, spike
        spike.watchers.append(self.saw)

    def detach(self) -> None:
        """No longer watch it; the last of several monitors puts the neuron's own function back."""
        self.spike.watchers.remove(self.saw)
        if self.spike.only_watches and not self.spike.watchers:
            take_out(self.neuron, self.spike)

    @torch.no_grad()
    def saw(self, t: int, u: Tensor, s: Tensor) -> None:
        """The neuron fires at timestep t."""
        sums = self.monitor._sums_of(self.name, self.neuron.training)
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
        if self.monitor.detail and values:
            self._details(sums, t, u_N + v_th, fired)

    def _facts(self, sums: _Sums) -> None:
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

    def _details(self, sums: _Sums, t: int, v_N: Tensor, fired: Tensor) -> None:
        """A histogram, and the spikes of each channel: axis 1, behind the batch."""
        sums.samples = counted_samples(v_N[0].numel(), v_N.shape[0])
        rest = sums.facts["rest"]
        count_B = count(v_N[: sums.samples] - rest, sums.facts["v_th"] - rest)
        sums.detail_TB[t] = sums.detail_TB[t] + count_B if t in sums.detail_TB else count_B
        fired_C = fired.sum([a for a in range(fired.dim()) if a != 1]) if fired.dim() > 1 else fired.sum()[None]
        before = sums.fired_C
        sums.fired_C = fired_C if before is None or before.shape != fired_C.shape else before + fired_C

    def snapshot(self, sums: _Sums) -> LayerSnapshot:
        """Of what was summed."""
        return _snapshot(sums, _detail(sums, [a for n in self.spike.norms if (a := affine_before(n)) is not None]))


def _sums_of_potentials(v_TNC: Tensor, i_SNC: Tensor, kappa_T: Tensor, v_th: Tensor | float) -> Tensor:
    """What `kernels.probe` gives, from potentials at hand."""
    v_TM, i_TM = v_TNC.double().flatten(1), i_SNC.expand_as(v_TNC).double().flatten(1)
    u_TM = v_TM - v_th
    near_TM = u_TM.abs() < kappa_T.double()[:, None] / 2
    rows = ((u_TM >= 0).double(), near_TM.double(), v_TM, v_TM * v_TM, i_TM, i_TM * i_TM)
    return torch.stack([row.sum(1) for row in rows], 1)


def _short(x_C: Tensor) -> list[float]:
    return [float(f"{v:.5g}") for v in x_C.tolist()]
