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


def mean_of(value: Tensor | float) -> Tensor | float:
    """One number for the layer, without a gradient."""
    return value.detach().mean() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class Membrane:
    """A neuron's constants: `v_t = rest + kept (v_{t-1} - rest) + input_scale i_t`, then the spike and the reset."""

    v_th: Tensor | float
    rest: Tensor | float
    kept: Tensor | float | None
    """The share of the potential that is kept to the next step (tau in this package); None where it is not of this
    form."""
    input_scale: Tensor | float
    reset: Reset
    detach_reset: bool
    current_kept: Tensor | float | None = None
    """Where the neuron filters its current first (snnTorch's Synaptic, Norse's LIF): the share kept of the current."""

    @property
    def threshold(self) -> Tensor | float:
        """One threshold for the layer, counted from rest."""
        return mean_of(self.v_th) - mean_of(self.rest)


class Adapter:
    """How one family of neurons is read, and where its surrogate function is."""

    library = ""
    known: tuple[str, ...] = ()
    """The classes of the library that can be adapted; empty: all that match."""
    spike = ""
    """The attribute that holds the surrogate function."""
    threshold = ""
    """The attribute that holds the threshold; empty where it cannot be set."""
    state: str | None = None
    """The attribute that holds the potential between calls of one timestep."""
    argument = ""
    """The name of the current among the arguments of a call."""
    calls = 1
    """How often the neuron calls its surrogate function at each timestep; the last of them makes the spikes."""

    def matches(self, neuron: nn.Module) -> bool:
        """Whether this adapter reads that module."""
        raise NotImplementedError

    def membrane(self, neuron: nn.Module) -> Membrane:
        """Its constants as they are now."""
        raise NotImplementedError

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Timesteps of this call; None where a call is one timestep and the caller has the loop."""
        return None

    def kind(self, neuron: nn.Module) -> str:
        """The name of the nearest class of the library in the module's ancestry."""
        return next(k.__name__ for k in type(neuron).__mro__ if _library(k) == self.library)

    def refusal(self, neuron: nn.Module) -> str | None:
        """Why this one cannot be adapted, as a clause; None where it can."""
        if self.known and self.kind(neuron) not in self.known:
            return f"{self.library}'s {self.kind(neuron)} is not supported: {', '.join(self.known)} are"
        return self.setting_refused(neuron)

    def setting_refused(self, neuron: nn.Module) -> str | None:
        """A setting of a supported neuron with which its surrogate function is not called."""
        return None

    def current(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The current of a call."""
        return args[0] if args else kwargs.get(self.argument, next(iter(kwargs.values()), None))

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The potential that a call of one timestep starts from; None at rest."""
        return self.state_after(neuron, None)

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """The potential that a call of one timestep leaves."""
        state = getattr(neuron, self.state) if self.state else None
        return state if isinstance(state, Tensor) else None

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """Its surrogate function."""
        return getattr(neuron, self.spike)  # type: ignore[no-any-return]

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """Let the neuron call this function in place of its surrogate function."""
        replace_attribute(neuron, self.spike, function)

    def set_v_th(self, neuron: nn.Module, v_th: float) -> None:
        """Give it another threshold: a buffer or a parameter stays what it is."""
        if not self.threshold:
            raise InputError(f"the threshold of {type(neuron).__name__} cannot be set from outside.")
        now = getattr(neuron, self.threshold)
        if isinstance(now, Tensor):
            with torch.no_grad():
                now.fill_(v_th)
        else:
            setattr(neuron, self.threshold, v_th)

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


def _library(kind: type) -> str:
    return kind.__module__.split(".")[0]


def _ancestors(module: nn.Module, library: str) -> set[str]:
    return {k.__name__ for k in type(module).__mro__ if _library(k) == library}


class SpikingJelly(Adapter):
    """IFNode, LIFNode, ParametricLIFNode and the nodes made of SimpleBaseNode, single- and multi-step.

    With a surrogate function that is not of its library a node runs the plain steps, which call it.
    """

    library, spike, threshold, state = "spikingjelly", "surrogate_function", "v_threshold", "v"
    known = ("IFNode", "LIFNode", "ParametricLIFNode", "SimpleIFNode", "SimpleLIFNode", "SimpleBaseNode")

    def matches(self, neuron: nn.Module) -> bool:
        """Every node; those that we cannot read are refused with a reason."""
        names = _ancestors(neuron, self.library)
        return bool(names & {"BaseNode", "SimpleBaseNode"}) or ("MemoryModule" in names and hasattr(neuron, self.spike))

    def setting_refused(self, neuron: nn.Module) -> str | None:
        """Backends that do not call the surrogate function."""
        if (backend := getattr(neuron, "backend", "torch")) != "torch":
            return f"its backend {backend!r} does not call the surrogate function; set_backend(net, 'torch') first"
        if getattr(neuron, "_neuron_precision", None) is not None:
            return "a neuron with a precision of its own runs without its surrogate function; leave the precision out"
        return None

    def membrane(self, neuron: nn.Module) -> Membrane:
        """`tau` is a time constant here: 1 - 1/tau is kept. It also divides the current where `decay_input` is set."""
        n: Any = neuron
        leaks: dict[str, Callable[[], Tensor | float]] = {
            "ParametricLIFNode": lambda: n.w.detach().sigmoid(),
            "LIFNode": lambda: 1 / mean_of(n.tau),
            "SimpleLIFNode": lambda: 1 / mean_of(n.tau),
            "IFNode": lambda: 0.0,
            "SimpleIFNode": lambda: 0.0,
        }
        kind = self.kind(neuron)
        leak = leaks[kind]() if kind in leaks else None
        decays = leak is not None and getattr(n, "decay_input", False)
        return Membrane(
            v_th=n.v_threshold,
            rest=0.0 if n.v_reset is None else n.v_reset,
            kept=None if leak is None else 1 - leak,
            input_scale=leak if decays else 1.0,  # type: ignore[arg-type]
            reset="soft" if n.v_reset is None else "hard",
            detach_reset=bool(n.detach_reset),
        )

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """step_mode 'm': the first axis is time."""
        return int(self.current(args, kwargs).shape[0]) if neuron.step_mode == "m" else None

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """`v` is a number after reset(); a v of another shape is thrown away by the node."""
        v = self.state_after(neuron, None)
        return v if v is not None and v.shape == self.current(args, kwargs).shape else None

    def to_rest(self, neuron: nn.Module) -> None:
        """As functional.reset_net does."""
        neuron.reset()  # type: ignore[operator]


class SnnTorch(Adapter):
    """Leaky, Synaptic, Lapicque, RLeaky, RSynaptic: one timestep a call, the surrogate called for reset and spike."""

    library, spike, threshold, state, argument = "snntorch", "spike_grad", "threshold", "mem", "input_"
    known = ("Lapicque", "Leaky", "RLeaky", "RSynaptic", "Synaptic")
    calls = 2

    def matches(self, neuron: nn.Module) -> bool:
        """Every neuron of the library."""
        return "SpikingNeuron" in _ancestors(neuron, self.library)

    def setting_refused(self, neuron: nn.Module) -> str | None:
        """A neuron without a gradient."""
        return "surrogate_disable=True leaves it without a gradient" if neuron.surrogate_disable else None

    def membrane(self, neuron: nn.Module) -> Membrane:
        """`beta` is the share kept, `alpha` the share of the synaptic current."""
        n: Any = neuron
        kept: Any = n.beta.detach().clamp(0, 1)
        input_scale: Tensor | float = 1.0
        if self.kind(neuron) == "Lapicque":
            kept, input_scale = (1 - n.time_step / (n.R * n.C)).detach(), (n.time_step / n.C).detach()
        resets: dict[str, Reset] = {"subtract": "soft", "zero": "hard", "none": "none"}
        return Membrane(
            v_th=n.threshold,
            rest=0.0,
            kept=kept,
            input_scale=input_scale,
            reset=resets[n.reset_mechanism],
            detach_reset=True,
            current_kept=n.alpha.detach().clamp(0, 1) if "Synaptic" in self.kind(neuron) else None,
        )

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """`mem` is the last argument; without one the neuron uses the `mem` it kept, if its shape fits."""
        passed = kwargs.get("mem", args[-1] if len(args) > 1 else None)
        mem = self.state_after(neuron, None) if passed is None else passed
        return mem if mem is not None and mem.shape == self.current(args, kwargs).shape else None

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

    library, argument = "norse", "input_tensor"
    known = ("LIF", "LIFBoxCell", "LIFCell", "LIFRecurrent", "LIFRecurrentCell")

    def matches(self, neuron: nn.Module) -> bool:
        """Every spiking cell of the library."""
        names = _ancestors(neuron, self.library)
        return bool(names & {"SNN", "SNNCell", "SNNRecurrent", "SNNRecurrentCell"}) and hasattr(neuron.p, "method")

    def setting_refused(self, neuron: nn.Module) -> str | None:
        """The adjoint methods."""
        p: Any = neuron.p
        return "method='adjoint' has no surrogate function; method='super' has" if p.method == "adjoint" else None

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
            detach_reset="Recurrent" in self.kind(neuron),
            current_kept=1 - dt * p.tau_syn_inv if hasattr(p, "tau_syn_inv") else None,
        )

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """A cell takes one timestep, the others a sequence."""
        return None if self.kind(neuron).endswith("Cell") else int(self.current(args, kwargs).shape[0])

    def state_before(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The state is the second argument."""
        state = kwargs.get("state", args[1] if len(args) > 1 else None)
        return None if state is None else state.v

    def state_after(self, neuron: nn.Module, output: Any) -> Tensor | None:
        """Returned with the spikes."""
        v: Tensor = output[1].v
        return v

    def function(self, neuron: nn.Module) -> SpikeFunction:
        """`threshold` as the neuron's step function calls it."""
        p: Any = neuron.p
        return NorseSurrogate(_own_step(neuron.activation).__globals__["threshold"], p.method, p.alpha)

    def put(self, neuron: nn.Module, function: SpikeFunction) -> None:
        """Into the step functions, dense and sparse; Norse's own function puts the step functions back."""
        for name in ("activation", "activation_sparse"):
            if (step := _own_step(getattr(neuron, name))) is not None:
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


def _own_step(step: Any) -> Any:
    return step.step if isinstance(step, _NorseStep) else step


Reading = str | float | Callable[[Any], Any]


def _value(neuron: nn.Module, what: Reading) -> Any:
    if isinstance(what, str):
        return getattr(neuron, what)
    return what(neuron) if callable(what) else what


class Registered(Adapter):
    """A neuron made known by `register_neuron`, with its arguments."""

    library = "own"

    def __init__(self, cls: type[nn.Module], readings: dict[str, Reading], at_rest: object, **fixed: Any) -> None:
        self.cls, self.readings, self.at_rest = cls, readings, at_rest
        self.reset, self.detach_reset = fixed["reset"], fixed["detach_reset"]
        self.spike, self.state, self.calls = fixed["spike"], fixed["state"], fixed["calls"]
        self.threshold = readings["v_th"] if isinstance(readings["v_th"], str) else ""

    def matches(self, neuron: nn.Module) -> bool:
        """The class and what derives from it."""
        return isinstance(neuron, self.cls)

    def membrane(self, neuron: nn.Module) -> Membrane:
        """As registered."""
        values = {name: _value(neuron, what) for name, what in self.readings.items()}
        return Membrane(**{"kept": None} | values, reset=self.reset, detach_reset=self.detach_reset)

    def steps(self, neuron: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Without a state to look at, a call of the neuron is a sequence; the surrogate's calls are its steps."""
        return 0 if self.state is None else None

    def to_rest(self, neuron: nn.Module) -> None:
        """The attribute's value at rest."""
        if self.state is not None:
            setattr(neuron, self.state, self.at_rest)


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
    readings = {"v_th": v_th, "input_scale": input_scale, "rest": rest} | ({} if tau is None else {"kept": tau})
    fixed = {"spike": spike, "reset": reset, "detach_reset": detach_reset, "state": state, "calls": calls}
    others = [a for a in _ADAPTERS if not (isinstance(a, Registered) and a.cls is kind)]
    # first: a registered subclass of a library's neuron is read as registered
    _ADAPTERS[:] = [Registered(kind, readings, at_rest, **fixed), *others]
    _BY_CLASS.clear()


def adapter_of(module: nn.Module) -> Adapter | None:
    """The adapter that reads this module; None where it is no spiking neuron that we know."""
    kind = type(module)
    if kind not in _BY_CLASS:
        _BY_CLASS[kind] = next((a for a in _ADAPTERS if a.matches(module)), None)
    return _BY_CLASS[kind]


def read(neuron: nn.Module) -> Adapter:
    """The adapter of a neuron that is known to have one."""
    adapter = adapter_of(neuron)
    assert adapter is not None
    return adapter
