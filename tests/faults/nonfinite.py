"""NaN or Inf put into the input, the loss or the gradient of one step."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch

from mpd_agl.errors import InputError
from mpd_agl.train import checkpoint, training
from mpd_agl.train.step import Stepper, bad
from tests.faults.forks import STEPS, VARIANTS, Shared, Whole, finish, fork, wait
from tests.faults.tally import Tally
from tests.train.tiny import Silent, tiny

KINDS = [f"{value} in the {place}" for place in ("input", "loss", "gradient") for value in ("NaN", "Inf")]


def inject(kind: str, at: int, draw: Random) -> None:
    """From now on, this process's step `at` (1 is the first) meets the fault."""
    plain, step = Stepper.step, 0
    value = float("nan") if kind.startswith("NaN") else draw.choice((float("inf"), float("-inf")))

    def faulty(self: Stepper, x: torch.Tensor, y: torch.Tensor, *rest: Any) -> Any:
        nonlocal step
        step += 1
        if step != at:
            return plain(self, x, y, *rest)
        if kind.endswith("input"):
            x = x.clone()
            x.view(-1)[draw.randrange(x.numel())] = value
        elif kind.endswith("loss"):
            loss = self.objective.loss
            self.objective.loss = lambda output, target: loss(output, target) + value
        else:
            parameter = draw.choice(self.parameters)

            def spoil(grad: torch.Tensor) -> torch.Tensor:
                spoilt = grad.clone()
                spoilt.view(-1)[draw.randrange(spoilt.numel())] = value
                return spoilt

            parameter.register_hook(spoil)
        return plain(self, x, y, *rest)

    Stepper.step = faulty  # type: ignore[method-assign]


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally, shared = Tally(), Shared()
    whole, said = Whole(folder, shared), folder / "said"
    for number in range(tries):
        kind, variant, at = KINDS[number % len(KINDS)], draw.choice(sorted(VARIANTS)), draw.randint(2, STEPS)
        whole.fingerprint(variant)
        path = folder / f"run{number}"
        changes = {**VARIANTS[variant], "checkpoint": {"every_steps": 1}}

        def work(kind: str = kind, at: int = at, changes: dict[str, Any] = changes, path: Path = path) -> int:
            inject(kind, at, draw)
            try:
                training.start(tiny(changes), path, Silent())
            except InputError as error:
                said.write_text(str(error))
                return 2
            return 0

        code = wait(fork(work))
        draw.random()
        with tally.attempt(kind, f"step {at} {path.name}"):
            assert code == 2, f"exit code {code}"
            text = said.read_text()
            epoch, step = (at - 1) // 4 + 1, (at - 1) % 4 + 1
            assert f"training stopped at epoch {epoch}, step {step} of 4" in text, text
            assert "\n" not in text, text
            root = path / "checkpoints"
            found = checkpoint.positions(root)
            tally.at_most("steps behind the fault", found[-1].step - (at - 1), 0)
            for position in found:
                for group in checkpoint.read(root / position.folder).tensors.values():
                    assert not any(bad(t) for t in group.values()), f"{position.folder} holds a NaN or Inf"
            finish(path, changes, shared)
            compare_weights(path, folder / f"whole-{variant}")
            shutil.rmtree(path)
    return tally


def compare_weights(path: Path, whole: Path) -> None:
    """The final weights; the intervals of the two runs' checkpoints differ."""
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes(), "weights differ"
