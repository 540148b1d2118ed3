"""One contender's process: `python -m mpd_agl.bench.worker NAME SETTING check|time`. Talks JSON lines; what libraries print goes to stderr.

`time`: after the first unit of work a line with how long it took, then for every number that is read so many timed units.
"""

import json
import os
import resource
import sys
import time
from typing import Any, TextIO


def peak() -> int:
    """Bytes of this process at its largest."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def own_stdout() -> TextIO:
    """The pipe to the parent; from now on nobody else writes to it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def main() -> None:
    """Answer the parent until it closes the pipe."""
    out = own_stdout()

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=out, flush=True)

    name, setting_text, what = sys.argv[1:]
    try:
        _run(name, json.loads(setting_text), what, say)
    except Exception as error:
        say(error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise


def _run(name: str, values: dict[str, Any], what: str, say: Any) -> None:
    began = time.perf_counter()
    import torch

    from mpd_agl.bench.contenders import build, check
    from mpd_agl.bench.setting import from_dict
    from mpd_agl.kernels import reuse_pages

    setting = from_dict(values)
    torch.set_num_threads(setting.threads)
    if what == "check":
        say(**check(name, setting).to_dict())
        return
    if not setting.fresh_pages:
        reuse_pages()
    work = build(name, setting)
    before, ready = peak(), time.perf_counter()
    losses = [work()]
    first = time.perf_counter()
    losses += [work() for _ in range(2)]
    say(losses=losses, first_s=first - ready, start_s=first - began)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        say(times=times, peak=peak(), before=before)


if __name__ == "__main__":
    main()
