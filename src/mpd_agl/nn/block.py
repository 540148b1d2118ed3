"""The seam that makes MPD-AGL work: a block sees synapse, norm and neuron, and sets the surrogate's width from them.

Shapes: spikes_TNCHW (or TNF) in and out, T folded into the batch for the synapse. An input of one timestep may be shown
`num_steps` times: its convolution is computed once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError
from mpd_agl.nn.bounded_gradient import bounded_gradient
from mpd_agl.nn.called import call_once, called_as_module, described
from mpd_agl.nn.methods import Method, get_method
from mpd_agl.nn.neuron import LIF, Carried, Neuron
from mpd_agl.nn.norms import get_norm
from mpd_agl.nn.potential import Affine, affines_of
from mpd_agl.nn.synapse import out_features, over_time
from mpd_agl.nn.width import checked_rule, widths_of
from mpd_agl.ops import LOCAL, NormSpec, StepInput, StepOutput, Sync, Widths, current_map, fused_step


class Current(nn.Module):
    """Synapse and norm without a neuron: a normalised current, which a block adds to its own (Zheng et al. 2021), or
    which is added to the currents that a membrane shortcut carries (Hu et al. 2024).
    """

    takes_spikes = True
    """False where its input are currents, as on a membrane shortcut: no weights of 8 bits then."""

    def __init__(self, synapse: nn.Module | None, norm: nn.Module | None) -> None:
        super().__init__()
        self.synapse, self.norm = synapse, norm

    def forward(self, s_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The current; for one timestep that is shown `num_steps` times it may have one, too."""
        x_SNC = s_SNC if self.synapse is None else over_time(self.synapse, s_SNC)
        return normalised(self.norm, x_SNC, num_steps)


def norm_spec(norm: nn.Module | None) -> NormSpec | None:
    """The values by which a kernel applies this norm; None where it must be called, or where there is none."""
    spec = None if norm is None or called_as_module(norm) else described(norm, "spec")
    return None if spec is None else spec()


