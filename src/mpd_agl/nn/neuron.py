"""Neurons as thin modules. A call starts at rest unless a state is passed in: nothing to reset, nothing to leak.

A neuron takes a current with time first, of any rank: (T, N, F), (T, N, C, H, W), tokens (T, N, L, C), sequences (T, N,
C, L). It sets the width of its surrogate itself, by the rule of its method, from the moments of its potential
(`nn.moments`): predicted from the norm before it where a `SpikingBlock` knows that norm, measured while training where
the neuron stands alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mpd_agl import ops
from mpd_agl.core import RESETS, Surrogate, along_channels, get_surrogate, lif, noisy_spike
from mpd_agl.core.mpd import Leak, Moments
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.moments import (
    CAPACITY,
    Affine,
    MeasuredMoments,
    Potential,
    PotentialSums,
    moments_of,
    predicted,
)
from mpd_agl.nn.width import Width

Reset = Literal["hard", "soft"]
STARTS = ("rest", "mp-init")

NOT_ASKED: Any = object()
"""Stands for a state that the caller did not ask for; None is a state: rest."""

LONG_PAST = 1000
"""Steps that the whole leak sum takes as lying behind a state: by then it has its limit, up to tau = 0.99."""

MEASURE_EVERY = 10
"""Training calls between two measurements of the potential's moments.

A measurement is one more pass over the current, so it adds a tenth of a pass to each call.
"""


@dataclass(frozen=True)
class Pass:
    """What a neuron's watchers see of one forward pass (`Neuron.watchers`)."""

    x_SNC: Tensor
    """What the current is made from: the synapse's output before the norm, or the current itself."""
    current_map: tuple[Tensor, Tensor, Tensor] | None
    """mean_C, scale_C, beta_C of the current `i = (x - mean) scale + beta`; None: x is the current."""
    kappa_T: Tensor
    """One per timestep; without gradients there is no width, and these are ones."""
    has_width: bool
    """Whether the pass computed its widths: with gradients."""
    v_TNC: Tensor | None = None
    """The potentials, where the pass had them at hand (by the written equations); else they follow from the current."""
    kept_0: Tensor | None = None
    """The state that the pass started from; None: rest."""
    theta_T: Tensor | None = None
    """The thresholds of a neuron that has one per timestep (DS-ATGO); elsewhere it is the neuron's v_th."""


def potential_of(
    neuron: nn.Module,
    num_steps: int,
    affines: Sequence[Affine] = (),
    observe: Callable[[], PotentialSums] | None = None,
    *,
    needs_batch: bool = False,
    carried: bool = False,
) -> Potential:
    """What a width rule may know of a neuron's potential.

    Its moments are predicted from the norms' `affines`, or else measured.

    `neuron` is any module with `tau` and `v_th`. `observe` gives the sums of the potentials of the batch at hand; it is
    called where a rule needs that batch, and now and then while training to keep the measured moments. `carried`: the
    neuron goes on from a state, so its first step here is not the first of its sequence.
    """
    tau = torch.as_tensor(neuron.tau)

    found: dict[Moments, tuple[Tensor, Tensor]] = {}

    def moments(kind: Moments) -> tuple[Tensor, Tensor]:
        # A rule may ask twice, for the width and for the gain; a measurement counts once.
        if kind not in found:
            found[kind] = compute(kind)
        return found[kind]

    def compute(kind: Moments) -> tuple[Tensor, Tensor]:
        if affines:
            scale = 1 - tau.detach().mean() if getattr(neuron, "decay_input", False) else 1.0
            leak: Leak = getattr(neuron, "leak", "two")
            # A state does not tell how many steps lie behind it: the whole sum is then taken over many.
            past = 0 if not carried else 1 if leak == "two" else LONG_PAST
            mean_T, std_T = predicted(affines, tau, num_steps + past, kind, input_scale=scale, leak=leak)
            return mean_T[past:], std_T[past:]
        if not isinstance(neuron, Neuron) or neuron.measured is None:
            raise InputError(
                "this width rule needs the moments of the potential, and there is no norm before the neuron to predict "
                "them from. Use SpikingBlock(synapse, norm=...), or give the neuron its method: LIF(method='mpd-agl')."
            )
        return neuron.measure(neuron.measured, num_steps, observe, carried=carried)

    batch = observe() if needs_batch and observe is not None else None
    surrogate = getattr(neuron, "surrogate", None) or get_surrogate("rectangular")
    return Potential(num_steps, neuron.v_th, tau, moments, batch, surrogate)  # type: ignore[arg-type]


