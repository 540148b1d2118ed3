"""`python -m benchmarks gpu` without a GPU: it runs to the end on the CPU, and its checks can fail."""

import json

import pytest
import torch

from benchmarks import command, gpu, gpu_checks, gpu_worker
from mpd_agl.errors import InputError

CASE = ("eager", "cpu", "float32", "triangular", 3, 3, 3, 5)
STEP = {"first_s": 1.0, "ms": 2.0, "best_ms": 1.5, "inference_ms": 0.5, "steps": 3, "peak_mb": 4.0}


def test_one_record_and_one_page(tmp_path, monkeypatch, capsys):
    def ask(task, timeout):
        return {"error": "it took longer than 1 s"} if task["contender"] == "ann" else STEP

    monkeypatch.setattr(gpu, "ask", ask)
    monkeypatch.setattr(gpu, "resolved_name", lambda *_: "native")
    monkeypatch.setattr(gpu, "backends_here", lambda device: {"native": "", "triton": "it is too old", "eager": ""})
    monkeypatch.setattr(gpu, "check_all", lambda *_: [gpu_checks.check(*CASE)])
    out = tmp_path / "found.json"
    assert command.run(["gpu", "--device", "cpu", "-o", str(out)]) == 0
    record, page = json.loads(out.read_text()), (tmp_path / "found.md").read_text()
    assert page.strip() == capsys.readouterr().out.strip()
    assert [r["agrees"] for r in record["checks"]] == [True]
    assert {r["method"] for r in record["steps"]} == {"stbp-tdbn", "lsg", "mpd-agl"}
    assert "| native | float32 | lsg | 1.0 | 2.00 | 1.50 | 4 | 25.0 | 1.2 | 99 and 8 |" in page
    assert "| ann | float32 | mpd-agl | it took longer than 1 s |" in page
    assert "No GPU: a CPU with a small network." in page
    assert "- triton: it is too old" in page


@pytest.mark.parametrize(("who", "method"), [("spikingjelly torch", "mpd-agl"), ("ann", "mpd-agl"), ("eager", "lsg")])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_worker_measures(who, method, precision, monkeypatch):
    if who.startswith("spikingjelly"):
        pytest.importorskip("spikingjelly")
    for name in gpu_worker.SPIKINGJELLY:
        monkeypatch.setenv(name, "torch")  # as the worker sets it in a process of its own
    size = {"device": "cpu", "T": 1, "batch": 2, "width_mult": 0.01, "seconds": 0.0}
    found = gpu_worker.measure({"contender": who, "method": method, "precision": precision, **size})
    assert min(found["ms"], found["inference_ms"], found["peak_mb"]) > 0


def test_a_worker_that_fails_says_why():
    assert gpu.ask({"device": "nowhere"}, 60)["error"].startswith("KeyError")


@pytest.mark.parametrize("dtype", gpu_checks.TOLERANCE)
def test_the_check_holds_on_awkward_sizes(dtype):
    found = gpu_checks.check("eager", "cpu", dtype, "rectangular", 4, 1, 7, 16)
    assert found["agrees"], found


def test_the_check_sees_a_wrong_gradient_and_a_wrong_spike(monkeypatch):
    assert gpu_checks.check(*CASE)["agrees"]
    right = gpu_checks.run

    def with_fault(name, fault):
        def run(block, x_SNC, T):
            found = right(block, x_SNC, T)
            return found if x_SNC.dtype == torch.float64 else {**found, name: fault(found[name])}

        monkeypatch.setattr(gpu_checks, "run", run)
        return gpu_checks.check(*CASE)

    found = with_fault("norm.weight", lambda grad: 1.001 * grad)
    assert not found["agrees"]
    assert found["far"]["norm.weight"] == pytest.approx(1e-3, rel=0.01)
    assert found["far"]["x"] < 1e-5
    assert with_fault("spikes", lambda s: 1 - s)["spikes_differ"] == 3 * 3 * 5 * 6


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(InputError, match="--minutes must be positive, got 0"):
        command.run(["gpu", "--device", "cpu", "--minutes", "0", "-o", str(tmp_path / "a.json")])
    with pytest.raises(InputError, match="folder .* is not there"):
        command.run(["gpu", "-o", str(tmp_path / "no" / "a.json")])
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no GPU here"):
            command.run(["gpu", "--device", "cuda", "-o", str(tmp_path / "a.json")])
