"""Spiking neurons of other libraries as `adapt` sees them: what to read of each, and where its surrogate function is
called.

The libraries are never imported. A neuron is recognised by the names in its class's ancestry, so a subclass of
SpikingJelly's LIFNode is a LIFNode. One's own neuron is made known by `register_neuron`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mpd_agl.adaptation.surrogates import SpikeFunction
from mpd_agl.errors import InputError

Reset = Literal["hard", "soft", "none"]


@dataclass(frozen=True)
class Membrane:
    """A neuron's constants: `v_t = rest + kept (v_{t-1} - rest) + input_scale i_t`, then the spike and the reset."""

    v_th: Tensor | float
    rest: Tensor | float
    kept: Tensor | float | None
    """The share of the potential that is kept to the next step (our tau); None where it is not of this form."""
    input_scale: Tensor | float
    reset: Reset
    detach_reset: bool
    current_kept: Tensor | float | None = None
    """Where the neuron filters its current first (snnTorch's Synaptic, Norse's LIF): the share kept of the current."""

    @property
    def threshold(self) -> Tensor | float:
        """One threshold for the layer, counted from rest."""
        v_th = self.v_th.detach().mean() if isinstance(self.v_th, Tensor) else self.v_th
        rest = self.rest.detach().mean() if isinstance(self.rest, Tensor) else self.rest
        return v_th - rest


class Adapter:
    """How one family of neurons is read, and where its surrogate function is."""

    library = ""
    calls = 1
    """How often the neuron calls its surrogate function at each timestep; the last of them makes the spikes."""

    def matches(self, neuron: nn.Module) -> bool:
        """Whether this adapter reads that module."""
        raise NotImplementedError

    def refusal(self, neuron: nn.Module) -> str | None:
        """Why this one cannot be adapted, as a clause; None where it can."""
        return None

    def membrane(self, neuron: nn.Module) -> Membrane:
        """Its constants as they are now."""
        raise NotImplementedError

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Timesteps of this call; None where a call is one timestep and the caller has the loop."""
        raise NotImplementedError

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The potential that a call of one timestep starts from; None at rest."""
        return None

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """The potential that a call of one timestep leaves."""
        return None

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """Its surrogate function."""
        raise NotImplementedError

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """Let the neuron call this function in place of its surrogate function."""
        raise NotImplementedError

    def set_v_th(self, neuron: nn.Module, v_th: float) -> None:
        """Give it another threshold."""
        raise InputError(f"the threshold of {type(neuron).__name__} cannot be set from outside.")

    def weights(self, neuron: nn.Module) -> list[nn.Parameter]:
        """Synapses that the neuron itself holds."""
        return []

    def to_rest(self, neuron: nn.Module) -> None:
        """Forget the state that a call left in the module."""


def replace_attribute(module: nn.Module, name: str, value: object) -> None:
    """Assign an attribute that may be a plain value now and a module before, or the other way round."""
    if hasattr(module, name):
        delattr(module, name)
    setattr(module, name, value)


def _named(module: nn.Module, library: str) -> str:
    """The name of the nearest class of that library in the module's ancestry; empty where there is none."""
    for kind in type(module).__mro__:
        if kind.__module__.split(".")[0] == library:
            return kind.__name__
    return ""


def _ancestors(module: nn.Module, library: str) -> set[str]:
    return {k.__name__ for k in type(module).__mro__ if k.__module__.split(".")[0] == library}


