"""The native library: SIMD levels, threads, one OpenMP runtime."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops import backends_here, native, neuron, tdbn_neuron
from mpd_agl.ops.conv import event, winograd
from tests.ops.cases import make_case
from tests.ops.test_fused import compare

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
        "import torch; from mpd_agl.ops import native; native.level();"
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
    tau, tau_C, v_th_C, kept = torch.tensor(0.2), torch.rand(5), torch.rand(5), torch.randn(12, 5)
    torch.library.opcheck(native.moments_op, (x,))
    torch.library.opcheck(native.forward_op, (x, *vectors, tau, 0.5, 2, None))
    torch.library.opcheck(native.forward_op, (x, *vectors, tau, 0.5, 2, x))
    torch.library.opcheck(native.backward_op, (x, x, *vectors, tau, torch.ones(2), 0.5, 0, False, True))
    torch.library.opcheck(native.normalise_grad_op, (x, x.clone(), *vectors, torch.zeros(5)))
    for state in (None, kept):
        torch.library.opcheck(
            native.general_forward_op, (x, *vectors, tau_C, v_th_C, 2, None, True, state, state is not None)
        )
        torch.library.opcheck(
            native.general_backward_op,
            (x, x, *vectors, tau_C, torch.ones(2), v_th_C, 1, False, True, True, state, None, state),
        )


def calls():
    """Every kernel that checks its tensors, with right ones: name to function and arguments."""
    x, v, k = torch.randn(2, 6, 8), [torch.rand(8) for _ in range(6)], torch.ones(2)
    tau, kept, gain = torch.tensor(0.2), torch.randn(6, 8), torch.ones(2)
    return {
        "moments": (native.moments, (x,)),
        "forward": (native.forward, (x, *v[:3], tau, 0.5, 2, x)),
        "backward": (native.backward, (x, x, *v[:3], tau, k, 0.5, 0, False, True)),
        "general_forward": (native.general_forward, (x, *v[:5], 2, x, True, kept, True)),
        "general_backward": (
            native.general_backward,
            (x, x, *v[:4], k, v[4], 0, False, True, True, kept, gain, kept),
        ),
        "normalise_grad_": (native.normalise_grad_, (x, x.clone(), *v[:4])),
        "probe": (native.probe, (x, *v[:4], k, v[4], False, kept)),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_every_tensor_of_every_kernel_is_checked(name):
    """Each tensor in turn too long, too short, of another dtype or device, with gaps: a sentence, never a wild read."""
    function, args = calls()[name]
    function(*args)
    for at, right in enumerate(args):
        if not isinstance(right, torch.Tensor):
            continue
        spoilt = [right.double(), right.to("meta"), right.unsqueeze(0), right.new_empty(0)]
        if right.dim():
            spoilt += [torch.cat([right, right], -1)[..., ::2], torch.cat([right, right], -1), right[..., :1]]
            spoilt += [torch.cat([right] * 3), right[:0]]
        for wrong in spoilt:
            # Any filled input has moments, whatever its lengths.
            right_kind = wrong.dtype == torch.float32 and wrong.device.type == "cpu" and wrong.is_contiguous()
            if name == "moments" and right_kind and wrong.dim() == 3 and wrong.numel():
                continue
            with pytest.raises(InputError, match="the native kernels take"):
                function(*args[:at], wrong, *args[at + 1 :])


def test_a_library_of_other_sources_is_not_used(monkeypatch):
    assert native.load.__wrapped__()[1] == ""
    monkeypatch.setattr(native, "ABI_VERSION", 1)
    assert "does not load here (its version is 4, and this package's 1); reinstall" in native.load.__wrapped__()[1]
    monkeypatch.undo()
    monkeypatch.setitem(native.STRUCTS, "Geometry", native.Lists)
    assert "its struct Geometry has 80 bytes, and this package's 64" in native.load.__wrapped__()[1]
    monkeypatch.undo()
    monkeypatch.setattr(native, "SURROGATES", native.SURROGATES[::-1])
    assert "its surrogates are rectangular triangular" in native.load.__wrapped__()[1]
    monkeypatch.undo()
    monkeypatch.setitem(native._FUNCTIONS, "newer", (None, []))
    assert "it has no function newer" in native.load.__wrapped__()[1]


def convolutions():
    """The convolutions' kernels that allocate."""
    g = torch.Generator().manual_seed(0)
    x, weight, grad = ((torch.randn(40, 16, 8, 8, generator=g) > 1).float() for _ in range(3))
    weight = torch.randn(16, 16, 3, 3, generator=g)
    lists, valued = event.scan(x), event.scan(2 * x)
    return {
        "event forward": lambda: event.forward(lists, x.shape, weight, None, 1, 1),
        "event weight gradient": lambda: event.weight_grad(lists, x.shape, weight, grad, 1, 1),
        "event weight gradient of values": lambda: event.weight_grad(valued, x.shape, weight, grad, 1, 1),
        "winograd forward": lambda: winograd.forward(x, weight, None, 1),
        "winograd weight gradient": lambda: winograd.weight_grad(x, weight, grad, 1),
    }


@pytest.mark.parametrize("name", [*calls(), *convolutions()])
def test_no_memory_is_an_error_at_every_allocation(name, level):
    """Let n allocations succeed and the next fail, for n = 0, 1, ...: a MemoryError each time, until all succeed."""
    if name in calls():
        function, args = calls()[name]
        run = lambda: function(*args)  # noqa: E731
    else:
        run = convolutions()[name]
    run()
    try:
        for allowed in range(40):
            native.library().mpd_agl_fail_after(allowed)
            try:
                run()
                break
            except MemoryError as error:
                assert "got no memory" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it never ran")
        assert allowed > 0
    finally:
        native.library().mpd_agl_fail_after(-1)


def test_many_python_threads_at_once():
    """ctypes releases the GIL: calls run side by side, each with the results of a call alone."""
    want = run_once()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: run_once(), range(8)):
            assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_a_missing_library_says_why(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: (None, "it was not built"))
    with pytest.raises(InputError, match="backend 'native' cannot run: it was not built"):
        native.level()
