"""The seam that makes MPD-AGL work: a block sees synapse, norm and neuron, and sets the surrogate's width from them.

Shapes: spikes_TNCHW (or TNF) in and out, T folded into the batch for the synapse. An input of one timestep may be shown
`num_steps` times: its convolution is computed once.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError
from mpd_agl.nn.bounded_gradient import bounded_gradient
from mpd_agl.nn.called import call_once, called_as_module, described
from mpd_agl.nn.methods import Method, get_method
from mpd_agl.nn.neuron import Carried, Neuron
from mpd_agl.nn.norms import get_norm
from mpd_agl.nn.potential import TORCH_NORMS, Affine, affines_of
from mpd_agl.nn.synapse import input_shape, out_features, over_time, synapse_over_time
from mpd_agl.nn.width import Width, checked_rule, widths_of
from mpd_agl.ops import LOCAL, CurrentMap, NormSpec, StepInput, Sync, Widths, current_map, fused_step
from mpd_agl.ops.conv.conv import checked_impl
from mpd_agl.ops.step.spec import given


class Current(nn.Module):
    """Synapse and norm without a neuron: a normalised current, which a block adds to its own (Zheng et al. 2021), or
    which is added to the currents that a membrane shortcut carries (Hu et al. 2024).
    """

    takes_spikes = True
    """False where its input are currents, as on a membrane shortcut: no weights of 8 bits then."""

    def __init__(self, synapse: nn.Module | None, norm: nn.Module | None, conv_impl: str = "auto") -> None:
        super().__init__()
        self.synapse, self.norm, self.conv_impl = synapse, norm, conv_impl

    def forward(self, s_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The current; for one timestep that is shown `num_steps` times it may have one, too."""
        x_SNC = synapse_over_time(self.synapse, s_SNC, self.conv_impl)
        return normalised(self.norm, x_SNC, num_steps)


def norm_spec(norm: nn.Module | None) -> NormSpec | None:
    """The values by which a kernel applies this norm; None where it must be called, or where there is none."""
    spec = None if norm is None or called_as_module(norm) else described(norm, "spec")
    return None if spec is None else spec()


def normalised(norm: nn.Module | None, x_SNC: Tensor, num_steps: int | None) -> Tensor:
    """A norm called on the synapse's output. torch's own know no time: they get it folded into the batch."""
    if norm is None:
        return x_SNC
    if isinstance(norm, TORCH_NORMS):
        return over_time(partial(_torch_norm, norm), x_SNC)
    return call_once(norm, x_SNC, num_steps)


def _torch_norm(norm: nn.Module, x_NC: Tensor) -> Tensor:
    """One of torch's own norms. Its CPU batch norm has wrong gradients for a batch of one whose gradient has another
    memory order than the input, so both are made contiguous there.
    """
    if x_NC.shape[0] != 1 or torch.compiler.is_compiling():
        return call_once(norm, x_NC)
    y = call_once(norm, x_NC.contiguous())
    if y.requires_grad:
        y.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return y


