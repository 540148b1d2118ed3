"""`adapt(net, batch, fuse=True)`: norm and neuron of SpikingJelly networks run as one kernel of this package.

The modules, their names and their parameters stay. The norm hands its input on, and the neuron applies norm and
neuron in one pass over it. A layer is fused only after spikes and gradients were compared with its own on the batch.

Convolutions and linear layers keep time folded into the batch, as SpikingJelly has it (`adaptation.synapses`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.adaptation.find import Layer, Run, removed, to_rest
from mpd_agl.adaptation.norms import FoldedNorm, foldable, folded_norms
from mpd_agl.adaptation.spike import AdaptiveSpike
from mpd_agl.adaptation.sums import currents
from mpd_agl.adaptation.synapses import FastSynapse, agrees, fast_synapses, replaceable
from mpd_agl.adaptation.undo import rehearsal
from mpd_agl.core import SURROGATES, Surrogate
from mpd_agl.errors import InputError
from mpd_agl.ops import BatchStats, NeuronSpec, NormSpec, StepInput, current_map, fused_step, probe

_SHAPES = {"ATan": "arctan", "PiecewiseQuadratic": "triangular", "Rect": "rectangular", "Sigmoid": "sigmoid"}
"""SpikingJelly's surrogates that this package has under another name."""
_NODES = ("IFNode", "LIFNode", "ParametricLIFNode")


