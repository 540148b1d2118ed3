"""Runs that are killed at random moments and resumed until they end; in a process of its own, which forks before torch has any thread.

usage: python -m tests.train.killing FOLDER KILLS SEED [CHANGES-AS-JSON]
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from mpd_agl.experiments import training
from mpd_agl.train.signals import EXIT_SAVED, Stopped
from tests.train.tiny import Silent, fingerprint, tiny


def child(path: Path, changes: dict[str, object]) -> int:
    """Start or resume in a forked process; its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if (path / "config.toml").is_file():
            training.resume(path, {}, Silent())
        else:
            training.start(tiny(changes), path, Silent())
        code = 0
    except Stopped:
        code = EXIT_SAVED
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    os._exit(code)


def finish(path: Path, changes: dict[str, object]) -> None:
    _, status = os.waitpid(child(path, changes), 0)
    assert status == 0, f"exit status {status}"


def main(folder: Path, kills: int, seed: int, changes: dict[str, object]) -> None:
    draw = random.Random(seed)
    whole = folder / "whole"
    began = time.perf_counter()
    finish(whole, changes)
    lasted = time.perf_counter() - began
    expected = fingerprint(whole)
    done = rounds = soft = 0
    while done < kills:
        rounds += 1
        path = folder / f"killed{rounds}"
        while done < kills:
            pid = child(path, changes)
            time.sleep(draw.uniform(0.02, 0.8 * lasted))
            gentle = draw.random() < 0.25
            os.kill(pid, signal.SIGTERM if gentle else signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if status == 0:
                break  # it ended before the signal
            assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, -signal.SIGTERM, EXIT_SAVED), status
            done, soft = done + 1, soft + gentle
        finish(path, changes)
        got = fingerprint(path)
        for part, value in expected.items():
            assert got[part] == value, f"{path.name}: {part} differ"
    print(json.dumps({"kills": done, "of them SIGTERM": soft, "runs": rounds, "whole_s": round(lasted, 2)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]) if len(sys.argv) > 4 else {})
