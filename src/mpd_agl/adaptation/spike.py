"""`AdaptiveSpike` stands where a neuron's surrogate function was, and calls it at the width of each timestep."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle

from mpd_agl.adaptation.adapters import Membrane, adapter_of
from mpd_agl.adaptation.surrogates import AsSurrogate, Shape, SpikeFunction, measure, scale_gradient, shaped_spike
from mpd_agl.core import Surrogate
from mpd_agl.core.mpd import Moments
from mpd_agl.nn.moments import Affine, MeasuredMoments, Potential, PotentialSums, affine_of, predicted
from mpd_agl.nn.width import Width

Watcher = Callable[[int, Tensor, Tensor], None]
"""Called with the timestep, u = v - v_th and the spikes, both as the graph has them."""


def affine_before(norm: nn.Module) -> Affine | None:
    """`affine_of`; SpikingJelly's tdBN keeps `alpha * v_th` in its weight, so the scale is 1 there."""
    affine = affine_of(norm)
    if affine is None or type(norm).__module__.split(".")[0] != "spikingjelly":
        return affine
    return affine._replace(scale=1.0)


def _scale_of_steps(norm: nn.Module) -> Tensor | None:
    """TEBN multiplies the current of each timestep by a learnable number."""
    if not type(norm).__name__.startswith("TemporalEffectiveBatchNorm"):
        return None
    scale_T: Tensor = norm.scale.detach().flatten()  # type: ignore[operator]
    return scale_T


def _storage(tensor: Tensor) -> StorageWeakRef:
    """What a tensor shares with its detached versions. It is not kept alive, and none other gets its address."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


@_disable_dynamo  # as torch.compiler.disable, which imports the compiler at once
def uncompiled(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function outside of a compiled graph: the timestep is Python state, which a graph would freeze."""
    return function(*args)


