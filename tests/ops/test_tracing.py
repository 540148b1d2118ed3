"""The step and a block under torch.compile and torch.export: the same spikes and gradients."""

import copy

import pytest
import torch
from torch import nn

from mpd_agl.nn import LIF, SpikingBlock
from mpd_agl.ops import NeuronSpec, StepInput, fused_step
from tests.ops.cases import HERE, TOLERANCE, Case, Own, difference

# torch.compile's own code warns; and filled memory differs between what it traces and what it runs.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("norm", ["batch", None])
@pytest.mark.parametrize("form", ["uniform", "everything, soft"])
def test_a_compiled_step_against_core(form, norm, backend):
    case = Case(form, norm=norm, surrogate=Own() if form == "everything, soft" else None)
    want, got = case.in_dtype(torch.float64), case.in_dtype(torch.float32)
    s, _, state, _ = case.run_core(want)
    out = torch.compile(case.run_step, backend="aot_eager", fullgraph=True)(got, backend)
    assert torch.equal(out.spikes.double(), s)
    found = torch.autograd.grad(case.loss(out.spikes, out.state), list(got.values()))
    for name, a, b in zip(want, found, torch.autograd.grad(case.loss(s, state), list(want.values())), strict=True):
        assert difference(a, b) < TOLERANCE[torch.float32], name


@pytest.mark.parametrize(
    "make",
    [
        lambda: SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False)),
        lambda: SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False), method="mpd-gain"),
        lambda: SpikingBlock(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), norm=nn.BatchNorm2d(8), neuron=LIF(reset="soft")
        ),
    ],
    ids=["mpd-agl", "mpd-gain", "torch norm, soft"],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_block_is_the_block(make, training):
    torch.manual_seed(0)
    block = make().train(training)
    compiled, x = copy.deepcopy(block), torch.randn(1, 4, 3, 6, 6)
    g = torch.randn(2, 4, 8, 6, 6)
    runs = {block: block, compiled: torch.compile(compiled, backend="aot_eager")}
    found = []
    for net, run in runs.items():
        s = run(x, num_steps=2)
        found.append([s, *torch.autograd.grad(s, [*net.parameters()], g), *net.buffers()])
    assert torch.equal(found[0][0], found[1][0])
    assert all(difference(b, a) < 1e-5 for a, b in zip(*found, strict=True))


class Step(nn.Module):
    def forward(self, x, tau, state):
        neuron = NeuronSpec(tau=tau, v_th=0.5, reset="soft")
        return fused_step(None, neuron, StepInput(x, 3, None, None, state, True))[:2]


def test_an_exported_step_holds_plain_operators():
    args = torch.randn(3, 4, 5), torch.rand(5), torch.randn(4, 5)
    program = torch.export.export(Step(), args)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in targets if not name.startswith("aten.") and "getitem" not in name]
    for a, b in zip(program.module()(*args), Step()(*args), strict=True):
        assert difference(a, b) < 1e-6