class SpikingJelly(Adapter):
    """IFNode, LIFNode, ParametricLIFNode and the nodes made of SimpleBaseNode, single- and multi-step."""

    library = "spikingjelly"

    def matches(self, neuron: nn.Module) -> bool:
        """Every node; those that we cannot read are refused with a reason."""
        names = _ancestors(neuron, self.library)
        return bool(names & {"BaseNode", "SimpleBaseNode"}) or (
            "MemoryModule" in names and hasattr(neuron, "surrogate_function")
        )

    def refusal(self, neuron: nn.Module) -> str | None:
        """Other dynamics, and backends that do not call the surrogate function."""
        name = _named(neuron, self.library)
        known = {"IFNode", "LIFNode", "ParametricLIFNode", "SimpleIFNode", "SimpleLIFNode", "SimpleBaseNode"}
        if name not in known:
            return f"{name} is none of SpikingJelly's neurons that call their surrogate function once on v - v_th"
        if (backend := getattr(neuron, "backend", "torch")) != "torch":
            return f"its backend {backend!r} does not call the surrogate function; set_backend(net, 'torch') first"
        if getattr(neuron, "_neuron_precision", None) is not None:
            return "a neuron with a precision of its own runs without its surrogate function; leave the precision out"
        return None

    def membrane(self, neuron: nn.Module) -> Membrane:
        """`tau` is a time constant here: 1 - 1/tau is kept. It also divides the current where `decay_input` is set."""
        n: Any = neuron
        name = _named(neuron, self.library)
        gain: Tensor | float | None = None
        if name == "ParametricLIFNode":
            gain = n.w.detach().sigmoid()
        elif name in ("LIFNode", "SimpleLIFNode"):
            gain = 1 / (n.tau.detach() if isinstance(n.tau, Tensor) else float(n.tau))
        elif name in ("IFNode", "SimpleIFNode"):
            gain = 0.0
        decays = gain is not None and getattr(n, "decay_input", False)
        return Membrane(
            v_th=n.v_threshold,
            rest=0.0 if n.v_reset is None else n.v_reset,
            kept=None if gain is None else 1 - gain,
            input_scale=gain if decays and gain is not None else 1.0,
            reset="soft" if n.v_reset is None else "hard",
            detach_reset=bool(n.detach_reset),
        )

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """step_mode 'm': the first axis is time."""
        x = args[0] if args else next(iter(kwargs.values()))
        return int(x.shape[0]) if neuron.step_mode == "m" else None

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """`v` is a number after reset(); a v of another shape is thrown away by the node."""
        v, x = neuron.v, args[0] if args else next(iter(kwargs.values()))
        return v if isinstance(v, Tensor) and v.shape == x.shape else None

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """The node keeps v."""
        v = neuron.v
        return v if isinstance(v, Tensor) else None

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """An nn.Module of its own."""
        return neuron.surrogate_function  # type: ignore[return-value]

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """In its place. With a surrogate function not of its library the node runs the plain steps, which call it."""
        replace_attribute(neuron, "surrogate_function", function)

    def set_v_th(self, neuron: nn.Module, v_th: float) -> None:
        """A plain number."""
        neuron.v_threshold = v_th  # type: ignore[assignment]

    def to_rest(self, neuron: nn.Module) -> None:
        """As functional.reset_net does."""
        neuron.reset()  # type: ignore[operator]


class SnnTorch(Adapter):
    """Leaky, Synaptic, Lapicque, RLeaky, RSynaptic: one timestep a call, the surrogate called for reset and spike."""

    library = "snntorch"
    calls = 2

    def matches(self, neuron: nn.Module) -> bool:
        """Every neuron of the library."""
        return "SpikingNeuron" in _ancestors(neuron, self.library)

    def refusal(self, neuron: nn.Module) -> str | None:
        """Other dynamics; neurons without a gradient; winner-takes-all."""
        name = _named(neuron, self.library)
        known = {"Leaky", "Synaptic", "Lapicque", "RLeaky", "RSynaptic"}
        if name not in known:
            return f"snnTorch's {name} is not supported: {', '.join(sorted(known))} are"
        if neuron.surrogate_disable:
            return "surrogate_disable=True leaves it without a gradient"
        return None

    def membrane(self, neuron: nn.Module) -> Membrane:
        """`beta` is the share kept, `alpha` the share of the synaptic current."""
        n: Any = neuron
        kept: Any = n.beta.detach().clamp(0, 1)
        input_scale: Tensor | float = 1.0
        if _named(neuron, self.library) == "Lapicque":
            kept, input_scale = (1 - n.time_step / (n.R * n.C)).detach(), (n.time_step / n.C).detach()
        synaptic = _named(neuron, self.library) in ("Synaptic", "RSynaptic")
        resets: dict[str, Reset] = {"subtract": "soft", "zero": "hard", "none": "none"}
        return Membrane(
            v_th=n.threshold,
            rest=0.0,
            kept=kept,
            input_scale=input_scale,
            reset=resets[n.reset_mechanism],
            detach_reset=True,
            current_kept=n.alpha.detach().clamp(0, 1) if synaptic else None,
        )

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """The caller has the loop."""
        return None

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """`mem` is the last argument; without one the neuron uses the `mem` it kept, if its shape fits."""
        x = args[0] if args else kwargs["input_"]
        passed = kwargs.get("mem", args[-1] if len(args) > 1 else None)
        mem = neuron.mem if passed is None else passed
        return mem if isinstance(mem, Tensor) and mem.shape == x.shape else None

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """The neuron keeps what it returns."""
        mem = neuron.mem
        return mem if isinstance(mem, Tensor) else None

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """A closure, or any callable of the user."""
        return neuron.spike_grad  # type: ignore[return-value]

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """In its place."""
        replace_attribute(neuron, "spike_grad", function)

    def set_v_th(self, neuron: nn.Module, v_th: float) -> None:
        """A buffer or a parameter, which stays what it is."""
        with torch.no_grad():
            neuron.threshold.fill_(v_th)  # type: ignore[operator]

    def to_rest(self, neuron: nn.Module) -> None:
        """As utils.reset does."""
        neuron.reset_mem()  # type: ignore[operator]


