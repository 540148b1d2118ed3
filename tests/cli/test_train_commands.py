"""The commands as a user types them: what they print, what they leave, how they fail."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpd_agl.cli import COMMANDS, main
from mpd_agl.ops import backends_here, library
from mpd_agl.ops.conv import rule
from mpd_agl.train.runfolder import find_run

TINY = [
    *("--model.name", "cnn8", "--model.width_mult", "0.03125", "--data.name", "mnist5k", "--data.train-samples", "48"),
    *("--data.test-samples", "40", "--train.epochs", "2", "--train.batch-size", "12", "--train.threads", "1"),
    *("--monitor.every", "3"),
]


def train(folder: Path, *options: str) -> int:
    return main(["train", *TINY, "--runs-dir", str(folder), *options])


def command(*args: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, *args], capture_output=True, text=True, check=False, timeout=120, **options
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert train(folder, "--name", "one", "--quiet") == 0
    return folder


def test_a_run_prints_lines_and_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--method", "lsg", "--seed", "3") == 0
    out = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"cnn8 x0.03125, lsg, T=2, mnist5k, seed 3: [\d,]+ parameters, backend \w+: 2 epochs of 4 steps", out[0]
    )
    assert [line.split("  ")[0] for line in out[1:3]] == ["epoch 1/2", "epoch 2/2"]
    path = tmp_path / "mnist5k-cnn8-lsg-s3"
    assert re.match(
        r"test accuracy [\d.]+ % at the last epoch, 2 \(best on the test set: [\d.]+ %, epoch \d\)", out[-1]
    )
    assert out[-1].endswith(str(path))
    assert {p.name for p in path.iterdir()} == {
        *(".lock", "config.toml", "metrics.jsonl"),
        *("record.json", "log.txt", "checkpoints", "model.safetensors"),
    }  # fmt: skip


def test_the_record_and_the_metrics_hold_what_a_report_needs(runs: Path) -> None:
    record = json.loads((runs / "one" / "record.json").read_text())
    assert record["status"] == "finished"
    assert record["final"]["epoch"] == 2
    assert record["best_on_test"]["test_accuracy"] >= record["final"]["test_accuracy"]
    assert record["data"]["train"]["samples"] == 48
    assert len(record["data"]["train"]["sha256"]) == len(record["data"]["train"]["subset_hash"]) == 64
    assert record["seeds"] == {"run": 0, "split": 0}
    if not backends_here()["native"]:
        assert record["convs"] == {"rule": rule.VERSION, "simd": library.level()}
    assert record["backend"] in ("native", "compiled", "eager")
    assert record["network"]["parameters"] > 1000
    events = [json.loads(line) for line in (runs / "one" / "metrics.jsonl").read_text().splitlines()]
    epochs = [e for e in events if e["log"] == "epoch"]
    wanted = {"lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "images_per_s", "elapsed_s"}
    assert all(wanted <= set(e) for e in epochs)
    assert [e["step"] for e in epochs] == [4, 8]
    looks = [e for e in events if e["log"] == "monitor"]
    assert [e["step"] for e in looks] == [1, 4, 7]
    assert list(looks[0]["layers"])[:2] == ["conv1", "conv2"]
    assert {"rate_T", "available_T", "kappa_T"} <= set(looks[0]["layers"]["conv1"])


def test_json_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--name", "j", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["log"] == "record"
    assert [e["epoch"] for e in events if e["log"] == "epoch"] == [1, 2]
    assert train(tmp_path, "--name", "q", "--quiet") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_warnings_are_printed_logged_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpd_agl.train.monitoring.AVAILABLE_BELOW", 1.0)
    monkeypatch.setattr("mpd_agl.train.monitoring.SILENT_BELOW", 0.0)
    assert train(tmp_path, "--name", "w", "--quiet") == 0
    assert capsys.readouterr().err.count("layer conv1 gets little gradient") == 1  # once, not at every look
    events = [json.loads(line) for line in (tmp_path / "w" / "metrics.jsonl").read_text().splitlines()]
    assert {(e["kind"], e["limit"]) for e in events if e["log"] == "warning"} == {("unavailable", 1.0)}
    assert "conv1" in (tmp_path / "w" / "log.txt").read_text()


def test_evaluate(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((runs / "one" / "record.json").read_text())
    assert main(["evaluate", str(runs / "one"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["results"][0]["accuracy"] == record["final"]["test_accuracy"]
    assert plain["results"][0]["loss"] == pytest.approx(record["final"]["test_loss"], rel=1e-6)
    assert sum(map(sum, plain["results"][0]["confusion"])) == 40
    assert main(["evaluate", str(runs / "one"), "--json", "--fold", "--num-steps", "1,2,5"]) == 0
    folded = json.loads(capsys.readouterr().out)
    assert [r["num_steps"] for r in folded["results"]] == [1, 2, 5]
    assert folded["results"][1]["loss"] == pytest.approx(plain["results"][0]["loss"], rel=1e-3)
    assert main(["evaluate", str(runs / "one"), "--weights", "best", "--split", "train"]) == 0
    out = capsys.readouterr().out
    assert "train set of mnist5k" in out
    assert "48 samples (as trained)" in out
    assert "a row is the true class" in out


def test_predict_is_what_evaluate_counts(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The 40 test samples as PNG files: the same share is right."""
    from mpd_agl.train.build import build_data
    from mpd_agl.train.resolve import read_toml, resolve

    data = build_data(resolve(read_toml(runs / "one" / "config.toml")), "test")
    paths = [str(tmp_path / f"{i}.png") for i in range(len(data))]
    for path, x_HWC in zip(paths, data.x, strict=True):
        Image.fromarray(x_HWC[..., 0]).save(path)
    assert main(["predict", str(runs / "one"), *paths, "--json", "--top", "1"]) == 0
    named = [int(json.loads(line)["classes"][0]["name"]) for line in capsys.readouterr().out.splitlines()]
    record = json.loads((runs / "one" / "record.json").read_text())
    assert np.mean(np.array(named) == data.y) == pytest.approx(record["final"]["test_accuracy"])


