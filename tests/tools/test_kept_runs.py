"""Runs that are kept in one file and laid out again: a study shows of them what it showed of the runs themselves."""

import json
from pathlib import Path

import pytest

from experiments.command import run
from tools import kept_runs

STUDY = ["table3", "--scale", "smoke", "--seeds", "2", "--methods", "mpd-agl", "lsg", "--only", "data=CIFAR-10"]
SMALL = ["--data.train-samples", "40", "--data.test-samples", "20", "--train.epochs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert run([*STUDY, *SMALL, "--runs-dir", str(folder), "--quiet"]) == 0
    return folder


def test_a_study_of_runs_that_were_kept_is_the_study(runs, tmp_path, capsys):
    file = tmp_path / "kept" / "runs.tar.xz"
    assert kept_runs.main(["keep", str(runs / "pool"), str(file)]) == 0
    assert "4 runs added, 4 in all" in capsys.readouterr().out
    first = file.read_bytes()
    assert kept_runs.main(["keep", str(runs / "pool"), str(file)]) == 0
    assert file.read_bytes() == first
    assert str(runs).encode() not in b"".join(json.dumps(r).encode() for r in kept_runs.read_kept(file).values())
    assert kept_runs.main(["lay", str(tmp_path / "pool"), str(file)]) == 0
    assert "4 runs laid out, 0 were there" in capsys.readouterr().out
    assert run([*STUDY, *SMALL, "--runs-dir", str(tmp_path), "--quiet"]) == 0  # nothing is left to train
    same = [json.loads((folder / "smoke" / "table3.json").read_text()) for folder in (runs, tmp_path)]
    assert same[0] == same[1]
    assert sorted(same[0]["cells"][0]["accuracy"]) == ["0", "1"]


def test_what_cannot_be_kept_or_laid_out_is_refused(runs, tmp_path, capsys, monkeypatch):
    assert kept_runs.main(["keep", str(tmp_path / "none"), str(tmp_path / "no.tar.xz")]) == 2
    assert "the folder is not there. Give the pool" in capsys.readouterr().err
    assert kept_runs.main(["lay", str(tmp_path), str(tmp_path / "no.tar.xz")]) == 2
    assert "no runs are kept in" in capsys.readouterr().err
    (tmp_path / "torn.tar.xz").write_bytes(b"torn")
    assert kept_runs.main(["lay", str(tmp_path), str(tmp_path / "torn.tar.xz")]) == 2
    assert "torn.tar.xz" in capsys.readouterr().err
    bad = {"../out": {"record": {}, "lines": []}}
    kept_runs.write_kept(tmp_path / "bad.tar.xz", bad)
    assert kept_runs.main(["lay", str(tmp_path / "pool"), str(tmp_path / "bad.tar.xz")]) == 2
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(kept_runs, "MOST_BYTES", 100)
    assert kept_runs.main(["keep", str(runs / "pool"), str(tmp_path / "large.tar.xz")]) == 2
    assert "more than 100. Keep some elsewhere." in capsys.readouterr().err
    assert not (tmp_path / "large.tar.xz").exists()