def identity(x: Tensor) -> Tensor:
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
            self.norm.forward = identity
        self.spike.fusion = self

    def take_out(self) -> None:
        """Put the classes' own back."""
        del self.neuron.forward
        if self.norm is not None:
            del self.norm.forward
        self.spike.fusion = None

    def neuron_spec(self) -> NeuronSpec:
        """The node's equations."""
        n: Any = self.neuron
        tau = 1 - n.w.sigmoid() if hasattr(n, "w") else 1 - 1 / n.tau if hasattr(n, "tau") else 1.0
        return NeuronSpec(
            tau=tau,
            v_th=n.v_threshold,
            reset="soft" if n.v_reset is None else "hard",
            decay_input=bool(getattr(n, "decay_input", False)),
            detach_reset=n.detach_reset,
            surrogate=self.surrogate,
        )

    def norm_spec(self, x_TNC: Tensor) -> NormSpec | None:
        """The norm's values as torch's batch norms keep them: each part may be missing."""
        norm: Any = self.norm
        if norm is None:
            return None
        one_C = torch.ones(x_TNC.shape[2], device=x_TNC.device)
        zero_C, is_tracked = torch.zeros_like(one_C), norm.running_mean is not None
        return NormSpec(
            weight=one_C if norm.weight is None else norm.weight,
            bias=zero_C if norm.bias is None else norm.bias,
            mean=norm.running_mean if is_tracked else zero_C,
            var=norm.running_var if is_tracked else one_C,
            eps=norm.eps,
            batch_stats=norm.training or not is_tracked,
        )

    def forward(self, x: Tensor) -> Tensor:
        """As the node's own, of the norm's input."""
        n: Any = self.neuron
        is_sequence = n.step_mode == "m"
        x_TNC = x if is_sequence else x.unsqueeze(0)
        T, x_SNC = x_TNC.shape[0], self._one_step(x_TNC)
        state = n.v if isinstance(n.v, Tensor) and n.v.shape == x_TNC.shape[1:] else None
        step = StepInput(x_SNC, T, self.spike.widths_now(T), state=state, want_state=True)
        norm, neuron = self.norm_spec(x_SNC), self.neuron_spec()
        output = fused_step(norm, neuron, step)
        n.v = output.state
        if self.spike.is_measuring or self.spike.is_watched:
            self._observe(norm, neuron, step)
        if output.stats is not None:
            self._track(output.stats, T // x_SNC.shape[0])
        return output.spikes if is_sequence else output.spikes[0]

    def _one_step(self, x_TNC: Tensor) -> Tensor:
        """One step in place of all, where the current is what the synapse made for a still image."""
        still, self.still = self.still, None
        if still is None or x_TNC.shape != still[0].shape or x_TNC.data_ptr() != still[0].data_ptr():
            return x_TNC
        return still[1] if x_TNC.stride() == still[0].stride() else x_TNC

    @torch.no_grad()
    def _track(self, stats: BatchStats, repeats: int) -> None:
        """The norm's running statistics, as the norm itself keeps them."""
        norm: Any = self.norm
        if not norm.training or norm.running_mean is None:
            return
        norm.num_batches_tracked.add_(1)
        momentum = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
        count = int(stats.rows) * repeats
        norm.running_mean.lerp_(stats.mean_C.to(norm.running_mean), momentum)
        norm.running_var.lerp_((stats.var_C * (count / max(count - 1, 1))).to(norm.running_var), momentum)

    @torch.no_grad()
    def _observe(self, norm: NormSpec | None, neuron: NeuronSpec, step: StepInput) -> None:
        """The potentials that the kernel did not keep, for whoever watches or measures."""
        T, x_SNC = step.num_steps, step.x.detach().float()
        current, ones_T = current_map(norm, x_SNC), torch.ones(T, device=x_SNC.device)
        if not self.spike.is_watched:  # sums are enough, and the kernel has them
            self.spike.add_sums(probe(x_SNC, current, neuron, ones_T, step.state), x_SNC[0].numel())
            return
        constants: dict[str, Any] = {"v_th": neuron.v_th, "reset": neuron.reset, "decay_input": neuron.decay_input}
        s_TNC, v_TNC, _ = core.lif(currents(x_SNC, current, T), neuron.tau, ones_T, state=step.state, **constants)
        for t in range(T):
            self.spike.show(t, v_TNC[t] - neuron.v_th, s_TNC[t])


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
    """The batch norm whose output, unchanged, this neuron alone reads."""
    if not layer.is_direct:
        return None
    norm = layer.norms[0][1]
    is_plain = isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
    is_tdbn = isinstance(norm, nn.modules.batchnorm._BatchNorm) and "ThresholdDependent" in type(norm).__name__
    readers = [x for x in layers if any(m is norm for _, m in x.norms)]
    return norm if (is_plain or is_tdbn) and len(readers) == 1 else None


def _inputs(modules: list[nn.Module], run: Run) -> dict[nn.Module, Tensor]:
    """The first inputs of these modules in a pass."""
    seen: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.setdefault(module, args[0].detach())

    with removed([m.register_forward_pre_hook(keep) for m in modules]), torch.no_grad():
        run()
    return seen


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
    """Fuse what can be fused, in place; returns the reasons for the layers that were left.

    Each layer is compared on the inputs that it has in a pass, as it will run. Then the whole network is compared in
    float64: in float32 one spike that rounding flips changes all layers behind it.
    """
    notes: dict[str, str] = {}
    parts: list[Fusion | FastSynapse | FoldedNorm] = []
    with rehearsal(net):  # it takes out again what is put in here
        synapses = replaceable(net)
        read = [m for layer in layers for m in (layer.neuron, *(norm for _, norm in layer.norms))]
        seen = _inputs([*read, *synapses.values()], run)
        wanted = _exact_output(net, run_in_float64)
        for layer in layers:
            found = _fusion(layer, layers, seen)
            if isinstance(found, Fusion):
                parts.append(found)
            else:
                notes[layer.name] = f"not fused: {found}"
        if parts:
            others: list[FastSynapse | FoldedNorm] = [
                *_fast_synapses(layers, synapses, seen, conv_impl),
                *map(FoldedNorm, foldable(net)),
            ]
            for other in others:
                other.put_in()
            parts += others
        got = None if wanted is None else _exact_output(net, run_in_float64)
    if wanted is not None and got is not None:
        error = float((got - wanted).norm() / wanted.norm().clamp_min(1e-12))
        if error > 1e-6:
            reason = f"not fused: fused, the network's output differs by {error:.1e} of its size"
            return {layer.name: reason for layer in layers} | notes
    for part in parts:
        part.put_in()
    return notes


def _fusion(layer: Layer, layers: list[Layer], seen: dict[nn.Module, Tensor]) -> Fusion | str:
    """A layer's fusion, put in, if it gives what the layer gives; else the reason."""
    if (reason := _refusal(layer)) is not None:
        return reason
    norm = _fusable_norm(layer, layers)
    own = layer.spike.surrogate or SURROGATES[_SHAPES[type(layer.spike.function).__name__]]
    fusion = Fusion(layer.neuron, layer.spike, norm, own)
    shape, x = seen[layer.neuron].shape, seen[layer.neuron if norm is None else norm]
    wanted = _outcome(layer, norm, x, shape)
    fusion.put_in()
    try:
        reason = _difference(_outcome(layer, norm, x, shape), wanted)
    except (InputError, RuntimeError) as error:
        reason = str(error)
    if reason is None:
        return fusion
    fusion.take_out()
    return reason


def take_out(net: nn.Module) -> None:
    """Give synapses and norms their own `forward` back; each neuron's fusion goes with its AdaptiveSpike."""
    parts: list[FastSynapse | FoldedNorm] = [*fast_synapses(net).values(), *folded_norms(net)]
    for part in parts:
        part.take_out()


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
