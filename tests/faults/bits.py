"""One flipped bit anywhere in the newest checkpoint of a run."""

import shutil
from pathlib import Path
from random import Random

from mpd_agl.train import checkpoint
from tests.faults.forks import PLAIN, Shared, Whole, finish
from tests.faults.stopped import stopped_run
from tests.faults.tally import Tally


def run(folder: Path, tries: int, draw: Random) -> Tally:
    tally, shared = Tally(), Shared()
    whole = Whole(folder, shared)
    base = stopped_run(folder / "base", PLAIN, step=7)
    root = base / "checkpoints"
    *_, before, newest = checkpoint.positions(root)
    files = sorted((root / newest.folder).iterdir())
    sizes = [f.stat().st_size for f in files]
    resumed = 0
    for number in range(tries):
        file = draw.choice(files) if draw.random() < 0.5 else draw.choices(files, sizes)[0]
        data = file.read_bytes()
        bit = draw.randrange(8 * len(data))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with tally.attempt(file.name, f"bit {bit}"):
            if number % 50 == 0:  # the whole way to the end
                path = folder / f"run{number}"
                shutil.copytree(base, path)
                finish(path, PLAIN, shared)
                assert shared.began == before.step, (
                    f"resumed at step {shared.began}, the newest good one is {before.step}"
                )
                whole.compare(path, "plain")
                assert (path / "checkpoints" / f"{newest.folder}.damaged" / file.name).read_bytes() == changed
                shutil.rmtree(path)
                resumed += 1
            notes: list[str] = []
            got = checkpoint.newest(root, notes.append, set_aside=True)
            assert got is not None, "no checkpoint was found"
            assert got.at == before, f"{got.at.folder} was used"
            assert len(notes) == 1, notes
            assert "is damaged" in notes[0], notes
            assert f"{newest.folder}.damaged" in notes[0], notes
        aside = root / f"{newest.folder}.damaged"
        if aside.exists():
            aside.rename(root / newest.folder)
        file.write_bytes(data)
    tally.facts = {"resumed to the end and compared": resumed}
    return tally
