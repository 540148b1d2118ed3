"""`adapt(net, batch, fuse=True)`: norm and neuron of SpikingJelly networks run as one kernel of ours.

The modules, their names and their parameters stay. The norm hands its input on, and the neuron applies norm and
neuron in one pass over it. A layer is fused only after spikes and gradients were compared with its own on the batch.

Convolutions and linear layers keep time folded into the batch, as SpikingJelly has it (`adapt.synapses`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl import core, ops
from mpd_agl.adaptation.find import Layer, Run, rehearsal, to_rest
from mpd_agl.adaptation.norms import FoldedNorm, foldable, folded_norms
from mpd_agl.adaptation.spike import AdaptiveSpike
from mpd_agl.adaptation.synapses import FastSynapse, agrees, fast_synapses, replaceable
from mpd_agl.core import SURROGATES, Surrogate
from mpd_agl.errors import InputError

_SHAPES = {"ATan": "arctan", "PiecewiseQuadratic": "triangular", "Rect": "rectangular", "Sigmoid": "sigmoid"}
"""SpikingJelly's surrogates that are ours under another name."""
_NODES = ("IFNode", "LIFNode", "ParametricLIFNode")


def hand_on(x: Tensor) -> Tensor:
    """The `forward` of a norm that its neuron applies."""
    return x


