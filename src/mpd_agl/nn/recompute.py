"""Less memory for more time: parts of a network keep only their input, and the backward pass computes them again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def _on_copied_buffers(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Modules of other libraries count their statistics in a second pass too: into copies that are thrown away."""
    buffers = [(m, n, b) for part in parts for m in part.modules() for n, b in m.named_buffers(recurse=False)]
    for module, name, buffer in buffers:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in buffers:
            setattr(module, name, buffer)


def run(parts: Sequence[nn.Module], s_TNC: Tensor, num_steps: int) -> Tensor:
    """One part after the other, each with the number of steps, in case its input is one that is shown so often."""
    for part in parts:
        s_TNC = part(s_TNC, num_steps)
    return s_TNC


def recompute(parts: Sequence[nn.Module], s_TNC: Tensor, num_steps: int) -> Tensor:
    """`run(parts, s)` with the same values, gradients and running statistics, but nothing within it is kept for the
    backward pass.

    Without gradients there is nothing to save, and the parts are simply called.
    """
    if not torch.is_grad_enabled():
        return run(parts, s_TNC, num_steps)
    contexts = lambda: (nullcontext(), _on_copied_buffers(parts))  # noqa: E731
    kept: Tensor = checkpoint(run, parts, s_TNC, num_steps, use_reentrant=False, context_fn=contexts)
    return kept
