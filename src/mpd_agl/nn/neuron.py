"""Neurons as thin modules. A call starts at rest unless a state is passed in: nothing to reset, nothing to leak.

A neuron takes a current with time first, of any rank: (T, N, F), (T, N, C, H, W), tokens (T, N, L, C), sequences (T, N,
C, L). Alone, it sets the width of its surrogate by the rule of its method, from moments of its potential that it
measures while training. In a `SpikingBlock`, the block sets the width from the norm before the neuron.

A neuron with equations of its own overrides `run`, and nothing else: kernels then leave it alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mpd_agl.core import RESETS, Surrogate, get_surrogate, lif
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.called import called_as_module, in_backward
from mpd_agl.nn.methods import Method, get_method
from mpd_agl.nn.potential import Affine, MeasuredMoments, Potential, PotentialSums
from mpd_agl.nn.width import Width, checked_rule, widths_of
from mpd_agl.ops import (
    BACKENDS,
    LOCAL,
    CurrentMap,
    NeuronSpec,
    StepInput,
    StepOutput,
    Sync,
    Widths,
    fused_step,
    probe,
)

Reset = Literal["hard", "soft"]


class Carried:
    """The state of one call of `with_state`: passed in, and replaced by what the neurons kept."""

    def __init__(self, state: Tensor | None) -> None:
        self.state = state


class Observed(NamedTuple):
    """What a neuron's watchers see of one call (`Neuron.watch`)."""

    step: StepInput
    current: CurrentMap | None
    """The norm between `step.x` and the neuron, as it was applied; None: x is the current."""
    output: StepOutput


