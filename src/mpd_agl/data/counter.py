"""Random numbers without a state: every draw is a hash of (seed, epoch, index, stream, number of the draw).

A sample's augmentation must not depend on the worker that made it, on the batch it fell into or on a restart. So
there is no generator that advances: draw k of a sample is SplitMix64's k-th output from a state hashed out of the key
(Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), for all samples of a batch at once.

Shapes: N samples, K draws per sample.
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64 bits in which each input bit flips each output bit half of the time."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def key(*parts: int) -> int:
    """Hash integers of any size and sign into 64 bits; their order and their number count."""
    state = np.array([len(parts)], dtype=np.uint64)
    for part in parts:
        state = _mix(state * _GOLDEN + np.uint64(part & 0xFFFFFFFFFFFFFFFF) + _GOLDEN)
    return int(state[0])


def uniform(seed: int, epoch: int, index_N: NDArray[np.integer], stream: int, count: int) -> NDArray[np.float64]:
    """Draw `count` numbers in [0, 1) for each sample; `stream` keeps the draws of different uses apart.

    >>> a = uniform(0, 3, np.array([7, 8, 9]), stream=1, count=2)
    >>> b = uniform(0, 3, np.array([9]), stream=1, count=2)
    >>> bool((a[2] == b[0]).all())
    True
    """
    base = np.uint64(key(seed, epoch, stream))
    state_N = _mix(_mix(index_N.astype(np.uint64) * _GOLDEN + base))
    step_K = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits_NK = _mix(state_N[:, None] + step_K)
    return (bits_NK >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(uniform_N: NDArray[np.float64], low: int, high: int) -> NDArray[np.int64]:
    """Turn uniform draws into integers in [low, high], both ends included."""
    return low + (uniform_N * (high - low + 1)).astype(np.int64)


def permutation(seed: int, epoch: int, count: int, stream: int) -> NDArray[np.int64]:
    """Return an order of 0..count-1 that depends on (seed, epoch) alone: sorted by hash, ties (2**-53) by index."""
    return np.argsort(uniform(seed, epoch, np.arange(count), stream, 1)[:, 0], kind="stable")
