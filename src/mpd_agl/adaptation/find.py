"""What comes before each spiking neuron: found by following one training pass back through its graph of gradients.

Every tensor of a pass knows the operation that made it, and that one the operations before it. Walking back from a
neuron's current, the first norm, synapse or neuron on each path is what the current is made of. So a norm is found
through views, folded time, pooling and sums, however the network's `forward` is written.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mpd_agl.adaptation.adapters import Adapter, adapter_of
from mpd_agl.adaptation.spike import AdaptiveSpike, Watcher, affines_before
from mpd_agl.errors import InputError

SYNAPSES = (nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear, nn.Embedding)
_MOVES = frozenset(
    """Alias AsStrided Cat Clone Contiguous Expand Flatten Movedim Permute Repeat Reshape Select Slice Split Squeeze
    Stack T ToCopy Transpose Unbind Unfold UnsafeSplit UnsafeView Unsqueeze View""".split()  # noqa: SIM905
)
"""Operations that only move values, as torch names them in the graph."""
_PRODUCTS = ("Convolution", "Addmm", "Mm", "Bmm", "Linear", "Baddbmm", "Einsum")


@dataclass
class Layer:
    """A spiking neuron of the network, and what was found before it."""

    name: str
    neuron: nn.Module
    adapter: Adapter
    spike: AdaptiveSpike
    norms: list[tuple[str, nn.Module]] = field(default_factory=list)
    synapses: list[tuple[str, nn.Module]] = field(default_factory=list)
    """Those whose output, behind the norms if there are any, is the neuron's current."""
    predictable: bool = False
    """Whether the current is the norms' output, or a sum of them, and nothing else."""
    is_direct: bool = False
    """Whether the neuron's current is the output of one norm, only moved."""
    is_read: bool = True
    """Whether the network's output depends on the spikes; not so where it is this neuron's potential alone."""
    num_calls: int = 0
    """How often a training pass calls the neuron at the first timestep."""


def operation(node: Any) -> str:
    """`ViewBackward0` -> `View`."""
    return str(node.name()).removesuffix("0").removesuffix("1").removesuffix("Backward")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for v in value.values() if isinstance(value, dict) else value:
            yield from _tensors(v)


@dataclass
class Tracer:
    """Hooks on norms, synapses and neurons that remember which operation made each one's output."""

    made_by: dict[Any, tuple[str, nn.Module]] = field(default_factory=dict)
    """Operation -> the module whose output it made. Kept here, no operation is freed and its address used again."""
    norm_inputs: dict[nn.Module, Any] = field(default_factory=dict)
    currents: dict[nn.Module, Any] = field(default_factory=dict)
    """Neuron -> the operation that made its first current."""
    order: list[nn.Module] = field(default_factory=list)

    def attach(self, net: nn.Module) -> Iterator[RemovableHandle]:
        """Follow a pass until the hooks are removed."""
        for name, module in net.named_modules():
            is_neuron, is_norm = adapter_of(module) is not None, affines_before(module) is not None
            if is_neuron or is_norm or isinstance(module, SYNAPSES):
                yield module.register_forward_hook(functools.partial(self._leave, name))
            if is_neuron or is_norm:
                yield module.register_forward_pre_hook(self._enter)

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        for tensor in _tensors(output):
            self._remember(tensor.grad_fn, (name, module))

    def _remember(self, node: Any, owner: tuple[str, nn.Module]) -> None:
        """The operation that made an output; behind a view also the one before, as `out += x` writes through a view."""
        while node is not None and node not in self.made_by:
            self.made_by[node] = owner
            if operation(node) not in _MOVES or len(node.next_functions) != 1:
                return
            node = node.next_functions[0][0]

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        table = self.currents if adapter_of(module) is not None else self.norm_inputs
        if module not in table and args:
            first = next(_tensors(args), None)
            table[module] = None if first is None else first.grad_fn
            if table is self.currents:
                self.order.append(module)

    def sources(self, node: Any) -> tuple[list[tuple[str, nn.Module] | None], set[str]]:
        """The modules that a value comes from, None for a source that is none, and the operations between."""
        found: list[tuple[str, nn.Module] | None] = []
        between: set[str] = set()
        seen, todo = set(), [node]
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self.made_by:
                if self.made_by[node] not in found:
                    found.append(self.made_by[node])
                continue
            name = operation(node)
            if "Norm" in name or name in _PRODUCTS or not node.next_functions:
                found.append(None)  # a norm or a product written as a function, or an input
                continue
            between.add(name)
            todo.extend(n for n, _ in node.next_functions)
        return found, between

    def describe(self, layer: Layer) -> None:
        """Fill in what comes before a layer."""
        found, between = self.sources(self.currents.get(layer.neuron))
        modules = [f for f in found if f is not None]
        layer.norms = [f for f in modules if affines_before(f[1]) is not None]
        synapses = [f for f in modules if isinstance(f[1], SYNAPSES)]
        for _, norm in layer.norms:
            behind, _ = self.sources(self.norm_inputs.get(norm))
            synapses += [f for f in behind if f is not None and isinstance(f[1], SYNAPSES)]
        layer.synapses = synapses
        only_norms = len(layer.norms) == len(found) > 0
        # A sum of one norm with itself or with a constant has other moments than that norm's.
        layer.predictable = only_norms and between <= _MOVES | {"Add"} and (len(found) > 1) == ("Add" in between)
        layer.is_direct = only_norms and len(found) == 1 and between <= _MOVES


