"""Lists of numbers of the two trees, compared."""

from collections.abc import Mapping
from typing import Any, NamedTuple

BITS_MAY_DIFFER: dict[str, str] = {}
"""Beginnings of curves' names whose bits were changed on purpose, each with the commit's reason. Empty: none."""
FIRST, FIRST_BOUND, MEAN_BOUND = 5, 1e-6, 1e-3
LOGITS_BOUND = 1e-5


class Line(NamedTuple):
    """One line of the report."""

    holds: bool
    name: str
    figure: str


def numbers(result: Mapping[str, Any], key: str = "values") -> list[float]:
    """Values as they were before `float.hex`."""
    return [float.fromhex(value) for value in result[key]]


def mean_distance(a: list[float], b: list[float]) -> float:
    """The mean |difference|."""
    return sum(abs(p - q) for p, q in zip(a, b, strict=True)) / len(a)


def compare_curves(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Line:
    """Equal to the last bit; where BITS_MAY_DIFFER has a reason, the first 5 within 1e-6, and the steps that start from
    0.2's weights within 1e-3 in the mean. Whole curves of other bits part (0.2's own eager and native do), so their
    distance is printed and not judged.
    """
    a, b = numbers(old), numbers(new)
    if len(a) != len(b):
        return Line(False, name, f"{len(a)} values against {len(b)}")
    if old["values"] == new["values"]:
        same = old["end"] == new["end"]
        return Line(same, name, "bit-equal" if same else "values bit-equal, but weights or statistics differ")
    first = max(abs(p - q) / max(abs(p), 1e-12) for p, q in zip(a[:FIRST], b[:FIRST], strict=True))
    mean = mean_distance(numbers(old, "anchored"), numbers(new, "anchored")) if "anchored" in old else 0.0
    index = next(i for i, (p, q) in enumerate(zip(a, b, strict=True)) if p != q)
    figure = f"differs from value {index} on: first {FIRST} by {first:.1e} relative, curve by {mean_distance(a, b):.1e}"
    figure += f" in the mean, steps from 0.2's weights by {mean:.1e}"
    reason = next((why for start, why in BITS_MAY_DIFFER.items() if name.startswith(start)), "")
    if not reason:
        return Line(False, name, f"{figure}; no reason in BITS_MAY_DIFFER")
    return Line(first <= FIRST_BOUND and mean < MEAN_BOUND, name, f"{figure} ({reason})")


def compare_logits(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Line:
    """Within 1e-5, and not all the same number, which would show nothing."""
    a, b = numbers(old), numbers(new)
    worst = max(abs(p - q) for p, q in zip(a, b, strict=True)) if len(a) == len(b) else float("inf")
    if len(set(a)) < 2:
        return Line(False, name, "0.2's logits are all equal and show nothing")
    return Line(worst <= LOGITS_BOUND, name, f"logits differ by {worst:.1e}")