@dataclass(eq=False)
class Fusion:
    """One neuron, and the norm before it where there is one, as one kernel."""

    neuron: nn.Module
    spike: AdaptiveSpike
    norm: nn.Module | None
    surrogate: Surrogate
    still: tuple[Tensor, Tensor] | None = None
    """A current that is the same at every step, as the synapse just returned it: repeated, and as one step."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "still": None}

    def put_in(self) -> None:
        """Replace the two `forward`s."""
        self.neuron.forward = self.forward
        if self.norm is not None:
            self.norm.forward = hand_on
        self.spike.fusion = self

    def take_out(self) -> None:
        """Put the classes' own back."""
        del self.neuron.forward
        if self.norm is not None:
            del self.norm.forward
        self.spike.fusion = None

    def _tau(self) -> Tensor | float:
        """The share that is kept, with its gradient where it is learnable."""
        n: Any = self.neuron
        if hasattr(n, "w"):
            tau: Tensor = 1 - n.w.sigmoid()
            return tau
        return 1 - 1 / n.tau if hasattr(n, "tau") else 1.0

    def options(self) -> dict[str, Any]:
        """The neuron's equations, as `core.lif` and the kernels take them."""
        n: Any = self.neuron
        soft = n.v_reset is None
        return {
            "v_th": n.v_threshold,
            "reset": "soft" if soft else "hard",
            "decay_input": bool(getattr(n, "decay_input", False)),
        }

    def forward(self, x: Tensor) -> Tensor:
        """As the node's own, of the norm's input."""
        n: Any = self.neuron
        x_TNC = x if n.step_mode == "m" else x.unsqueeze(0)
        T = x_TNC.shape[0]
        kept_0 = n.v if isinstance(n.v, Tensor) and n.v.shape == x_TNC.shape[1:] else None
        kappa_T, tau = self.spike.kappa_now(T), self._tau()
        x_TNC = self._one_step(x_TNC)
        call = {
            **self.options(),
            "num_steps": T,
            "surrogate": self.surrogate,
            "detach_reset": n.detach_reset,
            "kept_0": kept_0,
            "return_state": True,
            "gain_T": self.spike.gain_now(T),
        }
        if self.norm is None:
            current = None
            s_TNC, kept = ops.neuron(x_TNC, tau, kappa_T, **call)
        else:
            s_TNC, kept, current = self._with_norm(x_TNC, tau, kappa_T, call)
        n.v = kept
        self._observe(x_TNC, T, current, tau, kept_0)
        spikes: Tensor = s_TNC if n.step_mode == "m" else s_TNC[0]
        return spikes

    def _one_step(self, x_TNC: Tensor) -> Tensor:
        """One step that stands for all, where the current is what the synapse made for a still image."""
        still, self.still = self.still, None
        if still is None or x_TNC.shape != still[0].shape or x_TNC.data_ptr() != still[0].data_ptr():
            return x_TNC
        return still[1] if x_TNC.stride() == still[0].stride() else x_TNC

    def _with_norm(
        self, x_TNC: Tensor, tau: Tensor | float, kappa_T: Tensor, call: dict[str, Any]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Spikes, state, and mean_C, scale_C, beta_C of the current; keeps the norm's running statistics."""
        norm: Any = self.norm
        C = x_TNC.shape[2]
        one_C = torch.ones(C, device=x_TNC.device)
        gamma_C = one_C if norm.weight is None else norm.weight
        beta_C = torch.zeros_like(one_C) if norm.bias is None else norm.bias
        tracked = norm.running_mean is not None
        statistics = (norm.running_mean, norm.running_var) if tracked else (torch.zeros_like(one_C), one_C)
        s_TNC, mean_C, var_C, kept = ops.tdbn_neuron(
            x_TNC,
            gamma_C,
            beta_C,
            statistics[0],
            statistics[1],
            tau,
            kappa_T,
            batch_stats=norm.training or not tracked,
            norm_v_th=1.0,
            eps=norm.eps,
            **call,
        )
        with torch.no_grad():
            if norm.training and tracked:
                norm.num_batches_tracked.add_(1)
                momentum = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
                count = call["num_steps"] * x_TNC[0].numel() // C  # one step may stand for all
                norm.running_mean.lerp_(mean_C.to(norm.running_mean), momentum)
                norm.running_var.lerp_((var_C * (count / max(count - 1, 1))).to(norm.running_var), momentum)
            scale_C = gamma_C * torch.rsqrt(var_C + norm.eps)
        return s_TNC, kept, (mean_C.detach(), scale_C, beta_C.detach())

    @torch.no_grad()
    def _observe(
        self,
        x_TNC: Tensor,
        T: int,
        current: tuple[Tensor, Tensor, Tensor] | None,
        tau: Tensor | float,
        kept_0: Tensor | None,
    ) -> None:
        """The potentials that the kernel kept to itself, for whoever asked to see or to measure them."""
        spike = self.spike
        if not (spike.is_measuring or spike.is_watched):
            return
        x_TNC, options = x_TNC.detach().float(), self.options()
        if not spike.is_watched:  # sums are enough, and the kernel has them
            axis = 2 if x_TNC.dim() == 5 or current is not None else x_TNC.dim() - 1
            zero_C = torch.zeros(x_TNC.shape[axis], device=x_TNC.device)
            affine = (zero_C, torch.ones_like(zero_C), zero_C) if current is None else current
            one_T, tau = torch.ones(T, device=x_TNC.device), torch.as_tensor(tau).detach()
            sums_T6 = ops.probe(x_TNC, *affine, tau, one_T, kept_0=kept_0, channel_dim=axis, **options)
            spike.measure_sums(x_TNC[0].numel(), sums_T6[:, 2], sums_T6[:, 3], options["v_th"])
            return
        i_TNC = x_TNC
        if current is not None:
            shape = [-1] + [1] * (x_TNC.dim() - 3)
            mean_C, scale_C, beta_C = (a.view(shape) for a in current)
            i_TNC = (i_TNC - mean_C) * scale_C + beta_C
        i_TNC = i_TNC.expand(T, *i_TNC.shape[1:])
        kappa_T = torch.ones(T, device=x_TNC.device)
        s_TNC, v_TNC, *_ = core.lif(i_TNC, tau, kappa_T, kept_0=kept_0, **options)
        for t in range(T):
            spike.see(t, v_TNC[t] - options["v_th"], s_TNC[t])


def _refusal(layer: Layer) -> str | None:
    """Why a layer cannot be fused, as a clause."""
    n: Any = layer.neuron
    if layer.adapter.library != "spikingjelly" or type(n).__name__ not in _NODES:
        return f"{type(n).__name__} has no kernel"
    if n.v_reset not in (None, 0.0):
        return f"v_reset={n.v_reset}, and the kernel rests at 0"
    if getattr(n, "store_v_seq", False):
        return "store_v_seq=True asks for potentials that the kernel does not keep"
    if layer.spike.surrogate is None and type(layer.spike.function).__name__ not in _SHAPES:
        return f"no kernel has the surrogate {type(layer.spike.function).__name__}; surrogate='arctan' would replace it"
    if layer.num_calls > 1:
        return "the network uses the neuron more than once"
    return None


def _fusable_norm(layer: Layer, layers: list[Layer]) -> nn.Module | None:
    """The batch norm that this neuron alone reads, as it stands."""
    if not layer.is_direct:
        return None
    norm = layer.norms[0][1]
    plain = isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
    tdbn = type(norm).__name__.startswith("ThresholdDependentBatchNorm") and isinstance(
        norm, nn.modules.batchnorm._BatchNorm
    )
    readers = [x for x in layers if any(m is norm for _, m in x.norms)]
    return norm if (plain or tdbn) and len(readers) == 1 else None


@contextmanager
def _inputs(modules: list[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """The first inputs of these modules over one pass."""
    seen: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.setdefault(module, args[0].detach())

    handles = [m.register_forward_pre_hook(keep) for m in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _outcome(layer: Layer, norm: nn.Module | None, x: Tensor, shape: torch.Size) -> list[Tensor]:
    """Spikes, and the gradients of the input and of every parameter of the layer."""
    layer.adapter.to_rest(layer.neuron)
    x = x.clone().requires_grad_()
    i = x if norm is None else norm(x)
    s = layer.neuron(i.view(shape))
    weight = torch.linspace(-1, 1, 1009, device=x.device).repeat(s.numel() // 1009 + 1)[: s.numel()].view(s.shape)
    parameters = [p for m in (norm, layer.neuron) if m is not None for p in m.parameters() if p.requires_grad]
    grads = torch.autograd.grad((s * weight).sum(), [x, *parameters], allow_unused=True)
    layer.adapter.to_rest(layer.neuron)
    return [s.detach(), *(g for g in grads if g is not None)]


def _difference(got: list[Tensor], wanted: list[Tensor]) -> str | None:
    """Where two outcomes differ by more than rounding, as a clause."""
    share = float((got[0] != wanted[0]).float().mean())
    if share > 1e-4:
        return f"{share:.2%} of the spikes differ"
    for a, b in zip(got[1:], wanted[1:], strict=True):
        error = float((a - b).norm() / b.norm().clamp_min(1e-12))
        if error > (2e-2 if share else 1e-3):  # a spike that rounding flips moves its gradient
            return f"a gradient differs by {error:.1e} of its size"
    return None


def in_float64(batch: Any) -> Any:
    """A batch in float64; what is no floating-point tensor stays as it is."""
    if isinstance(batch, (tuple, list)):
        return type(batch)(in_float64(part) for part in batch)
    if isinstance(batch, dict):
        return {key: in_float64(part) for key, part in batch.items()}
    return batch.double() if isinstance(batch, Tensor) and batch.is_floating_point() else batch


def _exact_output(net: nn.Module, run: Run) -> Tensor | None:
    """The network's output in float64, where no rounding moves a potential across its threshold.

    None where the network cannot run in float64, as when its own code makes float32 tensors.
    """
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in net.parameters()):
        return None
    net.double()
    try:
        to_rest(net)
        torch.manual_seed(0)  # the same dropout in both passes; the rehearsal keeps the caller's random numbers
        with torch.no_grad():
            found = run()
    except (RuntimeError, TypeError, InputError):
        return None
    finally:
        net.float()
        to_rest(net)
    return found.detach() if isinstance(found, Tensor) else None


def fuse(net: nn.Module, layers: list[Layer], run: Run, run_in_float64: Run, *, conv_impl: str) -> dict[str, str]:
    """Fuse what can be fused, in place; the reasons for the layers that were left, and which norms were left out.

    Each layer is compared on the inputs that it has in a pass, as it will run. Then the whole network is compared in
    float64: in float32 one spike that rounding flips changes all layers behind it.
    """
    notes: dict[str, str] = {}
    fused: list[Fusion] = []
    with rehearsal(net):
        synapses = replaceable(net)
        with _inputs([*_read_by(layers), *synapses.values()]) as seen, torch.no_grad():
            run()
        wanted = _exact_output(net, run_in_float64)
        for layer in layers:
            reason = _refusal(layer)
            if reason is None:
                norm = _fusable_norm(layer, layers)
                own = layer.spike.surrogate or SURROGATES[_SHAPES[type(layer.spike.function).__name__]]
                fusion = Fusion(layer.neuron, layer.spike, norm, own)
                reason = _try(fusion, layer, seen)
                if reason is None:
                    fused.append(fusion)
            if reason is not None:
                notes[layer.name] = f"not fused: {reason}"
        fast: list[FastSynapse | FoldedNorm] = []
        if fused:
            fast += _fast_synapses(layers, synapses, seen, conv_impl)
            fast += [FoldedNorm(norm) for norm in foldable(net)]
            for part in fast:
                part.put_in()
        got = None if wanted is None else _exact_output(net, run_in_float64)
        if wanted is not None and got is not None:
            error = float((got - wanted).norm() / wanted.norm().clamp_min(1e-12))
            if error > 1e-6:
                for done in (*fused, *fast):
                    done.take_out()
                reason = f"not fused: fused, the network's output differs by {error:.1e} of its size"
                return notes | {layer.name: reason for layer in layers if layer.spike.fusion is None}
    return notes


def take_out(net: nn.Module) -> None:
    """Give synapses and norms their own `forward` back; each neuron's fusion goes with its AdaptiveSpike."""
    parts: list[FastSynapse | FoldedNorm] = [*fast_synapses(net).values(), *folded_norms(net)]
    for part in parts:
        part.take_out()


def _read_by(layers: list[Layer]) -> list[nn.Module]:
    return [m for layer in layers for m in (layer.neuron, *(norm for _, norm in layer.norms))]


def _fast_synapses(
    layers: list[Layer], synapses: dict[str, nn.Module], seen: dict[nn.Module, Tensor], conv_impl: str
) -> list[FastSynapse]:
    """For each convolution and linear layer that ran; dense where a faster way does not compute the same."""
    found = []
    for module in synapses.values():
        if module not in seen:
            continue
        synapse = FastSynapse(module, conv_impl)  # type: ignore[arg-type]
        if not agrees(synapse, seen[module]):
            synapse.conv_impl = "dense"
        readers = [layer for layer in layers if any(m is module for _, m in layer.synapses)]
        if len(readers) == 1:
            synapse.serves = readers[0].spike.fusion
        found.append(synapse)
    return found


def _try(fusion: Fusion, layer: Layer, seen: dict[nn.Module, Tensor]) -> str | None:
    """Put a fusion in if it gives what the layer gives; else the reason."""
    norm = fusion.norm
    shape = seen[layer.neuron].shape
    x = seen[layer.neuron if norm is None else norm]
    wanted = _outcome(layer, norm, x, shape)
    fusion.put_in()
    try:
        reason = _difference(_outcome(layer, norm, x, shape), wanted)
    except (InputError, RuntimeError) as error:
        reason = str(error)
    if reason is not None:
        fusion.take_out()
    return reason
