"""`conv_impl = auto` in a run: what was chosen is kept, and a resumed run is the same run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mpd_agl.errors import InputError
from mpd_agl.nn import EventConv2d
from mpd_agl.ops import backends_here
from mpd_agl.ops.conv import convolution, costs
from mpd_agl.train import conv_choices, training
from mpd_agl.train.distributed import Ranks
from mpd_agl.train.signals import Stopped
from tests.train.test_train_resume import StopAt
from tests.train.tiny import Silent, fingerprint, tiny

pytestmark = pytest.mark.skipif(bool(backends_here()["native"]), reason=backends_here()["native"])
AUTO = {"model": {"conv_impl": "auto", "width_mult": 0.125}, "train": {"ema": 0.9}}  # 16 channels and more: all ways


class Clock:
    """Costs that depend on the step, and on how often that step came: a second look would choose otherwise."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.told = 0

    def due(self, step: int) -> bool:
        self.steps.append(step)
        self.told = 0
        return step in (0, 2, 6)

    def ms(self) -> float:
        self.told += 1
        step = self.steps[-1] if self.steps else 0
        return float((31 * step + 57 * self.steps.count(step) + 7919 * self.told) % 101 + 1)

    def predict(
        self, layer: Any, rate: float, known: dict[str, tuple[str, ...]], *, packs: bool, planes: int = 1
    ) -> Any:
        return {name: {way: self.ms() for way in ways} for name, ways in known.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(costs, "predict", made.predict)
    monkeypatch.setattr(conv_choices, "due", made.due)
    return made


def test_a_stopped_run_keeps_its_choices_and_repeats_none(tmp_path: Path, clock: Clock) -> None:
    training.start(tiny(AUTO), tmp_path / "whole", Silent())
    kept = (tmp_path / "whole" / conv_choices.FILE).read_text()
    measured = json.loads(kept)
    assert [m["step"] for m in measured] == [0, 2, 6]
    choices = [c for m in measured for c in m["layers"].values()]
    for name, known in convolution.KNOWN.items():
        assert {c["taken"][name] for c in choices} == set(known)
    assert all(0 <= c["rate"] <= 1 for c in choices)
    assert json.loads((tmp_path / "whole" / "record.json").read_text())["convs"] == measured
    clock.steps.clear()
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        training.start(tiny(AUTO), path, StopAt(3))
    with pytest.raises(Stopped):
        training.resume(path, {}, StopAt(7))
    newest = sorted((path / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():  # as if killed before it was written: the 7th step runs again, as it was chosen
        file.unlink()
    newest.rmdir()
    assert training.resume(path, {}, Silent()).status == "finished"
    assert (path / conv_choices.FILE).read_text() == kept
    assert clock.steps.count(6) == 2
    assert fingerprint(path) == fingerprint(tmp_path / "whole")


class Second(Ranks):
    """The second of two processes; the first sends what is given here."""

    rank, world = 1, 2

    def __init__(self, sent: Any) -> None:
        super().__init__()
        self.sent = sent

    def from_first(self, data: bytes) -> bytes:
        return json.dumps(self.sent).encode()


def test_every_process_takes_the_first_ones_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, layer = Second([]), EventConv2d(16, 8, 3, padding=1, conv_impl="auto")
    choices = conv_choices.ConvChoices([layer], tmp_path, ranks)
    known = {"forward": {"dense": 2.0, "event": 1.0}, "weight_grad": {"dense": 1.0}, "input_grad": {"dense": 1.0}}
    monkeypatch.setattr(costs, "predict", lambda *a, **k: known)
    taken = {"forward": "dense", "weight_grad": "dense", "input_grad": "dense"}
    ranks.sent = {"rate": 0.75, "ms": known, "lists_ms": 0.5, "taken": taken}
    assert choices.before(0)
    layer(torch.zeros(0, 16, 4, 4))  # an empty share takes part too
    assert layer.choice is not None
    assert (layer.choice.rate, layer.choice.taken) == (0.75, taken)
    choices.after(0)
    assert not (tmp_path / conv_choices.FILE).exists()  # the first process writes it
    assert [entry["step"] for entry in choices.measured] == [0]


def test_event_alone_trains_and_resumes_without_a_file(tmp_path: Path) -> None:
    record = training.start(tiny({"model": {"conv_impl": "event"}, "train": {"epochs": 1}}), tmp_path / "run", Silent())
    assert record.status == "finished"
    assert record.convs is None
    assert not (tmp_path / "run" / conv_choices.FILE).exists()


def test_a_damaged_file_of_choices_is_named(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(Stopped):
        training.start(tiny(AUTO), tmp_path / "run", StopAt(2))
    (tmp_path / "run" / conv_choices.FILE).write_text("[{")
    with pytest.raises(InputError, match=r"convs\.json is damaged or of another version"):
        training.resume(tmp_path / "run", {}, Silent())
