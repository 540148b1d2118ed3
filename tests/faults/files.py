"""Files of a stopped run that are cut, gone, foreign or of another version; each try resumes a copy of the run."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from mpd_agl.errors import InputError
from mpd_agl.records import canonical
from mpd_agl.train import checkpoint, training
from tests.faults.forks import PLAIN, Shared, Whole, fork, wait
from tests.faults.stopped import contents, stopped_run
from tests.faults.tally import Tally
from tests.train.tiny import Silent

NAMES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
USES_THE_ONE_BEFORE, REFUSES, EITHER = "uses the one before", "refuses", "either"


def newest(run: Path) -> Path:
    root = run / "checkpoints"
    return root / checkpoint.positions(root)[-1].folder


def sign(path: Path, **changes: object) -> None:
    """Write a manifest with other fields and a right digest."""
    manifest = json.loads((path / "manifest.json").read_text())
    body = {k: v for k, v in {**manifest, **changes}.items() if k != "manifest_sha256"}
    import hashlib

    (path / "manifest.json").write_bytes(
        canonical({**body, "manifest_sha256": hashlib.sha256(canonical(body)).hexdigest()})
    )


def truncated(run: Path, other: Path, draw: Random) -> str:
    file = newest(run) / draw.choice(NAMES)
    os.truncate(file, draw.randrange(file.stat().st_size))
    return USES_THE_ONE_BEFORE


def missing(run: Path, other: Path, draw: Random) -> str:
    (newest(run) / draw.choice(NAMES)).unlink()
    return USES_THE_ONE_BEFORE


def emptied_folder(run: Path, other: Path, draw: Random) -> str:
    for file in newest(run).iterdir():
        file.unlink()
    return USES_THE_ONE_BEFORE


def foreign_file(run: Path, other: Path, draw: Random) -> str:
    name = draw.choice(("model.pt", ".hidden", "weights (1).safetensors", "x" * 200))
    (newest(run) / name).write_bytes(draw.randbytes(draw.randrange(100)))
    return USES_THE_ONE_BEFORE


def file_of_another_run(run: Path, other: Path, draw: Random) -> str:
    name = draw.choice(("model.safetensors", "optimizer.safetensors"))
    shutil.copy(newest(other) / name, newest(run) / name)
    return USES_THE_ONE_BEFORE


def checkpoint_of_another_run(run: Path, other: Path, draw: Random) -> str:
    shutil.rmtree(newest(run))
    shutil.copytree(newest(other), newest(run).with_name(newest(other).name))
    return REFUSES


def another_name(run: Path, other: Path, draw: Random) -> str:
    newest(run).rename(newest(run).with_name(checkpoint.Position(draw.randrange(1, 9), draw.randrange(20, 99)).folder))
    return USES_THE_ONE_BEFORE


def link_or_folder_for_a_file(run: Path, other: Path, draw: Random) -> str:
    file = newest(run) / draw.choice(NAMES)
    file.unlink()
    draw.choice((lambda: file.mkdir(), lambda: file.symlink_to("/nowhere/at/all"), lambda: os.mkfifo(file)))()
    return USES_THE_ONE_BEFORE


def another_format(run: Path, other: Path, draw: Random) -> str:
    sign(newest(run), format=draw.choice((0, 2, 99, "1", None)))
    return REFUSES


def another_record(run: Path, other: Path, draw: Random) -> str:
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps({**record, "schema": draw.choice((0, 2, "1", None))}))
    return REFUSES


def torn_record(run: Path, other: Path, draw: Random) -> str:
    os.truncate(run / "record.json", draw.randrange((run / "record.json").stat().st_size - 1))
    return EITHER


def torn_config(run: Path, other: Path, draw: Random) -> str:
    os.truncate(run / "config.toml", draw.randrange((run / "config.toml").stat().st_size))
    return EITHER


def all_damaged(run: Path, other: Path, draw: Random) -> str:
    root = run / "checkpoints"
    for at in checkpoint.positions(root):
        file = root / at.folder / draw.choice(NAMES)
        os.truncate(file, draw.randrange(file.stat().st_size))
    return REFUSES


KINDS: dict[str, Callable[[Path, Path, Random], str]] = {
    "truncated": truncated,
    "missing": missing,
    "all files missing": emptied_folder,
    "foreign file": foreign_file,
    "a file of another run": file_of_another_run,
    "a checkpoint of another run": checkpoint_of_another_run,
    "a checkpoint under another name": another_name,
    "a link, folder or pipe for a file": link_or_folder_for_a_file,
    "another format": another_format,
    "a record of another version": another_record,
    "a torn record": torn_record,
    "a torn configuration": torn_config,
    "every checkpoint damaged": all_damaged,
}


def resume(path: Path, said: Path) -> int:
    """Resume in a child; what it told the person, a line each, goes to `said`.

    0: to the end, 2: refused in a sentence.
    """

    def work() -> int:
        display = Silent()
        code = 0
        try:
            training.resume(path, {}, display)
        except InputError as error:
            display.notes.append(str(error))
            code = 2
        said.write_text("\n\n".join(display.notes))
        return code

    return wait(fork(work))


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally = Tally()
    whole = Whole(folder, Shared())
    base = stopped_run(folder / "base", PLAIN, step=7)
    other = stopped_run(folder / "other", {**PLAIN, "seed": 1}, step=7)
    kinds = sorted(KINDS)
    for number in range(tries):
        kind = kinds[number % len(kinds)]
        path, said = folder / f"run{number}", folder / "said"
        shutil.copytree(base, path)
        expected = KINDS[kind](path, other, draw)
        before = contents(path)
        code = resume(path, said)
        with tally.attempt(kind, path.name):
            assert code in (0, 2), f"exit code {code}"
            sentences = said.read_text().split("\n\n")
            if expected != EITHER:
                assert code == (2 if expected == REFUSES else 0), f"exit code {code}: {sentences}"
                assert (
                    len(sentences) == (len(checkpoint.set_aside(path / "checkpoints")) if code == 0 else 0) or code == 2
                )
            assert sentences[-1] or expected == EITHER, "nothing was said"
            assert all("\n" not in s and str(path) in s for s in sentences if s and "\n  " not in s), sentences
            if code == 2:
                after = {k.replace(".damaged", ""): v for k, v in contents(path).items()}
                assert after == before, "a refusal changed files"
            else:
                whole.compare(path, "plain")
        if not tally.failures or not tally.failures[-1].startswith(f"{kind} {path.name}"):
            shutil.rmtree(path)
    return tally