def normalised(norm: nn.Module | None, x_SNC: Tensor, num_steps: int | None) -> Tensor:
    """A norm called on the synapse's output. One that knows time takes the whole sequence; torch's own do not."""
    if norm is None:
        return x_SNC
    if isinstance(norm, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        y = call_once(norm, x_SNC.flatten(0, 1))
        return y.view(*x_SNC.shape[:2], *y.shape[1:])
    return call_once(norm, x_SNC, num_steps)


class SpikingBlock(nn.Module):
    """Synapse - norm - neuron, with the surrogate's width from the method's rule, through the fused step.

    `synapse` is an `nn.Conv2d` or `nn.Linear`, `norm` one of `NORMS` by name (tdBN by default) or a module of yours;
    those with parameters per timestep need `num_steps`. `neuron` is made by the method unless one is given: a `Neuron`,
    or any module with `tau` and `v_th` that takes `(i_TNC, widths)`. `currents` are added to the block's own before the
    neuron. The other options are those of the parts that the block makes itself: v_th 0.5, tau 0.2 and alpha 1 by
    default, method "mpd-agl".

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
    neuron: Neuron
    """A user may put another neuron here."""

    def __init__(
        self,
        synapse: nn.Module | None,
        *,
        method: str | Method | None = None,
        norm: str | nn.Module | None = None,
        neuron: nn.Module | None = None,
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
    ) -> None:
        super().__init__()
        options = {"v_th": v_th, "tau": tau, "surrogate": surrogate, "detach_reset": detach_reset, "backend": backend}
        _refuse_ignored(neuron, norm, {**options, "method": method, "alpha": alpha})
        rule = get_method("mpd-agl" if method is None else method)
        kind = get_norm(norm if isinstance(norm, str) else "tdbn")
        channels = channels if synapse is None else out_features(synapse)
        threshold = 0.5 if v_th is None else v_th
        if neuron is None:
            made = {
                "tau": 0.2 if tau is None else tau,
                "v_th": threshold,
                "surrogate": rule.surrogate_with(surrogate),
                "detach_reset": bool(detach_reset),
                "backend": backend or "auto",
            }
            if synapse is None and not sources and kind.neuron is None:  # nothing to predict moments from: measured
                made["width"] = rule.width()
            make = rule.neuron if kind.neuron is None else kind.neuron
            neuron = make(**made) if kind.neuron is None else make(rule.neuron, channels, **made)
        elif kind.neuron is not None:
            raise InputError(f"norm {kind.name!r} makes the block's neuron, got one as well. Leave one of them out.")
        elif getattr(neuron, "channel_dim", 2) != 2:
            raise InputError(
                f"a block's channels are on axis 2, got a neuron with channel_dim={neuron.channel_dim}. Leave it out."
            )
        elif not (hasattr(neuron, "tau") and hasattr(neuron, "v_th")):
            raise InputError(f"a block's neuron has tau and v_th, which width rules read, got {type(neuron).__name__}.")
        else:
            v_th_any: Any = neuron.v_th
            threshold = float(v_th_any.detach().mean() if isinstance(v_th_any, Tensor) else v_th_any)
        if not isinstance(norm, nn.Module) and synapse is not None:
            scale = {"v_th": threshold, "alpha": 1.0 if alpha is None else alpha}
            norm = kind.norm(channels, **scale, num_steps=num_steps)
        self.synapse = synapse
        self.norm = norm if isinstance(norm, nn.Module) else None
        self.sources = tuple(sources)  # a tuple: the network has them already
        self.neuron = neuron  # type: ignore[assignment]
        self.width = checked_rule(getattr(neuron, "width", None) or rule.width())
        self.currents = nn.ModuleList(currents)

    def affines(self) -> list[Affine] | None:
        """gamma, beta and scale of the norms whose currents the neuron receives; None where one cannot be read."""
        if isinstance(self.neuron, Neuron) and (of_potential := self.neuron.affines()) is not None:
            return of_potential
        norms: list[Any] = [*(self.sources if self.synapse is None else (self.norm,)), *(c.norm for c in self.currents)]
        found = [affines_of(norm) for norm in norms]
        return None if None in found else [a for each in found for a in each or ()]

    def widths(self, step: StepInput, norm: NormSpec | None = None) -> Widths:
        """By the block's rule, from the parameters as they are now; `norm` stands between `step.x` and the neuron."""
        given: nn.Module = self.neuron
        neuron = given if isinstance(given, Neuron) else _constants_of(given)
        potential = neuron.potential(step, self.affines(), lambda: current_map(norm, step.x, neuron.backend))
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
        bounded = self.width.max_growth < float("inf") and carried is None
        if not bounded or not torch.is_grad_enabled() or not s_SNC.requires_grad:
            return run(s_SNC)
        return bounded_gradient(run, s_SNC, self.width.max_growth, getattr(self.neuron, "sync", LOCAL))

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
        x_SNC = s_SNC if self.synapse is None else over_time(self.synapse, s_SNC)
        neuron = self.neuron.spec() if isinstance(self.neuron, Neuron) else None
        norm = norm_spec(self.norm) if neuron is not None and not self.currents else None
        if norm is None:
            x_SNC = normalised(self.norm, x_SNC, T)
            for current, s_TNC in zip(self.currents, current_inputs, strict=True):
                x_SNC = x_SNC + current(s_TNC)
        state = None if carried is None else carried.state
        step = StepInput(x_SNC, T, None, residual, state, want_state=carried is not None)
        # Training without gradients is the first pass of a reentrant checkpoint: moments are measured there, and a
        # neuron with equations of its own may read widths for its outputs.
        if self.training or torch.is_grad_enabled():
            step = step._replace(widths=self.widths(step, norm))
        if neuron is None:
            return _call_neuron(self.neuron, step, carried)
        if norm is not None:
            self.norm.check(x_SNC)  # type: ignore[union-attr, operator]
        output = fused_step(norm, neuron, step)
        if output.stats is not None:
            self.norm.track(output.stats, T // x_SNC.shape[0])  # type: ignore[union-attr, operator]
        self._show(step, norm, output)
        if carried is not None:
            carried.state = output.state
        return output.spikes

    def _show(self, step: StepInput, norm: NormSpec | None, output: StepOutput) -> None:
        if self.neuron.is_watched:
            self.neuron.show(step, current_map(norm, step.x, self.neuron.backend), output)

    def _check(
        self, s_SNC: Tensor, num_steps: int | None, current_inputs: Sequence[Tensor], carried: Carried | None
    ) -> int:
        """T, or a sentence for what this block cannot take."""
        synapse = self.synapse
        flat = s_SNC.dim() == 3 if synapse is None else isinstance(synapse, nn.Linear)
        wanted: Any = s_SNC.shape[2] if synapse is None and s_SNC.dim() > 2 else "C"
        if synapse is not None:
            wanted = synapse.weight.shape[1] if flat else synapse.in_channels  # type: ignore[index]
        T = s_SNC.shape[0] if num_steps is None else num_steps
        if T < 1:
            raise InputError(f"num_steps must be at least 1, got {T}. Use num_steps=2, as the paper does.")
        if s_SNC.dim() != (3 if flat else 5) or s_SNC.shape[2] != wanted or s_SNC.shape[0] not in (1, T):
            shape = f"({T}, N, {wanted})" if flat else f"({T}, N, {wanted}, H, W)"
            raise InputError(
                f"this block takes {shape}, or 1 timestep that is shown {T} times, got {tuple(s_SNC.shape)}. "
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


def _call_neuron(neuron: nn.Module, step: StepInput, carried: Carried | None) -> Tensor:
    """A neuron that no kernel computes, on its current."""
    if isinstance(neuron, Neuron):
        spikes: Tensor = neuron(step.x, step.widths, num_steps=step.num_steps, residual=step.residual, carried=carried)
        return spikes
    if carried is not None:
        raise InputError(
            f"{type(neuron).__name__} is not a neuron of mpd_agl.nn, so this block cannot carry its state. "
            "Call the block without a state, or derive the neuron from mpd_agl.nn.Neuron."
        )
    spikes = call_once(neuron, step.x.expand(step.num_steps, *step.x.shape[1:]), step.widths)
    return spikes if step.residual is None else spikes + step.residual


def _constants_of(neuron: nn.Module) -> Neuron:
    """What a width rule needs of a neuron that is not one of mpd_agl.nn: a LIF with its tau and v_th."""
    tau, v_th = (torch.as_tensor(getattr(neuron, name)).detach() for name in ("tau", "v_th"))
    return LIF(tau=tau, v_th=v_th, surrogate=getattr(neuron, "surrogate", None)).to(tau.device)


def _refuse_ignored(neuron: nn.Module | None, norm: str | nn.Module | None, given: dict[str, Any]) -> None:
    """Refuse options of a part that the caller made: they would have no effect."""
    ignored: dict[str, list[str]] = {}
    if neuron is not None:
        ignored["neuron"] = ["v_th", "tau", "surrogate", "detach_reset", "backend"]
        ignored["neuron"] += ["method"] if getattr(neuron, "width", None) is not None else []
    if isinstance(norm, nn.Module):
        ignored["norm"] = ["alpha"]
    for part, names in ignored.items():
        if passed := [name for name in names if given[name] is not None]:
            raise InputError(
                f"{', '.join(passed)} would have no effect, since {part}= is given. "
                f"Set {'it' if len(passed) == 1 else 'them'} on the {part} that you pass."
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
