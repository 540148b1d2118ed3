"""A user's own network in a run: any `nn.Module`, as an object or by the name `module:factory`.

`module:factory` imports the user's module, also from the current directory, and calls the factory: it runs the user's
code, with all that the code may do. A run that was made so imports it again when it is resumed or evaluated.
"""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mpd_agl import ops, records
from mpd_agl.adaptation.find import to_rest
from mpd_agl.errors import InputError
from mpd_agl.nn import Neuron
from mpd_agl.nn.modes import evaluation_mode
from mpd_agl.train.config import OWN

OPTIONS = ("num_classes", "in_channels", "image_size", "num_steps", "method")
"""What a factory is given, where its signature takes it."""
Forward = Callable[[Any, Tensor], Any]
"""`forward(net, x) -> logits`, of shape (T, N, K) or (N, K)."""


class OwnNetwork(nn.Module):
    """A user's network as the loop takes it: x in, logits_TNK out, every neuron at rest before each pass.

    `x` is (N, C, H, W) for images and (T, N, C, H, W) for frames; `forward(net, x)` replaces `net(x)`. Its
    modules, parameters and state have the names that they have in the user's network.
    """

    def __init__(
        self, net: nn.Module, name: str = OWN, forward: Forward | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.net, self.name, self.own_forward, self.options_taken = net, name, forward, dict(options or {})
        self.sample_shape: tuple[int, ...] | None = None
        """The shape of samples that are no images: the loader carries them as rows (N, 1, 1, F)."""
        self.num_steps = 1
        """T, as `check_network` found it."""
        to_rest(net)

    def forward(self, x: Tensor) -> Tensor:
        """logits_TNK."""
        to_rest(self.net)
        x = x.contiguous()  # the loader's memory is channels-last, which `x.view` in a user's forward refuses
        N = x.shape[-4]
        if self.sample_shape is not None:
            x = x.reshape(N, *self.sample_shape)
        output = self.net(x) if self.own_forward is None else self.own_forward(self.net, x)
        if isinstance(output, tuple | list) and output:  # snnTorch's way: (spikes, potentials)
            output = output[0]
        if not isinstance(output, Tensor) or output.dim() not in (2, 3) or output.shape[-2] != N:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(
                f"{self.title} must return logits (T, N, K) or (N, K) with N = {N}, got {got}. "
                "Give fit a function forward(net, x) that makes them."
            )
        return output if output.dim() == 3 else output.unsqueeze(0)

    @property
    def title(self) -> str:
        """The network in words."""
        return self.name if self.name != OWN else type(self.net).__qualname__

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This wrapper, then the user's modules under their own names."""
        yield prefix, self
        yield from self.net.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """The state of the user's network."""
        return self.net.state_dict(*args, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Set the state of the user's network."""
        return self.net.load_state_dict(state_dict, strict, assign)

    def set_steps(self, num_steps: int, *, frames: bool) -> None:
        """Run another number of timesteps, if the network has an attribute `num_steps`; frames bring theirs."""
        if isinstance(getattr(self.net, "num_steps", None), int):
            self.net.num_steps = num_steps  # type: ignore[assignment]
        elif not frames and num_steps != self.num_steps:
            raise InputError(
                f"{self.title} has no attribute num_steps, so its timesteps are those it was written with. "
                "Leave --num-steps out."
            )

    @property
    def traced(self) -> nn.Module:
        """The user's network itself, for programs that trace `net(x)`."""
        if self.own_forward is not None:
            raise InputError(
                f"{self.title} was trained through a function forward(net, x), and an export traces net(x). "
                "Let --factory give a network whose own forward does the same."
            )
        return self.net

    @property
    def facts(self) -> dict[str, Any]:
        """What the record says of the network, and what a resumed run must meet again."""
        kind = type(self.net)
        facts: dict[str, Any] = {
            "class": f"{kind.__module__}:{kind.__qualname__}",
            "state_sha256": state_hash(self.net),
            "num_steps": self.num_steps,
            "options": self.options_taken,
        }
        if self.own_forward is not None:
            function = self.own_forward
            name = getattr(function, "__qualname__", type(function).__qualname__)
            facts["forward"] = f"{getattr(function, '__module__', '?')}:{name}"
        return facts

    def backend(self, device: torch.device) -> str:
        """What computes its neurons: the kernels of `mpd_agl.nn`'s, or torch where it has none."""
        asked = sorted({m.backend for m in self.net.modules() if isinstance(m, Neuron)})
        found = dict.fromkeys(ops.resolve(name, device, torch.float32).name for name in asked)
        return ", ".join(found) or "torch"


def state_hash(net: nn.Module) -> str:
    """Of the names, shapes and types of the state: the same for every network of one architecture."""
    shapes = [[name, list(t.shape), str(t.dtype)] for name, t in net.state_dict().items()]
    return hashlib.sha256(records.canonical(shapes)).hexdigest()


@torch.no_grad()
def check_network(net: OwnNetwork, x: Tensor, num_classes: int) -> None:
    """Show the network some samples and refuse what could not be trained.

    T is that of frames, the network's `num_steps`, or that of its output. A pass in evaluation mode changes nothing,
    and gives lazy layers their shapes.
    """
    try:
        with evaluation_mode(net):
            output = net(x)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{net.title} failed on an input of shape {tuple(x.shape)} with {words(error)}. "
            "Correct it, or give fit a function forward(net, x)."
        ) from error
    finally:
        to_rest(net.net)
    if output.shape[2] != num_classes:
        raise InputError(
            f"{net.title} gives {output.shape[2]} logits, and the data have {num_classes} classes. "
            "Give its last layer one output per class."
        )
    for name, value in net.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"the state of {net.title} holds {name}, a {type(value).__name__}, and a checkpoint holds tensors. "
                "Register it as a buffer."
            )
    if not any(p.requires_grad for p in net.parameters()):
        raise InputError(f"{net.title} has no parameter that requires a gradient. Give it one to train.")
    own = getattr(net.net, "num_steps", None)
    net.num_steps = x.shape[0] if x.dim() == 5 else own if isinstance(own, int) else output.shape[0]


