"""What is shown, what is tracked, and that neither can harm a run."""

import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mpd_agl.train import training
from mpd_agl.train.console import JsonLines, Lines, Live, build_display, duration
from mpd_agl.train.monitoring import Watch
from mpd_agl.train.observe import Display
from mpd_agl.train.trackers import Trackers, numbers
from tests.train.tiny import Silent, tiny

EPOCH = {
    "log": "epoch", "epoch": 1, "step": 4, "train_loss": 1.5, "train_accuracy": 0.5, "test_accuracy": 0.25,
    "lr": 0.1, "images_per_s": 7.0,
}  # fmt: skip


class Broken:
    """Works twice, then never again."""

    def __init__(self) -> None:
        self.seen = 0

    def log(self, event: dict[str, Any]) -> None:
        self.seen += 1
        if self.seen > 2:
            raise ConnectionError("no network")

    def close(self) -> None:
        raise AssertionError("a dropped tracker is not closed")


def unmade() -> Broken:
    raise ModuleNotFoundError("No module named 'wandb'")


def test_a_tracker_that_fails_is_dropped_with_a_word() -> None:
    notes: list[str] = []
    broken = Broken()
    trackers = Trackers({"broken": lambda: (broken.log, broken.close), "unmade": unmade}, notes.append)
    for _ in range(5):
        trackers.log({"log": "epoch", "step": 1})
    trackers.close()
    assert broken.seen == 3
    assert notes == [
        "unmade is dropped, the run continues: ModuleNotFoundError: No module named 'wandb'",
        "broken is dropped, the run continues: ConnectionError: no network",
    ]


def test_a_run_with_trackers_that_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    display = Silent()
    config = tiny({"track": {"wandb": True, "tensorboard": True}, "train": {"epochs": 1}})
    assert training.start(config, tmp_path / "run", display).status == "finished"
    assert [n.partition(" ")[0] for n in display.notes] == ["tensorboard", "wandb"]


def test_wandb_gets_the_epochs_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    fake: Any = ModuleType("wandb")
    run: Any = type(
        "Run", (), {"log": lambda self, values, step: logged.append((values, step)), "finish": lambda self: None}
    )
    fake.init = lambda **options: run()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    training.start(tiny({"track": {"wandb": True}, "train": {"epochs": 1}}), tmp_path / "run", Silent())
    values, step = logged[-1]
    assert step == 4
    assert {"epoch/train_loss", "epoch/test_accuracy", "epoch/lr"} <= set(values)


def test_numbers_leaves_out_texts_and_tables() -> None:
    assert numbers({"log": "x", "step": 3, "a": 1, "b": {"c": 2}, "d": "e"}) == {"a": 1.0}


def test_the_style_follows_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(build_display("quiet")) is Display
    assert type(build_display("json")) is JsonLines
    assert type(build_display("auto")) is Lines
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert type(build_display("auto")) is Live


def test_lines_within_a_long_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    from mpd_agl.train.observe import Progress

    lines = Lines()
    lines.every_s = 0
    lines.start("net", 2, 10, Progress(), "test")
    lines.figures({"firing": 0.123})
    lines.step(Progress(step=4, epoch_step=4, loss_sum=30, correct=5, seen=20, epoch_s=2))
    lines.logged(EPOCH)
    lines.scored = "validation"
    lines.logged(EPOCH)  # nothing was looked at since: no figures, in place of old ones
    lines.close()
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "net: 2 epochs of 10 steps"
    assert re.fullmatch(
        r"  epoch 1, step 4/10  loss 1.5000  train 25.00 %  10 images/s  firing 12.3 %  \d+ s left", out[1]
    )
    assert out[2] == "epoch 1/2  loss 1.5000  train 50.00 %  test 25.00 %  lr 0.1  7 images/s  firing 12.3 %"
    assert out[3] == "epoch 1/2  loss 1.5000  train 50.00 %  validation 25.00 %  lr 0.1  7 images/s"


def test_the_live_display_draws_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpd_agl.train.observe import Progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    live = Live()
    live.start("net [not markup]", 2, 10, Progress(step=3), "test")
    live.figures({"firing": 0.123})
    live.step(Progress(step=4, epoch_step=4, loss_sum=30, correct=5, seen=20, epoch_s=2))
    live.note("layer [x] is almost silent")
    live.logged(EPOCH)
    live._bars.refresh()
    live.close()
    drawn = screen.getvalue()
    for words in (
        "net [not markup]",
        "epoch 1/2",
        "loss 1.5000",
        "firing 12.3 %",
        "layer [x] is almost silent",
        "left",
    ):
        assert words in drawn, words


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (119.4, "119 s"), (120, "2 min 00 s"), (3600, "1 h 00 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_monitor_sees_training_steps_only_and_leaves_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from mpd_agl.models import create_model

    net = create_model("cnn8", width_mult=0.03125, in_channels=1, image_size=16)
    monkeypatch.setattr("mpd_agl.train.monitoring.SILENT_BELOW", 1.0)
    watch = Watch(net, 2)
    seen = []
    for step in range(3):
        assert watch.before(step) == (step != 1)
        net(torch.randn(4, 1, 16, 16))
        seen.append(watch.after(step))
        assert not any(m._forward_hooks for m in net.modules())
    assert [s is not None for s in seen] == [True, False, True]
    assert seen[0] is not None
    assert seen[2] is not None
    assert len(seen[0].warnings) == 7
    assert seen[2].warnings == []  # they stand already
    assert 0 < seen[0].figures["gradient-available"] < 1
    other = Watch(net, 50)
    other.restore(watch.state())
    assert other.state() == watch.state()
