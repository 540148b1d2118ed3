"""Files and folders of the cache that are whole or not there: written under another name, synced, then renamed."""

import glob
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mpd_agl.errors import InputError
from mpd_agl.records.files import sync_folder


@contextmanager
def disk_errors(target: Path, kept: str = "Nothing was kept") -> Iterator[None]:
    """Turn errors of the system while `target` is written into one sentence that names it."""
    try:
        yield
    except OSError as error:
        name = error.filename
        foreign = name is not None and not str(name).startswith(str(target.parent))
        what = f"cannot read {name}" if foreign else f"cannot write {target}"
        raise InputError(
            f"{what}: {error.strerror or error}. {kept}; free some space or choose another place (--cache-dir)."
        ) from error


@contextmanager
def whole_file(path: Path, folder: Path | None = None) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends well, and is removed if not; it is written in `folder`."""
    folder = folder or path.parent
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(parent: Path, name: str = "scratch") -> Iterator[Path]:
    """Make a folder under `parent` and remove it when the block ends, however it ends."""
    owner = f".{name}.{re.sub(r'[^0-9A-Za-z]', '', socket.gethostname())}-"
    with disk_errors(parent / name):
        parent.mkdir(parents=True, exist_ok=True)
        _clear(parent, owner)
        scratch = Path(tempfile.mkdtemp(prefix=f"{owner}{os.getpid()}.", suffix=".part", dir=parent))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _clear(parent: Path, owner: str) -> None:
    """Remove what a killed process of this machine left behind."""
    if os.name != "posix":
        return
    for path in parent.glob(f"{glob.escape(owner)}*.part"):
        pid = path.name.removeprefix(owner).split(".")[0]
        try:
            os.kill(int(pid), 0)  # signal 0 only asks whether the process is alive
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            continue


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make a scratch folder next to `target`; it is renamed to it if the block ends well, and removed if not."""
    with scratch_folder(target.parent, target.name) as scratch:
        yield scratch
        sync_folder(scratch)
        os.chmod(scratch, 0o755)
        try:
            os.replace(scratch, target)
        except OSError:
            if not target.is_dir():  # otherwise another process wrote the same content first
                raise
        sync_folder(target.parent)