Run = Callable[[], object]
Forward = Callable[[nn.Module, Any], Any]


def call_network(net: nn.Module, batch: Any, forward: Forward | None = None) -> Any:
    """`forward(net, batch)`, or `net(x)`; of a (x, labels) pair, as data loaders give it, the first. What a network
    says of a batch that it cannot take becomes a sentence.
    """
    try:
        if forward is not None:
            return forward(net, batch)
        return net(batch[0] if isinstance(batch, (tuple, list)) else batch)
    except InputError:
        raise
    except Exception as error:
        called = "net(batch)" if forward is None else "forward(net, batch)"
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InputError(
            f"{called} failed with {words}. Pass a batch as you train with, in tensors (--batch FILE.npz in a shell), "
            "or forward= with your own loop."
        ) from error


def to_rest(net: nn.Module) -> None:
    """Let every neuron, and every other stateful module of SpikingJelly, forget its state."""
    for module in net.modules():
        adapter = adapter_of(module)
        if adapter is not None and adapter.refusal(module) is None:
            adapter.to_rest(module)
        elif any(k.__name__ == "MemoryModule" for k in type(module).__mro__):
            module.reset()  # type: ignore[operator]


@contextlib.contextmanager
def removed(hooks: Sequence[RemovableHandle]) -> Iterator[None]:
    """Hooks that are removed afterwards."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def everything_requires_grad(net: nn.Module) -> Iterator[None]:
    """The graph must reach frozen layers, too."""
    frozen = [p for p in net.parameters() if not p.requires_grad and p.is_floating_point()]
    for p in frozen:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p in frozen:
            p.requires_grad_(False)


def _behind(nodes: list[Any]) -> set[Any]:
    """Every operation that these depend on, themselves included."""
    found: set[Any] = set()
    todo = [node for node in nodes if node is not None]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo.extend(n for n, _ in node.next_functions if n is not None)
    return found


def _appender(nodes: list[Any]) -> Watcher:
    return lambda t, u, s: nodes.append(s.grad_fn)


def trace(net: nn.Module, run: Run, layers: list[Layer]) -> list[Layer]:
    """One training pass: the layers in the order in which they ran, each with what comes before it."""
    tracer = Tracer()
    by_neuron = {layer.neuron: layer for layer in layers}
    fired: dict[nn.Module, list[Any]] = {neuron: [] for neuron in by_neuron}
    watchers = [by_neuron[neuron].spike.watch(_appender(nodes)) for neuron, nodes in fired.items()]
    with removed([*watchers, *tracer.attach(net)]), torch.enable_grad(), everything_requires_grad(net):
        result = run()  # kept until the graph was read
        reached = _behind([t.grad_fn for t in _tensors(result)])
        ran = [by_neuron[n] for n in tracer.order if n in by_neuron]
        for layer in ran:
            tracer.describe(layer)
            made = [node for node in fired[layer.neuron] if node is not None]
            layer.is_read = not (reached and made) or any(node in reached for node in made)
    del result
    return ran
