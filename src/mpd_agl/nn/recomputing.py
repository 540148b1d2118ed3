"""Less memory for more time: parts of a network keep only their input, and the backward pass computes them again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpd_agl.nn.block import SpikingBlock
from mpd_agl.nn.neuron import Neuron


@contextmanager
def repeating(parts: Sequence[nn.Module]) -> Iterator[None]:
    """The second pass recomputes what the first one did.

    Running statistics go into copies that are thrown away, and monitors ignore the pass.
    """
    modules = [m for part in parts for m in part.modules()]
    buffers = [(m, name, b) for m in modules for name, b in m.named_buffers(recurse=False)]
    blocks = [m for m in modules if isinstance(m, SpikingBlock | Neuron)]
    for module, name, buffer in buffers:
        setattr(module, name, buffer.clone())
    for block in blocks:
        block.repeating = True
    try:
        yield
    finally:
        for module, name, buffer in buffers:
            setattr(module, name, buffer)
        for block in blocks:
            block.repeating = False


def run(parts: Sequence[nn.Module], s_TNC: Tensor, num_steps: int) -> Tensor:
    """One part after the other, each told the number of steps, in case its input is one that stands for all of them."""
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
    contexts = lambda: (nullcontext(), repeating(parts))  # noqa: E731
    kept: Tensor = checkpoint(run, parts, s_TNC, num_steps, use_reentrant=False, context_fn=contexts)
    return kept
