"""The two trees: 0.2's wheel, built once from its tag and kept, and this one. Both run in subprocesses."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
TAG = "v0.2.0"
RANKED = "ranks"


class Failed(Exception):
    """A check that could not be finished, in one line."""


def run(command: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """A command's output, or its last lines as `Failed`."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        tail = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise Failed(f"{' '.join(command[:4])} ended with {done.returncode}: {tail}")
    return done.stdout


def wheel(cache: Path) -> Path:
    """The folder with 0.2 as it would be installed; built from the tag where the cache does not have it."""
    commit = run(["git", "rev-parse", f"{TAG}^{{commit}}"]).strip()
    target = cache / f"{commit[:12]}-{sys.implementation.cache_tag}-{platform.machine()}"
    if (target / "mpd_agl").is_dir():
        return target
    print(f"building {TAG} into {target} (once, about a minute)", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", TAG], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", name, str(tree)])
        (file,) = Path(name).glob("*.whl")
        staged = target.with_suffix(".part")
        run([*pip, "install", "--no-deps", "--upgrade", "--target", str(staged), str(file)])
        staged.rename(target)
    return target


def environment(tree: Path) -> dict[str, str]:
    """For a subprocess that imports `mpd_agl` from `tree`, one thread, no cache of 0.2's measured costs in the way."""
    path = os.pathsep.join([str(tree), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MPD_AGL_PLUGINS": "0"}


def measure(group: str, tree: Path, folder: Path, which: str) -> dict[str, Any]:
    """What `worker.py` finds in a tree."""
    command = [sys.executable, "-m", "tools.rebuilt.worker", group, str(folder), which]
    if group == RANKED:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started = [
            subprocess.Popen([*command, str(rank)], cwd=ROOT, env=environment(tree), **pipes) for rank in range(2)
        ]
        outputs = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise Failed(" | ".join(line for text in outputs for line in text.strip().splitlines()[-2:]))
        output = outputs[0]
    else:
        output = run(command, env=environment(tree))
    found = json.loads(output.strip().splitlines()[-1])
    if not Path(found["from"]).is_relative_to(tree):
        raise Failed(f"mpd_agl came from {found['from']}, expected {tree}")
    results: dict[str, Any] = found["results"]
    return results


def copy_tree(target: Path, leave_out: tuple[str, ...] = ()) -> Path:
    """This tree's files as they are now, with the built library, without pages."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).split("\0")
    built = [str(file.relative_to(ROOT)) for file in SRC.rglob("*.so")]
    for name in filter(None, [*listed, *built]):
        if not name.startswith(("docs/", "notebooks/", *leave_out)) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def pytest(tree: Path, wanted: list[str], *, stop: bool = True) -> tuple[int, str]:
    """pytest's exit code, and the first failure or the last line, of tests of a copy."""
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    command = [sys.executable, "-m", "pytest", "-n", "0", "--tb=no", *(["-x"] if stop else []), *wanted]
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or ["no output"]
    return done.returncode, next((line for line in lines if line.startswith("FAILED")), lines[-1])