class _NorseStep(nn.Module):
    """A step function of Norse that calls `spike` where it would call Norse's `threshold`.

    Norse's step functions take the surrogate by name from the neuron's parameters, so there is no function to
    replace: the step function runs here with a `threshold` of our own among its globals.
    """

    def __init__(self, step: Callable[..., Any], spike: nn.Module) -> None:
        super().__init__()
        self.step, self.spike = step, spike

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the step function."""
        step: Any = self.step
        scope = {**step.__globals__, "threshold": lambda u, method, alpha: self.spike(u)}
        own = FunctionType(step.__code__, scope, step.__name__, step.__defaults__, step.__closure__)
        return own(*args, **kwargs)


@dataclass(frozen=True)
class NorseSurrogate:
    """Norse's `threshold` with the method and alpha of a neuron's parameters."""

    threshold: Callable[..., Tensor]
    method: str
    alpha: Any

    def __call__(self, u: Tensor) -> Tensor:
        """The spikes."""
        return self.threshold(u, self.method, self.alpha)


class Norse(Adapter):
    """LIFCell, LIF, LIFRecurrentCell, LIFRecurrent, LIFBoxCell: `p.method` and `p.alpha` choose the surrogate."""

    library = "norse"

    def matches(self, neuron: nn.Module) -> bool:
        """Every spiking cell of the library."""
        names = _ancestors(neuron, self.library)
        return bool(names & {"SNN", "SNNCell", "SNNRecurrent", "SNNRecurrentCell"}) and hasattr(neuron.p, "method")

    def refusal(self, neuron: nn.Module) -> str | None:
        """Other dynamics; the adjoint methods, which have no surrogate."""
        name = _named(neuron, self.library)
        known = {"LIFCell", "LIF", "LIFRecurrentCell", "LIFRecurrent", "LIFBoxCell"}
        if name not in known:
            return f"Norse's {name} is not supported: {', '.join(sorted(known))} are"
        if neuron.p.method == "adjoint":  # type: ignore[union-attr]
            return "method='adjoint' has no surrogate function; method='super' has"
        return None

    def membrane(self, neuron: nn.Module) -> Membrane:
        """`v += dt/tau_mem (v_leak - v + i)` with the current kept by `1 - dt/tau_syn`."""
        n: Any = neuron
        p, dt = n.p, float(n.dt)
        rate: Any = dt * p.tau_mem_inv
        soft = getattr(getattr(p, "reset_method", None), "__name__", "") == "reset_subtract"
        return Membrane(
            v_th=p.v_th,
            rest=p.v_leak,
            kept=1 - rate,
            input_scale=rate,
            reset="soft" if soft else "hard",
            detach_reset="Recurrent" in _named(neuron, self.library),
            current_kept=1 - dt * p.tau_syn_inv if hasattr(p, "tau_syn_inv") else None,
        )

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """A cell takes one timestep, the others a sequence."""
        x = args[0] if args else kwargs["input_tensor"]
        return None if _named(neuron, self.library).endswith("Cell") else int(x.shape[0])

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The state is the second argument."""
        state = kwargs.get("state", args[1] if len(args) > 1 else None)
        return None if state is None else state.v

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """Returned beside the spikes."""
        v: Tensor = output[1].v
        return v

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """`threshold` as the neuron's step function calls it."""
        step: Any = neuron.activation
        step = step.step if isinstance(step, _NorseStep) else step
        p: Any = neuron.p
        return NorseSurrogate(step.__globals__["threshold"], p.method, p.alpha)

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """Into the step functions, dense and sparse; Norse's own function puts the step functions back."""
        for name in ("activation", "activation_sparse"):
            step: Any = getattr(neuron, name)
            step = step.step if isinstance(step, _NorseStep) else step
            if step is not None:
                spike = _NorseStep(step, function) if isinstance(function, nn.Module) else step
                replace_attribute(neuron, name, spike)

    def set_v_th(self, neuron: nn.Module, v_th: float) -> None:
        """A field of the parameters."""
        p: Any = neuron.p
        neuron.p = p._replace(v_th=torch.full_like(torch.as_tensor(p.v_th), v_th))

    def weights(self, neuron: nn.Module) -> list[nn.Parameter]:
        """The recurrent cells hold their synapses."""
        own = (getattr(neuron, name, None) for name in ("input_weights", "recurrent_weights"))
        return [w for w in own if isinstance(w, nn.Parameter)]


Reading = str | float | Callable[[Any], Any]


