"""Times of contenders that take turns in one process, and how busy the machine was while they ran."""

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BUSY = 1.25
"""A fixed loop that takes more than this many times its own best shares the machine with something else."""
SAMPLES, SAMPLE_S, SETTLE_S = 8, 0.005, 0.1
DATA = bytes(1 << 16)


def alternate(
    works: Mapping[str, Callable[[], Any]], rounds: int, between: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Milliseconds of each work, a value per round. A first round warms up; `between` runs before the others."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        if number:
            between()
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if number:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def over(times: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    """A contender's time over the base's in the same round: the median over rounds, and the range.

    >>> over([2.0, 6.0, 3.0], [1.0, 2.0, 2.0])
    {'time': 2.0, 'range': [1.5, 3.0]}
    """
    each = [a / b for a, b in zip(times, base, strict=True)]
    return {"time": statistics.median(each), "range": [min(each), max(each)]}


class FixedLoop:
    """The same small piece of work between all rounds, on as many threads as the contenders use.

    No contender runs while it does, so a sample that takes longer than the best one has waited for another program.
    A load average cannot show that: it still counts the round before. Samples are short, so that even on a machine
    that is busy all the time some of them run undisturbed and give a true best.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self.repeats = threads, 1
        self._pool = ThreadPoolExecutor(threads)
        self.seconds: list[list[float]] = []
        """The samples of every call."""
        while self._sample() < SAMPLE_S:
            self.repeats *= 2

    def __call__(self) -> None:
        """Take some samples, once the threads of the last round have gone to sleep."""
        time.sleep(SETTLE_S)
        self._sample()
        self.seconds.append([self._sample() for _ in range(SAMPLES)])

    def _sample(self) -> float:
        start = time.perf_counter()
        list(self._pool.map(self._hash, range(self.threads)))
        return time.perf_counter() - start

    def _hash(self, thread: int) -> None:
        for _ in range(self.repeats):
            hashlib.sha256(DATA)  # releases the interpreter's lock

    def slowdowns(self) -> list[float]:
        """For every call how many times the best sample's time it took."""
        return slowdowns(self.seconds)


def slowdowns(seconds: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each group of samples over the best sample of all groups.

    >>> slowdowns([[1.0, 1.0], [1.0, 3.0]])
    [1.0, 2.0]
    """
    best = min((s for group in seconds for s in group), default=1.0)
    return [statistics.fmean(group) / best for group in seconds]


def busy(record: Mapping[str, Any]) -> str:
    """The sentence for a record that was measured on a busy machine; "" for a quiet one.

    >>> busy({"slowdown": [1.02, 1.5, 1.1]})
    'The machine was busy: a fixed loop took up to 1.50 times its best in 1 of 3 pauses. Do not trust these times.'
    >>> busy({"slowdown": [1.02, 1.1]})
    ''
    """
    found = record.get("slowdown") or [1.0]
    slow = sum(s > BUSY for s in found)
    if not slow:
        return ""
    return (
        f"The machine was busy: a fixed loop took up to {max(found):.2f} times its best in {slow} of {len(found)} "
        "pauses. Do not trust these times."
    )
