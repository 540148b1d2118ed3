"""Every command can be imported where the modules and names of POSIX are missing, as on Windows, and locks work."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mpd_agl.cli import COMMANDS
from mpd_agl.records import lock_file

HIDE = """
import os, signal, sys
import matplotlib.figure, numpy, PIL.Image, pydantic, rich.console, safetensors, torch  # have their own ways on Windows
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
for name in ("O_NOFOLLOW", "geteuid", "getuid", "uname", "sched_getaffinity", "sysconf", "fork", "killpg"):
    delattr(os, name)
"""
ROOMS = ("sweeps", "train", "records", "rivals")


def test_every_module_is_imported_without_posix(tmp_path: Path) -> None:
    commands = [name.replace("-", "_") for name in COMMANDS if name != "data"]
    code = f"""{HIDE}
import importlib, pkgutil
import mpd_agl.cli
for name in {commands!r}:
    importlib.import_module("mpd_agl.cli." + name)
for room in {ROOMS!r}:
    package = importlib.import_module("mpd_agl." + room)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"mpd_agl.{{room}}.{{module.name}}")
from mpd_agl.cli import main
from mpd_agl.records import peak_memory_mb
from mpd_agl.train.runfolder import RunFolder, in_use
from pathlib import Path
path = Path({str(tmp_path / "run")!r})
with RunFolder.create(path) as folder:
    folder.log("here")
assert not in_use(path) and peak_memory_mb() is None
assert main(["runs", {str(tmp_path)!r}]) == 0
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), done.stderr


class Windows(ModuleType):
    """`msvcrt`: one process has a byte at a time."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: dict[tuple[int, int], int] = {}
        self.waited = 0

    def locking(self, handle: int, mode: int, count: int) -> None:
        import os

        place = (os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR))
        if self.held.setdefault(place, handle) != handle:
            self.waited += 1
            if self.waited == 3:
                del self.held[place]
            raise PermissionError(13, "Permission denied")


def test_locks_without_fcntl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows: Any = Windows()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with (tmp_path / "a").open("a+") as first, (tmp_path / "a").open("a+") as second:
        assert lock_file(first)
        assert not lock_file(second)
        assert all(place > 2**30 for _, place in windows.held)  # what the file says can be read
        assert lock_file(second, wait=True)
        assert windows.waited == 3
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    with (tmp_path / "a").open("a+") as file:
        assert lock_file(file)
