"""`mpd-agl launch`: the torchrun command it stands for, and what it refuses before any process is started."""

import os
from pathlib import Path

import pytest

from mpd_agl.cli import main
from mpd_agl.cli.launch import SETTINGS

TRAIN = ["--", "train", "--preset", "demo"]


def test_it_is_torchrun_with_settings_that_restart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("mpd_agl.cli.launch._cores", lambda: 9)
    assert main(["launch", "--nproc", "2", "--rdzv-id", "job", "--show", *TRAIN]) == 0
    words = capsys.readouterr().out.split()
    assert {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "OMP_NUM_THREADS=4"} <= set(words)
    assert {"--nnodes=1", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job", "--rdzv-backend=c10d"} <= set(
        words
    )
    assert words[-5:] == ["-m", "mpd_agl", "train", "--preset", "demo"]
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_slurm_job_is_its_own_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert main(["launch", "--nnodes", "2:4", "--nproc", "8", "--rdzv-endpoint", "a:29400", "--show", *TRAIN]) == 0
    out = capsys.readouterr().out
    assert "--rdzv-id=4711 " in out
    assert "--nnodes=2:4 " in out
    assert "--rdzv-endpoint=a:29400 " in out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--nproc", "2"], "launch needs a command behind --, got none"),
        (["--nproc", "1", "--nnodes", "2", *TRAIN], "--nnodes 2 needs --rdzv-endpoint HOST:PORT"),
        (["--nproc", "2", *TRAIN, "--dry-run"], "--dry-run does not train"),
    ],
)
def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], sentence: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["launch", *argv]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_run_of_another_launch_is_refused_and_its_own_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("mpd_agl.cli.launch._launch", lambda arguments: started.append(arguments) or 0)
    for name in ("OMP_NUM_THREADS", *SETTINGS):
        monkeypatch.setenv(name, "1")  # put back by pytest
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("")
    (run / ".launch").write_text("job")
    train = [*TRAIN, "--runs-dir", str(tmp_path), "--name", "run"]
    assert main(["launch", "--nproc", "2", "--rdzv-id", "other", *train]) == 2
    assert f"run folder {run} exists" in capsys.readouterr().err
    assert started == []
    assert main(["launch", "--nproc", "2", "--rdzv-id", "job", *train]) == 0
    assert len(started) == 1