def words(error: BaseException) -> str:
    """An error of the user's code, in short."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200].rstrip('.')}"


def import_object(name: str) -> Any:
    """What `module:attribute` names; the current directory is looked in, too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f"an own network is named MODULE:FACTORY, got {name!r}. build() in mynet.py is mynet:build.")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(f"{module_name!r} is a module of Python itself, got {name!r}. Name a module with a network.")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{module_name} needs the module {error.name!r}, which is not installed.") from error
        raise InputError(
            f"there is no module {error.name!r}, neither installed nor in the current directory. "
            "Start the command in the folder of the module."
        ) from error
    except Exception as error:
        raise InputError(f"the module {module_name} failed with {words(error)}. Correct it.") from error
    known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InputError(
            f"{module_name} has no function or class {attribute!r}. It has {', '.join(known[:12]) or 'none'}."
        )
    return found


def call_factory(name: str, options: Mapping[str, Any]) -> OwnNetwork:
    """Import and call `module:factory`, with those of the options that its signature takes."""
    factory = import_object(name)
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # written in C
        parameters = []
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    taken = {k: v for k, v in options.items() if takes_all or k in [p.name for p in parameters]}
    try:
        net = factory(**taken)
    except Exception as error:
        given = ", ".join(f"{k}={v!r}" for k, v in taken.items())
        raise InputError(f"{name}({given}) failed with {words(error)}. Correct the factory.") from error
    if not isinstance(net, nn.Module):
        raise InputError(f"{name} must return a torch.nn.Module, got {type(net).__name__}. Correct the factory.")
    return OwnNetwork(net, name, options=taken)


def recall_network(recorded: Mapping[str, Any], options: Mapping[str, Any], where: str) -> OwnNetwork:
    """The network of a run that `fit` made of an object: its class, called without further arguments."""
    name, way_out = str(recorded.get("class", "")), "Name a function that builds it: --factory MODULE:FACTORY."
    if not name or "<" in name or name.startswith("__main__:"):
        raise InputError(
            f"run {where} trained an object of {name.rpartition(':')[2]}, which no module holds. {way_out}"
        )
    try:
        net = call_factory(name, options)
    except InputError as error:
        raise InputError(f"run {where} trained an object: {str(error).rstrip('.')}. {way_out}") from error
    return net


def recall_forward(recorded: Mapping[str, Any], where: str) -> Forward | None:
    """The `forward` function that `fit` was given, if a module holds it."""
    name = recorded.get("forward")
    if name is None:
        return None
    if "<" in name or name.startswith(("__main__:", "?:")):
        raise InputError(
            f"run {where} was trained with the function {name.rpartition(':')[2]} in place of net(x), which no module "
            "holds. Put it into a module, or let --factory give a network whose own forward does the same."
        )
    found: Forward = import_object(name)
    return found
