"""Sweeps as a user runs them: what they find, how they are stopped and continued, how they fail."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mpd_agl.cli import main
from mpd_agl.records import read_record
from mpd_agl.sweeps.config import Sweep, read_sweep
from mpd_agl.sweeps.search_space import Choices
from mpd_agl.train.resolve import read_toml, resolve

FIXED = """
[fixed]
model = {name = "cnn8", width_mult = 0.03125}
data = {name = "mnist5k", train_samples = 48, test_samples = 40, holdout = 40}
train = {epochs = 3, batch_size = 12, threads = 1}
monitor = {every = 0}
"""
LR = '"optim.lr" = {low = 0.001, high = 1.0, log = true}'


def write(folder: Path, settings: str = "", search: str = LR, fixed: str = FIXED, name: str = "s.toml") -> Path:
    path = folder / name
    path.write_text(f'preset = "demo"\n{settings}\n{fixed}\n[search]\n{search}\n')
    return path


def sweep(path: Path, *options: str) -> int:
    return main(["sweep", str(path), "--sweeps-dir", str(path.parent / "sweeps"), *options])


def results(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path.parent / "sweeps" / path.stem / "results.json").read_text())
    return found


def outcome(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results(path)["trials"]
    return rows


def test_without_optuna_one_sentence_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert sweep(write(tmp_path)) == 2
    assert 'pip install "mpd-agl[optuna]"' in capsys.readouterr().err
    assert not (tmp_path / "sweeps").exists()
    assert sweep(write(tmp_path), "--dry-run") == 0  # looking at a sweep needs no engine


BAD = [
    ("", '"optim.lrr" = {low = 0.1, high = 1.0}', "search: unknown field optim.lrr. Did you mean optim.lr?"),
    ("", '"optim.lr" = {low = 0, high = 1.0}', "search: optim.lr must be greater than 0, got 0"),
    ("", '"optim.lr" = {choices = [0.1, 0.1]}', "choices name a value twice"),
    ("", 'method = {choices = ["mpd-agl", "lgs"]}', "unknown method 'lgs'. Did you mean 'lsg'"),
    ("", '"data.name" = {choices = ["mnist5k"]}', "data.name decides which samples are scored"),
    ("sampler = 'grid'", LR, "a grid needs choices, and optim.lr is 0.001 to 1 (log)"),
    ("tune_on = 'test'", LR, "tune_on is 'test', and data.holdout is 40"),
]


@pytest.mark.parametrize(("settings", "search", "words"), BAD)
def test_bad_input_is_one_sentence(
    settings: str, search: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(write(tmp_path, settings, search)) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "sweeps").exists()


def test_the_file_is_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("seed = 7\n")
    path = write(
        tmp_path,
        'config = "base.toml"\nsampler = "grid"',
        "optim.lr = {choices = [0.1, 1]}\nseed = {choices = [0, 2, 4]}\n"
        '"data.augment" = {choices = [["crop=2", "flip"], []]}\n"optim.momentum" = {choices = [0.0, 0.9]}',
    )
    s = read_sweep(path)
    assert s.base.seed == 7
    assert s.base.model.num_steps == 2  # the preset's
    assert s.base.data.holdout == 40
    assert s.space["data.augment"] == Choices(choices=("crop=2,flip", ""))
    assert s.trials == len(s.grid()) == 2 * 3 * 2 * 2
    config = s.config_for({"data.augment": "crop=2,flip", "seed": 2})
    assert (config.data.augment, config.seed, config.optim.lr) == (("crop=2", "flip"), 2, 0.1)
    assert Sweep.from_dict(json.loads(json.dumps(s.to_dict()))).to_dict() == s.to_dict()


def test_a_tenth_is_held_out_unless_the_test_set_is_asked_for(tmp_path: Path) -> None:
    fixed = FIXED.replace(", holdout = 40", "")
    s = read_sweep(write(tmp_path, "", LR, fixed))
    assert (s.base.data.holdout, s.score) == (400, "validation accuracy")
    s = read_sweep(write(tmp_path, 'tune_on = "test"', LR, fixed))
    assert (s.base.data.holdout, s.score) == (0, "accuracy ON THE TEST SET")
    s = read_sweep(write(tmp_path, 'objective = "loss"', LR, fixed))
    assert (s.maximize, s.score) == (False, "validation loss")


def test_a_sweep_leaves_runs_a_table_and_the_best_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    path = write(
        tmp_path, "trials = 4\nsampler = 'random'\npruner = 'none'", LR + '\nmethod = {choices = ["lsg", "agr"]}'
    )
    assert sweep(path, "--quiet") == 0
    out = capsys.readouterr().out
    rows, folder = outcome(path), tmp_path / "sweeps" / "s"
    assert [r["state"] for r in rows] == ["complete"] * 4
    assert len({r["params"]["optim.lr"] for r in rows}) == 4
    for row in rows:
        record = read_record(folder / "trials" / f"trial-{row['trial']:04d}" / "record.json")
        assert record.final is not None
        assert (record.final["test_accuracy"], record.data["test"]["holdout"]) == (row["value"], 40)
        assert record.config["optim"]["lr"] == row["params"]["optim.lr"]
        assert record.config["method"] == row["params"]["method"]
    best = max(rows, key=lambda r: (r["value"], -r["trial"]))
    assert results(path)["best"] == best
    assert f"best: trial {best['trial']}, validation accuracy {best['value']:.4f}" in out
    config = resolve(read_toml(folder / "best.toml"))
    assert (config.optim.lr, config.method, config.data.holdout) == (
        best["params"]["optim.lr"], best["params"]["method"], 0
    )  # fmt: skip
    assert "40 held-out training samples" in (folder / "best.toml").read_text()
    assert main(["train", "--config", str(folder / "best.toml"), "--runs-dir", str(tmp_path), "--quiet"]) == 0
    assert "test accuracy" in capsys.readouterr().out

    # again: nothing is repeated; more trials: only those are run; another space: refused
    before = {p: p.stat().st_mtime_ns for p in folder.glob("trials/*/record.json")}
    assert sweep(path, "--quiet") == 0
    assert outcome(path) == rows
    path.write_text(path.read_text().replace("trials = 4", "trials = 5"))
    assert sweep(path, "--quiet", "--json") == 0
    assert outcome(path)[:4] == rows
    assert len(outcome(path)) == 5
    assert {p: p.stat().st_mtime_ns for p in before} == before
    path.write_text(path.read_text().replace("high = 1.0", "high = 0.5"))
    capsys.readouterr()
    assert sweep(path) == 2
    assert "search.optim.lr.high was 1.0, got 0.5. Use the old ones" in capsys.readouterr().err


def test_a_killed_sweep_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    settings = "trials = 3\nprune_after_trials = 1\nseed = 5"
    fixed = f"{FIXED}checkpoint = {{every_steps = 1}}\n"
    calm = write(tmp_path, settings, LR, fixed, "calm.toml")
    assert sweep(calm, "--quiet") == 0
    path = write(tmp_path, settings, LR, fixed)
    command = [sys.executable, "-m", "mpd_agl", "sweep", str(path), "--sweeps-dir", str(tmp_path / "sweeps")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    trials = tmp_path / "sweeps" / "s" / "trials"
    wait_for(lambda: any((trials / "trial-0001" / "checkpoints").glob("*")), child)
    child.kill()
    child.wait()
    first = (trials / "trial-0000" / "record.json").stat().st_mtime_ns
    assert not (trials / "trial-0002").exists()
    assert sweep(path, "--quiet") == 0
    assert outcome(path) == outcome(calm)
    assert (trials / "trial-0000" / "record.json").stat().st_mtime_ns == first
    assert "resumed at step" in (trials / "trial-0001" / "log.txt").read_text()


def test_a_signal_saves_the_trial_and_the_same_command_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    from mpd_agl.sweeps.trial import Reporting

    report = Reporting.logged

    def signalled(self: Reporting, event: dict[str, Any]) -> None:
        report(self, event)
        if event["log"] == "epoch" and event["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    path = write(tmp_path, "trials = 1\npruner = 'none'")
    monkeypatch.setattr(Reporting, "logged", signalled)
    assert sweep(path, "--quiet") == 75
    assert "stopped and saved. Continue with the same command." in capsys.readouterr().out
    monkeypatch.setattr(Reporting, "logged", report)
    assert sweep(path, "--quiet") == 0
    (row,) = outcome(path)
    assert (row["state"], row["epochs"]) == ("complete", 3)
    run = tmp_path / "sweeps" / "s" / "trials" / "trial-0000"
    epochs = [
        e["epoch"] for e in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if e["log"] == "epoch"
    ]
    assert epochs == [1, 2, 3]


def wait_for(there: Any, child: "subprocess.Popen[bytes]") -> None:
    for _ in range(4800):
        if there():
            return
        assert child.poll() is None, "the sweep ended too early"
        time.sleep(0.025)
    pytest.fail("the sweep did not get there within 120 s")


def test_a_trial_that_falls_behind_is_pruned_and_the_last_epoch_is_not(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    fixed = FIXED.replace("epochs = 3", "epochs = 4")
    settings = "sampler = 'grid'\nobjective = 'train_loss'\nprune_after_trials = 2"
    path = write(tmp_path, settings, '"optim.lr" = {choices = [0.5, 0.4, 1e-7]}', fixed)
    assert sweep(path, "--quiet") == 0
    rows = outcome(path)
    assert [r["state"] for r in rows] == ["complete", "complete", "pruned"]
    assert rows[2]["epochs"] < 4
    record = read_record(tmp_path / "sweeps" / "s" / "trials" / "trial-0002" / "record.json")
    assert (record.status, record.failure) == ("stopped", None)
    kept = sorted((tmp_path / "sweeps" / "s" / "trials" / "trial-0002" / "checkpoints").iterdir())
    assert kept[-1].name == f"epoch-{rows[2]['epochs']:04d}-step-{4 * rows[2]['epochs']:08d}"
    assert results(path)["best"]["value"] == min(r["value"] for r in rows[:2])


def test_a_point_that_makes_no_configuration_fails_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    search = '"train.epochs" = {choices = [1, 2]}\n"optim.warmup_epochs" = {choices = [0, 1]}'
    assert sweep(write(tmp_path, "sampler = 'grid'\npruner = 'none'", search), "--quiet") == 0
    rows = outcome(tmp_path / "s.toml")
    assert {(r["params"]["train.epochs"], r["params"]["optim.warmup_epochs"]): r["state"] for r in rows} == {
        (1, 0): "complete", (1, 1): "fail", (2, 0): "complete", (2, 1): "complete"
    }  # fmt: skip
    assert "optim.warmup_epochs must be less than train.epochs" in rows[1]["reason"]
    assert "trial 1: failed (optim.warmup_epochs must be" in capsys.readouterr().out


def test_what_hits_every_trial_ends_the_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    path = write(tmp_path, "trials = 3", LR, FIXED.replace("threads = 1", "threads = 1, device = 'tpu'"))
    assert sweep(path) == 2
    assert "train.device must be a device that works here" in capsys.readouterr().err
    assert not any((tmp_path / "sweeps" / "s" / "trials").iterdir())


@pytest.mark.parametrize("how", [["--workers", "2"], ["--slurm", "local,jobs=2,hours=0.2"]])
def test_jobs_find_what_one_process_finds(how: list[str], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    if "--slurm" in how:
        pytest.importorskip("submitit")
        if not os.environ.get("MPD_AGL_SLOW"):
            pytest.skip("three layers of processes per trial: set MPD_AGL_SLOW=1")
    settings = "sampler = 'grid'\npruner = 'none'"
    search = '"optim.lr" = {choices = [0.1, 0.3]}'
    fixed = FIXED.replace("epochs = 3", "epochs = 1")
    alone, path = write(tmp_path, settings, search, fixed, "alone.toml"), write(tmp_path, settings, search, fixed)
    assert sweep(alone, "--quiet") == 0
    assert sweep(path, *how) == 0
    assert outcome(path) == outcome(alone)
    assert [r["state"] for r in outcome(path)] == ["complete", "complete"]


STAND_INS = {
    "srun": 'shift 5; exec "$@"',  # --unbuffered --output FILE --error FILE
    "sbatch": "export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 "
    "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0\n"
    'bash "$1" >/dev/null 2>&1 & echo Submitted batch job 7',
    "sacct": "echo 'JobID|State|NodeList'; echo '7|RUNNING|here'",  # submitit looks for the job's result first
}


def test_slurm_gets_the_job_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against stand-ins for SLURM's commands; there is no SLURM to test with."""
    pytest.importorskip("optuna")
    pytest.importorskip("submitit")
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    path = write(tmp_path, "trials = 1", LR, FIXED.replace("epochs = 3", "epochs = 1"))
    assert sweep(path, "--slurm", "partition=gpu,gpus=1,cpus=3,memory=16,hours=1.5,account=me") == 0
    assert [r["state"] for r in outcome(path)] == ["complete"]
    script = next((tmp_path / "sweeps" / "s" / "jobs").glob("*.sh"))
    lines = set(script.read_text().splitlines())
    assert {
        f"#SBATCH --{o}"
        for o in ("partition=gpu", "gpus-per-node=1", "cpus-per-task=3", "mem=16GB", "time=90", "account=me")
    } <= lines


