"""Lists of numbers of the two trees, compared."""

from collections.abc import Mapping
from typing import Any, NamedTuple

BITS_MAY_DIFFER: dict[str, str] = {
    "state ": "a block with a state is one fused step; 0.2 called its norm, then its neuron",
}
"""Beginnings of curves' names whose bits were changed on purpose, each with the reason."""
FIRST, STEP_BOUND, LOGITS_BOUND = 5, 1e-4, 1e-5


class Line(NamedTuple):
    """One line of the report."""

    holds: bool
    name: str
    figure: str


def numbers(result: Mapping[str, Any], key: str = "values") -> list[float]:
    """Values as they were before `float.hex`."""
    return [float.fromhex(value) for value in result[key]]


def relative(a: list[float], b: list[float]) -> float:
    """The mean relative distance."""
    return sum(abs(p - q) / max(abs(p), 1e-6) for p, q in zip(a, b, strict=True)) / max(1, len(a))


def compare_curves(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Line:
    """Equal to the last bit; where BITS_MAY_DIFFER has a reason, losses and gradients of the steps that start from
    0.2's weights within 1e-4 in the mean.

    Curves of other bits part within 50 steps (0.2's own eager and native do, by 0.03 to 0.08 in the mean, while their
    single steps agree to 6e-7), so the distance of the curves is printed and not judged.
    """
    a, b = numbers(old), numbers(new)
    if len(a) != len(b):
        return Line(False, name, f"{len(a)} values against {len(b)}")
    if old["values"] == new["values"] and old["end"] == new["end"]:
        return Line(True, name, "bit-equal")
    steps = relative(numbers(old, "anchored"), numbers(new, "anchored")) if "anchored" in old else relative(a, b)
    index = next((i for i, (p, q) in enumerate(zip(a, b, strict=True)) if p != q), len(a))
    figure = (
        f"{index} values are bit-equal, then, relative: first {FIRST} by {relative(a[:FIRST], b[:FIRST]):.1e}, "
        f"all by {relative(a, b):.1e}, steps from 0.2's weights by {steps:.1e}"
    )
    reason = next((why for start, why in BITS_MAY_DIFFER.items() if name.startswith(start)), "")
    return Line(bool(reason) and steps < STEP_BOUND, name, f"{figure} ({reason or 'no reason in BITS_MAY_DIFFER'})")


def compare_logits(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Line:
    """Within 1e-5; logits that do not depend on the input would show nothing."""
    a, b = numbers(old), numbers(new)
    worst = max(abs(p - q) for p, q in zip(a, b, strict=True)) if len(a) == len(b) else float("inf")
    if len(set(a)) <= old["classes"]:
        return Line(False, name, "0.2's logits are those of silent layers and show nothing")
    return Line(worst <= LOGITS_BOUND, name, f"logits differ by {worst:.1e}")
