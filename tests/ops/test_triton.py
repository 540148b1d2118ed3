"""What the triton kernels alone have: tiles, chunks, refusals; on a GPU, or in Triton's interpreter.

`test_step.py` compares them with `core`.
"""

import pytest
import torch
from torch import nn

from mpd_agl.core import Rectangular
from mpd_agl.errors import InputError
from mpd_agl.nn import SpikingBlock
from mpd_agl.ops import backends_here
from tests.ops.cases import Case, difference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := backends_here(DEVICE)["triton"]:
    pytest.skip(reason, allow_module_level=True)
if DEVICE == "cpu":
    pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

from mpd_agl.ops.step import triton as kernels  # noqa: E402


@pytest.mark.parametrize("form", ["uniform", "everything, soft"])
def test_programs_that_walk_over_several_tiles(form, monkeypatch):
    """On a small input every tile has a program of its own; a large one shares them, and the order stays fixed."""
    monkeypatch.setattr(kernels, "PROGRAMS", 2)
    case = Case(form, 2, 2, (20, 5, 3, 4))  # 4 tiles of 64 rows
    case.compare("triton", device=DEVICE)

    def run():
        leaves = case.in_dtype(torch.float32, DEVICE)
        out = case.run_step(leaves, "triton")
        return [*out.stats[:2], *torch.autograd.grad(case.loss(out.spikes, out.state), list(leaves.values()))]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


@pytest.mark.parametrize(("T", "S"), [(66, 66), (33, 1)])
def test_more_steps_than_registers_hold(T, S):
    Case("everything", T, S, (7, 3), surrogate="sigmoid").compare("triton", device=DEVICE)


def test_statistics_do_not_cancel_far_from_zero():
    x = 1000 + torch.randn(2, 800, 3, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 1e4  # an outlier in front misleads sums that are shifted by the first value
    mean, var = kernels.moments(x.to(DEVICE))
    d = x.double()
    assert difference(mean, d.mean((0, 1))) < 1e-6
    assert difference(var, d.var((0, 1), correction=0)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_block_under_autocast_with_a_scaled_loss(dtype):
    """conv in half precision, the fused step on it, GradScaler around: the gradients of the plain backend."""
    x = torch.randn(2, 4, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = []
    for backend in ("eager", "triton"):
        torch.manual_seed(0)
        block = SpikingBlock(nn.Conv2d(3, 8, 3, padding=1, bias=False), backend=backend).to(DEVICE)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
        with torch.autocast(DEVICE, dtype=dtype):
            s = block(x)
        assert s.dtype == dtype
        scaler.scale((s.float() * x.mean(2, keepdim=True)).sum()).backward()
        found.append([s, *(p.grad / 1024 for p in block.parameters())])
    assert torch.equal(found[0][0], found[1][0])
    for a, b in zip(*(f[1:] for f in found), strict=True):
        assert difference(b, a) < (2e-2 if dtype == torch.bfloat16 else 3e-3)


def test_what_the_kernels_would_misread_is_refused_with_its_values():
    x, one, tau = torch.randn(2, 4, 8, device=DEVICE), torch.ones(8, device=DEVICE), torch.tensor(0.2, device=DEVICE)
    no = (None, None, False, False)
    end = (None, None, Rectangular(), False, False, False)
    kappa = torch.ones(2, device=DEVICE)
    for values, run in {
        r"x on \w+.* tau on meta": lambda: kernels.forward(x, one, one, one, tau.to("meta"), tau, 2, *no),
        r"mean .*\(8,\).*\(7,\)": lambda: kernels.forward(x, one[:7], one, one, tau, tau, 2, *no),
        r"scale .*\(8,\), torch.float64": lambda: kernels.forward(x, one, one.double(), one, tau, tau, 2, *no),
        r"x .*not contiguous": lambda: kernels.moments(x.transpose(0, 1)),
        r"3 or 1.*\(2, 4, 8\)": lambda: kernels.forward(x, one, one, one, tau, tau, 3, *no),
        r"tau .*\(8,\).*\(\)": lambda: kernels.forward(x, one, one, one, tau, one, 2, *no),
        r"gradient .*\(2, 4, 8\).*\(2, 3, 8\)": lambda: kernels.backward(
            x, x[:, :3].contiguous(), one, one, one, tau, tau, kappa, kappa, *end
        ),
        r"kappa .*\(2,\).*\(3,\)": lambda: kernels.backward(
            x, x, one, one, one, tau, tau, torch.ones(3, device=DEVICE), kappa, *end
        ),
        r"dv .*\(2, 4, 8\).*\(1, 4, 8\)": lambda: kernels.normalise_grad(x, x[:1], one, one, one, one),
    }.items():
        with pytest.raises(InputError, match=values):
            run()
