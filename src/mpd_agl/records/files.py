"""Files that are whole or not there, locks that end with their process, and disk errors as sentences.

A file is written next to its place, synced to the disk and renamed.
"""

import errno
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any

from mpd_agl.errors import InputError

_LOCKED_BYTE = 2**31 - 2
"""Windows locks bytes, and a locked byte cannot be read: this one is behind everything that a lock file says."""


def canonical(value: Any) -> bytes:
    """A value as JSON in one spelling only: sorted keys, one space, a newline at the end. NaN is refused."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def cache_folder() -> Path:
    """What can be made again is kept here: $MPD_AGL_CACHE, or the platform's cache folder."""
    if named := os.environ.get("MPD_AGL_CACHE"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mpd-agl"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last: a rename survives a power cut only when its folder is synced."""
    if os.name == "nt":  # Windows opens no folders, and writes names through by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file: a reader sees the old content or the new one, never half of either."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    try:
        write_synced(beside, data)
        os.replace(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def lock_file(file: IO[Any], *, wait: bool = False, shared: bool = False) -> bool:
    """Take the system's lock on an open file; False if another process has it and `wait` is not set.

    The system releases the lock when the file is closed, also when the process is killed. `shared` lets others look
    at the same time; it is for a moment's look, because Windows has exclusive locks only.
    """
    try:
        import fcntl
    except ImportError:
        return _lock_without_fcntl(file, wait)
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    return True


def _lock_without_fcntl(file: IO[Any], wait: bool) -> bool:
    try:
        windows: Any = importlib.import_module("msvcrt")
    except ImportError:  # WebAssembly: there is no other process
        return True
    while True:
        os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
        try:
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
        except OSError:
            if not wait:
                return False
            time.sleep(0.02)
        else:
            return True


def explain(error: OSError, path: Path, stands: str = "") -> InputError:
    """The sentence for a file that could not be written: path, reason, what to do; `stands` says what is safe."""
    there = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = f"{shutil.disk_usage(there).free / 2**20:.1f} MB free"
        except OSError:
            free = "free space unknown"
        reason, fix = f"the disk is full ({free})", "Free some space"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason, fix = "no permission to write there", "Choose another --runs-dir or change the permissions"
    else:
        reason, fix = error.strerror or str(error), "Check the path"
    then = f" {stands}" if stands else ""
    return InputError(f"cannot write {path}: {reason}. {fix}.{then}", "cannot-write")
