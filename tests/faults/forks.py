"""Runs in forked processes that the parent watches and ends: a second each, because torch is imported once.

The parent never runs torch's threads, so that a fork is safe. What a run has reached stands in memory that both share.
"""

import contextlib
import mmap
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpd_agl.cli import main
from mpd_agl.train import checkpoint, console, training
from mpd_agl.train.observe import Progress
from mpd_agl.train.resolve import to_toml
from tests.train.tiny import Silent, fingerprint, tiny

PLAIN: dict[str, Any] = {"checkpoint": {"every_steps": 2}}
RICH: dict[str, Any] = {
    "method": "asgl",  # draws from torch's generator at every step
    "optim": {"name": "adam", "lr": 0.001, "clip_norm": 1.0},
    "loss": {"name": "tet"},
    "train": {"ema": 0.9, "accumulate": 2},
    "checkpoint": {"every_steps": 3},
}
VARIANTS = {"plain": PLAIN, "rich": RICH}
STEPS = 12


class Shared:
    """What a run tells its watcher: its last step, the step it began at, and a mark per file operation."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 16)
        self.out, self.into = os.pipe()
        os.set_blocking(self.into, False)
        self.reset()

    def reset(self) -> None:
        self.memory[:] = struct.pack("qq", 0, -1)
        self.drain()

    @property
    def done(self) -> int:
        return int(struct.unpack("qq", self.memory[:])[0])

    @property
    def began(self) -> int:
        """The step that the process began at; -1 before its loop."""
        return int(struct.unpack("qq", self.memory[:])[1])

    def put(self, *, done: int | None = None, began: int | None = None) -> None:
        old = struct.unpack("qq", self.memory[:])
        self.memory[:] = struct.pack("qq", old[0] if done is None else done, old[1] if began is None else began)

    def mark(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.into, b"x")

    def marked(self, timeout: float) -> bool:
        """Wait for a mark."""
        return bool(select.select([self.out], [], [], timeout)[0])

    def drain(self) -> None:
        while self.marked(0):
            os.read(self.out, 65536)


class Watched(Silent):
    """A display that tells the parent where the run is."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared

    def start(self, title: str, epochs: int, steps_per_epoch: int, progress: Progress, scored: str) -> None:
        super().start(title, epochs, steps_per_epoch, progress, scored)
        self.shared.put(began=progress.step, done=progress.step)

    def step(self, progress: Progress) -> None:
        self.shared.put(done=progress.step)


def mark_saves(shared: Shared, first: int) -> None:
    """From the `first` file operation of a checkpoint on, every one leaves a mark; for forked children only."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in ("open", "os.mkdir", "os.rename") and ".epoch-" in str(args[0]):
            seen += 1
            if seen >= first:
                shared.mark()

    sys.addaudithook(hook)


def fork(work: Callable[[], int]) -> int:
    """Run `work` in a child whose exit code it returns; the child's number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work()
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    os._exit(code)


def train(path: Path, changes: dict[str, Any], shared: Shared, *, marks_from: int = 0) -> int:
    """Start or resume a tiny run in a child."""

    def work() -> int:
        if marks_from:
            mark_saves(shared, marks_from)
        if (path / "config.toml").is_file():
            training.resume(path, {}, Watched(shared))
        else:
            training.start(tiny(changes), path, Watched(shared))
        return 0

    shared.reset()
    return fork(work)


def command(argv: list[str], log: Path, shared: Shared | None = None, *, marks_from: int = 0) -> int:
    """`mpd-agl ARGV` in a child, with its own exit code; what it prints goes to `log`."""

    def work() -> int:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if shared is not None:
            console.build_display = lambda style: Watched(shared)  # type: ignore[assignment]
        if shared is not None and marks_from:
            mark_saves(shared, marks_from)
        code = main(argv)
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    if shared is not None:
        shared.reset()
    return fork(work)


def new_run(path: Path, changes: dict[str, Any]) -> list[str]:
    """The words of `mpd-agl train` for a tiny run in `path`."""
    config = path.parent / f"{path.name}.toml"
    config.write_text(to_toml(tiny(changes)))
    return ["train", "--config", str(config), "--name", path.name, "--runs-dir", str(path.parent), "--quiet"]


def wait(pid: int, timeout: float = 120) -> int:
    """The child's exit code, negative for a signal; a child that hangs is killed and is an error."""
    end = time.perf_counter() + timeout
    while time.perf_counter() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"a process hung for more than {timeout} s")


def finish(path: Path, changes: dict[str, Any], shared: Shared) -> float:
    """Run to the end; seconds."""
    began = time.perf_counter()
    code = wait(train(path, changes, shared))
    assert code == 0, f"exit code {code}"
    return time.perf_counter() - began


class Whole:
    """Undisturbed runs to compare with, one per variant, made when first asked for."""

    def __init__(self, folder: Path, shared: Shared) -> None:
        self.folder, self.shared = folder, shared
        self.took: dict[str, float] = {}
        self._prints: dict[str, dict[str, Any]] = {}

    def fingerprint(self, variant: str) -> dict[str, Any]:
        if variant not in self._prints:
            path = self.folder / f"whole-{variant}"
            self.took[variant] = finish(path, VARIANTS[variant], self.shared)
            self._prints[variant] = fingerprint(path)
        return self._prints[variant]

    def compare(self, path: Path, variant: str) -> None:
        """The run is the undisturbed one, byte for byte but for clock times."""
        expected, got = self.fingerprint(variant), fingerprint(path)
        last = max(expected["states"])
        assert last in got["states"], f"{path.name} has no {last}"
        for part, value in expected.items():
            if part in ("tensors", "states"):  # a stop writes a checkpoint where an undisturbed run has none
                both = value.keys() & got[part].keys()
                assert {k: value[k] for k in both} == {k: got[part][k] for k in both}, f"{part} of {path.name} differ"
            else:
                assert got[part] == value, f"{part} of {path.name} differ from an undisturbed run's"


def all_whole(path: Path) -> list[checkpoint.Position]:
    """The positions of a run's checkpoints, after every one was read and verified."""
    root = path / "checkpoints"
    found = checkpoint.positions(root)
    for at in found:
        checkpoint.read(root / at.folder)
    return found
