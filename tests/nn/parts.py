"""Blocks, inputs and comparisons that the tests of blocks and neurons share."""

import torch
from torch import Tensor, nn

from mpd_agl import core
from mpd_agl.nn import SpikingBlock, Widths, over_time
from mpd_agl.nn.block import norm_spec
from mpd_agl.ops import StepInput


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(*shape: int, seed: int = 0) -> Tensor:
    """Spikes of which a third fires."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.3).float()


def conv_block(method: object = "mpd-agl", channels: int = 6, **options: object) -> SpikingBlock:
    """A block on 3 channels whose gammas and betas are not where they start."""
    torch.manual_seed(0)
    block = SpikingBlock(nn.Conv2d(3, channels, 3, padding=1, bias=False), method=method, **options)
    with torch.no_grad():
        for name, p in block.named_parameters():
            if "norm" in name:
                p.add_((0.3 if "weight" in name else 0.2) * torch.randn_like(p))
    return block


def widths(block: SpikingBlock, num_steps: int, x: Tensor | None = None, state: Tensor | None = None) -> Widths:
    """What the block's rule says now; only a rule that measures needs the synapse's output x."""
    x = torch.zeros(1, 1, 1) if x is None else x
    return block.widths(StepInput(x, num_steps, state=state), norm_spec(block.norm))


def by_equations(block: SpikingBlock, s_TNC: Tensor) -> Tensor:
    """Spikes by `core`, one equation after the other."""
    x, n, c = over_time(block.synapse, s_TNC), block.norm, block.neuron
    moments = core.batch_moments(x) if n.training else (n.running_mean, n.running_var)
    i = core.tdbn(x, n.weight, n.bias, *moments, v_th=n.v_th, alpha=n.alpha, eps=n.eps)
    kappa_T, gain_T = widths(block, len(s_TNC), x)
    return core.lif(i, c.tau, kappa_T.to(x.dtype), v_th=c.v_th, surrogate=c.surrogate, gain_T=gain_T)[0]


def gradients(out: Tensor, tensors: dict[str, Tensor], g: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(out, list(tensors.values()), g, allow_unused=True)
    return {name: grad for name, grad in zip(tensors, found, strict=True) if grad is not None}


def assert_all_close(got: dict[str, Tensor], want: dict[str, Tensor], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name].to(value.dtype), value, rtol=rtol, atol=atol, msg=lambda m, n=name: n + m)


def trained(net: nn.Module, x: Tensor, call=None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Output and gradients of a training step with the same random numbers each time, and the buffers it leaves."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    out = net(x) if call is None else call(net, x)
    g = noise(*out.shape, seed=2).to(out.dtype)
    (out * g).sum().backward()
    grads = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **grads}, dict(net.named_buffers())
