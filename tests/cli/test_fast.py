"""`mpd-agl evaluate --fast` and `--exit-threshold` on a run: the plain path's answers."""

import json
from pathlib import Path

import pytest

from mpd_agl.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    options = ["--model.name", "cnn8", "--model.width_mult", "0.0625", "--model.num-steps", "3"]
    options += ["--data.name", "mnist5k", "--data.train-samples", "200", "--data.test-samples", "60"]
    options += ["--train.epochs", "2", "--train.batch-size", "20"]
    options += ["--train.threads", "1", "--monitor.every", "0", "--train.test-batch-size", "25"]
    assert main(["train", *options, "--runs-dir", str(folder), "--name", "one", "--quiet"]) == 0
    return folder / "one"


def evaluate(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> dict:
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_fast_path_has_the_plain_paths_scores(run, capsys):
    plain = evaluate(capsys, run)["results"][0]
    fast = evaluate(capsys, run, "--fast")
    assert fast["fast"]
    assert fast["results"][0]["confusion"] == plain["confusion"]
    assert fast["results"][0]["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert main(["evaluate", str(run), "--fast"]) == 0
    assert "checked against the plain path: 0 of 25 predictions differ" in capsys.readouterr().out


def test_early_answers_move_between_one_step_and_all(run, capsys, tmp_path):
    figure = tmp_path / "curve.svg"
    found = evaluate(capsys, run, "--exit-threshold", "0.01,0.12,0.5,1", "--plot", str(figure))["results"][0]
    first, *middle, last = found["early"]
    assert (first["mean_steps"], last["mean_steps"]) == (1.0, 3.0)
    assert first["steps_share"] == [1.0, 0.0, 0.0]
    steps = [row["mean_steps"] for row in found["early"]]
    assert steps == sorted(steps)
    assert all(sum(row["steps_share"]) == pytest.approx(1.0) for row in middle)
    assert last["accuracy"] == found["accuracy"]
    assert last["loss"] == pytest.approx(found["loss"], rel=1e-5)
    one_step = evaluate(capsys, run, "--num-steps", "1")["results"][0]
    assert first["accuracy"] == one_step["accuracy"]
    assert b"timesteps, mean" in figure.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--exit-threshold", "1.5"], "--exit-threshold 0.8,0.95"),
        (["--exit-threshold", "0.5", "--plot", "a.png"], ".svg or .pdf"),
        (["--exit-threshold", "0.5", "--plot", "no/a.svg"], "no/a.svg"),
    ],
)
def test_mistakes(run, options, said, capsys):
    assert main(["evaluate", str(run), *options]) == 2
    assert said in capsys.readouterr().err