def test_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    for name in ("b", "a"):
        shutil.copytree(runs / "one", folder / name)
    (folder / "a" / "record.json").write_text("{")
    (folder / "no-run").mkdir()
    assert main(["runs", str(folder), "--sort", "name", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["name"], r["status"]) for r in rows] == [("a", "unreadable"), ("b", "finished")]
    assert main(["runs", str(folder), "--sort", "accuracy", "--reverse"]) == 0
    out = capsys.readouterr().out
    assert [line[0] for line in out.splitlines()[1:]] == ["b", "a"]
    record = json.loads((folder / "b" / "record.json").read_text())
    (folder / "b" / "record.json").write_text(json.dumps({**record, "status": "running", "final": None}))
    assert main(["runs", str(folder), "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["status"], row["accuracy"]) == ("killed", record["final"]["test_accuracy"])


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["backends"]["eager (cpu)"] == ""
    assert "demo" in facts["presets"]
    assert main(["info"]) == 0


def test_dry_run_measures_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(tmp_path.iterdir())
    assert train(tmp_path, "--dry-run", "--json") == 0
    got = json.loads(capsys.readouterr().out)
    e = got["estimate"]
    assert got["config"]["train"]["epochs"] == 2
    assert e["run_s"] == pytest.approx(2 * e["epoch_s"])
    assert e["epoch_s"] >= 4 * e["step_s"]
    assert e["peak_mb"] > 50
    assert train(tmp_path, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "peak memory" in out
    assert set(tmp_path.iterdir()) == before


def test_dry_run_without_the_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPD_AGL_CACHE", str(tmp_path))
    options = "--preset cifar10-resnet19 --model.name cnn8 --model.width_mult 0.03125 --train.batch-size 4"
    assert main(["train", *options.split(), "--dry-run", "--json"]) == 0
    e = json.loads(capsys.readouterr().out)["estimate"]
    assert e["data"] == "random values (cifar10 is not here)"
    assert e["epoch_s"] > 12500 * e["step_s"]


BAD: list[tuple[str, str]] = [
    ("", "nothing to train: give --preset demo"),
    ("--preset demo --optim.lr 0", "--optim.lr must be greater than 0, got '0'. Its default is 0.1."),
    ("--preset demo --train.batch-size 5000", "train.batch_size is 5000, and mnist5k has 4000 training samples"),
    ("--preset demo --train.precision float16 --train.device cpu", "train.precision float16 needs a GPU"),
    ("--resume nowhere", "nowhere is not there"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_input_is_a_sentence_and_leaves_no_folder(
    options: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPD_AGL_CACHE", str(tmp_path / "cache"))
    assert main(["train", *options.split()]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_other_commands_on_bad_input(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.png").write_text("no image")
    run = str(runs / "one")
    for args, words in (
        (["evaluate", "nowhere"], "nowhere is not there"),
        (["predict", run, str(tmp_path / "x.png")], "is no image that can be read"),
        (["runs", str(tmp_path / "none")], "no folder of runs"),
        (["info", "now"], "unexpected argument 'now'. See mpd-agl info --help."),
    ):
        assert main(args) == 2, args
        err = capsys.readouterr().err
        assert words in err
        assert len(err.splitlines()) == 1


def test_an_existing_run_is_not_overwritten(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (runs / "one" / "model.safetensors").read_bytes()
    assert train(runs, "--name", "one") == 2
    assert "exists. Continue it with --resume" in capsys.readouterr().err
    assert (runs / "one" / "model.safetensors").read_bytes() == before
    assert main(["train", "--resume", str(runs / "one")]) == 0
    assert "test accuracy" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert train(tmp_path / "runs") == 2
    assert "no permission to write there" in capsys.readouterr().err


def test_help_imports_no_torch() -> None:
    done = command("-X", "importtime", "-m", "mpd_agl", "--help")
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not {"torch", "numpy", "safetensors", "pydantic"} & imported
    assert all(name in done.stdout for name in COMMANDS)


def test_a_second_signal_ends_at_once_with_exit_code_130() -> None:
    code = (
        "import os, signal, time; from mpd_agl.train.signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGINT); print(stop.asked, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    )
    done = command("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "SIGINT\n", "")


def test_held_out_samples_are_scored_and_never_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mpd_agl.train import build
    from mpd_agl.train.resolve import resolve

    assert train(tmp_path, "--data.holdout", "30", "--name", "held", "--data.train-samples", "0", "--dry-run") == 0
    assert train(tmp_path, "--data.holdout", "30", "--name", "held", "--seed", "1") == 0
    out = capsys.readouterr().out
    assert "scored on 30 held-out training samples" in out
    assert re.search(r"epoch 2/2 .*  validation +[\d.]+ %", out)
    assert re.search(r"validation accuracy [\d.]+ % at the last epoch, 2 \(best on the held-out samples", out)
    record = json.loads((tmp_path / "held" / "record.json").read_text())
    assert record["data"]["test"]["samples"] == record["data"]["test"]["holdout"] == 30
    assert record["final"]["test_accuracy"] * 30 == pytest.approx(round(record["final"]["test_accuracy"] * 30))
    assert main(["evaluate", str(tmp_path / "held"), "--split", "validation", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)["results"][0]
    assert (held["samples"], held["accuracy"]) == (30, record["final"]["test_accuracy"])
    assert main(["evaluate", str(tmp_path / "held"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["samples"] == 40  # the test set is the test set

    config = resolve({"data": {"name": "mnist5k", "holdout": 1000}})
    parts = [build.build_data(config, split) for split in ("train", "validation")]
    whole = build.build_data(resolve({"data": {"name": "mnist5k"}}), "train")
    assert [len(p) for p in parts] == [3000, 1000]
    images = [x.tobytes() for p in parts for x in p.x]
    assert sorted(images) == sorted(x.tobytes() for x in whole.x)


def test_an_error_of_the_system_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mpd_agl.cli.runs
    from mpd_agl.cli import main

    def full(argv: list[str]) -> int:
        raise OSError(28, "No space left on device", "there/file")

    monkeypatch.setattr(mpd_agl.cli.runs, "run", full)
    assert main(["runs"]) == 2
    assert "No space left on device at there/file" in capsys.readouterr().err
    with pytest.raises(OSError, match="No space"):
        main(["runs", "--debug"])


def test_a_run_is_named_by_its_path_or_by_its_name_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert find_run("mine") == Path("mine")  # no run is there: the error names what was typed
    (tmp_path / "runs" / "mine" / "config.toml").write_text("")
    assert find_run("mine") == Path("runs/mine")
    assert find_run("runs/mine") == Path("runs/mine")
    assert find_run("other/mine") == Path("other/mine")
    (tmp_path / "mine").mkdir()
    assert find_run("mine") == Path("mine")
