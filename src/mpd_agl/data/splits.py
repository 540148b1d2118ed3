"""Which samples train and which test, for data sets without an official split.

CIFAR10-DVS has 1,000 recordings per class and no split, and published numbers are on different ones. Each rule here
has a name, a result's record holds that name and a hash of the indices, and two results compare only where the hashes
agree.

    per-class-90-10             90 % of each class, drawn by `seed`; SpikingJelly's `split_to_train_test_set` with
                                random_split=True is of this kind
    first-90-per-class          the first 90 % of each class by file number: the 9:1 data that TET's users share
    first-90-per-class-by-name  the first 90 % by file NAME, where 10 comes before 2: SpikingJelly's default, as its
                                folders are listed sorted by name
    first-70-per-class          the first 70 % by file number: the preparation script of Samadzadeh et al. 2020,
                                which TET took over
    random-90-10                90 % of all samples, drawn by `seed`, classes not balanced

A share that is no whole number is rounded up, as SpikingJelly does. The rules that name files assume that the k-th
sample of a class is file number k, which is how the readers list them.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpd_agl.data.counter import permutation
from mpd_agl.errors import InputError, unknown_name

DEFAULT_RULE = "per-class-90-10"
_STREAM = 0x5911

Order = Callable[[int, int, int], NDArray[np.int64]]


def _drawn(count: int, seed: int, label: int) -> NDArray[np.int64]:
    return permutation(seed, label, count, _STREAM)


def _by_number(count: int, seed: int, label: int) -> NDArray[np.int64]:
    return np.arange(count)


def _by_name(count: int, seed: int, label: int) -> NDArray[np.int64]:
    return np.array(sorted(range(count), key=str), dtype=np.int64)


_PER_CLASS: dict[str, tuple[int, Order]] = {
    "per-class-90-10": (90, _drawn),
    "first-90-per-class": (90, _by_number),
    "first-90-per-class-by-name": (90, _by_name),
    "first-70-per-class": (70, _by_number),
}
RULES = (*_PER_CLASS, "random-90-10")


def check_rule(rule: str) -> str:
    """The rule, if there is one of that name."""
    if rule not in RULES:
        raise unknown_name("split rule", rule, RULES)
    return rule


def split_indices(
    labels: NDArray[np.int64], rule: str = DEFAULT_RULE, *, split: str, seed: int
) -> tuple[NDArray[np.int64], str]:
    """Give the sorted indices of a split (`train` or `test`) and their hash; rules that do not draw ignore the seed.

    >>> index, digest = split_indices(np.repeat([0, 1], 10), "first-90-per-class", split="test", seed=0)
    >>> index.tolist()
    [9, 19]
    """
    if rule not in RULES:
        raise unknown_name("split rule", rule, RULES)
    if split not in ("train", "test"):
        raise unknown_name("split", split, ("train", "test"))
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError(
            f"a split needs one label per sample, got an array of shape {labels.shape}; pass the labels as one row."
        )
    if rule == "random-90-10":
        groups = [np.arange(len(labels))]
    else:
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    share, order = _PER_CLASS.get(rule, (90, _drawn))
    parts = []
    for label, members in enumerate(groups):
        ordered = members[order(len(members), seed, label)]
        cut = -(-len(members) * share // 100)
        parts.append(ordered[:cut] if split == "train" else ordered[cut:])
    index = np.sort(np.concatenate(parts))
    if len(index) == 0:
        raise InputError(f"split rule {rule!r} leaves no {split} sample out of {len(labels)}; use a larger set.")
    return index, split_hash(index)


def split_hash(index: NDArray[np.int64]) -> str:
    """Hash a set of indices: sha256 over the sorted indices as little-endian 64-bit integers."""
    return hashlib.sha256(np.sort(index).astype("<i8").tobytes()).hexdigest()
