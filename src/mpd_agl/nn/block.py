"""The seam that makes MPD-AGL work.

A block sees synapse, norm and neuron, and sets the surrogate's width from them.

Shapes: spikes_TNCHW (or TNF) in and out, T folded into the batch for the synapse. An input with one timestep and
`num_steps` T stands for T equal ones: its convolution is computed once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl import ops
from mpd_agl.core import Surrogate
from mpd_agl.errors import InputError, unknown_name
from mpd_agl.nn.bounded_size import BoundedSize
from mpd_agl.nn.methods import Method, get_method
from mpd_agl.nn.moments import Affine, Potential, PotentialSums, affine_of
from mpd_agl.nn.mpbn import NormedPotential, with_normed_potential
from mpd_agl.nn.neuron import NOT_ASKED, Neuron, Pass, potential_of
from mpd_agl.nn.norm import TdBatchNorm
from mpd_agl.nn.step_norm import StepAffine, make_norm
from mpd_agl.nn.synapse import synapse_output
from mpd_agl.nn.width import MPDWidth, Width
from mpd_agl.ops.conv.conv import CONV_IMPLS


def over_time(module: Callable[[Tensor], Tensor], x_TNC: Tensor) -> Tensor:
    """Apply a module that knows no time: T is folded into the batch, one call for all steps."""
    y = module(x_TNC.flatten(0, 1))
    return y.view(*x_TNC.shape[:2], *y.shape[1:])


def out_features(synapse: nn.Module) -> int:
    """Channels that a convolution or a linear layer gives."""
    if isinstance(synapse, nn.Conv2d):
        return synapse.out_channels
    if isinstance(synapse, nn.Linear):
        return synapse.out_features
    raise InputError(f"a synapse must be nn.Conv2d or nn.Linear, got {type(synapse).__name__}.")


def _threshold_of(neuron: nn.Module) -> float:
    """The threshold that tdBN scales to: a given neuron's own, the mean where each channel has one."""
    if isinstance(neuron, Neuron) and neuron.channel_dim != 2:
        raise InputError(
            f"a block's channels are on axis 2, got a neuron with channel_dim={neuron.channel_dim}. Leave it out."
        )
    return float(torch.as_tensor(neuron.v_th).detach().mean())


class Current(nn.Module):
    """Synapse and norm without a neuron: a normalised current, which a block adds to its own (Zheng et al. 2021), or
    which is added to the currents that a membrane shortcut carries (Hu et al. 2024).
    """

    norm: TdBatchNorm | None
    """None where it is folded into the synapse; of a norm with parameters per step, folding leaves a `StepAffine`."""
    takes_spikes = True
    """False where its input are currents, as on a membrane shortcut: no weights of 8 bits then."""

    def __init__(self, synapse: nn.Module | None, norm: TdBatchNorm | None, conv_impl: str = "auto") -> None:
        super().__init__()
        self.synapse, self.norm, self.conv_impl = synapse, norm, conv_impl

    def forward(self, s_SNC: Tensor, num_steps: int | None = None) -> Tensor:
        """The current; of one timestep that stands for `num_steps` equal ones it may have one, too."""
        x_SNC = s_SNC
        if self.synapse is not None:
            x_SNC = over_time(partial(synapse_output, self.synapse, impl=self.conv_impl), s_SNC)
        i_SNC: Tensor = x_SNC if self.norm is None else self.norm(x_SNC, num_steps)
        return i_SNC


def _refuse_void(neuron: nn.Module | None, norm: str | nn.Module | None, given: dict[str, Any]) -> None:
    """Refuse options of a part that the caller made: they would have no effect."""
    void: dict[str, list[str]] = {}
    if neuron is not None:
        void["neuron"] = ["v_th", "tau", "surrogate", "detach_reset", "backend"]
        void["neuron"] += ["method"] if getattr(neuron, "width", None) is not None else []
    if isinstance(norm, nn.Module):
        void["norm"] = ["alpha"]
    for part, names in void.items():
        if passed := [name for name in names if given[name] is not None]:
            raise InputError(
                f"{', '.join(passed)} would have no effect beside {part}=, which is made already. "
                f"Set {'it' if len(passed) == 1 else 'them'} on the {part} that you pass."
            )


