"""Which backend runs, and what is said where one cannot. No GPU is needed: its answers are given."""

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.ops.step import backends


@pytest.fixture
def answers(monkeypatch):
    """Set why each backend cannot run."""

    def give(**reasons):
        backends._auto.cache_clear()
        monkeypatch.setattr(backends, "unavailable_reason", lambda name, *_: reasons.get(name, ""))

    yield give
    backends._auto.cache_clear()


@pytest.mark.parametrize(
    ("device", "reasons", "chosen"),
    [
        ("cuda", {}, "triton"),
        ("cuda", {"triton": "too old"}, "eager"),
        ("cpu", {"triton": "no GPU"}, "native"),
        ("cpu", {"native": "it was not built"}, "eager"),
    ],
)
def test_auto_takes_the_fastest_that_runs_and_says_so_once(answers, device, reasons, chosen, caplog):
    answers(**reasons)
    with caplog.at_level("INFO", logger="mpd_agl"):
        names = {backends.resolved_name("auto", device, torch.float32) for _ in range(3)}
    assert names == {chosen}
    assert len(caplog.records) == 1
    assert chosen in caplog.text
    assert caplog.records[0].levelname == ("WARNING" if chosen == "eager" else "INFO")
    if chosen == "eager":
        assert all(f"not {name}: {reason}" in caplog.text for name, reason in reasons.items())


@pytest.mark.parametrize(
    ("name", "device", "dtype", "values"),
    [
        ("native", "cpu", torch.float64, "'native'.*float64.*backend='eager'"),
        ("native", "cuda", torch.float32, "'native'.*CPU.*cuda"),
        ("triton", "cuda", torch.float64, "'triton'.*float16, and the input is float64"),
        ("nativ", "cpu", torch.float32, "'nativ'.*'native'"),
    ],
)
def test_a_backend_that_cannot_run_is_refused_with_the_way_out(name, device, dtype, values):
    with pytest.raises(InputError, match=values):
        backends.resolve(name, torch.device(device), dtype)


def test_float64_runs_in_plain_pytorch():
    assert {backends.resolved_name("auto", a, torch.float64) for a in ("cpu", "cuda")} == {"eager"}


def test_why_triton_cannot_run(monkeypatch):
    def reason(device):
        return backends._triton_unavailable(device, torch.float32)

    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert "pip install triton" in reason("cuda")
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "the input is on cpu" in reason("cpu")
    assert "NVIDIA or AMD, and the input is on mps" in reason("mps")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert "7.5 or newer, and this one has 7.0" in reason("cuda")

    def old():
        raise RuntimeError("CUDA driver version is insufficient\nfor the runtime")

    monkeypatch.setattr(torch.cuda, "get_device_capability", old)
    assert "(RuntimeError: CUDA driver version is insufficient)" in reason("cuda")


def test_kernels_with_wrong_results_are_not_used(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    wrong = backends.Kernels("triton", *[lambda x, *_: (torch.zeros_like(x), None)] * 5)
    monkeypatch.setattr(backends, "_triton", lambda: wrong)
    assert "wrong results" in backends._triton_unavailable("cpu", torch.float32)