class SpikingBlock(nn.Module):
    """Synapse - norm - neuron, with the surrogate's width from the method's rule, through the fused step.

    `synapse` is an `nn.Conv2d` or `nn.Linear`, `norm` one of `NORMS` by name (tdBN by default) or a module of yours;
    those with parameters per timestep need `num_steps`. `neuron` is made by the method unless one is given.
    `currents` are added to the block's own before the neuron. The other options are those of the parts that the block
    makes itself: v_th 0.5, tau 0.2 and alpha 1 by default, method "mpd-agl". `conv_impl` says how a plain synapse
    computes (`ops.conv`): by its written rule, "dense" as torch does, or "event" by skipping zeros.

    Without a synapse (None) the block's input is the neuron's current itself, over `channels` channels, as behind a
    membrane shortcut. The width is then predicted from `sources`, the norms whose outputs were added up to it, or
    measured where none are given.

    A call starts at rest; there is no state to reset. `spikes, state = block.with_state(x, state)` carries one from
    call to call.

    >>> block = SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False), method="mpd-agl")
    >>> images = torch.randn(4, 3, 32, 32)
    >>> block(images.unsqueeze(0), num_steps=2).shape
    torch.Size([2, 4, 8, 32, 32])
    """

    norm: nn.Module | None
    """None where it is folded into the synapse; a user may put another norm here."""

    def __init__(
        self,
        synapse: nn.Module | None,
        *,
        method: str | Method | None = None,
        norm: str | nn.Module | None = None,
        neuron: Neuron | None = None,
        currents: Sequence[Current] = (),
        sources: Sequence[nn.Module] = (),
        channels: int | None = None,
        num_steps: int | None = None,
        surrogate: str | Surrogate | None = None,
        v_th: float | None = None,
        tau: float | None = None,
        alpha: float | None = None,
        detach_reset: bool | None = None,
        backend: str | None = None,
        conv_impl: str = "auto",
    ) -> None:
        super().__init__()
        asked = {"tau": tau, "v_th": v_th, "detach_reset": detach_reset, "backend": backend}
        options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if neuron is not None:
            checked_neuron(neuron)
            ignored = {**options, **({"surrogate": surrogate} if surrogate else {})}
            _refuse_ignored("neuron", [*ignored, *(["method"] if neuron.width and method else [])])
        rule = get_method(method or "mpd-agl")
        kind = get_norm(norm if isinstance(norm, str) else "tdbn")
        if synapse is not None:
            channels = out_features(synapse)
        self.synapse, self.conv_impl = synapse, checked_impl(conv_impl)
        self.sources = tuple(sources)  # a tuple: the network has them already
        norm_v_th = v_th or 0.5
        if neuron is None:
            options["surrogate"] = rule.surrogate_with(surrogate)
            if synapse is None and not sources and kind.neuron is None:  # nothing to predict moments from: measured
                options["width"] = rule.width()
            make = rule.neuron if kind.neuron is None else partial(kind.neuron, rule.neuron, channels)
            neuron = make(**options)  # type: ignore[assignment]
        elif kind.neuron is not None:
            raise InputError(f"norm {kind.name!r} makes the block's neuron, got one as well. Leave one of them out.")
        else:
            if method and rule.replaces_neuron:
                raise InputError(f"method {rule.name!r} is a neuron of its own, got neuron= as well. Leave one out.")
            if method:
                rule.surrogate_with(neuron.surrogate)
            norm_v_th = float(torch.as_tensor(neuron.v_th).detach().mean())
        if isinstance(norm, nn.Module):
            _refuse_ignored("norm", ["alpha"] if alpha is not None else [])
        elif synapse is not None:
            norm = kind.norm(channels, v_th=norm_v_th, alpha=1.0 if alpha is None else alpha, num_steps=num_steps)
        self.norm = None if isinstance(norm, str) else norm
        self.neuron = checked_neuron(neuron)
        self.width: Width = checked_rule(self.neuron.width or rule.width())
        self.currents = nn.ModuleList(currents)

    def affines(self) -> list[Affine] | None:
        """gamma, beta and scale of the norms whose currents the neuron receives; None where one cannot be read."""
        of_potential = self.neuron.affines()
        if of_potential is not None:
            return of_potential
        if self.synapse is None and not self.sources:
            return None  # nothing is known of the block's input, which is a current
        own = self.sources if self.synapse is None else (self.norm,)
        found = [affines_of(norm) for norm in (*own, *(current.norm for current in self.currents))]
        return None if None in found else [a for each in found for a in each or ()]

    def widths(self, step: StepInput, norm: NormSpec | None = None) -> Widths:
        """By the block's rule, from the parameters as they are now; `norm` stands between `step.x` and the neuron."""
        potential = self.neuron.potential(step, self.affines(), lambda: self._current_map(norm, step))
        return widths_of(self.width, potential)

    def forward(
        self,
        s_SNC: Tensor,
        num_steps: int | None = None,
        *,
        residual: Tensor | None = None,
        current_inputs: Sequence[Tensor] = (),
        carried: Carried | None = None,
    ) -> Tensor:
        """Spikes of T steps.

        `residual` is added to them (SEW-ADD); `current_inputs` are the inputs of the block's `currents`. `carried` is
        `with_state`'s.
        """
        T = self._check(s_SNC, num_steps, current_inputs, carried)

        def run(s_SNC: Tensor) -> Tensor:
            return self._run(s_SNC, T, residual, current_inputs, carried)

        # Where a state is carried, gradients come back by two ways, and neither has a size of its own to bound.
        bounded = self.width.max_growth < math.inf and carried is None
        if bounded and torch.is_grad_enabled() and s_SNC.requires_grad:
            return bounded_gradient(run, s_SNC, self.width.max_growth, self.neuron.sync if self.training else LOCAL)
        return run(s_SNC)

    def with_state(
        self, s_SNC: Tensor, state: Tensor | None, num_steps: int | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Spikes, and what the neurons keep after the last step, to be passed into the next call; None starts at rest.

        `options` are those of a call.
        """
        carried = Carried(state)
        return self(s_SNC, num_steps, carried=carried, **options), carried.state

    def _run(
        self,
        s_SNC: Tensor,
        T: int,
        residual: Tensor | None,
        current_inputs: Sequence[Tensor],
        carried: Carried | None,
    ) -> Tensor:
        x_SNC = synapse_over_time(self.synapse, s_SNC, self.conv_impl)
        neuron = checked_neuron(self.neuron).spec()
        norm = norm_spec(self.norm) if neuron is not None and not self.currents else None
        if norm is None:
            x_SNC = normalised(self.norm, x_SNC, T)
            for current, s_TNC in zip(self.currents, current_inputs, strict=True):
                x_SNC = x_SNC + current(s_TNC)
        step = StepInput(x_SNC, T, None, residual, given(carried, lambda c: c.state), want_state=carried is not None)
        # Training without gradients is the first pass of a reentrant checkpoint: moments are measured there, and a
        # neuron with equations of its own may read widths for its outputs.
        if self.training or torch.is_grad_enabled():
            step = step._replace(widths=self.widths(step, norm))
        if neuron is None:  # called, so that its hooks fire
            spikes: Tensor = self.neuron(x_SNC, step.widths, num_steps=T, residual=residual, carried=carried)
            return spikes
        output = fused_step(norm, neuron, step)
        if output.stats is not None:
            self.norm.track(output.stats, T // x_SNC.shape[0])  # type: ignore[union-attr, operator]
        if self.neuron.is_watched:
            self.neuron.show(step, current_map(norm, step.x, self.neuron.backend, output.stats), output)
        if carried is not None:
            carried.state = output.state
        return output.spikes

    def _current_map(self, norm: NormSpec | None, step: StepInput) -> CurrentMap | None:
        return current_map(norm, step.x, self.neuron.backend)

    def _check(
        self, s_SNC: Tensor, num_steps: int | None, current_inputs: Sequence[Tensor], carried: Carried | None
    ) -> int:
        """T, or a sentence for what this block cannot take."""
        T = s_SNC.shape[0] if num_steps is None else num_steps
        if T < 1:
            raise InputError(f"num_steps must be at least 1, got {T}. Use num_steps=2, as the paper does.")
        shape = input_shape(self.synapse, s_SNC)
        if s_SNC.shape[2:] != shape or s_SNC.shape[0] not in (1, T):
            wanted = ", ".join(map(str, (T, "N", *shape)))
            raise InputError(
                f"this block takes ({wanted}), or 1 timestep that is shown {T} times, got {tuple(s_SNC.shape)}. "
                "A batch of images gets its time axis by images.unsqueeze(0)."
            )
        if s_SNC.shape[0] == 1 and num_steps is None and carried is None:
            raise InputError(
                "this block got one timestep and starts at rest at every call. Pass num_steps=T to show it T times, or "
                "go step by step: spikes, state = block.with_state(x, state), with state=None at the start."
            )
        if not s_SNC.is_floating_point():
            raise InputError(
                f"this block takes floating-point input, got {s_SNC.dtype}. Scale it first, e.g. x.float() / 255."
            )
        if len(current_inputs) != len(self.currents):
            raise InputError(
                f"this block adds {len(self.currents)} currents to its own, got {len(current_inputs)} inputs for them. "
                "Pass current_inputs=[...], one for each of block.currents."
            )
        return T


def checked_neuron(neuron: object) -> Neuron:
    """Refuse what a block cannot run."""
    if not isinstance(neuron, Neuron):
        raise InputError(
            f"a block takes neurons of mpd_agl.nn, got {type(neuron).__name__}. "
            "Derive it from mpd_agl.nn.LIF or PLIF and write its run(step)."
        )
    if neuron.channel_dim != 2:
        raise InputError(
            f"a block's channels are on axis 2, got a neuron with channel_dim={neuron.channel_dim}. Leave it out."
        )
    return neuron


def _refuse_ignored(part: str, options: Sequence[str]) -> None:
    """Refuse options of a part that the caller made: they would have no effect."""
    if options:
        raise InputError(
            f"{', '.join(options)} would have no effect, since {part}= is given. "
            f"Set {'it' if len(options) == 1 else 'them'} on the {part} that you pass."
        )


class Readout(nn.Module):
    """The last linear layer at each timestep: logits_TNK, no leak and no firing. Eq. 9 is their mean over T."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, s_TNF: Tensor) -> Tensor:
        """logits_TNK."""
        logits: Tensor = self.linear(s_TNF)
        return logits


def share_batch(net: nn.Module, sync: Sync) -> None:
    """Let a network's layers take training batches as parts of one that several processes share; `LOCAL` ends it.

    Batch statistics and measured moments are then those of the whole batch. So all processes have the same running
    statistics and widths, those of one process on the whole batch. Call it on every process; all run the same layers in
    the same order.
    """
    for module in net.modules():
        if hasattr(type(module), "sync"):
            module.sync = sync  # type: ignore[assignment]
