"""Contenders in one process, taken in turns."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def alternate(works: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each, a value per round; one round before them warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if number:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def over(times: list[float], base: list[float]) -> dict[str, Any]:
    """A contender's time over the base's, of the same round: the median and the range.

    >>> over([2.0, 6.0, 3.0], [1.0, 2.0, 2.0])
    {'time': 2.0, 'range': [1.5, 3.0]}
    """
    each = [a / b for a, b in zip(times, base, strict=True)]
    return {"time": statistics.median(each), "range": [min(each), max(each)]}
