"""A run that is killed, stopped or damaged ends with the bits of a run that never was."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from mpd_agl.errors import InputError
from mpd_agl.train import training
from mpd_agl.train.signals import Stopped
from tests.refused import refused
from tests.train.tiny import Silent, StopAt, fingerprint, tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    training.start(tiny(), path, Silent())
    return path


@pytest.mark.parametrize(("at", "number"), [(2, signal.SIGINT), (4, signal.SIGTERM), (12, signal.SIGTERM)])
def test_a_signal_saves_and_the_resumed_run_is_the_same(tmp_path: Path, whole: Path, at: int, number: int) -> None:
    """Steps 4 and 12 are an epoch's last: the stop falls before its evaluation."""
    path = tmp_path / "run"
    with pytest.raises(Stopped) as stop:
        training.start(tiny(), path, StopAt(at, number))
    assert stop.value.by == signal.Signals(number).name
    assert stop.value.step == at
    record = json.loads((path / "record.json").read_text())
    assert (record["status"], record["final"]) == ("stopped", None)
    assert training.resume(path, {}, Silent()).status == "finished"
    assert fingerprint(path) == fingerprint(whole)


def test_a_stop_in_the_midst_of_an_evaluation(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpd_agl.train import loop

    original = loop.evaluate

    def interrupted(*args: object, **options: object) -> object:
        between = options["between"]

        def signal_then_look() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            between()  # type: ignore[operator]

        return original(*args, **{**options, "between": signal_then_look})  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "evaluate", interrupted)
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(), path, Silent())
    monkeypatch.undo()
    assert sorted(p.name for p in (path / "checkpoints").iterdir())[-1] == "epoch-0000-step-00000004"
    training.resume(path, {}, Silent())
    assert fingerprint(path) == fingerprint(whole)


def test_with_every_checkpoint_damaged_the_run_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(3))
    names = sorted(p.name for p in (path / "checkpoints").iterdir())
    for name in names:
        (path / "checkpoints" / name / "state.json").write_text("{}")
    metrics = (path / "metrics.jsonl").read_bytes()
    for told in (len(names), 0):  # the second attempt finds nothing but what the first set aside
        display = Silent()
        with pytest.raises(InputError) as error:
            training.resume(path, {}, display)
        assert all(f"{name}.damaged" in str(error.value) for name in names)
        assert len(display.notes) == told
    assert (path / "metrics.jsonl").read_bytes() == metrics


def test_another_simd_level_or_torch_is_told_and_written_down(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(2))
    record = json.loads((path / "record.json").read_text())
    assert record["differences"] == []
    hardware, versions = {**record["hardware"], "torch_kernels": "AVX9"}, {**record["versions"], "torch": "2.0"}
    if record["backend"] == "native":
        assert record["hardware"]["simd"] in ("avx512", "avx2", "base")
        hardware["simd"] = "avx9"
    (path / "record.json").write_text(json.dumps({**record, "hardware": hardware, "versions": versions}))
    display = Silent()
    done = training.resume(path, {}, display)
    assert len(display.notes) == 1
    assert "torch's CPU kernels was AVX9 and is" in display.notes[0]
    assert "torch was 2.0 and is" in display.notes[0]
    assert "The bytes may differ from an undisturbed run's" in display.notes[0]
    assert done.differences == display.notes
    assert ("SIMD level was avx9" in display.notes[0]) == (record["backend"] == "native")


def test_a_torn_record_is_written_again(tmp_path: Path, whole: Path) -> None:
    path, display = tmp_path / "run", Silent()
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(3))
    (path / "record.json").write_text('{"name": "r')
    training.resume(path, {}, display)
    assert "record.json" in display.notes[0]
    assert fingerprint(path) == fingerprint(whole)