def test_the_journal_holds_nothing_that_is_unpickled() -> None:
    journal = pytest.importorskip("optuna.storages.journal")
    assert not hasattr(journal.JournalFileBackend, "load_snapshot")  # snapshots are what Optuna unpickles


def test_a_torn_journal_is_mended_and_a_damaged_one_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    path = write(tmp_path, "trials = 1", LR, FIXED.replace("epochs = 3", "epochs = 1"))
    assert sweep(path, "--quiet") == 0
    rows, journal = outcome(path), tmp_path / "sweeps" / "s" / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"wor')
    assert sweep(path, "--quiet") == 0
    assert outcome(path) == rows
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())
    journal.write_bytes(b"not json\n" + whole)
    capsys.readouterr()
    assert sweep(path, "--quiet") == 2
    err = capsys.readouterr().err
    assert "is damaged" in err
    assert len(err.splitlines()) == 1


def test_a_sweep_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    from mpd_agl.sweeps.sweep import open_sweep

    path = write(tmp_path)
    with open_sweep(read_sweep(path), tmp_path / "sweeps" / "s"):
        assert sweep(path) == 2
    assert "is in use by another process" in capsys.readouterr().err
    (tmp_path / "sweeps" / "mine").mkdir()
    (tmp_path / "sweeps" / "mine" / "thesis.tex").write_text("x")
    assert sweep(path, "--name", "mine") == 2
    assert "is no sweep's folder" in capsys.readouterr().err


def test_the_end_of_a_jobs_time_reaches_the_run_as_sigterm(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(75)); "
        "print('up', flush=True); time.sleep(60)"
    )
    job = (
        "from mpd_agl.sweeps.jobs import run_command; import sys; "
        f"sys.exit(run_command([sys.executable, '-c', {script!r}]))"
    )
    child = subprocess.Popen([sys.executable, "-c", job], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    os.killpg(child.pid, signal.SIGUSR2)  # SLURM signals every process of the step
    assert child.wait(30) == 75
    child.stdout.close()


def test_dry_run_tells_space_trials_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "trials = 7", LR + '\nmethod = {choices = ["lsg", "agr"]}')
    assert sweep(path, "--dry-run") == 0
    out = capsys.readouterr().out
    for words in ("0.001 to 1 (log)", "one of lsg, agr", "7, sampler tpe", "40 held-out training samples of mnist5k"):
        assert words in out
    assert sweep(path, "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["most_s"] == pytest.approx(7 * told["run_s"])
    assert not (tmp_path / "sweeps").exists()
