"""A tiny run that SIGTERM stopped after a given step; and what a folder holds, to compare."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

from tests.faults.forks import Shared, Watched, fork, wait


def stopped_run(path: Path, changes: dict[str, Any], *, step: int) -> Path:
    """Train to `step` in a child and stop there."""
    from mpd_agl.train import training
    from mpd_agl.train.signals import Stopped
    from tests.train.tiny import tiny

    class StopAt(Watched):
        def step(self, progress: Any) -> None:
            super().step(progress)
            if progress.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

    def work() -> int:
        try:
            training.start(tiny(changes), path, StopAt(Shared()))
        except Stopped:
            return 0
        return 3

    code = wait(fork(work))
    assert code == 0, f"exit code {code}"
    return path


def contents(folder: Path) -> dict[str, str]:
    """Every file's digest; a link is itself. Locks and the log for people are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name in (".lock", "log.txt"):
            continue
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
