"""A whole training step of a preset's network without values: on the `meta` device, where a GPU would be.

A tensor there has a shape and a layout and no values. An operand that was left on the CPU is an error, and so is
every line that needs a value on the host (`.item()`, `float(t)`, a branch on a tensor), which would wait for a GPU. A
step that passes has none of either. A dispatch mode counts the copies of activations.

Where torch's meta device differs from a GPU, this program does what the GPU does, and nothing else: a convolution of
channels_last input answers in channels_last (as `cudnn_conv_suggest_memory_format` has it), autocast casts the inputs
of convolutions and linear layers, and the fused optimizers and GradScaler's two kernels are taken as done.
"""

import os
import traceback
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from mpd_agl import ops
from mpd_agl.nn import share_batch
from mpd_agl.train import build
from mpd_agl.train.dry_run import random_set
from mpd_agl.train.resolve import data_set, merge, resolve

META = torch.device("meta")
aten = torch.ops.aten
COPIES = (aten.clone.default, aten.copy_.default, aten._to_copy.default)
DONE = (
    aten._fused_sgd_,
    aten._fused_adam_,
    aten._fused_adamw_,
    aten._amp_foreach_non_finite_check_and_unscale_,
    aten._amp_update_scale_,
)
"""Kernels that change tensors in place and that torch has no meta version of."""


class Watch(TorchDispatchMode):
    """Counts copies of activations by where they happen."""

    def __init__(self):
        super().__init__()
        self.copies = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket in DONE:
            return None
        out = operator(*args, **(kwargs or {}))
        if operator is aten.convolution.default and any(
            a.is_contiguous(memory_format=torch.channels_last) for a in args[:2]
        ):
            out = torch.empty_like(out, memory_format=torch.channels_last)
        if operator in COPIES:
            self._count(args[0], out)
        return out

    def _count(self, a, out):
        """A copy of more than a matrix: of another dtype, or in another layout, and where."""
        if a.dim() > 2:
            inside = [f.name for f in traceback.extract_stack() if "/mpd_agl/" in f.filename.replace(os.sep, "/")]
            self.copies["layout" if a.dtype == out.dtype else "dtype", inside[-1] if inside else "autograd"] += 1


class Autocast(TorchFunctionMode):
    """What torch.autocast does to the layers that matter; it has no meta device."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.nn.functional.linear, torch.conv2d, torch.nn.functional.conv2d):
            args = [a.to(self.dtype) if isinstance(a, torch.Tensor) else a for a in args]
        return function(*args, **(kwargs or {}))


@contextmanager
def as_on_a_gpu():
    """torch's fused optimizers refuse the meta device by its name: let them pass."""
    with ExitStack() as stack:
        for module in ("sgd", "adam"):
            stack.enter_context(patch(f"torch.optim.{module}._device_dtype_check_for_fused", lambda *a, **k: None))
        yield


@contextmanager
def two_processes():
    """A process group whose other process is not there: messages go nowhere, on any device."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def step(config, *, backend="triton", precision="float32", shared=False):
    """Run a training step and count its copies by place: {"layout": ..., "dtype": ...}."""
    config = resolve(merge(config, {"model": {"backend": backend}}))
    shape = random_set(config, "train", 1).x.shape[1:]
    height, width, channels = shape[-3:]
    N, T = config.train.batch_size, config.model.num_steps
    with META:
        classes = data_set(config).num_classes
        net = build.build_network(config, in_channels=channels, image_size=height, num_classes=classes).train()
    dtype = getattr(torch, precision)
    with as_on_a_gpu(), two_processes() if shared else nullcontext():
        if shared:
            share_batch(net, ops.Replicas())
        stepper = build.build_stepper(config, net, META)
        stepper.autocast = lambda: nullcontext() if dtype == torch.float32 else Autocast(dtype)
        stepper.scaler = torch.amp.GradScaler("meta", enabled=dtype == torch.float16)
        frames = (T,) if len(shape) == 4 else ()
        x = torch.empty((*frames, N, channels, height, width), device=META)
        y = torch.empty(N, dtype=torch.long, device=META)
        with Watch() as seen:
            stepper.step(x, y)
    return {kind: {n: c for (k, n), c in seen.copies.items() if k == kind} for kind in ("layout", "dtype")}
