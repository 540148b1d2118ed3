"""`AdaptiveSpike` takes the place of a neuron's surrogate function, and calls it at the width of each timestep."""

import copy
import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle

from mpd_agl.adaptation.adapters import Membrane, adapter_of, mean_of, read
from mpd_agl.adaptation.sums import StepSums
from mpd_agl.adaptation.surrogates import AsSurrogate, Shape, SpikeFunction, measure, scale_gradient, shaped_spike
from mpd_agl.core import Surrogate
from mpd_agl.core.mpd import Moments
from mpd_agl.nn import Affine, MeasuredMoments, Potential, PotentialSums, Width, affines_of, predicted
from mpd_agl.ops import NeuronSpec, Widths

Watcher = Callable[[int, Tensor, Tensor], None]
"""Called with the timestep, u = v - v_th and the spikes, both as the graph has them."""


def affines_before(norm: nn.Module, num_steps: int = 1) -> list[Affine] | None:
    """`affines_of`, with what SpikingJelly's norms do differently: tdBN keeps `alpha * v_th` in its weight, and TEBN
    multiplies the current of each timestep by a learnable number.
    """
    found = affines_of(norm)
    if found is None or type(norm).__module__.split(".")[0] != "spikingjelly":
        return found
    gamma_C, beta_C, *_ = found[0]
    if type(norm).__name__.startswith("TemporalEffectiveBatchNorm"):
        scale_T: Tensor = norm.scale.detach().flatten()  # type: ignore[operator]
        scale_T1 = scale_T[torch.arange(num_steps).clamp_max(len(scale_T) - 1)][:, None]
        gamma_C, beta_C = scale_T1 * gamma_C, scale_T1 * beta_C
    return [Affine(gamma_C, beta_C, 1.0)]


@dataclass(frozen=True, kw_only=True)
class ForeignPotential(Potential):
    """The potential of a neuron of another library."""

    known: Callable[[Moments], tuple[Tensor, Tensor]]
    """mean_T and std_T, predicted or measured."""

    def moments(self, kind: Moments) -> tuple[Tensor, Tensor]:
        """mean_T and std_T of the potential before reset."""
        return self.known(kind)


