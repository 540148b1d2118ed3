"""Which backend a GPU gets, and what is said where the best one cannot run. No GPU is needed: its answers are given."""

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops.step import backends

CUDA = torch.device("cuda")


@pytest.fixture
def answers(monkeypatch):
    """Set why each backend cannot run."""

    def give(**reasons):
        backends._auto.cache_clear()
        monkeypatch.setattr(backends, "why_not", lambda name, *_: reasons.get(name, ""))

    yield give
    backends._auto.cache_clear()


@pytest.mark.parametrize(
    ("reasons", "chosen"),
    [({}, "triton"), ({"triton": "too old"}, "compiled"), ({"triton": "too old", "compiled": "no gcc"}, "eager")],
)
def test_auto_takes_triton_then_compiled_then_eager_and_says_so_once(answers, reasons, chosen, caplog):
    answers(native="the native kernels run on a CPU", **reasons)
    with caplog.at_level("INFO", logger="mpd_agl"):
        names = {backends.resolved_name("auto", "cuda", torch.float32) for _ in range(3)}
    assert names == {chosen}
    assert len(caplog.records) == 1
    assert chosen in caplog.text
    assert caplog.records[0].levelname == ("INFO" if chosen == "triton" else "WARNING")
    for name, why in reasons.items():
        assert f"not {name}: {why}" in caplog.text


def test_the_record_names_what_auto_took(answers, monkeypatch):
    from mpd_agl.train.build import backend_that_runs
    from mpd_agl.train.presets import read_preset
    from mpd_agl.train.resolve import resolve

    answers()
    monkeypatch.setattr(backends, "_triton", lambda: backends.Backend("triton", *[print] * 4))
    assert backend_that_runs(resolve(read_preset("demo")), CUDA) == "triton"


def test_float64_is_checked_in_plain_pytorch():
    assert backends.resolved_name("auto", "cuda", torch.float64) == "eager"
    with pytest.raises(
        InputError, match="backend 'triton' cannot run: .*float16, and the input is float64. Use backend"
    ):
        backends.resolved_name("triton", "cuda", torch.float64)


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert "pip install 'mpd-agl[triton]'" in backends._no_triton("cuda", torch.float32)


def test_on_a_cpu_and_elsewhere(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "run on a GPU, and the input is on cpu" in backends._no_triton("cpu", torch.float32)
    assert "of NVIDIA or AMD, and the input is on mps" in backends._no_triton("mps", torch.float32)


def test_an_old_gpu_and_an_old_driver(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert backends._no_triton("cuda", torch.float32) == (
        "the triton kernels need a GPU of compute capability 7.5 or newer, and this one has 7.0"
    )

    def old():
        raise RuntimeError("CUDA driver version is insufficient\nfor the runtime")

    monkeypatch.setattr(torch.cuda, "get_device_capability", old)
    assert backends._no_triton("cuda", torch.float32) == (
        "a small triton kernel does not run here (RuntimeError: CUDA driver version is insufficient); "
        "update the GPU's driver, and install a C compiler"
    )


def test_wrong_results_are_not_used(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    wrong = backends.Backend("triton", *[lambda x, *_: (torch.zeros_like(x), None)] * 4)
    monkeypatch.setattr(backends, "_triton", lambda: wrong)
    assert "gives wrong results here" in backends._no_triton("cpu", torch.float32)
