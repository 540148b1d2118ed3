"""The native library: SIMD levels, threads, one OpenMP runtime."""

import subprocess
import sys

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.kernels import backends_here, native, neuron, tdbn_neuron
from tests.kernels.cases import make_case
from tests.kernels.test_fused import compare

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


def test_every_level_that_this_cpu_has(level):
    assert native.level() == level
    compare(make_case(2, 2), "native")
    compare(make_case(10, 10, C=33), "native", "sigmoid")
    compare(make_case(6, 1), "native", "arctan")


def run_once():
    case = make_case(2, 2, N=40, C=24, space=(9, 9), clear=0)
    leaves = case.leaves(torch.float32)
    s, mean, var = tdbn_neuron(
        *leaves[:3], torch.zeros(24), torch.ones(24), *leaves[3:], num_steps=2, batch_stats=True, backend="native"
    )
    return [s, mean, var, *torch.autograd.grad(s, leaves, case.g.float())]


def test_the_same_bits_for_any_number_of_threads():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run_once()
        torch.set_num_threads(3)
        three = run_once()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_one_openmp_runtime_in_the_process():
    code = (
        "import torch; from mpd_agl.kernels import native; native.level();"
        "maps = {l.split()[-1] for l in open('/proc/self/maps') if 'gomp' in l or 'iomp' in l}; print(len(maps))"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


def test_nan_in_is_nan_out_not_a_spike():
    """A NaN potential does not fire; the statistics show it."""
    s = neuron(torch.tensor([[[float("nan"), 1.0]]]), torch.tensor(0.2), torch.ones(1), num_steps=1, backend="native")
    assert s.flatten().tolist() == [0, 1]
    mean, var = native.moments(torch.tensor([[[float("nan")], [1.0]]]))
    assert torch.isnan(mean).all()
    assert torch.isnan(var).all()


def test_operators_pass_torchs_own_checks():
    x = torch.randn(2, 12, 5)
    vectors = (torch.zeros(5), torch.ones(5), torch.zeros(5))
    tau = torch.tensor(0.2)
    torch.library.opcheck(native.moments_op, (x,))
    torch.library.opcheck(native.forward_op, (x, *vectors, tau, 0.5, 2, None))
    torch.library.opcheck(native.forward_op, (x, *vectors, tau, 0.5, 2, x))
    torch.library.opcheck(native.backward_op, (x, x, *vectors, tau, torch.ones(2), 0.5, 0, False, True))
    torch.library.opcheck(native.normalise_grad_op, (x, x.clone(), *vectors, torch.zeros(5)))


def test_a_missing_library_says_why(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: (None, "it was not built"))
    with pytest.raises(InputError, match="backend 'native' cannot run: it was not built"):
        native.level()