class AdaptiveSpike(nn.Module):
    """The surrogate function of one neuron at an adaptive width.

    It is called as the neuron called its own function: on `u = v - v_th` of one timestep. In training it calls that
    function on `u r_t`, with `r_t` the function's natural width over kappa_t: the spikes are the same, and the
    gradient has the width kappa_t and the area it had. In evaluation, and without gradients, it calls the function on
    u and computes nothing.

    kappa_T comes from the width rule once per sequence. The rule asks for the moments of the potential: *predicted*
    from the parameters of the norms before the neuron, or *measured* on every n-th training sequence.
    """

    place: Tensor

    def __init__(
        self,
        function: SpikeFunction,
        shape: Shape,
        *,
        calls: int = 1,
        surrogate: Surrogate | None = None,
    ) -> None:
        super().__init__()
        self.function, self.shape, self.surrogate, self.calls = function, shape, surrogate, calls
        self.width: Width | None = None  # until the layer is known
        self.register_buffer("place", torch.empty(0), persistent=False)  # moves with the network
        self.measured: MeasuredMoments | None = None
        self.norms: list[nn.Module] = []  # a list: the network has them already
        self.num_steps, self.every, self.uses = 1, 1, 1
        self.kappa_T: Tensor | None = None
        """The last widths."""
        self.gain_T: Tensor | None = None
        """The last factors on the surrogate's height; None where the rule has none."""
        self.watchers: list[Watcher] = []
        self.only_watches = False
        """Whether this one was put here to watch a network that is not adapted (`watch_only`)."""
        self.fusion: Any = None
        """Where norm and neuron run as one kernel (`adapt.fuse`), what runs them."""
        self.handles: list[RemovableHandle] = []
        self._forget()

    def _forget(self) -> None:
        """What lives for one sequence only."""
        self._time, self._called, self._sequences = 0, 0, 0
        self._ratio_T: tuple[Tensor, ...] | None = None
        self._measures = False
        self._sums: dict[int, tuple[int, Tensor, Tensor]] = {}
        self._states: list[tuple[StorageWeakRef, int]] = []

    def attach(self, neuron: nn.Module) -> None:
        """Follow the neuron's calls, to know the timestep."""
        self.handles = [
            neuron.register_forward_pre_hook(self.before, with_kwargs=True),
            neuron.register_forward_hook(self.after),
        ]

    def detach(self) -> None:
        """No longer follow it."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the timestep at which the neuron's call begins; at the first one, ask the rule for the widths."""
        if torch.compiler.is_compiling():
            uncompiled(AdaptiveSpike.before, self, neuron, args, kwargs)
            return
        adapter = adapter_of(neuron)
        assert adapter is not None
        self._called = 0
        steps = adapter.steps(neuron, args, kwargs)
        self._time = 0 if steps is not None else self._time_after(adapter.state_before(neuron, args, kwargs))
        if self._time == 0:
            self._begin(neuron, steps or self.num_steps)

    def after(self, neuron: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Take in what was measured; remember the state that the call left, to recognise it when it comes back."""
        if torch.compiler.is_compiling():
            uncompiled(AdaptiveSpike.after, self, neuron, args, output)
            return
        adapter = adapter_of(neuron)
        assert adapter is not None
        # At the end of the sequence, not before the next one: there DDP has just sent rank 0's buffers to all.
        if self.is_measuring and self.uses == 1 and len(self._sums) >= self.num_steps:
            self._take_in(adapter.membrane(neuron))
        state = adapter.state_after(neuron, output)
        if state is None:
            return
        # The same storage is the same state: detaching it between two chunks of a sequence does not start a new one.
        self._states = [(s, t) for s, t in self._states if not s.expired()]  # type: ignore[no-untyped-call]
        self._states.append((_storage(state), self._time))

    def _time_after(self, state: Tensor | None) -> int:
        """The timestep that follows a state: 0 at rest, and for a state that none of the neuron's calls left."""
        if state is None:
            return 0
        found = _storage(state).cdata
        return next((t + 1 for s, t in reversed(self._states) if s.cdata == found), 0)

    @property
    def adapts(self) -> bool:
        """Whether this call's gradient is of any use."""
        return self.training and torch.is_grad_enabled()

    def _begin(self, neuron: nn.Module, num_steps: int) -> None:
        """The first step of a sequence."""
        self._ratio_T, self._measures = None, False
        if not self.adapts:
            return
        adapter = adapter_of(neuron)
        assert adapter is not None
        membrane = adapter.membrane(neuron)
        if self.measured is not None:
            if self._sums and len(self._sums) >= (1 if self.uses == 1 else self.num_steps):
                self._take_in(membrane)  # of a shorter sequence, or of a neuron that the network uses twice
            self._measures = self._sequences % self.every == 0
            self._sequences += 1
        if self.width is not None:
            potential = self.potential(membrane, num_steps)
            kappa_T, self.gain_T = self.width.with_gain(potential)
            self.kappa_T = kappa_T.detach()
            self._ratio_T = (kappa_T if self.surrogate is not None else self.shape.width / kappa_T).unbind(0)

    def _take_in(self, membrane: Membrane) -> None:
        """Give the sums of u of the last measured sequence to the running moments, as sums of v counted from rest."""
        assert self.measured is not None
        steps = [self._sums[t] for t in sorted(self._sums)]
        threshold = membrane.threshold
        count = steps[0][0]
        sums = torch.stack([torch.stack([u, uu]) for _, u, uu in steps]).double()
        u_T, uu_T = sums[:, 0], sums[:, 1]
        v_T, vv_T = u_T + count * threshold, uu_T + 2 * threshold * u_T + count * threshold * threshold
        if (
            missing := self.measured.mean_T.shape[0] - len(steps)
        ) > 0:  # a shorter sequence says nothing of the later steps
            mean_T, std_T = (m[-missing:].double() for m in self.measured.moments())
            v_T = torch.cat([v_T, count * mean_T])
            vv_T = torch.cat([vv_T, count * (std_T.square() + mean_T.square())])
        self.measured.update_sums(PotentialSums(count, v_T, vv_T))
        self._sums = {}

    def widths(self, membrane: Membrane, num_steps: int) -> Tensor:
        """kappa_T of the rule, from the potential as it is now."""
        assert self.width is not None
        kappa_T: Tensor = self.width(self.potential(membrane, num_steps))
        return kappa_T

    def potential(self, membrane: Membrane, num_steps: int) -> Potential:
        """What the rule may know of the potential."""
        assert self.width is not None
        tau = self._tau(membrane)
        batch = None
        if self.width.needs_batch and self.measured is not None:
            mean_T, std_T = self._measured_moments("exact", num_steps)
            batch = PotentialSums(1, mean_T, std_T.square() + mean_T.square())

        def moments(kind: Moments) -> tuple[Tensor, Tensor]:
            if self.measured is not None:
                return self._measured_moments(kind, num_steps)
            return self._predicted_moments(membrane, tau, kind, num_steps)

        return Potential(num_steps, membrane.threshold, tau, moments, batch, self.surrogate or AsSurrogate(self))

    def reads_moments(self, membrane: Membrane) -> bool:
        """Whether the rule asks for the potential at all; a fixed width does not."""
        assert self.width is not None
        asked: list[str] = []

        def moments(kind: Moments) -> tuple[Tensor, Tensor]:
            asked.append(kind)
            return torch.zeros(1, device=self.place.device), torch.ones(1, device=self.place.device)

        self.width(Potential(1, membrane.threshold, self._tau(membrane), moments))
        return bool(asked) or self.width.needs_batch

    def _tau(self, membrane: Membrane) -> Tensor:
        kept = 0.0 if membrane.kept is None else membrane.kept
        return torch.as_tensor(kept, dtype=torch.float32, device=self.place.device)

    def _measured_moments(self, kind: Moments, num_steps: int) -> tuple[Tensor, Tensor]:
        """Of as many steps as asked for: the last one stands for those that were never measured."""
        assert self.measured is not None
        return self.measured.moments(kind, num_steps)

    def _predicted_moments(
        self, membrane: Membrane, tau: Tensor, kind: Moments, num_steps: int
    ) -> tuple[Tensor, Tensor]:
        """Theorems 1 and 2, with the whole geometric sum of the leak."""
        affines = [a for norm in self.norms if (a := affine_before(norm)) is not None]
        scale: Tensor | float = membrane.input_scale
        if isinstance(scale, Tensor):
            scale = scale.detach().mean()
        mean_T, std_T = predicted(affines, tau, num_steps, kind, input_scale=scale, leak="full")
        if len(self.norms) == 1 and (scale_T := _scale_of_steps(self.norms[0])) is not None:
            last = scale_T.shape[0] - 1
            scale_T = scale_T[torch.arange(num_steps).clamp_max(last)]
            mean_T, std_T = mean_T * scale_T, std_T * scale_T.abs()
        return mean_T, std_T

    def forward(self, u: Tensor) -> Tensor:
        """Spikes of one timestep."""
        if torch.compiler.is_compiling():
            s: Tensor = uncompiled(AdaptiveSpike.forward, self, u)
            return s
        self._called += 1
        if self._called % self.calls:  # a call for the reset alone: no gradient passes it
            return self.function(u)
        t = self._time + self._called // self.calls - 1
        if self._ratio_T is None or not self.adapts:
            s = self.function(u)
        else:
            ratio = self._ratio_T[min(t, len(self._ratio_T) - 1)]
            v = u if self.gain_T is None else scale_gradient(u, self.gain_T[min(t, len(self.gain_T) - 1)])
            if self.surrogate is not None:
                s = shaped_spike(v, ratio, self.surrogate, fires_at_zero=self.shape.fires_at_zero)
            else:
                s = self.function(v * ratio)
        self.see(t - self._time, u, s)
        return s

    def kappa_now(self, num_steps: int) -> Tensor:
        """The widths of the call that runs, for a kernel: the natural one where nothing is adapted."""
        if self._ratio_T is None or not self.adapts:
            return torch.full((num_steps,), self.shape.width, device=self.place.device)
        last = len(self._ratio_T) - 1
        ratio_T = torch.stack([self._ratio_T[min(self._time + t, last)] for t in range(num_steps)])
        return ratio_T if self.surrogate is not None else self.shape.width / ratio_T

    def gain_now(self, num_steps: int) -> Tensor | None:
        """The factors on the surrogate's height of the call that runs, for a kernel."""
        if self._ratio_T is None or not self.adapts or self.gain_T is None:
            return None
        last = len(self.gain_T) - 1
        return self.gain_T[[min(self._time + t, last) for t in range(num_steps)]]

    @property
    def is_measuring(self) -> bool:
        """Whether the running moments want this sequence."""
        return self._measures and self.adapts

    @property
    def is_watched(self) -> bool:
        """Whether a watcher looks at this pass; one that does not say looks at every one."""
        return any(getattr(getattr(w, "__self__", None), "is_looking", True) for w in self.watchers)

    def measure_sums(self, count: int, v_T: Tensor, vv_T: Tensor, v_th: float) -> None:
        """What `see` would measure of a whole sequence, from sums of v and of v^2."""
        for t, (v, vv) in enumerate(zip(v_T, vv_T, strict=True)):
            before = self._sums.get(self._time + t, (0, 0.0, 0.0))
            now = (count, v - count * v_th, vv - 2 * v_th * v + count * v_th * v_th)
            self._sums[self._time + t] = tuple(a + b for a, b in zip(before, now, strict=True))

    def see(self, t: int, u: Tensor, s: Tensor) -> None:
        """Show u and the spikes, t steps after the call began, to the watchers; measure u where it is time to."""
        if self.is_measuring:
            self._measure(self._time + t, u.detach())
        for watcher in self.watchers:
            watcher(self._time + t, u, s)

    def kappa_at(self, t: int) -> Tensor | float | None:
        """The width of this timestep: the rule's, or the function's own; None where that has none."""
        if self.kappa_T is not None:
            return self.kappa_T[min(t, len(self.kappa_T) - 1)]
        return self.shape.width if math.isfinite(self.shape.width) else None

    @torch.no_grad()
    def _measure(self, t: int, u: Tensor) -> None:
        """Add the sums of one timestep; a neuron that is used twice adds to the same sums."""
        u = u.float()
        count, total, squares = self._sums.get(t, (0, 0.0, 0.0))
        flat = u.flatten()
        self._sums[t] = (count + u.numel(), total + flat.sum(), squares + torch.dot(flat, flat))

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # A copy or a pickle of a watched network is not watched.
        kept: dict[str, Any] = {"watchers": [], "kappa_T": None if self.kappa_T is None else self.kappa_T.clone()}
        kept |= {"gain_T": None if self.gain_T is None else self.gain_T.clone()}
        kept |= {"_time": 0, "_called": 0, "_sequences": 0, "_ratio_T": None}
        kept |= {"_measures": False, "_sums": {}, "_states": []}
        return state | kept

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A checkpoint from before the network was adapted knows no moments and no widths: they stay as they are."""
        for name, value in self.state_dict(prefix=prefix).items():
            state_dict.setdefault(name, value)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        source = "its own width" if self.width is None else "measured" if self.measured is not None else "predicted"
        shape = "" if self.surrogate is None else f", surrogate={self.surrogate.name}"
        return f"{source}, natural width {self.shape.width:.4g}{shape}"


def adaptive_spikes(net: nn.Module) -> Sequence[tuple[str, nn.Module, AdaptiveSpike]]:
    """Name, neuron and injected function of every adapted layer of a network."""
    found: list[tuple[str, nn.Module, AdaptiveSpike]] = []
    for name, module in net.named_modules():
        if isinstance(module, AdaptiveSpike):
            continue
        inside = [m for child in module.children() for m in (child, *child.children()) if isinstance(m, AdaptiveSpike)]
        if inside and adapter_of(module) is not None:
            found.append((name, module, inside[0]))
    return found


def watch_only(neuron: nn.Module) -> AdaptiveSpike | str:
    """Put an AdaptiveSpike without a rule into a neuron, for watchers; a clause where the neuron does not let us.

    Spikes and gradients stay bit for bit what they are, with one exception: SpikingJelly has a kernel of its own for
    its Sigmoid, and without it the gradients differ in the last digits. `take_out` undoes it.
    """
    adapter = adapter_of(neuron)
    assert adapter is not None
    reason = adapter.refusal(neuron)
    if reason is not None:
        return reason
    function = adapter.function(neuron)
    shape = measure(function)
    if isinstance(shape, str):  # it has no width that one could show; all else can be watched
        shape = Shape(math.inf, True)
    spike = AdaptiveSpike(function, shape, calls=adapter.calls)
    spike.only_watches = True
    spike.train(neuron.training)
    adapter.put(neuron, spike)
    spike.attach(neuron)
    return spike


def take_out(neuron: nn.Module, spike: AdaptiveSpike) -> None:
    """Let the neuron call its own function again."""
    adapter = adapter_of(neuron)
    assert adapter is not None
    spike.detach()
    adapter.put(neuron, spike.function)