class Neuron(nn.Module):
    """What LIF and PLIF share: `v_t = tau kept_{t-1} + i_t`, `s_t = (v_t >= v_th)`, and what is kept of v_t after the
    reset (Eq. 2-3).

    `reset="hard"` keeps `v_t (1 - s_t)`, `"soft"` keeps `v_t - v_th s_t`. `decay_input` takes `(1 - tau) i_t` in place
    of i_t, as SpikingJelly's neurons do by default. `tau` and `v_th` are numbers, or one per channel (the axis
    `channel_dim` of the current); `learn_v_th` makes the threshold a parameter. `method` brings the width rule and,
    where it has one, the surrogate.
    """

    tau: Tensor
    v_th: Tensor | float
    height: Tensor | float = 1.0
    """What the neuron gives where it fires."""
    sync: Sync = LOCAL
    """The processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(
        self,
        *,
        method: str | Method | None = None,
        width: Width | None = None,
        tau: float | Sequence[float] | Tensor = 0.2,
        v_th: float | Sequence[float] | Tensor = 0.5,
        learn_v_th: bool = False,
        surrogate: str | Surrogate | None = None,
        reset: Reset = "hard",
        decay_input: bool = False,
        detach_reset: bool = False,
        channel_dim: int = 2,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if method is not None:
            found = get_method(method)
            if found.replaces_neuron:
                raise InputError(
                    f"method {found.name!r} is a neuron of its own, got {type(self).__name__}(method={found.name!r}). "
                    f"Use m = get_method({found.name!r}); m.neuron(width=m.width()), or "
                    f"SpikingBlock(synapse, method={found.name!r})."
                )
            width, surrogate = width or found.width(), found.surrogate_with(surrogate)
        if reset not in RESETS:
            raise unknown_name("reset", reset, RESETS)
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        self.reset, self.decay_input, self.detach_reset = reset, decay_input, detach_reset
        self.channel_dim, self.backend = channel_dim, backend
        self.surrogate: Surrogate = get_surrogate(surrogate or "rectangular")
        self._set_threshold(v_th, learn_v_th)
        self._set_decay(_checked_decay(tau))
        self.width = None if width is None else checked_rule(width)
        measures = width is not None and width.needs == "moments"
        self.measured: MeasuredMoments | None = MeasuredMoments() if measures else None
        self._watchers: OrderedDict[int, Callable[[Observed], None]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_watchers": OrderedDict()}  # a copy or a pickle of a watched network is not watched

    def _set_threshold(self, v_th: float | Sequence[float] | Tensor, learn: bool) -> None:
        """Keep the threshold as a number, a buffer (one per channel) or a parameter."""
        values = checked_threshold(v_th)
        if learn:
            self.v_th = nn.Parameter(torch.tensor(values.tolist()))
        elif values.dim():
            self.register_buffer("v_th", torch.tensor(values.tolist()))
        else:
            self.v_th = float(v_th)  # type: ignore[arg-type]

    def _set_decay(self, tau: Tensor) -> None:
        """Keep the decay as the neuron's own kind: a buffer or a parameter."""
        raise InputError("Neuron is the base of LIF and PLIF; use one of them.")

    def constants(self) -> NeuronSpec:
        """The neuron's values as they are now, with their gradients."""
        self.check_threshold()
        return NeuronSpec(
            tau=self.tau,
            v_th=self.v_th,
            reset=self.reset,
            decay_input=self.decay_input,
            detach_reset=self.detach_reset,
            surrogate=self.surrogate,
            channel_dim=self.channel_dim,
            backend=self.backend,
        )

    @property
    def has_own_equations(self) -> bool:
        """Whether its class, or the object itself, computes in another way than this class does."""
        return any(
            name in vars(self) or getattr(type(self), name) is not getattr(Neuron, name) for name in ("run", "forward")
        )

    def spec(self) -> NeuronSpec | None:
        """The values by which a kernel computes this neuron; None where it must be run or called itself."""
        return None if self.has_own_equations or called_as_module(self) else self.constants()

    def portable(self) -> NeuronSpec:
        """The values that describe the neuron in a plan or a file of another format; an error if none do."""
        if self.has_own_equations:
            raise InputError(
                f"plans and export formats know the equations of LIF and PLIF, got {type(self).__name__}, which has "
                "its own. Use the network in Python."
            )
        return self.constants()

    def for_inference(self) -> tuple["Neuron", Tensor | None]:
        """What `fold` puts in this neuron's place: a neuron, and signs by which the synapse's channels are turned."""
        return self, None

    def affines(self) -> list[Affine] | None:
        """The norm that the neuron applies to its potential itself; None: the norms before it say what is known."""
        return None

    def check_threshold(self, *, wait: bool = False) -> None:
        """Refuse a learnt threshold that is no longer positive: at every call on a CPU, elsewhere where a caller waits
        for the device anyway (`wait`).
        """
        v_th = self.v_th
        if not isinstance(v_th, Tensor) or torch.compiler.is_compiling():
            return
        if (v_th.device.type == "cpu" or wait) and not bool((v_th > 0).all()):
            raise InputError(
                f"training drove a threshold below zero, to {float(v_th.detach().min()):.4g}. Use a smaller --optim.lr "
                "or no weight decay on it (--optim.decay_on weights)."
            )

    def run(self, step: StepInput) -> StepOutput:
        """T steps by this neuron's equations; `step.x` is the current."""
        return fused_step(None, self.constants(), step)

    def potentials(self, step: StepInput) -> Tensor:
        """v_t before reset of all T steps: for rules and monitors that need more than sums."""
        if self.has_own_equations:
            raise InputError(
                f"the potentials of {type(self).__name__} are asked for, and it has equations of its own. "
                "Write its potentials(step), or return StepDetails(potentials) from run."
            )
        return lif_potentials(self.constants(), step)

    @torch.no_grad()
    def sums(self, step: StepInput, current: CurrentMap | None = None) -> PotentialSums:
        """Sums of the potentials of this call, in this process."""
        if self.has_own_equations:
            if current is not None:
                raise InputError("the potentials of a neuron with equations of its own are measured on its current.")
            return PotentialSums.of(self.potentials(step))
        ones_T = torch.ones(step.num_steps, device=step.x.device)
        sums_T6 = probe(step.x, current, self.constants(), ones_T, step.state)
        return PotentialSums(step.x[0].numel(), sums_T6[:, 2], sums_T6[:, 3])

    def potential(
        self,
        step: StepInput,
        affines: Sequence[Affine] | None = None,
        current: Callable[[], CurrentMap | None] = lambda: None,
    ) -> Potential:
        """What a width rule may know of this call's potentials; `current` is the norm between `step.x` and here."""

        def sums() -> PotentialSums:
            return self.sums(step, current())

        measured, carried = None, step.state is not None
        if self.measured is not None and not affines:
            measured = lambda: self._measured_moments(step.num_steps, sums, carried)  # noqa: E731
        return Potential(
            num_steps=step.num_steps,
            neuron=self.constants(),
            affines=affines,
            carried=carried,
            measured=measured,
            sums=lambda: sums().shared(self.sync if self.training else LOCAL),
        )

    def _measured_moments(
        self, num_steps: int, sums: Callable[[], PotentialSums], carried: bool
    ) -> tuple[Tensor, Tensor]:
        """mean_T and std_T of the potential: the running ones, brought up to date where it is time to.

        They are measured on sequences that start at rest: where a sequence comes in pieces, on its first piece.
        Evaluation and a checkpoint's second pass measure nothing. A compiled graph would freeze the count of calls, so
        in training it takes the current batch's own.
        """
        measured = self.measured
        assert measured is not None
        compiling = torch.compiler.is_compiling()
        if not self.training or in_backward() or carried or compiling:
            if measured.known and not (compiling and self.training):
                return measured.moments(num_steps)
            mean_T, var_T = sums().shared(self.sync if self.training else LOCAL).moments()  # this batch's own
            return mean_T.float(), var_T.sqrt().float()
        if measured.is_due(num_steps):
            measured.update(sums())
        return measured.moments(num_steps)

    def own_widths(self, step: StepInput) -> Widths:
        """By the neuron's own rule; 1 without a rule, and where no width is wanted: in evaluation without gradients.

        Training without gradients is the first pass of a reentrant checkpoint; moments are measured there.
        """
        if self.width is None or not (self.training or torch.is_grad_enabled()):
            return Widths(torch.ones(step.num_steps, device=step.x.device))
        return widths_of(self.width, self.potential(step))

    def forward(
        self,
        i_SNC: Tensor,
        widths: Widths | None = None,
        *,
        num_steps: int | None = None,
        residual: Tensor | None = None,
        carried: Carried | None = None,
    ) -> Tensor:
        """Spikes for a current of T steps, or of one step that is the same at all `num_steps`; `residual` is added.

        Without `widths` the neuron's own rule gives them. `carried` is `with_state`'s.
        """
        T = num_steps if num_steps is not None else i_SNC.shape[0] if widths is None else widths.kappa_T.shape[0]
        state = None if carried is None else carried.state
        step = StepInput(i_SNC, T, widths, residual, state, want_state=carried is not None)
        if widths is None:
            step = step._replace(widths=self.own_widths(step))
        output = self.run(step)
        self.show(step, None, output)
        if carried is not None:
            carried.state = output.state
        return output.spikes

    def with_state(
        self, i_SNC: Tensor, state: Tensor | None, *, num_steps: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Spikes, and what the neurons keep after the last step, to be passed into the next call; None starts at rest.

        >>> neuron = LIF(tau=0.5)
        >>> spikes, state = neuron.with_state(torch.full((2, 1, 1), 0.3), None)
        >>> neuron.with_state(torch.full((1, 1, 1), 0.3), state)[0].flatten()
        tensor([1.])
        """
        carried = Carried(state)
        return self(i_SNC, num_steps=num_steps, carried=carried), carried.state

    def step(self, i_NC: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """One timestep, for recurrent networks and streams: `s, state = neuron.step(i, state)`; None starts at rest.

        >>> neuron, state = LIF(tau=0.5), None
        >>> for current in (0.4, 0.4):
        ...     s, state = neuron.step(torch.full((1, 1), current), state)
        >>> float(s), float(state)
        (1.0, 0.0)
        """
        spikes_1NC, state = self.with_state(i_NC.unsqueeze(0), state)
        return spikes_1NC[0], state

    def watch(self, see: Callable[[Observed], None]) -> RemovableHandle:
        """Call `see` after each call of this neuron, until the handle is removed."""
        handle = RemovableHandle(self._watchers)
        self._watchers[handle.id] = see
        return handle

    @property
    def is_watched(self) -> bool:
        """Whether anything watches."""
        return bool(self._watchers)

    def show(self, step: StepInput, current: CurrentMap | None, output: StepOutput) -> None:
        """Let the watchers see a call, once: not in a checkpoint's second pass."""
        if self._watchers and not in_backward():
            for see in list(self._watchers.values()):
                see(Observed(step, current, output))

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        tau, v_th = (_shown(a) for a in (self.tau, self.v_th))
        more = [f"reset={self.reset}"] * (self.reset != "hard") + ["decay_input"] * self.decay_input
        return ", ".join([f"tau={tau}", f"v_th={v_th}", f"surrogate={self.surrogate.name}", *more])


def lif_potentials(constants: NeuronSpec, step: StepInput) -> Tensor:
    """v_t before reset of all T steps, of a neuron with the equations of a LIF."""
    c, i_TNC = constants, step.currents()
    dynamics = {"v_th": c.v_th, "reset": c.reset, "decay_input": c.decay_input, "channel_dim": c.channel_dim}
    found = lif(i_TNC, c.tau, i_TNC.new_ones(step.num_steps), state=step.state, **dynamics)  # type: ignore[arg-type]
    return found[1].detach()


def _shown(value: Tensor | float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    value = value.detach()
    return f"{float(value):.3f}" if value.dim() == 0 else f"{float(value.min()):.3f}..{float(value.max()):.3f}"


def _numbers(value: float | Sequence[float] | Tensor) -> Tensor:
    """In float64 on the CPU, to be checked; a network may be built on another device, or on none (`meta`)."""
    return torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()


def checked_threshold(v_th: float | Sequence[float] | Tensor) -> Tensor:
    """One threshold or one per channel, all positive."""
    values = _numbers(v_th)
    if values.dim() > 1 or not bool((values > 0).all() and torch.isfinite(values).all()):
        raise InputError(f"v_th must be positive, one number or one per channel, got {v_th}. The paper uses 0.5.")
    return values


def _checked_decay(tau: float | Sequence[float] | Tensor) -> Tensor:
    values = _numbers(tau)
    if values.dim() > 1 or not bool(((values > 0) & (values <= 1)).all()):
        raise InputError(
            f"tau, the share of the potential that is kept, must lie between 0 and 1, got {tau}. The paper uses 0.2."
        )
    return values


class LIF(Neuron):
    """Leaky integrate-and-fire with a fixed decay (Eq. 2-3); tau = 1 does not leak.

    `method` brings the width rule; the decay stays fixed, whatever the method's own neuron is.

    >>> LIF(method="mpd-agl")(torch.randn(4, 2, 8)).shape
    torch.Size([4, 2, 8])
    """

    def _set_decay(self, tau: Tensor) -> None:
        self.register_buffer("tau", torch.tensor(tau.tolist()))


class PLIF(Neuron):
    """LIF with a learnable decay per layer, or per channel: `tau = sigmoid(rho)` (Eq. 8; Fang et al. 2021)."""

    def _set_decay(self, tau: Tensor) -> None:
        if not bool((tau < 1).all()):
            raise InputError(
                f"a learnable tau must lie between 0 and 1, got {_shown(tau)}: sigmoid(rho) never reaches 1. Use LIF."
            )
        self.rho = nn.Parameter(torch.tensor(torch.log(tau / (1 - tau)).tolist()))

    @property
    def tau(self) -> Tensor:  # type: ignore[override]
        """The decay, `sigmoid(rho)`: what is kept of the potential from one step to the next."""
        return torch.sigmoid(self.rho)