def _read(neuron: nn.Module, what: Reading) -> Any:
    if isinstance(what, str):
        return getattr(neuron, what)
    return what(neuron) if callable(what) else what


@dataclass(frozen=True)
class Registered(Adapter):
    """A neuron made known by `register_neuron`."""

    kind: type[nn.Module]
    spike: str
    v_th: Reading
    tau: Reading | None
    input_scale: Reading
    rest: Reading
    reset: Reset
    detach_reset: bool
    state: str | None
    at_rest: object = None
    calls: int = 1
    library: str = "own"

    def matches(self, neuron: nn.Module) -> bool:
        """The class and what derives from it."""
        return isinstance(neuron, self.kind)

    def membrane(self, neuron: nn.Module) -> Membrane:
        """As registered."""
        return Membrane(
            v_th=_read(neuron, self.v_th),
            rest=_read(neuron, self.rest),
            kept=None if self.tau is None else _read(neuron, self.tau),
            input_scale=_read(neuron, self.input_scale),
            reset=self.reset,
            detach_reset=self.detach_reset,
        )

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Without a state to look at, a call of the neuron is a sequence; the surrogate's calls are its steps."""
        return 0 if self.state is None else None

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The attribute, where it holds a tensor."""
        return self.state_after(neuron, None)

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """The attribute, where it holds a tensor."""
        state = getattr(neuron, self.state) if self.state is not None else None
        return state if isinstance(state, Tensor) else None

    def to_rest(self, neuron: nn.Module) -> None:
        """The attribute's value at rest."""
        if self.state is not None:
            setattr(neuron, self.state, self.at_rest)

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """The attribute."""
        return getattr(neuron, self.spike)  # type: ignore[no-any-return]

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """In its place."""
        replace_attribute(neuron, self.spike, function)

    def set_v_th(self, neuron: nn.Module, v_th: float) -> None:
        """Where the threshold was registered by the name of an attribute."""
        if not isinstance(self.v_th, str):
            super().set_v_th(neuron, v_th)
        now = getattr(neuron, str(self.v_th))
        if isinstance(now, Tensor):
            with torch.no_grad():
                now.fill_(v_th)
        else:
            setattr(neuron, str(self.v_th), v_th)


_ADAPTERS: list[Adapter] = [SpikingJelly(), SnnTorch(), Norse()]
_BY_CLASS: dict[type[nn.Module], Adapter | None] = {}


def register_neuron(
    kind: type[nn.Module],
    *,
    spike: str,
    v_th: Reading,
    tau: Reading | None = None,
    input_scale: Reading = 1.0,
    rest: Reading = 0.0,
    reset: Reset = "hard",
    detach_reset: bool = False,
    state: str | None = None,
    at_rest: float | None = None,
    calls: int = 1,
) -> None:
    """Make your own neuron known to `adapt`: any module that calls one surrogate function on `v - v_th`, once per
    timestep.

    `spike` names the attribute that holds the surrogate function; the neuron must call it as `self.<spike>(v -
    v_th)`. The others are names of attributes, numbers, or functions of the neuron: its threshold, `tau` (the share
    of the potential that is kept; without it the potential is measured, never predicted), what multiplies its
    current, and the potential at rest. `state` names the attribute that holds the potential of a neuron that is
    called once per timestep, and `at_rest` what it holds at rest, which is no tensor; leave them out where one call
    is a whole sequence. `calls` is how often the function is called per timestep; the last call makes the spikes.

    >>> class MyNeuron(nn.Module):
    ...     def __init__(self, surrogate):
    ...         super().__init__()
    ...         self.surrogate, self.v_th, self.decay = surrogate, 1.0, 0.5
    ...     def forward(self, current_TN):
    ...         v, spikes = torch.zeros_like(current_TN[0]), []
    ...         for current in current_TN:
    ...             v = self.decay * v + current
    ...             spikes.append(self.surrogate(v - self.v_th))
    ...             v = v * (1 - spikes[-1])
    ...         return torch.stack(spikes)
    >>> register_neuron(MyNeuron, spike="surrogate", v_th="v_th", tau="decay")
    """
    own = Registered(kind, spike, v_th, tau, input_scale, rest, reset, detach_reset, state, at_rest, calls)
    others = [a for a in _ADAPTERS if not (isinstance(a, Registered) and a.kind is kind)]
    _ADAPTERS[:] = [own, *others]  # first: a registered subclass of a library's neuron is read as registered
    _BY_CLASS.clear()


def adapter_of(module: nn.Module) -> Adapter | None:
    """The adapter that reads this module; None where it is no spiking neuron that we know."""
    kind = type(module)
    if kind not in _BY_CLASS:
        _BY_CLASS[kind] = next((a for a in _ADAPTERS if a.matches(module)), None)
    return _BY_CLASS[kind]
