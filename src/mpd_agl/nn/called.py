"""Questions about how a module or a pass is run, each asked in one place."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _OWN_HOOKS)


def called_as_module(module: nn.Module) -> bool:
    """Whether a module must be called, because a call does more than its class: hooks of its own or of all modules, a
    `forward` set on the object, a parametrised weight (weight norm, spectral norm, pruning use hooks or this).
    """
    hooked = any(getattr(module, name) for name in _OWN_HOOKS)
    everywhere = any(getattr(torch_module, name) for name in _GLOBAL_HOOKS)
    return hooked or everywhere or "forward" in vars(module) or parametrize.is_parametrized(module)


def described(module: nn.Module | None, name: str) -> Callable[[], Any] | None:
    """The module's method of that name, which describes its `forward`; None where a subclass has a forward of its own
    and inherits the description.
    """
    for kind in type(module).__mro__:
        if name in vars(kind):
            found: Callable[[], Any] = getattr(module, name)
            return found
        if "forward" in vars(kind):
            return None
    return None


def in_backward() -> bool:
    """Whether a backward pass is running: a forward pass is then the second one of a checkpoint.

    Statistics were counted in the first pass. A forward pass of another kind inside a backward pass (in a tensor hook,
    say) is not told apart and counts nothing either.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def call_once(module: nn.Module, *args: object) -> Tensor:
    """Call a module that may update buffers; in a checkpoint's second pass it updates copies of them."""
    if not in_backward():
        found: Tensor = module(*args)
        return found
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    again: Tensor = torch.func.functional_call(module, buffers, args)
    return again
