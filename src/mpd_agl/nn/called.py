"""Whether a module must be called, or may be replaced by a function of its parameters."""

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def called_as_module(module: nn.Module) -> bool:
    """Whether calling this module does more than its class's `forward` on its parameters.

    So it is with hooks of its own (weight_norm, spectral_norm and pruning are hooks too) or of all modules, with a
    `forward` that was set on the instance, and with a parametrisation.
    """
    return (
        any(getattr(module, name) for name in _HOOKS)
        or bool(torch_module._has_any_global_hook())  # type: ignore[no-untyped-call]
        or "forward" in vars(module)
        or parametrize.is_parametrized(module)
    )
