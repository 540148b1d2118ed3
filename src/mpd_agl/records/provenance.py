"""Where a result comes from: the commit, the versions, the machine. Nothing that names a person, a host or a folder."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("mpd-agl", "torch", "numpy", "pillow", "safetensors", "pydantic")


def code() -> dict[str, Any]:
    """The package's commit and whether files were changed since; nulls where it does not run from a git checkout."""
    here = Path(__file__).resolve()
    folder = here.parents[1]

    def git(*args: str) -> str | None:
        command = ["git", "-C", str(folder), *args]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", str(here)) is None:
        return {"commit": None, "changed": None}
    status = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return {"commit": git("rev-parse", "HEAD"), "changed": None if status is None else bool(status)}


def versions() -> dict[str, str]:
    """Python and the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, system."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return {
        "cpu": _cpu_name(),
        "cores": cores,
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def peak_memory_mb() -> float | None:
    """The most memory that this process has had so far; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
