"""One training step with and without a checkpoint: every number of both must be the same, or the step is refused."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpd_agl.nn import Neuron, recompute
from tests.nn.parts import trained

CALLS = {
    "reentrant": lambda part, x: checkpoint(part, x, use_reentrant=True),
    "not reentrant": lambda part, x: checkpoint(part, x, use_reentrant=False),
    "recompute": lambda part, x: recompute([part], x, x.shape[0]),
}


class Part(nn.Module):
    """Takes num_steps, as parts of a network do, and ignores it."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x_TNC: Tensor, num_steps: int | None = None) -> Tensor:
        for part in self.parts:
            x_TNC = part(x_TNC)
        return x_TNC


def assert_checkpoint_changes_nothing(make, x: Tensor, how: str, steps: int = 1) -> None:
    """Outputs, gradients and buffers, to the last bit, of `steps` steps in which parameters move."""
    plain = Part(*make())
    other = copy.deepcopy(plain)
    seen: tuple[list[Tensor], list[Tensor]] = [], []
    for net, shown in zip((plain, other), seen, strict=True):
        for neuron in (m for m in net.modules() if isinstance(m, Neuron)):
            neuron.watch(lambda o, shown=shown: shown.append(o.output.spikes.detach().clone()))
    for step in range(steps):
        x = x + 0.1 * step
        found = [trained(net, x, call) for net, call in ((plain, None), (other, CALLS[how]))]
        for want, got in zip(*found, strict=True):
            assert want.keys() == got.keys()
            assert [n for n in want if not torch.equal(want[n], got[n])] == []
        with torch.no_grad():
            for net in (plain, other):
                for p in net.parameters():
                    p.sub_(0.01 * p.grad)
                    p.grad = None
    assert len(seen[0]) == steps * len([m for m in plain.modules() if isinstance(m, Neuron)])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
