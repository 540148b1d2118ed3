"""Passes that leave no trace: what runs inside is undone."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from mpd_agl.adaptation.find import to_rest


@contextlib.contextmanager
def undone(net: nn.Module) -> Iterator[None]:
    """Afterwards modes, hooks, buffers, states, all other attributes but the values of parameters, and the random
    numbers are as before.
    """
    attributes = {m: dict(m.__dict__) for m in net.modules()}
    holders = [v for a in attributes.values() for v in a.values() if isinstance(v, (dict, list))]
    contents = [(v, v.copy()) for v in holders]
    loose = [v for a in attributes.values() for v in a.values()]
    loose += [x for _, held in contents for x in (held.values() if isinstance(held, dict) else held)]
    tensors = {v for v in loose if isinstance(v, Tensor) and not isinstance(v, nn.Parameter)}
    values = [(t, t.detach().clone()) for t in tensors]
    with own_random_numbers(net):
        try:
            yield
        finally:
            for module, saved in attributes.items():
                module.__dict__.clear()
                module.__dict__.update(saved)
            for holder, content in contents:
                if isinstance(holder, dict):
                    holder.clear()
                    holder.update(content)
                else:
                    holder[:] = content
            with torch.no_grad():
                for tensor, value in values:
                    if not torch.equal(tensor, value):  # batch norms write without raising the tensor's version
                        tensor.copy_(value)


@contextlib.contextmanager
def own_random_numbers(net: nn.Module) -> Iterator[None]:
    """What is drawn inside, by torch, NumPy or Python, is drawn again afterwards."""
    devices = {t.device.index for t in (*net.parameters(), *net.buffers()) if t.device.type == "cuda"}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=sorted(d for d in devices if d is not None)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextlib.contextmanager
def rehearsal(net: nn.Module) -> Iterator[None]:
    """Training passes from rest that leave no trace, but for the values of parameters. The network is at rest then."""
    try:
        with undone(net):
            net.train()
            to_rest(net)
            yield
    finally:
        to_rest(net)
