"""Gradients behind every norm and memory format, down to a batch of one, where torch's own CPU batch norm is wrong."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpd_agl.core import batch_moments, lif, tdbn
from mpd_agl.nn import LIF, BatchNorm, SpikingBlock, TdBatchNorm
from mpd_agl.nn.norms import NORMS
from mpd_agl.plugins import load_plugins
from tests.ops.cases import difference

load_plugins()
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.movedim(2, -1).contiguous().movedim(-1, 2),
    "batch_first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    # a batch of one whose strides claim that samples lie next to each other
    "degenerate": lambda x: x.movedim(2, -1)
    .contiguous()
    .movedim(-1, 2)
    .as_strided(x.shape, (x[0].numel(), x.shape[2], 1, *x.movedim(2, -1).contiguous().stride()[2:-1]))
    if x.shape[:2].numel() == 1
    else x,
}


@pytest.mark.parametrize(
    ("training", "T", "N", "space"),
    [
        case
        for case in itertools.product([True, False], [1, 3], [1, 2], [(), (1, 1), (3, 4), (16, 16)])
        if not case[0] or torch.Size(case[3]).numel() > 1 or case[1] == 3  # two values have no gradient in training
    ],
)
@pytest.mark.parametrize("kind", [TdBatchNorm, BatchNorm])
def test_a_norm_as_a_module_is_the_written_one(kind, training, T, N, space):
    g = torch.Generator().manual_seed(0)
    C, shape = 6, (T, N, 6, *space)
    norm = kind(C).train(training)
    vectors = [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    for vector in vectors:
        vector.data = 0.5 + torch.rand(C, generator=g)
    before = [a.detach().clone().double() for a in vectors]
    x64, up = 2 * torch.randn(shape, generator=g, dtype=torch.float64) + 1, torch.randn(shape, generator=g)
    leaves = [a.requires_grad_() for a in (x64, *before[:2])]
    stats = batch_moments(x64) if training else before[2:]
    i = tdbn(x64, *leaves[1:], *stats, v_th=norm.v_th)
    want = torch.autograd.grad((i * up).sum(), leaves)
    for first, second in itertools.product(LAYOUTS.values(), repeat=2):
        x = first(x64.detach().float()).requires_grad_()
        out = norm(x)
        assert difference(out, i) < 1e-5
        found = torch.autograd.grad(out, (x, norm.weight, norm.bias), second(up))
        assert all(difference(a, b) < 1e-5 for a, b in zip(found, want, strict=True))


def written_batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """`F.batch_norm` by its equations."""
    if training:
        mean, var = batch_moments(x.unsqueeze(0))
    weight = torch.ones_like(mean) if weight is None else weight
    return tdbn(x.unsqueeze(0), weight, torch.zeros_like(mean) if bias is None else bias, mean, var, v_th=1.0, eps=eps)[
        0
    ]


class Written(LIF):
    """A neuron with equations of its own: no kernel brings its gradient into the input's memory order."""

    def run(self, step):
        spikes, _, state = lif(step.currents(), self.tau, step.widths.kappa_T, surrogate=self.surrogate)
        return step.output(spikes, state)


@pytest.mark.parametrize("way", ["fused", "called", "state", "own neuron"])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (4, 4), (4, 1)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [*NORMS, "torch"])
def test_a_block_at_a_batch_of_one(name, training, T, S, way, monkeypatch):
    """Against the same block in float64, whose batch norms are the written ones."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16) if name == "torch" else name
    conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    block = SpikingBlock(conv, norm=norm, surrogate="sigmoid", num_steps=T).train(training)
    if way == "own neuron" and name != "mpbn":
        block.neuron = Written(surrogate="sigmoid")
    reference = copy.deepcopy(block).double()
    x, g = torch.randn(S, 1, 16, 16, 16), torch.randn(T, 1, 16, 16, 16)
    if way == "called":
        for each in (block, reference):
            each.norm.register_forward_hook(lambda *_: None)

    def run(block, x, g):
        x = x.detach().requires_grad_()
        s = block.with_state(x, None, num_steps=T)[0] if way == "state" else block(x, num_steps=T)
        return s, torch.autograd.grad(s, (x, block.synapse.weight), g)

    with monkeypatch.context() as patch:
        patch.setattr(F, "batch_norm", written_batch_norm)
        s64, want = run(reference, x.double(), g.double())
    for first, second in itertools.product(LAYOUTS.values(), repeat=2):
        for weights in (torch.contiguous_format, torch.channels_last):  # what the convolution's output follows
            s, found = run(copy.deepcopy(block).to(memory_format=weights), first(x), second(g))
            assert torch.equal(s.double(), s64)
            assert all(difference(a, b) < 1e-5 for a, b in zip(found, want, strict=True))