def test_the_weights_get_the_rights_that_the_user_asks_for(whole: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    for name in ("model.safetensors", "record.json", "config.toml", "metrics.jsonl"):
        assert (whole / name).stat().st_mode & 0o777 == 0o666 & ~mask, name


def test_a_finished_run_is_left_as_it_is(whole: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file() and p.name != ".lock"}
    assert training.resume(whole, {}, Silent()).status == "finished"
    assert before == {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file() and p.name != ".lock"}


def test_a_changed_configuration_is_refused_with_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(2))
    with refused("changed-config", "optim.lr was 0.1, got 0.2", "train.epochs was 3, got 5", "checkpoint.keep_last"):
        training.resume(path, {"optim": {"lr": "0.2"}, "train": {"epochs": "5"}}, Silent())
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("seed = 0", "seed = 1", 1))
    with refused("changed-config", "seed was 0, got 1"):
        training.resume(path, {}, Silent())
    (path / "config.toml").write_text(text)
    assert training.resume(path, {"checkpoint": {"keep_last": "1"}}, Silent()).config["checkpoint"]["keep_last"] == 1


def test_other_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(2))
    record = json.loads((path / "record.json").read_text())
    record["data"]["train"]["sha256"] = "0" * 64
    (path / "record.json").write_text(json.dumps(record))
    with refused("other-data", "train data of mnist5k", "sha256"):
        training.resume(path, {}, Silent())


def test_another_backend_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny({"model": {"backend": "eager"}}), path, StopAt(2))
    record = json.loads((path / "record.json").read_text())
    (path / "record.json").write_text(json.dumps({**record, "backend": "native"}))
    with refused("other-backend", "native", "eager"):
        training.resume(path, {}, Silent())


def test_a_stopped_run_can_be_used(tmp_path: Path) -> None:
    from mpd_agl.train.load_run import load_run

    path, notes = tmp_path / "run", Silent()
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(2))
    assert load_run(path, "last", notes.note).weights == "epoch-0000-step-00000002"
    with refused("no-weights", path):
        load_run(path, "best", notes.note)
    training.resume(path, {}, notes)
    best = json.loads((path / "record.json").read_text())["best_on_test"]
    assert load_run(path, "best", notes.note).weights == f"epoch-{best['epoch']:04d}-step-{best['step']:08d}"
    shutil.rmtree(path / "checkpoints")
    with refused("no-weights", path):
        load_run(path, "best", notes.note)
    assert load_run(path, "last", notes.note).weights == "model.safetensors"


def test_without_any_checkpoint_the_run_starts_from_its_beginning(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(), path, StopAt(3))
    shutil.rmtree(path / "checkpoints")
    display = Silent()
    training.resume(path, {}, display)
    assert "starts from its beginning" in display.notes[0]
    assert fingerprint(path) == fingerprint(whole)


def test_a_run_in_a_thread_needs_no_signals(tmp_path: Path) -> None:
    done: list[str] = []
    config = tiny({"train": {"epochs": 1}})
    worker = threading.Thread(target=lambda: done.append(training.start(config, tmp_path / "run", Silent()).status))
    worker.start()
    worker.join(60)
    assert done == ["finished"]


def test_a_nan_that_is_read_later_is_told_with_its_step_and_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: results are read after 20 steps, or before a checkpoint or an epoch's end."""
    from mpd_agl.train import checkpoint, step
    from mpd_agl.train.optim import build_optimizer

    plain, steps = step.Stepper.step, 0
    monkeypatch.setattr(
        "mpd_agl.train.build.build_optimizer", lambda net, config, fused: build_optimizer(net, config, fused=True)
    )

    def faulty(self: step.Stepper, x: object, y: object, *rest: object) -> None:
        nonlocal steps
        steps += 1
        self.read_every = 20
        loss = self.objective.loss
        self.objective.loss = (lambda o, y: loss(o, y) * float("nan")) if steps == 6 else loss
        plain(self, x, y, *rest)  # type: ignore[arg-type]
        self.objective.loss = loss

    monkeypatch.setattr(step.Stepper, "step", faulty)
    changes = {"checkpoint": {"every_steps": 0, "every_minutes": 0}, "monitor": {"every": 0}}
    with refused("not-finite", "epoch 2, step 2 of 4", "loss nan"):
        training.start(tiny(changes), tmp_path / "run", Silent())
    assert steps == 8  # noticed at the epoch's end
    root = tmp_path / "run" / "checkpoints"
    assert checkpoint.positions(root) == [checkpoint.Position(1, 4)]
    assert not any(
        step.bad(t) for g in checkpoint.read(root / "epoch-0001-step-00000004").tensors.values() for t in g.values()
    )