def _storage(tensor: Tensor) -> StorageWeakRef:
    """What a tensor shares with its detached versions. It is not kept alive, and none other gets its address."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


@_disable_dynamo  # as torch.compiler.disable, which imports the compiler at once
def _uncompiled(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def outside_of_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a method out of compiled graphs: the timestep is Python state, which a graph would freeze."""

    @functools.wraps(method)
    def call(*args: Any) -> Any:
        return _uncompiled(method, *args) if torch.compiler.is_compiling() else method(*args)

    return call


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
    _time: int
    _called: int
    _sequences: int
    _now: Widths | None
    _measures: bool
    _v_th: Tensor | float
    _sums: StepSums
    _states: list[tuple[StorageWeakRef, int]]
    _watchers: OrderedDict[int, tuple[Watcher, Callable[[], bool]]]

    def __init__(
        self, function: SpikeFunction, shape: Shape, *, calls: int = 1, surrogate: Surrogate | None = None
    ) -> None:
        super().__init__()
        self.function, self.shape, self.surrogate, self.calls = function, shape, surrogate, calls
        self.width: Width | None = None  # until the layer is known
        self.register_buffer("place", torch.empty(0), persistent=False)  # moves with the network
        self.measured: MeasuredMoments | None = None
        self.norms: list[nn.Module] = []  # a list: the network has them already
        self.num_steps, self.every, self.uses = 1, 1, 1
        self.widths: Widths | None = None
        """The last widths, and the factors on the surrogate's height where the rule has them."""
        self.only_watches = False
        """Whether this one was put here to watch a network that is not adapted (`watch_only`)."""
        self.fusion: Any = None
        """Where norm and neuron run as one kernel (`adaptation.fuse`), what runs them."""
        self.handles: list[RemovableHandle] = []
        self.__dict__.update(self._at_rest())

    @staticmethod
    def _at_rest() -> dict[str, Any]:
        """What lives for one sequence, or for one network and none of its copies."""
        counts = dict.fromkeys(("_time", "_called", "_sequences"), 0)
        kept: dict[str, Any] = {"_sums": StepSums(), "_states": [], "_watchers": OrderedDict()}
        return counts | kept | {"_now": None, "_measures": False, "_v_th": 0.0}

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

    @outside_of_graphs
    def before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the timestep at which the neuron's call begins; at the first one, ask the rule for the widths."""
        adapter = read(neuron)
        self._called = 0
        steps = adapter.steps(neuron, args, kwargs)
        self._time = 0 if steps is not None else self._time_after(adapter.state_before(neuron, args, kwargs))
        if self._time == 0:
            self._begin(adapter.membrane(neuron), steps or self.num_steps)

    @outside_of_graphs
    def after(self, neuron: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Take in what was measured; remember the state that the call left, to recognise it when it comes back."""
        # At the end of the sequence, not before the next one: there DDP has just sent rank 0's buffers to all.
        if self.is_measuring and self.uses == 1 and self._sums.num_steps >= self.num_steps:
            self._take_in()
        state = read(neuron).state_after(neuron, output)
        if state is None:
            return
        # The same storage is the same state: detaching it between two chunks of a sequence does not start a new one.
        alive = [(s, t) for s, t in self._states if not s.expired()]  # type: ignore[no-untyped-call]
        self._states = [*alive, (_storage(state), self._time)]

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

    def _begin(self, membrane: Membrane, num_steps: int) -> None:
        """The first step of a sequence."""
        self._now, self._measures, self._v_th = None, False, membrane.threshold
        if not self.adapts:
            return
        if self.measured is not None:
            self._sums = copy.copy(self._sums)  # `undo` restores the old ones
            if self._sums.num_steps >= (1 if self.uses == 1 else self.num_steps):
                self._take_in()  # of a shorter sequence, or of a neuron that the network uses twice
            self._measures = self._sequences % self.every == 0
            self._sequences += 1
        if self.width is not None:
            self._now = self.ask(membrane, num_steps)

    def ask(self, membrane: Membrane, num_steps: int) -> Widths:
        """The rule's widths for the potential as it is now; they may have a gradient."""
        assert self.width is not None
        found: Widths = self.width(self.potential(membrane, num_steps))
        self.widths = Widths(found.kappa_T.detach(), found.gain_T)
        return found

    def _take_in(self) -> None:
        """Give the sums of the last measured sequence to the running moments."""
        assert self.measured is not None
        self.measured.update(self._sums.potentials())
        self._sums = StepSums()

    def potential(self, membrane: Membrane, num_steps: int) -> Potential:
        """What the rule may know of the potential, counted from rest."""

        def sums() -> PotentialSums | None:
            if self.measured is None:
                return None
            mean_T, std_T = self.measured.moments(num_steps)
            return PotentialSums(1, mean_T, std_T.square() + mean_T.square())

        shape = self.surrogate or AsSurrogate(self.function, self.shape)
        return ForeignPotential(
            num_steps=num_steps,
            neuron=NeuronSpec(tau=self._tau(membrane), v_th=membrane.threshold, surrogate=shape),
            known=lambda kind: self.moments(membrane, num_steps, kind),
            sums=sums,
        )

    def moments(self, membrane: Membrane, num_steps: int, kind: Moments) -> tuple[Tensor, Tensor]:
        """mean_T and std_T of the potential: measured, or predicted from the norms."""
        if self.measured is not None:
            return self.measured.moments(num_steps)
        return self.predicted_moments(membrane, num_steps, kind)

    def _tau(self, membrane: Membrane) -> Tensor:
        kept = 0.0 if membrane.kept is None else membrane.kept
        return torch.as_tensor(kept, dtype=torch.float32, device=self.place.device).detach()

    def predicted_moments(self, membrane: Membrane, num_steps: int, kind: Moments) -> tuple[Tensor, Tensor]:
        """Theorems 1 and 2 with all terms of the leak, `v_t = sum_j tau^(t-j) i_j`: other libraries' neurons often
        keep 0.9 and more, where the theorem's two terms are too few.
        """
        affines = [a for norm in self.norms for a in affines_before(norm, num_steps) or ()]
        scale = mean_of(membrane.input_scale)
        return predicted(affines, self._tau(membrane), num_steps, kind, input_scale=scale, leak="full")

    @outside_of_graphs
    def forward(self, u: Tensor) -> Tensor:
        """Spikes of one timestep."""
        self._called += 1
        if self._called % self.calls:  # a call for the reset alone: no gradient passes it
            return self.function(u)
        t = self._called // self.calls - 1
        now = self._now if self.adapts else None
        if now is None:
            s = self.function(u)
        else:
            place = min(self._time + t, len(now.kappa_T) - 1)
            kappa, v = now.kappa_T[place], u
            if now.gain_T is not None:
                v = scale_gradient(v, now.gain_T[place])
            if self.surrogate is not None:
                s = shaped_spike(v, kappa, self.surrogate, fires_at_zero=self.shape.fires_at_zero)
            else:
                s = self.function(v * (self.shape.width / kappa))
        self.show(t, u, s)
        return s

    def widths_now(self, num_steps: int) -> Widths:
        """The widths of the call that runs, for a kernel: the natural one where nothing is adapted."""
        now = self._now if self.adapts else None
        if now is None:
            return Widths(torch.full((num_steps,), self.shape.width, device=self.place.device))
        place_T = [min(self._time + t, len(now.kappa_T) - 1) for t in range(num_steps)]
        return Widths(now.kappa_T[place_T], None if now.gain_T is None else now.gain_T[place_T])

    @property
    def time(self) -> int:
        """The timestep at which the call that runs began."""
        return self._time

    @property
    def is_measuring(self) -> bool:
        """Whether the running moments want this sequence."""
        return self._measures and self.adapts

    def watch(self, see: Watcher, wants: Callable[[], bool] = lambda: True) -> RemovableHandle:
        """Show each timestep to `see` until the handle is removed. `wants` says whether it reads the pass that runs,
        for kernels, which keep no potentials.
        """
        handle = RemovableHandle(self._watchers)
        self._watchers[handle.id] = (see, wants)
        return handle

    @property
    def has_watchers(self) -> bool:
        """Whether anything watches."""
        return bool(self._watchers)

    @property
    def is_watched(self) -> bool:
        """Whether a watcher reads this pass."""
        return any(wants() for _, wants in self._watchers.values())

    def show(self, t: int, u: Tensor, s: Tensor) -> None:
        """Show u and the spikes, t steps after the call began, to the watchers; measure them where it is time to."""
        if self.is_measuring:
            self._sums.add_step(self._time + t, u, s, self._v_th)
        for see, _ in list(self._watchers.values()):
            see(self._time + t, u, s)

    def add_sums(self, sums_T6: Tensor, values: int) -> None:
        """What `show` would measure of this call's steps, as `ops.probe` gives it."""
        self._sums.add(self._time, sums_T6, values)

    @property
    def kappa_T(self) -> Tensor | None:
        """The last widths; None where none were computed yet."""
        return None if self.widths is None else self.widths.kappa_T

    def kappa_at(self, t: int) -> Tensor | float | None:
        """The width of this timestep: the rule's, or the function's own; None where that has none."""
        if self.widths is not None:
            return self.widths.kappa_T[min(t, len(self.widths.kappa_T) - 1)]
        return self.shape.width if math.isfinite(self.shape.width) else None

    def __getstate__(self) -> dict[str, Any]:
        widths = None
        if self.widths is not None:
            kappa_T, gain_T = self.widths
            widths = Widths(kappa_T.clone(), None if gain_T is None else gain_T.clone())
        return self.__dict__ | self._at_rest() | {"widths": widths}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A checkpoint from before the network was adapted knows no moments and no widths: they stay unchanged."""
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
        if isinstance(module, AdaptiveSpike) or adapter_of(module) is None:
            continue
        inside = [m for child in module.children() for m in (child, *child.children()) if isinstance(m, AdaptiveSpike)]
        if inside:
            found.append((name, module, inside[0]))
    return found


def put_in(neuron: nn.Module, spike: AdaptiveSpike, device: torch.device | None = None) -> None:
    """Let the neuron call it in place of its own function."""
    spike.train(neuron.training).to(device)
    read(neuron).put(neuron, spike)
    spike.attach(neuron)


def take_out(neuron: nn.Module, spike: AdaptiveSpike) -> None:
    """Let the neuron call its own function again."""
    if spike.fusion is not None:
        spike.fusion.take_out()
    spike.detach()
    read(neuron).put(neuron, spike.function)


def watch_only(neuron: nn.Module) -> AdaptiveSpike | str:
    """Put an AdaptiveSpike without a rule into a neuron, for watchers; a clause where the neuron does not let us.

    Spikes and gradients stay bit for bit what they are, with one exception: SpikingJelly has a kernel of its own for
    its Sigmoid, and without it the gradients differ in the last digits. `take_out` undoes it.
    """
    adapter = read(neuron)
    if (reason := adapter.refusal(neuron)) is not None:
        return reason
    function = adapter.function(neuron)
    shape = measure(function)
    if isinstance(shape, str):  # it has no width that one could show; all else can be watched
        shape = Shape(math.inf, True)
    spike = AdaptiveSpike(function, shape, calls=adapter.calls)
    spike.only_watches = True
    put_in(neuron, spike)
    return spike
