"""Two ranks train as one process does, stop together, and hand a run on to another number of ranks."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mpd_agl.train import training
from mpd_agl.train.signals import Stopped
from tests.ranks import on_ranks
from tests.train.shared_run import UNEVEN
from tests.train.tiny import Silent, StopAt, fingerprint, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def ended(folder: Path) -> list[Any]:
    training.start(tiny(UNEVEN), folder / "one", Silent())
    with pytest.raises(Stopped):
        training.start(tiny(UNEVEN), folder / "from-one", StopAt(6))  # in mid-epoch
    return on_ranks("tests.train.shared_run:runs", 2, folder)


def difference(one: Path, two: Path) -> float:
    a, b = (load_file(path / "model.safetensors") for path in (one, two))
    assert a.keys() == b.keys()
    return max(float((a[k].double() - b[k].double()).abs().max()) for k in a)


def scores(run: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [e for e in events if e["log"] == "epoch"]


def test_steps_are_those_of_one_process_in_float64(ended: list[Any]) -> None:
    """Unequal and empty shares, accumulated parts, clipping, momentum, the moving average, ASGL's noise."""
    assert max(rank["worst"] for rank in ended) < 1e-12


def test_two_ranks_train_as_one_process(folder: Path, ended: list[Any]) -> None:
    assert difference(folder / "one", folder / "two") < 1e-5
    for one, two in zip(scores(folder / "one"), scores(folder / "two"), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-5)
        assert two["test_loss"] == pytest.approx(one["test_loss"], abs=1e-5)
        assert (two["train_accuracy"], two["test_accuracy"]) == (one["train_accuracy"], one["test_accuracy"])


def test_the_record_tells_the_processes_and_one_writes(folder: Path, ended: list[Any]) -> None:
    record = json.loads((folder / "two" / "record.json").read_text())
    assert (record["hardware"]["processes"], record["hardware"]["processes_backend"]) == (2, "gloo")
    assert len(scores(folder / "two")) == 2
    log = (folder / "two" / "log.txt").read_text().splitlines()
    assert [line.partition(" ")[2] for line in log] == ["started", "finished"]


def test_a_signal_to_either_rank_stops_both_at_the_same_step(folder: Path, ended: list[Any]) -> None:
    assert [rank["ends"] for rank in ended] == [[5, 6], [5, 6]]
    newest = sorted(p.name for p in (folder / "stopped-0" / "checkpoints").iterdir())[-1]
    assert newest == "epoch-0001-step-00000005"


def test_two_ranks_resume_to_the_bytes_of_two_ranks(folder: Path, ended: list[Any]) -> None:
    assert fingerprint(folder / "stopped-1") == fingerprint(folder / "two")


def test_the_number_of_ranks_may_change_in_mid_epoch(folder: Path, ended: list[Any], tmp_path: Path) -> None:
    assert [rank["resumed"] for rank in ended] == ["finished", "finished"]
    assert difference(folder / "one", folder / "from-one") < 1e-5
    shutil.copytree(folder / "stopped-0", tmp_path / "run")
    record = training.resume(tmp_path / "run", {}, Silent())  # two ranks began it, one process goes on
    assert difference(folder / "one", tmp_path / "run") < 1e-5
    assert record.hardware["processes"] == 1
    assert "the number of processes was 2 and is 1" in record.differences[0]


def test_nan_on_one_rank_stops_both_before_anything_bad_is_saved(folder: Path, ended: list[Any]) -> None:
    first, second = (rank["nan"] for rank in ended)
    assert "training stopped at epoch 1, step 3 of 4" in first
    assert "rank 1: the input holds NaN or Inf" in first
    assert "checkpoint epoch-0000-step-00000002 stands" in first
    assert second.startswith("EndedTogether")
    assert sorted(p.name for p in (folder / "nan" / "checkpoints").iterdir())[-1] == "epoch-0000-step-00000002"
    assert json.loads((folder / "nan" / "record.json").read_text())["status"] == "failed"


def test_a_launch_knows_its_own_run(ended: list[Any]) -> None:
    assert [rank["again"] for rank in ended] == [[True, False]] * 2


def test_a_second_signal_is_the_launchers() -> None:
    """Ctrl-C reaches the ranks from the terminal, and again through the launcher."""
    from mpd_agl.train.signals import StopRequest

    with StopRequest(patient=True) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert stop.asked == "SIGINT"
