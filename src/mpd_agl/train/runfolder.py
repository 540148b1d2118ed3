"""A run's folder: one run, one process at a time, nothing overwritten by accident.

runs/<name>/  config.toml  metrics.jsonl  record.json  log.txt  checkpoints/  model.safetensors (at the end)
"""

import json
import os
import platform
import re
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from mpd_agl.errors import InputError
from mpd_agl.records.files import explain, lock_file, write_atomic

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
MARK = "config.toml"
PATIENCE_S = 0.1
"""How long to try for the lock, because `in_use` in another process holds it for a moment."""


def check_name(name: str) -> str:
    """A run's name: one folder, inside the folder of runs."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith(".") or _RESERVED.fullmatch(name):
        got = repr(name) if len(name) <= 120 else f"{name[:120]!r} and {len(name) - 120} characters more"
        raise InputError(
            "a run's name is up to 100 letters, digits and ._+=-, starts with a letter or digit and is no name "
            f"that Windows reserves, got {got}. Use --runs-dir for the folder.",
            "bad-name",
        )
    return name


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunFolder:
    """An open, locked run folder. Use it as a context manager; the lock ends with the process, however that ends.

    Without a lock it is the folder as ranks other than 0 have it: a path to speak of, and nothing is read or written.
    """

    def __init__(self, path: Path, lock: IO[str] | None = None) -> None:
        self.path, self._lock = path, lock
        self.checkpoints = path / "checkpoints"
        self.config, self.record = path / MARK, path / "record.json"
        self._metrics: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunFolder":
        """A new run's folder; an old run there is deleted only if `overwrite` says so and no process uses it."""
        check_free(path, overwrite=overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
            try:
                for old in _old_run(path, overwrite=overwrite):  # again: a run may have come and gone before the lock
                    shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
            except BaseException:
                lock.close()
                raise
        except OSError as error:
            raise explain(error, path) from error
        return cls(path, lock)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run's folder that is to be continued."""
        check_run(path)
        try:
            return cls(path, _lock(path))
        except OSError as error:
            raise explain(error, path) from error

    def write(self, path: Path, data: bytes) -> None:
        """Replace a file of the folder."""
        if self._lock is None:
            return
        try:
            write_atomic(path, data)
        except OSError as error:
            raise explain(error, path) from error

    def start_metrics(self, offset: int) -> int:
        """Open metrics.jsonl and cut it off at a checkpoint's offset; return how many bytes it is too short."""
        if self._lock is None:
            return 0
        path = self.path / "metrics.jsonl"
        try:
            self._metrics = open(path, "ab", buffering=0, opener=_no_link)  # noqa: SIM115 (closed with the folder)
            missing = max(0, offset - self._metrics.seek(0, os.SEEK_END))
            self._metrics.truncate(offset - missing)
        except OSError as error:
            raise explain(error, path) from error
        return missing

    def log_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, at once."""
        if self._lock is None:
            return
        assert self._metrics is not None
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            if self._metrics.write(data) != len(data):
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise explain(error, self.path / "metrics.jsonl", "The last checkpoint stands.") from error

    def sync_metrics(self) -> int:
        """Wait until the disk has the metrics; return the offset that a checkpoint must remember."""
        if self._lock is None:
            return 0
        assert self._metrics is not None
        os.fsync(self._metrics.fileno())
        return self._metrics.seek(0, os.SEEK_END)

    def log(self, text: str) -> None:
        """One line for people into log.txt: starts, stops, damage, warnings. It never stops a run."""
        if self._lock is None:
            return
        try:
            with open(self.path / "log.txt", "a", encoding="utf-8", opener=_no_link) as file:
                file.write(f"{now()} {text}\n")
        except OSError:
            pass

    def close(self) -> None:
        """Let go of the folder."""
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_free(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a new run cannot have: it is in use, or something is there that may not be deleted."""
    if path.is_symlink():
        raise InputError(
            f"{path} is a link, and a new run stays in its own folder. Choose another --name or --runs-dir.",
            "no-run-folder",
        )
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} exists and is a file. Choose another --name or --runs-dir.", "no-run-folder")
    try:
        if path.is_dir() and (path / ".lock").exists():
            _lock(path).close()
        _old_run(path, overwrite=overwrite)
    except OSError as error:
        raise explain(error, path) from error


def _old_run(path: Path, *, overwrite: bool) -> list[Path]:
    """What an old run left in the folder, if it may be deleted."""
    content = [p for p in path.iterdir() if not p.name.startswith(".")] if path.is_dir() else []
    if content and not (path / MARK).is_file():
        raise InputError(
            f"{path} exists and is no run folder (no {MARK} in it). Choose another --name or --runs-dir.",
            "no-run-folder",
        )
    if content and not overwrite:
        raise InputError(
            f"run folder {path} exists. Continue it with --resume {path} (fit: resume=True), start again with "
            "--overwrite (fit: overwrite=True), or use another name.",
            "run-exists",
        )
    return content


def find_run(text: str | Path) -> Path:
    """A run folder as a user names it: by its path, or by the name under which `mpd-agl runs` lists it in `runs`."""
    path = Path(text).expanduser()
    listed = Path("runs") / path
    return listed if not path.exists() and len(path.parts) == 1 and (listed / MARK).is_file() else path


def check_run(path: Path) -> Path:
    """The path, if a run is there."""
    if not (path / MARK).is_file():
        what = "is not there" if not path.exists() else f"is no run folder (no {MARK} in it)"
        raise InputError(f"{path} {what}. `mpd-agl runs` lists the runs.", "no-run")
    return path


def in_use(path: Path) -> bool:
    """Whether a process has the run open now."""
    try:
        with (path / ".lock").open("r") as file:
            return not lock_file(file, shared=True)
    except OSError:
        return False


def _lock(path: Path) -> IO[str]:
    """Take the folder's lock, or say who has it."""
    file = open(path / ".lock", "a+", encoding="utf-8", opener=_no_link)  # noqa: SIM115 (the folder's owner closes it)
    until = time.monotonic() + PATIENCE_S
    while not lock_file(file):
        if time.monotonic() < until:
            time.sleep(PATIENCE_S / 10)
            continue
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise InputError(f"run folder {path} is in use by {owner}. Wait for it, or choose another --name.", "in-use")
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {platform.node()} since {now()}")
    file.flush()
    return file


def _no_link(path: str, flags: int) -> int:
    """Open a file of the folder; refuse a link, which could lead anywhere."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