class SpikingBlock(nn.Module):
    """Synapse - norm - neuron, with the surrogate's width from the method's rule, through the fused step.

    `synapse` is an `nn.Conv2d` or `nn.Linear`, `norm` one of `NORMS` by name (tdBN by default) or a module of yours;
    those with parameters per timestep need `num_steps`. `neuron` is made by the method unless one is given: any module
    with `tau` and `v_th` that takes `(i_TNC, kappa_T)`. `currents` are added to the block's own before the neuron. The
    other options are those of the parts that the block makes itself: v_th 0.5, tau 0.2 and alpha 1 by default, method
    "mpd-agl". `conv_impl` says how a plain synapse computes (`ops.conv`): by default as its written rule says,
    "dense" is torch's own layer, and a synapse with hooks is called as a module.

    Without a synapse (None) the block's input is the neuron's current itself, over `channels` channels, as behind a
    membrane shortcut. The width is then predicted from `sources`, the norms whose outputs were added up to it, or
    measured where none are given.

    A call starts at rest; there is no state to reset. `spikes, state = block(x, state=state)` carries one from call to
    call.

    >>> block = SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False), method="mpd-agl")
    >>> images = torch.randn(4, 3, 32, 32)
    >>> block(images.unsqueeze(0), num_steps=2).shape
    torch.Size([2, 4, 8, 32, 32])
    """

    repeating = False
    """True while a forward pass is computed a second time (see `nn.recompute`)."""
    is_folded = False
    """True in the copy that `fold` makes."""
    norm: TdBatchNorm | None
    """None where it is folded into the synapse; a user may put another norm here."""
    neuron: Neuron
    """A user may put any module here that takes `(i_TNC, kappa_T)` and has `tau` and `v_th`."""

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
        start: str = "rest",
        backend: str | None = None,
        conv_impl: str = "auto",
    ) -> None:
        super().__init__()
        options = {"v_th": v_th, "tau": tau, "surrogate": surrogate, "detach_reset": detach_reset, "backend": backend}
        _refuse_void(neuron, norm, {**options, "method": method, "alpha": alpha})
        rule = get_method("mpd-agl" if method is None else method)
        if conv_impl not in CONV_IMPLS:
            raise unknown_name("conv_impl", conv_impl, CONV_IMPLS)
        self.synapse, self.conv_impl = synapse, conv_impl
        v_th = _threshold_of(neuron) if neuron is not None else 0.5 if v_th is None else v_th
        alpha = 1.0 if alpha is None else alpha
        if synapse is not None:
            channels = out_features(synapse)
        name = norm if isinstance(norm, str) else "tdbn"
        if isinstance(norm, str) or norm is None:
            norm = None
            if synapse is not None and channels is not None:
                norm = make_norm(name, channels, v_th=v_th, alpha=alpha, num_steps=num_steps)
        self.norm = norm  # type: ignore[assignment]
        self.sources = tuple(sources)  # a tuple: the network has them already
        if neuron is None:
            make = partial(with_normed_potential, rule.neuron, channels) if name == "mpbn" else rule.neuron
            measures = synapse is None and not sources and name != "mpbn"
            neuron = make(
                tau=0.2 if tau is None else tau,
                v_th=v_th,
                surrogate=rule.surrogate_with(surrogate),
                detach_reset=bool(detach_reset),
                noise=rule.noise,
                backend=backend or "auto",
                **({"width": rule.width()} if measures else {}),
                **({} if start == "rest" else {"start": start}),
            )
        elif name == "mpbn":
            raise InputError("norm 'mpbn' makes the block's neuron, got one as well. Leave one of them out.")
        self.neuron = neuron  # type: ignore[assignment]
        self.width: Width = getattr(neuron, "width", None) or rule.width()
        if name == "mpbn" and self.width.needs_batch:
            raise InputError(
                f"{type(self.width).__name__} reads the potentials of the batch before they are normalised, and norm "
                "'mpbn' fires on the normalised ones. Use norm='bn', or another method."
            )
        self.currents = nn.ModuleList(currents)

    def affines(self) -> list[Affine]:
        """gamma, beta and scale of the norms whose currents the neuron receives; empty where one cannot be read."""
        if isinstance(self.neuron, NormedPotential):
            affine = affine_of(self.neuron.potential_norm)
            return [] if affine is None else [affine._replace(of_potential=True)]
        own = self.sources if self.synapse is None else (self.norm,)
        norms: list[Any] = [*own, *(current.norm for current in self.currents)]
        found = [None if norm is None else affine_of(norm) for norm in norms]
        return [a for a in found if a is not None] if None not in found else []

    def kappa(
        self,
        num_steps: int,
        *,
        x_SNC: Tensor | None = None,
        i_SNC: Tensor | None = None,
        state: Tensor | None = None,
    ) -> Tensor:
        """kappa_T from the parameters as they are now.

        A rule that needs the potentials of a batch takes them from the synapse's output x, or from the neuron's current
        i.
        """
        kappa_T: Tensor = self.width(self._potential(num_steps, x_SNC, i_SNC, state))
        return kappa_T

    def _potential(self, num_steps: int, x_SNC: Tensor | None, i_SNC: Tensor | None, state: Tensor | None) -> Potential:
        affines = self.affines()
        looks = bool(affines) and affines[0].gamma_C.device.type == "cpu" and not torch.compiler.is_compiling()
        if isinstance(self.width, MPDWidth) and looks:
            # In a sum of currents the squares are added, and one gamma_bar above 0 is enough.
            self.width.warn_of(max((a.gamma_C for a in affines), key=lambda gamma_C: float(gamma_C.mean())))
        known = x_SNC is not None or i_SNC is not None
        observe = partial(self._observed_sums, num_steps, x_SNC, i_SNC, state) if known else None
        needs, carried = self.width.needs_batch, state is not None
        return potential_of(self.neuron, num_steps, affines, observe, needs_batch=needs, carried=carried)

    def _observed_sums(
        self, num_steps: int, x_SNC: Tensor | None, i_SNC: Tensor | None, state: Tensor | None
    ) -> PotentialSums:
        """The sums of the potentials of the batch at hand, over all processes that share it."""
        neuron = self.neuron
        if i_SNC is not None:
            sums = neuron.observe(i_SNC, num_steps, state)
        else:
            assert x_SNC is not None
            sums_T6 = self.observe(x_SNC, torch.ones(num_steps, device=x_SNC.device))
            sums = PotentialSums(x_SNC[0].numel(), sums_T6[:, 2], sums_T6[:, 3])
        if not self.training or neuron.replicas is None:
            return sums
        own = torch.cat([sums.sum_T, sums.square_T, sums.sum_T.new_tensor([sums.values])])
        all_ = neuron.replicas.sum(own)
        return PotentialSums(int(all_[-1]), all_[:num_steps], all_[num_steps:-1])

    def forward(
        self,
        s_SNC: Tensor,
        num_steps: int | None = None,
        *,
        residual: Tensor | None = None,
        current_inputs: Sequence[Tensor] = (),
        state: Tensor | None = NOT_ASKED,
    ) -> Any:
        """Spikes of T steps.

        `residual` is added to them (SEW-ADD); `current_inputs` are the inputs of the block's `currents`.

        With `state` (None: rest) the answer is `(spikes, state)`, the state that the next call starts from.
        """
        T = self._check(s_SNC, num_steps, current_inputs, state)
        # Where a state is handed on, gradients come back by two ways, and none has a size of its own to bound.
        if self.width.chain > 2 and state is NOT_ASKED and torch.is_grad_enabled() and s_SNC.requires_grad:
            replicas = getattr(self.neuron, "replicas", None) if self.training else None
            bound = BoundedSize(self.width.chain, replicas)
            return bound.end(self._forward(bound.begin(s_SNC), T, residual, current_inputs, state))
        return self._forward(s_SNC, T, residual, current_inputs, state)

    def _forward(
        self,
        s_SNC: Tensor,
        T: int,
        residual: Tensor | None,
        current_inputs: Sequence[Tensor],
        state: Tensor | None,
    ) -> Any:
        x_SNC = s_SNC
        if self.synapse is not None:
            x_SNC = over_time(partial(synapse_output, self.synapse, impl=self.conv_impl), s_SNC)
        fused = self._is_fused(state)
        i_SNC = None if fused else self._current(x_SNC, T, current_inputs)
        # Without gradients, or folded, there is no width: inference costs nothing. Some neurons set it themselves.
        folded = self.is_folded or (self.norm is None and self.synapse is not None)
        if not torch.is_grad_enabled() or folded or getattr(self.neuron, "sets_width", False):
            kappa_T, gain_T = torch.ones(T, device=x_SNC.device), None
        else:
            kept_0 = None if state is NOT_ASKED else state
            potential = self._potential(T, x_SNC if fused else None, i_SNC, kept_0)
            kappa_T, gain_T = self.width.with_gain(potential)
        if i_SNC is None:
            return self._fused_step(x_SNC, kappa_T, gain_T, T, residual)
        return self._step(i_SNC, kappa_T, gain_T, residual, state)

    def _is_fused(self, state: Any) -> bool:
        """Whether norm and neuron run as one kernel.

        Modules with forward hooks are called, so that their hooks fire.
        """
        norm: nn.Module | None = self.norm
        neuron: nn.Module = self.neuron
        if not isinstance(norm, TdBatchNorm) or norm.per_step or not isinstance(neuron, Neuron) or not neuron.is_fused:
            return False
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        hooked = any(getattr(m, name) for m in (norm, neuron) for name in hooks)
        return not hooked and len(self.currents) == 0 and state is NOT_ASKED

    def _current(self, x_SNC: Tensor, num_steps: int, current_inputs: Sequence[Tensor]) -> Tensor:
        """The neuron's current: the norm's output, plus the other currents."""
        norm: nn.Module | None = self.norm
        if norm is None:
            i_SNC = x_SNC
        else:
            knows_time = isinstance(norm, TdBatchNorm | StepAffine)
            i_SNC = norm(x_SNC, num_steps) if knows_time else over_time(norm, x_SNC)
        for current, s_TNC in zip(self.currents, current_inputs, strict=True):
            i_SNC = i_SNC + current(s_TNC)
        return i_SNC

    def _step(self, i_SNC: Tensor, kappa_T: Tensor, gain_T: Tensor | None, residual: Tensor | None, state: Any) -> Any:
        """The neuron on a current that was computed before it."""
        neuron: nn.Module = self.neuron
        if isinstance(neuron, Neuron):
            gain = {} if gain_T is None else {"gain_T": gain_T}
            return neuron(i_SNC, kappa_T, **gain, residual=residual, state=state)
        if gain_T is not None:
            raise InputError(
                f"{type(neuron).__name__} is not a neuron of mpd_agl.nn and takes no factor on its surrogate's height. "
                "Use a width rule without one, such as mpd-agl's."
            )
        if state is not NOT_ASKED:
            raise InputError(
                f"{type(neuron).__name__} is not a neuron of mpd_agl.nn, so this block cannot carry its state. "
                "Leave state out, or derive the neuron from mpd_agl.nn.Neuron."
            )
        spikes = neuron(i_SNC.expand(kappa_T.shape[0], *i_SNC.shape[1:]), kappa_T)
        return spikes if residual is None else spikes + residual

    def _fused_step(
        self, x_SNC: Tensor, kappa_T: Tensor, gain_T: Tensor | None, num_steps: int, residual: Tensor | None
    ) -> Tensor:
        """tdBN and neuron in one pass."""
        norm, neuron = self.norm, self.neuron
        assert norm is not None
        norm.check(x_SNC)
        neuron.check_threshold()
        kept_0 = neuron.beginning(x_SNC)
        if neuron.watchers:
            neuron.show(Pass(x_SNC, self.current_map(x_SNC), kappa_T, torch.is_grad_enabled(), kept_0=kept_0))
        shared = self._shared_moments(x_SNC)
        apart = neuron.scaled or kept_0 is not None  # the residual is added behind the kernel
        s_TNC, mean_C, var_C, *kept = ops.tdbn_neuron(
            x_SNC,
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
            neuron.tau,
            kappa_T,
            num_steps=num_steps,
            batch_stats=norm.training,
            residual=None if apart else residual,
            norm_v_th=norm.v_th,
            alpha=norm.alpha,
            eps=norm.eps,
            kept_0=kept_0,
            return_state=kept_0 is not None,
            shared=shared,
            **neuron.call_options(num_steps, gain_T),
            **neuron.dynamics(),
        )
        if norm.training:
            count = num_steps * x_SNC[0].numel() // x_SNC.shape[2]
            norm.track(mean_C, var_C, count if shared is None else shared.total * (num_steps // x_SNC.shape[0]))
        spikes_TNC: Tensor = neuron.finished((s_TNC, *kept) if kept else s_TNC, residual if apart else None, False)
        return spikes_TNC

    def _shared_moments(self, x_SNC: Tensor) -> ops.SharedMoments | None:
        """The statistics of a training batch that other processes hold parts of."""
        if self.norm is None or not self.norm.training or self.norm.replicas is None:
            return None
        return ops.shared_moments(x_SNC, self.norm.replicas, backend=self.neuron.backend)

    def _check(self, s_SNC: Tensor, num_steps: int | None, current_inputs: Sequence[Tensor], state: Any) -> int:
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
                f"this block takes {shape}, or 1 timestep that stands for {T}, got {tuple(s_SNC.shape)}. "
                "A batch of images gets its time axis by images.unsqueeze(0)."
            )
        if s_SNC.shape[0] == 1 and num_steps is None and state is NOT_ASKED:
            raise InputError(
                "this block got one timestep and starts at rest at every call. Pass num_steps=T where the input "
                "stands for T "
                "equal ones, or go step by step: spikes, state = block(x, state=state), with state=None at the start."
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
        # A forward pass inside a backward pass is torch.utils.checkpoint's second one.
        if torch.compiler.is_compiling() or not self.training or self.repeating:
            return T
        if torch._C._current_graph_task_id() != -1:
            raise InputError(
                "torch.utils.checkpoint computes this block a second time and would count its running statistics "
                "twice. "
                "Use mpd_agl.nn.recompute, or create_model(..., recompute=True)."
            )
        return T

    @torch.no_grad()
    def current_map(self, x_SNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean_C, scale_C, beta_C of the current `i = (x - mean) scale + beta`, with the statistics used for this x."""
        norm, C = self.norm, x_SNC.shape[2]
        if norm is None:
            return x_SNC.new_zeros(C), x_SNC.new_ones(C), x_SNC.new_zeros(C)
        mean_C, var_C = norm.running_mean, norm.running_var
        shared = self._shared_moments(x_SNC)
        if shared is not None:
            mean_C, var_C = shared.mean_C, shared.var_C
        elif norm.training:
            mean_C, var_C = ops.moments(x_SNC, backend=self.neuron.backend)
        return mean_C, norm.weight * (norm.alpha * norm.v_th) * torch.rsqrt(var_C + norm.eps), norm.bias

    @torch.no_grad()
    def observe(self, x_SNC: Tensor, kappa_T: Tensor) -> Tensor:
        """`ops.probe` of the synapse's output x over T = len(kappa_T) steps."""
        neuron = self.neuron
        options = {**neuron.probed(), "kept_0": neuron.beginning(x_SNC), "backend": neuron.backend}
        return ops.probe(x_SNC, *self.current_map(x_SNC), neuron.tau, kappa_T, **options)


class AnnBlock(nn.Module):
    """The iso-architecture counterpart: synapse - batch norm - ReLU, no time."""

    replicas: ops.Replicas | None = None
    """Processes that hold the other parts of each training batch; set by `share_batch`."""

    def __init__(self, synapse: nn.Module) -> None:
        super().__init__()
        self.synapse = synapse
        norm = nn.BatchNorm2d if isinstance(synapse, nn.Conv2d) else nn.BatchNorm1d
        self.norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.Identity = norm(out_features(synapse))

    def forward(self, x_TNC: Tensor, num_steps: int | None = None, *, residual: Tensor | None = None) -> Tensor:
        """Activations, with `residual` added.

        An ANN has no time: it takes `num_steps` as the spiking networks pass it, and ignores it.
        """
        y = synapse_output(self.synapse, x_TNC.flatten(0, 1), "dense")
        y = torch.relu(self.norm(y) if self.replicas is None or not self.training else self._shared_norm(y))
        y = y.view(*x_TNC.shape[:2], *y.shape[1:])
        return y if residual is None else y + residual

    def _shared_norm(self, x_NC: Tensor) -> Tensor:
        """Batch norm with the statistics of all processes' parts of the batch."""
        norm = self.norm
        if isinstance(norm, nn.Identity):
            return x_NC
        assert self.replicas is not None
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        mean_C, var_C, count, _ = ops.batch_moments(x_NC.unsqueeze(0), self.replicas)
        with torch.no_grad():
            norm.running_mean.lerp_(mean_C, norm.momentum or 0.1)
            norm.running_var.lerp_(var_C * (count / (count - 1)), norm.momentum or 0.1)
            norm.num_batches_tracked.add_(1)
        shape = [-1] + [1] * (x_NC.dim() - 2)
        scale_C = norm.weight * torch.rsqrt(var_C + norm.eps)
        return ((x_NC - mean_C.view(shape)) * scale_C.view(shape) + norm.bias.view(shape)).to(x_NC.dtype)


class Readout(nn.Module):
    """The last linear layer at each timestep: logits_TNK, no leak and no firing. Eq. 9 is their mean over T."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, s_TNF: Tensor) -> Tensor:
        """logits_TNK."""
        logits: Tensor = self.linear(s_TNF)
        return logits


def share_batch(net: nn.Module, replicas: ops.Replicas | None) -> None:
    """Let a network's layers take training batches as parts of one that several processes share; None ends it.

    The statistics of tdBN, the measured moments, DeepTAGE's norms and ASGL's mask are then those of the whole batch. So
    all processes have the same running statistics and widths, those of one process on the whole batch. Call it on every
    process; all run the same layers in the same order.
    """
    for module in net.modules():
        if hasattr(type(module), "replicas"):
            module.replicas = replicas  # type: ignore[assignment]
