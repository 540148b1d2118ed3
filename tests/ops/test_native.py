"""The native library: SIMD levels, threads, one OpenMP runtime, what it refuses, and memory that runs out."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mpd_agl.core import Rectangular
from mpd_agl.errors import InputError
from mpd_agl.ops import NeuronSpec, NormSpec, StepInput, Widths, backends_here, fused_step, library
from mpd_agl.ops.conv import event, winograd
from mpd_agl.ops.step import native
from tests.ops.cases import ALL_SURROGATES, Case

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])


@pytest.mark.parametrize("surrogate", ALL_SURROGATES[:4], ids=lambda s: s.name)
@pytest.mark.parametrize("form", ["learnable kappa", "gain", "everything", "everything, soft"])
def test_every_surrogate_at_every_simd_level(form, surrogate, level):
    assert library.level() == level
    Case(form, shape=(7, 33), surrogate=surrogate).compare("native")
    Case(form, 6, 1, (7, 5, 3, 4), surrogate=surrogate, seed=1).compare("native")


@pytest.mark.parametrize("T", [1, 2, 4, 6, 10])
@pytest.mark.parametrize("form", ["uniform", "detached", "residual"])
def test_steps_that_are_known_at_compile_time_at_every_simd_level(form, T, level):
    Case(form, T, T, (7, 5, 3, 4), surrogate="rectangular").compare("native")


def run_once():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 40, 24, 9, 9, generator=g).requires_grad_()
    weight, bias, tau, kappa = (torch.full((n,), 0.5).requires_grad_() for n in (24, 24, 1, 2))
    spec = NormSpec(weight=weight, bias=bias, mean=torch.zeros(24), var=torch.ones(24), batch_stats=True)
    neuron = NeuronSpec(tau=tau[0], v_th=0.5, backend="native")
    out = fused_step(spec, neuron, StepInput(x, 2, Widths(kappa)))
    loss = (out.spikes * torch.randn(x.shape, generator=g)).sum()
    return [out.spikes, *out.stats[:2], *torch.autograd.grad(loss, (x, weight, bias, tau, kappa))]


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


def test_many_python_threads_at_once():
    """ctypes releases the GIL: calls run side by side, each with the results of a call alone."""
    want = run_once()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: run_once(), range(8)):
            assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_openmp_runtime_in_the_process():
    code = (
        "import torch; from mpd_agl.ops import library; library.level();"
        "maps = {l.split()[-1] for l in open('/proc/self/maps') if 'gomp' in l or 'iomp' in l}; print(len(maps))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1"


def test_nan_in_is_nan_out_not_a_spike():
    """A NaN potential does not fire; the statistics show it."""
    x = torch.tensor([[[float("nan"), 1.0]]])
    out = fused_step(None, NeuronSpec(tau=0.2, v_th=0.5, backend="native"), StepInput(x, 1))
    assert out.spikes.flatten().tolist() == [0, 1]
    mean, var = native.moments(torch.tensor([[[float("nan")], [1.0]]]))
    assert torch.isnan(mean).all()
    assert torch.isnan(var).all()


def calls():
    """Every kernel with right arguments; those "of any form" take tau and v_th per channel."""
    x, v, k = torch.randn(2, 6, 8), [torch.rand(8) for _ in range(6)], torch.ones(2)
    one, state, gain = torch.tensor(0.2), torch.randn(6, 8), torch.ones(2)
    hard, soft = (Rectangular(), False, False, True), (Rectangular(), True, False, True)
    return {
        "moments": (native.moments, (x,)),
        "forward": (native.forward, (x, *v[:3], one, one, 2, x, None, False, False)),
        "forward of any form": (native.forward, (x, *v[:5], 2, x, state, True, True)),
        "backward": (native.backward, (x, x, *v[:3], one, one, k, gain, None, None, *hard)),
        "backward of any form": (native.backward, (x, x, *v[:5], k, gain, state, state, *soft)),
        "normalise_grad": (native.normalise_grad, (x, x.clone(), *v[:4])),
        "probe": (native.probe, (x, *v[:5], k, state, False)),
    }


@pytest.mark.parametrize("name", calls())
def test_every_tensor_of_every_kernel_is_checked(name):
    """Each tensor in turn too long, too short, of another dtype or device, with gaps: refused, never a wild read."""
    function, args = calls()[name]
    function(*args)
    for at, right in enumerate(args):
        if not isinstance(right, torch.Tensor):
            continue
        spoilt = [right.double(), right.to("meta"), right.unsqueeze(0), right.new_empty(0)]
        if right.dim():
            spoilt += [torch.cat([right, right], -1)[..., ::2], torch.cat([right, right], -1), right[..., :1]]
            spoilt += [torch.cat([right] * 3), right[:0], right.flatten()[0].clone()]
        for wrong in spoilt:
            # Any filled input has moments, whatever its lengths.
            right_kind = wrong.dtype == torch.float32 and wrong.device.type == "cpu" and wrong.is_contiguous()
            if name == "moments" and right_kind and wrong.dim() == 3 and wrong.numel():
                continue
            with pytest.raises(InputError, match="native kernels"):
                function(*args[:at], wrong, *args[at + 1 :])


def test_one_tau_for_all_channels_is_refused_where_the_kernels_need_vectors():
    x, v, one, state = torch.randn(2, 6, 8), [torch.rand(8) for _ in range(3)], torch.tensor(0.2), torch.randn(6, 8)
    end = (Rectangular(), False, False, False)
    for function, args in (
        (native.forward, (x, *v, one, one, 2, None, None, True, False)),
        (native.forward, (x, *v, one, one, 2, None, state, False, False)),
        (native.forward, (x, *v, one, one, 2, None, None, False, True)),
        (native.backward, (x, x, *v, one, one, torch.ones(2), None, None, state, *end)),
        (native.probe, (x, *v, one, one, torch.ones(2), None, False)),
    ):
        with pytest.raises(InputError, match="tau and v_th per channel"):
            function(*args)


def test_operators_pass_torchs_own_checks():
    for function, args in calls().values():
        if function is not native.probe:
            args = [native.surrogate_code(a) if isinstance(a, Rectangular) else a for a in args]
            torch.library.opcheck(getattr(torch.ops.mpd_agl, function.__name__).default, args)


def test_a_library_of_other_sources_is_not_used(monkeypatch):
    load = library.load.__wrapped__
    assert load()[1] == ""
    monkeypatch.setattr(library, "ABI_VERSION", 1)
    assert "version is 5, and this package's 1" in load()[1]
    monkeypatch.undo()
    monkeypatch.setitem(library.STRUCTS, "Geometry", library.Lists)
    assert "struct Geometry has 80 bytes, and this package's 64" in load()[1]
    monkeypatch.undo()
    monkeypatch.setattr(library, "SURROGATES", library.SURROGATES[::-1])
    assert "surrogates are rectangular triangular" in load()[1]
    monkeypatch.undo()
    monkeypatch.setitem(library._FUNCTIONS, "newer", (None, []))
    assert "no function newer" in load()[1]


def test_a_missing_library_says_why(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: (None, "it was not built"))
    with pytest.raises(InputError, match="'native' cannot run: it was not built"):
        library.level()


def convolutions():
    """The convolutions' kernels that allocate."""
    g = torch.Generator().manual_seed(0)
    x, grad = ((torch.randn(40, 16, 8, 8, generator=g) > 1).float() for _ in range(2))
    weight = torch.randn(16, 16, 3, 3, generator=g)
    lists, valued = event.scan(x), event.scan(2 * x)
    return {
        "event forward": (event.forward, (lists, x.shape, weight, None, 1, 1)),
        "event weight gradient": (event.weight_grad, (lists, x.shape, weight, grad, 1, 1)),
        "event weight gradient of values": (event.weight_grad, (valued, x.shape, weight, grad, 1, 1)),
        "winograd forward": (winograd.forward, (x, weight, None, 1)),
        "winograd weight gradient": (winograd.weight_grad, (x, weight, grad, 1)),
    }


@pytest.mark.parametrize("name", [*calls(), *convolutions()])
def test_no_memory_is_an_error_at_every_allocation(name, level):
    """Let n allocations succeed and the next fail, for n = 0, 1, ...: a MemoryError each time, until all succeed."""
    function, args = (calls() | convolutions())[name]
    function(*args)
    try:
        for allowed in range(40):
            library.library().mpd_agl_fail_after(allowed)
            try:
                function(*args)
                break
            except MemoryError as error:
                assert "got no memory" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it never ran")
        assert allowed > 0
    finally:
        library.library().mpd_agl_fail_after(-1)
