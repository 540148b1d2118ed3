"""A disk that fills, and a folder that cannot be written: a small tmpfs, in a mount namespace of its own.

Needs `unshare -rm` and `mount`; where the system does not permit them, `unavailable` says so.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

from tests.faults.forks import VARIANTS, Shared, Whole, all_whole, command, new_run, wait
from tests.faults.stopped import contents, stopped_run
from tests.faults.tally import Tally

FULL, NO_START, READ_ONLY, READ_ONLY_NEW = (
    "full while it trains",
    "full before it starts",
    "read-only, resumed",
    "read-only, a new run",
)
KINDS = (FULL, FULL, READ_ONLY, FULL, NO_START, FULL, READ_ONLY_NEW, FULL)


def unavailable() -> str:
    """Why a private mount cannot be made here; "" where it can."""
    if not shutil.which("unshare"):
        return "there is no unshare command"
    test = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    done = subprocess.run(test, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no private mounts here: {done.stderr.strip()}"


def mount(place: Path, *options: str) -> None:
    subprocess.run(["mount", *options, str(place)], check=True, capture_output=True)


def run(folder: Path, tries: int, draw: Random) -> Tally:
    """The row, in a process with its own mounts."""
    if reason := unavailable():
        raise SystemExit(f"the row disk was not run: {reason}")
    out = folder / "tally.json"
    words = [sys.executable, "-m", "tests.faults.disk", str(folder), str(tries), str(draw.randrange(2**31)), str(out)]
    subprocess.run(["unshare", "-rm", *words], check=True)
    return Tally(**{**(raw := json.loads(out.read_text())), "kinds": Tally().kinds + type(Tally().kinds)(raw["kinds"])})


def inside(folder: Path, tries: int, draw: Random) -> Tally:
    tally, shared = Tally(), Shared()
    whole = Whole(folder, shared)
    place = folder / "disk"
    place.mkdir()
    for number in range(tries):
        kind, variant = KINDS[number % len(KINDS)], draw.choice(sorted(VARIANTS))
        whole.fingerprint(variant)
        files = [f for f in (folder / f"whole-{variant}").rglob("*") if f.is_file()]
        used = sum(-(-f.stat().st_size // 4096) for f in files) * 4
        size = {FULL: int(used * draw.uniform(0.3, 0.95)), NO_START: 4 * draw.randint(1, 3)}.get(kind, 65536)
        mount(place, "-t", "tmpfs", "-o", f"size={size}k", "tmpfs")
        with tally.attempt(kind, f"{variant}, {size} kB"):
            one(kind, variant, folder, place, shared, whole, tally)
        subprocess.run(["umount", "-l", str(place)], check=True)
    tally.facts = {"tmpfs": True}
    return tally


def one(kind: str, variant: str, folder: Path, place: Path, shared: Shared, whole: Whole, tally: Tally) -> None:
    path, log = place / "run", folder / "log"
    changes = VARIANTS[variant]
    words = new_run(folder / "run", changes)  # the configuration lies elsewhere; the run goes onto the small disk
    words[words.index("--runs-dir") + 1] = str(place)
    if kind in (READ_ONLY, READ_ONLY_NEW):
        if kind == READ_ONLY:
            stopped_run(path, changes, step=7)
        before = contents(place)
        mount(place, "-o", "remount,ro")
        code = wait(command(["train", "--resume", str(path)] if kind == READ_ONLY else words, log))
        said = log.read_text()
        assert code == 2, f"exit code {code}: {said}"
        assert f"cannot write {path}" in said, said
        assert "no permission to write there" in said, said
        assert said.count("\n") == 1, said
        assert contents(place) == before, "files changed on a read-only disk"
        mount(place, "-o", "remount,rw")
    else:
        code = wait(command(words, log))
        said = log.read_text()
        assert code == 2, f"exit code {code}: {said}"
        last = said.strip().splitlines()[-1]
        assert f"cannot write {place}" in last, said
        assert "the disk is full" in last, said
        assert "MB free" in last, said
        tally.at_most("lines said", said.count("\n"), 1)
        all_whole(path)
        mount(place, "-o", "remount,size=64m")
    again = ["train", "--resume", str(path), "--quiet"] if (path / "config.toml").exists() else words
    code = wait(command(again, log, shared))
    assert code == 0, f"exit code {code} with room: {log.read_text()}"
    whole.compare(path, variant)


if __name__ == "__main__":
    result = inside(Path(sys.argv[1]), int(sys.argv[2]), Random(int(sys.argv[3])))
    Path(sys.argv[4]).write_text(json.dumps(vars(result)))