class Neuron(nn.Module):
    """What LIF and PLIF share: `v_t = tau kept_{t-1} + i_t`, `s_t = (v_t >= v_th)`, and what is kept of v_t after the
    reset (Eq. 2-3).

    `reset="hard"` keeps `v_t (1 - s_t)`, `"soft"` keeps `v_t - v_th s_t`. `decay_input` takes `(1 - tau) i_t` in place
    of i_t, as SpikingJelly's neurons do by default. `tau` and `v_th` are numbers, or one per channel (the axis
    `channel_dim` of the current); `learn_v_th` makes the threshold a parameter. `method` brings the width rule and,
    where it has one, the surrogate.

    `start="mp-init"` (Kook et al., WACV 2026) starts each sequence at one potential m per layer in place of rest:
    after a training batch `m <- 0.9 m + 0.1 mean(kept_T)` over the neurons that fired. `gain` multiplies the
    surrogate's height. `drop` is what a soft reset takes off in place of v_th. `scaled` gives `v_th s_t` as output.
    """

    tau: Tensor
    v_th: Tensor | float
    leak: Leak = "two"
    """Terms of the leak sum in predicted moments: Theorem 2's two, or `full` for all of them."""
    replicas: ops.Replicas | None = None
    """Processes that hold the other parts of each training batch; set by `share_batch`."""
    repeating = False
    """True while a forward pass is computed a second time (see `nn.recompute`)."""
    start: Tensor | None
    """Where a sequence starts, a buffer; None: at rest."""

    def __init__(
        self,
        *,
        method: Any = None,
        width: Width | None = None,
        tau: float | Sequence[float] | Tensor = 0.2,
        v_th: float | Sequence[float] | Tensor = 0.5,
        learn_v_th: bool = False,
        surrogate: str | Surrogate | None = None,
        reset: Reset = "hard",
        decay_input: bool = False,
        detach_reset: bool = False,
        noise: float = 0.0,
        start: str = "rest",
        gain: float = 1.0,
        drop: float | None = None,
        scaled: bool = False,
        channel_dim: int = 2,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if method is not None:
            from mpd_agl.nn.methods import get_method  # a method names a neuron class of this file

            found = get_method(method)
            if found.replaces_neuron:
                raise InputError(
                    f"method {found.name!r} is a neuron of its own, got {type(self).__name__}(method={found.name!r}). "
                    f"Use get_method({found.name!r}).neuron(), or SpikingBlock(synapse, method={found.name!r})."
                )
            width, surrogate, noise = width or found.width(), found.surrogate_with(surrogate), found.noise or noise
        if reset not in RESETS:
            raise unknown_name("reset", reset, RESETS)
        if not 0 <= noise < 1:
            raise InputError(
                f"noise, the share of soft outputs while training, must lie in [0, 1), got {noise}. "
                "ASGL uses 0.1 to 0.2."
            )
        if start not in STARTS:
            raise unknown_name("start", start, STARTS)
        if drop is not None and reset != "soft":
            raise InputError(f"drop={drop} is what a soft reset takes off, got reset={reset!r}. Use reset='soft'.")
        if backend not in ops.BACKENDS:
            raise unknown_name("backend", backend, ops.BACKENDS)
        self.reset, self.decay_input, self.detach_reset = reset, decay_input, detach_reset
        self.noise, self.channel_dim, self.backend = noise, channel_dim, backend
        self.gain, self.drop, self.scaled = gain, drop, scaled
        self.register_buffer("start", torch.zeros(()) if start == "mp-init" else None)
        self.surrogate: Surrogate = get_surrogate(surrogate or "rectangular")
        self._set_threshold(v_th, learn_v_th)
        self._set_decay(_checked_decay(tau))
        self.width = width
        asks = width is not None and width.reads_moments
        self.measured: MeasuredMoments | None = MeasuredMoments() if asks else None
        self.watchers: list[Callable[[Pass], None]] = []
        self._sequences = 0

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle of a watched network is not watched.
        return {**self.__dict__, "watchers": []}

    def show(self, seen: Pass) -> None:
        """Let the watchers see a forward pass, once."""
        if not self.repeating:
            for watcher in self.watchers:
                watcher(seen)

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

    @property
    def is_noisy(self) -> bool:
        """Whether this call's output is ASGL's mixture of hard and soft spikes."""
        return self.training and self.noise > 0

    @property
    def is_written(self) -> bool:
        """Whether `core.lif` computes this call, since the kernels do not know it."""
        return self.is_noisy or self.drop is not None

    @property
    def is_fused(self) -> bool:
        """Whether `kernels` computes this neuron.

        Not while it is noisy, not with a `drop`, and not where a subclass has its own `forward`.
        """
        return type(self).forward is Neuron.forward and not self.is_written

    @property
    def oddity(self) -> str:
        """What this neuron does that no inference plan and no file format knows; empty where there is nothing."""
        if self.drop is not None:
            return f"takes {self.drop:g} off at a reset, as method mpr does"
        if self.scaled:
            return "gives v_th where it fires, as method trsg does"
        return "" if self.start is None else "starts at a learnt potential (start='mp-init')"

    def check_threshold(self, *, wait: bool = False) -> None:
        """Refuse a learnt threshold that is no longer positive: at every call on a CPU, elsewhere where a caller waits
        for the device anyway (`wait`).
        """
        v_th = self.v_th
        if not isinstance(v_th, Tensor) or torch.compiler.is_compiling():
            return
        if v_th.device.type != "cpu" and not wait:
            return
        if not bool((v_th > 0).all()):
            raise InputError(
                f"training drove a threshold to {float(v_th.detach().min()):.4g}, and a neuron that fires at rest "
                "tells nothing. Use a smaller --optim.lr or no weight decay on it (--optim.decay_on weights), or "
                "method trsg, whose threshold stays positive."
            )

    def beginning(self, x_SNC: Tensor) -> Tensor | None:
        """What a call keeps before its first step if it was passed no state: None at rest."""
        if self.start is None:
            return None
        if self.repeating:
            raise InputError(
                "start='mp-init' moves with every training pass, so a second pass would start elsewhere. "
                "Use it without recompute."
            )
        dtype = torch.promote_types(x_SNC.dtype, torch.float32)
        return self.start.to(dtype, copy=True).expand(x_SNC.shape[1:])

    def call_options(self, num_steps: int, gain_T: Tensor | None = None) -> dict[str, Any]:
        """What the kernels are told beside `dynamics`; `gain_T` are the width rule's factors on the height."""
        if self.gain != 1:
            own_T = self.tau.new_full((num_steps,), self.gain)
            gain_T = own_T if gain_T is None else gain_T * own_T
        gain = {} if gain_T is None else {"gain_T": gain_T}
        return {"surrogate": self.surrogate, "backend": self.backend, **gain}

    @torch.no_grad()
    def learn_start(self, s_TNC: Tensor, kept_NC: Tensor) -> None:
        """`m <- 0.9 m + 0.1 mean(kept_T)` over the neurons that fired at any step; `s_TNC` without a residual."""
        if self.start is None or not self.training:
            return
        fired = (s_TNC >= 0.5).any(0)  # the greater half of ASGL's soft outputs
        both = torch.stack([torch.where(fired, kept_NC.double(), 0.0).sum(), fired.sum().double()])
        total, count = both if self.replicas is None else self.replicas.sum(both)
        self.start.lerp_((total / count.clamp_min(1)).to(self.start), 0.1)

    def dynamics(self) -> dict[str, Any]:
        """The neuron's equations as keyword arguments of `core.lif` and of `kernels`."""
        return {
            "v_th": self.v_th,
            "reset": self.reset,
            "decay_input": self.decay_input,
            "detach_reset": self.detach_reset,
            "channel_dim": self.channel_dim,
        }

    def measure(
        self,
        measured: MeasuredMoments,
        num_steps: int,
        observe: Callable[[], PotentialSums] | None,
        *,
        carried: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """mean_T and std_T of the potential: the running ones, brought up to date where it is time to.

        They are measured on sequences that start at rest. Where a sequence comes in pieces, what its first piece
        measured stands for all; evaluation and the second pass of `recompute` measure nothing.
        """
        # A compiled graph would freeze the count of sequences, so there the batch at hand is measured until moments
        # are known.
        still = not self.training or self.repeating or torch.compiler.is_compiling()
        if still or carried or observe is None:
            if measured.known or observe is None:
                return measured.moments(num_steps=num_steps)
            mean_T, var_T = moments_of(observe())  # nothing was measured yet: this batch's own
            return mean_T.float(), var_T.sqrt().float()
        if measured.known < min(num_steps, CAPACITY) or self._sequences % MEASURE_EVERY == 0:
            measured.update_sums(observe())
        self._sequences += 1
        return measured.moments(num_steps=num_steps)

    @torch.no_grad()
    def observe(self, i_SNC: Tensor, num_steps: int, kept_0: Tensor | None = None) -> PotentialSums:
        """The sums of the potentials that a current gives (`ops.probe`, which knows no `drop`)."""
        if self.drop is not None:
            i_TNC = i_SNC.expand(num_steps, *i_SNC.shape[1:]).to(torch.promote_types(i_SNC.dtype, torch.float32))
            ones_T = i_TNC.new_ones(num_steps)
            v_TM = lif(i_TNC, self.tau, ones_T, drop=self.drop, kept_0=kept_0, **self.dynamics())[1].flatten(1).double()
            return PotentialSums(v_TM.shape[1], v_TM.sum(1), v_TM.square().sum(1))
        axis = self.channel_axis(i_SNC)
        C = i_SNC.shape[axis]
        zero_C, one_C, one_T = i_SNC.new_zeros(C), i_SNC.new_ones(C), i_SNC.new_ones(num_steps)
        options = {**self.probed(), "channel_dim": axis, "kept_0": kept_0, "backend": self.backend}
        sums_T6 = ops.probe(i_SNC, zero_C, one_C, zero_C, self.tau, one_T, **options)
        return PotentialSums(i_SNC[0].numel(), sums_T6[:, 2], sums_T6[:, 3])

    def channel_axis(self, i_SNC: Tensor) -> int:
        """The channel axis of a current; the last one where it has none, as all neurons then share their constants."""
        missing = not -i_SNC.dim() <= self.channel_dim < i_SNC.dim()
        return i_SNC.dim() - 1 if missing else self.channel_dim % i_SNC.dim()

    def probed(self) -> dict[str, Any]:
        """`dynamics` without what only a backward pass reads: for `ops.probe`."""
        return {k: v for k, v in self.dynamics().items() if k != "detach_reset"}

    def forward(
        self,
        i_SNC: Tensor,
        kappa_T: Tensor | None = None,
        *,
        num_steps: int | None = None,
        gain_T: Tensor | None = None,
        residual: Tensor | None = None,
        state: Tensor | None = NOT_ASKED,
    ) -> Any:
        """Spikes for a current of T steps, or of one step that stands for `num_steps` equal ones; `residual` is added
        to them.

        `kappa_T` are the widths and `gain_T` factors on the surrogate's height; without kappa_T the neuron's own rule
        gives both. With `state` (None: rest) the answer is `(spikes, state)`: what the neurons keep after the last
        step, to be passed into the next call.
        """
        T = self._num_steps(i_SNC, kappa_T, num_steps)
        self.check_threshold()
        asked = state is not NOT_ASKED
        kept_0 = state if asked else None
        if kappa_T is None:
            kappa_T, gain_T = self.kappa_and_gain(i_SNC, T, kept_0)
        if kept_0 is None:
            kept_0 = self.beginning(i_SNC)
        if self.is_written:
            return self._written(i_SNC, kappa_T, gain_T, residual, kept_0, asked)
        if self.watchers:
            self.show(Pass(i_SNC, None, kappa_T, torch.is_grad_enabled(), kept_0=kept_0))
        apart = self.scaled or (self.start is not None and not asked)  # the residual is added behind the kernel
        found = ops.neuron(
            i_SNC,
            self.tau,
            kappa_T,
            num_steps=T,
            residual=None if apart else residual,
            kept_0=kept_0,
            return_state=asked or self.start is not None,
            **self.call_options(T, gain_T),
            **self.dynamics(),
        )
        return self.finished(found, residual if apart else None, asked)

    def finished(self, found: Any, residual: Tensor | None, asked: bool) -> Any:
        """A kernel's spikes, or spikes and state, as the answer of a call: scaled, with a residual it did not add."""
        s_TNC, kept_NC = found if isinstance(found, tuple) else (found, None)
        if self.start is not None and not asked:
            self.learn_start(s_TNC.detach(), kept_NC)
        if self.scaled:
            v_th = along_channels("v_th", self.v_th, s_TNC.shape, self.channel_axis(s_TNC))
            s_TNC = (v_th * s_TNC).to(s_TNC.dtype)
        if residual is not None:
            s_TNC = s_TNC + residual
        return (s_TNC, kept_NC) if asked else s_TNC

    def step(self, i_NC: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One timestep, for recurrent networks and streams: `s, state = neuron.step(i, state)`; None starts at rest.

        >>> neuron, state = LIF(tau=0.5), None
        >>> for current in (0.4, 0.4):
        ...     s, state = neuron.step(torch.full((1, 1), current), state)
        >>> float(s), float(state)
        (1.0, 0.0)
        """
        spikes_1NC, state = self(i_NC.unsqueeze(0), num_steps=1, state=state)
        return spikes_1NC[0], state

    def kappa(self, i_SNC: Tensor, num_steps: int, kept_0: Tensor | None = None) -> Tensor:
        """The widths by the neuron's own rule, 1 without a rule; without gradients there is no width, and it costs
        nothing.
        """
        return self.kappa_and_gain(i_SNC, num_steps, kept_0)[0]

    def kappa_and_gain(
        self, i_SNC: Tensor, num_steps: int, kept_0: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """`kappa`, and the rule's factors on the surrogate's height."""
        if self.width is None or not torch.is_grad_enabled():
            return torch.ones(num_steps, device=i_SNC.device), None
        observe = partial(self.observe, i_SNC, num_steps, self.beginning(i_SNC) if kept_0 is None else kept_0)
        needs, carried = self.width.needs_batch, kept_0 is not None
        potential = potential_of(self, num_steps, (), observe, needs_batch=needs, carried=carried)
        return self.width.with_gain(potential)

    def _num_steps(self, i_SNC: Tensor, kappa_T: Tensor | None, num_steps: int | None) -> int:
        if i_SNC.dim() < 2:
            raise InputError(
                f"a neuron takes a current with time first, (T, N, ...), got {tuple(i_SNC.shape)}. "
                "For one timestep use neuron.step(i, state)."
            )
        T = num_steps if num_steps is not None else i_SNC.shape[0] if kappa_T is None else kappa_T.shape[0]
        if T < 1:
            raise InputError(f"num_steps must be at least 1, got {T}. Use num_steps=2, as the paper does.")
        if i_SNC.shape[0] not in (1, T):
            raise InputError(
                f"a neuron over {T} timesteps takes a current of {T} timesteps or of 1 that stands for all, "
                f"got {tuple(i_SNC.shape)}."
            )
        return T

    def _written(
        self,
        i_SNC: Tensor,
        kappa_T: Tensor,
        gain_T: Tensor | None,
        residual: Tensor | None,
        kept_0: Tensor | None,
        asked: bool,
    ) -> Any:
        """A pass by the written equations: ASGL's hard and soft spikes mixed at random, or a reset's own `drop`."""
        # Under autocast, too, the membrane is float32.
        dtype = torch.promote_types(i_SNC.dtype, torch.float32)
        i_TNC = i_SNC.expand(kappa_T.shape[0], *i_SNC.shape[1:]).to(dtype)
        place = None if self.replicas is None else self.replicas.place(i_SNC.shape[1])

        def fire(u: Tensor, kappa: Tensor, t: int) -> Tensor:
            draw = torch.rand_like(u) if place is None else ops.rand_like(u, place)
            return noisy_spike(u, kappa, (draw >= self.noise).to(u.dtype), self.surrogate)

        options = {k: v for k, v in self.call_options(kappa_T.shape[0], gain_T).items() if k != "backend"}
        if self.is_noisy and "gain_T" in options:
            raise InputError(
                "noise mixes soft spikes in, whose height neither a rule nor gain= sets, "
                f"got noise={self.noise} beside one of them. Use noise=0, or a method other than mpd-gain and gain=1."
            )
        s_TNC, v_TNC, kept_NC = lif(
            i_TNC,
            self.tau,
            kappa_T,
            drop=self.drop,
            fire=fire if self.is_noisy else None,
            kept_0=kept_0,
            return_state=True,
            **options,
            **self.dynamics(),
        )
        if self.watchers:
            self.show(Pass(i_SNC, None, kappa_T, torch.is_grad_enabled(), v_TNC.detach(), kept_0))
        return self.finished((s_TNC.to(i_SNC.dtype), kept_NC), residual, asked)

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        tau, v_th = (_shown(a) for a in (self.tau, self.v_th))
        more = [f"reset={self.reset}"] * (self.reset != "hard") + ["decay_input"] * self.decay_input
        more += ["start=mp-init"] * (self.start is not None) + ["scaled"] * self.scaled
        return ", ".join([f"tau={tau}", f"v_th={v_th}", f"surrogate={self.surrogate.name}", *more])


def _shown(value: Tensor | float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    value = value.detach()
    return f"{float(value):.3f}" if value.dim() == 0 else f"{float(value.min()):.3f}..{float(value.max()):.3f}"


def _numbers(value: float | Sequence[float] | Tensor) -> Tensor:
    """In float64 on the CPU, to be looked at; a network may be built on another device, or on none (`meta`)."""
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
