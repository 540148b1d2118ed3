"""Which samples of a batch a process gets.

A batch is cut into the parts that gradients are accumulated over, and each part is dealt out to all ranks.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def part_bounds(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut a batch of `count` into at most `parts` parts of at least two samples; the first parts are larger by one.

    >>> part_bounds(11, 3), part_bounds(3, 4)
    ([(0, 4), (4, 8), (8, 11)], [(0, 3)])
    """
    number = min(parts, count // 2) or 1
    edges = [0, *np.cumsum([count // number + (k < count % number) for k in range(number)]).tolist()]
    return list(pairwise(edges))


def _own(bounds: tuple[int, int], rank: int, world: int) -> tuple[int, int]:
    left, right = bounds
    return left + (right - left) * rank // world, left + (right - left) * (rank + 1) // world


def part_sizes(count: int, parts: int, rank: int, world: int) -> list[int]:
    """How many samples of each part a rank has."""
    return [b - a for a, b in (_own(bounds, rank, world) for bounds in part_bounds(count, parts))]


def share(batch: NDArray[np.int64], parts: int, rank: int, world: int) -> NDArray[np.int64]:
    """Give a rank's samples of a batch. A part holds the same samples however many ranks there are.

    >>> [share(np.arange(11), 2, rank, 2).tolist() for rank in (0, 1)]
    [[0, 1, 2, 6, 7], [3, 4, 5, 8, 9, 10]]
    """
    return np.concatenate([batch[slice(*_own(bounds, rank, world))] for bounds in part_bounds(len(batch), parts)])
