"""One contender's process: `python -m benchmarks.worker NAME WORKLOAD check|time`.

It answers in JSON lines; what libraries print goes to stderr. `check` answers once. `time` says how long the first unit
of work took; then it reads numbers, and for each it does so many units and says how long each took.
"""

import json
import os
import resource
import sys
import time
from typing import Any, TextIO


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def own_stdout() -> TextIO:
    """The pipe to the parent. From now on whatever else prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def main() -> None:
    """Answer the parent until it closes the pipe."""
    out = own_stdout()

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=out, flush=True)

    name, workload_text, what = sys.argv[1:]
    try:
        _run(name, json.loads(workload_text), what, say)
    except Exception as error:
        say(error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise


def _run(name: str, values: dict[str, Any], what: str, say: Any) -> None:
    began = time.perf_counter()
    import torch

    torch.set_num_threads(values["threads"])
    if name == "release":
        from benchmarks.release import build as build_release

        work = build_release(values)
    else:
        from benchmarks.contenders import build, check
        from benchmarks.workload import Workload

        workload = Workload.from_dict(values)
        if what == "check":
            say(**check(name, workload).to_dict())
            return
        work = build(name, workload)
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
