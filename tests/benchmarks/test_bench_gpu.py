"""`mpd-agl bench gpu` with the CPU in the GPU's place: it runs to the end, and its checks can fail."""

import json

import pytest
import torch

from benchmarks import gpu, gpu_checks, gpu_worker
from mpd_agl.cli import bench
from mpd_agl.errors import InputError

STEP = {"first_s": 1.0, "ms": 2.0, "best_ms": 1.5, "steps": 3, "peak_mb": 4.0, "loss": 2.3}
LAYER = {"layers": [{"C": 8, "size": 32, "first_s": 1.0, "ms": 2.0, "GB_per_s": 3.0}]}
EPOCH = {"train_s": 90.0, "test_s": 7.0, "steps": 3, "passes": 3, "peak_mb": None}


def test_one_record_and_one_page(tmp_path, monkeypatch, capsys):
    def ask(task, timeout):
        if task.get("contender") == "ann":
            return {"error": "it took longer than 1 s"}
        return {"step": STEP, "layers": LAYER, "epoch": EPOCH}[task["task"]]

    monkeypatch.setattr(gpu, "ask", ask)
    monkeypatch.setattr(gpu, "resolved_name", lambda *_: "native")
    monkeypatch.setattr(gpu, "backends_here", lambda device: {"native": "", "triton": "it is too old", "eager": ""})
    monkeypatch.setattr(
        gpu, "check_all", lambda *_: [gpu_checks.check("eager", "cpu", "float32", "arctan", 2, 2, 3, 5)]
    )
    out = tmp_path / "found.json"
    assert bench.run(["gpu", "--device", "cpu", "-o", str(out)]) == 0
    record, page = json.loads(out.read_text()), (tmp_path / "found.md").read_text()
    assert page.strip() == capsys.readouterr().out.strip()
    assert [r["agrees"] for r in record["checks"]] == [True]
    assert [r["method"] for r in record["epochs"]] == ["stbp-tdbn", "lsg", "mpd-agl"]
    assert "No figure counts" in page
    assert "- triton: it is too old" in page
    assert "| ann | float32 | it took longer than 1 s | | | |" in page
    assert "| mpd-agl | 3 | 90.0 | 7.0 | 100 and 8 s |" in page


@pytest.mark.parametrize(
    ("task", "keys"),
    [
        ({"task": "step", "contender": "spikingjelly torch"}, {"ms", "first_s", "loss"}),
        ({"task": "step", "contender": "ann"}, {"ms", "first_s", "loss"}),
        ({"task": "epoch", "method": "lsg", "backend": "eager"}, {"train_s", "test_s"}),
        ({"task": "layers", "contender": "eager"}, {"layers"}),
    ],
)
def test_a_worker_measures(task, keys, monkeypatch):
    for name in gpu_worker.SPIKINGJELLY:
        monkeypatch.setenv(name, "torch")  # as the worker sets it in a process of its own
    size = {"device": "cpu", "T": 1, "batch": 2, "width_mult": 0.01, "seconds": 0.0, "precision": "float32"}
    found = gpu_worker.measure({**task, **size})
    assert keys <= found.keys()
    assert min(found.get(key, 1.0) for key in ("ms", "train_s", "test_s")) > 0


def test_a_worker_that_fails_says_why():
    assert gpu.ask({"task": "layers", "device": "nowhere"}, 60)["error"].startswith("KeyError")


def test_the_check_sees_a_wrong_gradient_and_a_wrong_spike(monkeypatch):
    from mpd_agl.ops.step import plain

    case = ("eager", "cpu", "float32", "triangular", 3, 3, 3, 5)
    assert gpu_checks.check(*case)["agrees"]
    backward, reset = plain.normalise_grad, plain.reset
    from mpd_agl.ops.step import backends

    wrong = backends.Backend("eager", plain.moments, plain.forward, plain.backward, lambda *a: 1.001 * backward(*a))
    monkeypatch.setattr(backends, "_EAGER", wrong)
    found = gpu_checks.check(*case)
    assert not found["agrees"]
    assert found["far"]["x"] > 5e-4
    assert found["far"]["gamma"] < 1e-5
    monkeypatch.setattr(plain, "reset", lambda v, v_th, soft: reset(v, v_th, True))
    assert gpu_checks.check(*case)["spikes_differ"] > 0


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(InputError, match="--device must be auto, cuda or cpu, got 'gpu'"):
        bench.run(["gpu", "--device", "gpu"])
    with pytest.raises(InputError, match="--minutes must be positive, got 0"):
        bench.run(["gpu", "--device", "cpu", "--minutes", "0", "-o", str(tmp_path / "a.json")])
    with pytest.raises(InputError, match="folder .* is not there"):
        bench.run(["gpu", "-o", str(tmp_path / "no" / "a.json")])
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no GPU here"):
            bench.run(["gpu", "--device", "cuda", "-o", str(tmp_path / "a.json")])
