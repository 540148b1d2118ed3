"""A run that takes a second: the smallest CNN-8, 48 digits, 3 epochs of 4 steps, a checkpoint at every step."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from mpd_agl.train.config import RunConfig
from mpd_agl.train.observe import Display
from mpd_agl.train.resolve import merge, resolve

TINY: dict[str, Any] = {
    "model": {"name": "cnn8", "width_mult": 0.03125, "num_steps": 2},
    "data": {"name": "mnist5k", "train_samples": 48, "test_samples": 40, "augment": ["crop=2", "flip"]},
    "train": {"epochs": 3, "batch_size": 12, "test_batch_size": 20, "threads": 1},
    "checkpoint": {"every_steps": 1, "keep_last": 3},
    "monitor": {"every": 3},
}


def tiny(changes: dict[str, Any] | None = None) -> RunConfig:
    return resolve(merge(TINY, changes or {}))


class Silent(Display):
    """Keeps notes in place of printing them."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class StopAt(Silent):
    """Sends the process a signal when a step is done."""

    def __init__(self, at: int, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.at, self.number = at, number

    def step(self, progress: Any) -> None:
        if progress.step == self.at:
            os.kill(os.getpid(), self.number)


def without_clock(value: Any) -> Any:
    """All but clock times: keys that end in `_s`, and a record's `clock`."""
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if not k.endswith("_s") and k != "clock"}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


def fingerprint(run: Path) -> dict[str, Any]:
    """Everything of a finished run that must not depend on how often it was stopped; clock times left out."""
    from safetensors.torch import load_file

    checkpoints = sorted(p for p in (run / "checkpoints").iterdir() if not p.name.endswith(".damaged"))
    states = {p.name: json.loads((p / "state.json").read_text()) for p in checkpoints}
    for state in states.values():
        del state["metrics_bytes"]  # clock times have different lengths
    return {
        "weights": {k: v.numpy().tobytes() for k, v in load_file(run / "model.safetensors").items()},
        "tensors": {str(f.relative_to(run)): f.read_bytes() for p in checkpoints for f in p.glob("*.safetensors")},
        "states": without_clock(states),
        "metrics": [without_clock(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()],
        "record": without_clock(
            {**json.loads((run / "record.json").read_text()), "name": "", "code": {}, "hardware": {}}
        ),
    }
