"""What is shown, what is tracked, and that neither can harm a run."""

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mpd_agl.train import training
from mpd_agl.train.console import JsonLines, Lines, Live, build_display
from mpd_agl.train.monitoring import Watch
from mpd_agl.train.observe import Display
from mpd_agl.train.trackers import Trackers
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
    assert [note.partition(" ")[0] for note in notes] == ["unmade", "broken"]


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


def test_the_style_follows_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(build_display("quiet")) is Display
    assert type(build_display("json")) is JsonLines
    assert type(build_display("auto")) is Lines
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert type(build_display("auto")) is Live


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
    for words in ("net [not markup]", "firing 12.3 %", "layer [x] is almost silent"):
        assert words in drawn, words


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
