"""Results over seeds: mean and spread, and between two settings the paired difference with its interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


def t_cdf(x: float, freedom: int) -> float:
    """Student's t distribution function, in closed form for whole degrees of freedom.

    >>> round(t_cdf(2.0, 1), 6), round(t_cdf(-2.0, 4), 6)
    (0.852416, 0.058058)
    """
    theta = math.atan(x / math.sqrt(freedom))
    c, s = math.cos(theta), math.sin(theta)
    term, total = (c, 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= c * c * (k - 1) / k
    return 0.5 + ((theta + s * total) / math.pi if freedom % 2 else s * total / 2)


def t_quantile(p: float, freedom: int) -> float:
    """The value that Student's t stays under with probability p > 1/2.

    >>> round(t_quantile(0.975, 1), 3), round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 10), 3)
    (12.706, 4.303, 2.228)
    """
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        high *= 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Difference:
    """Mean of a - b over the seeds that both have, and half of its 95 % interval; None for a single seed."""

    mean: float
    half: float | None
    seeds: int


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """The paired difference of two settings by seed; None where they share no seed.

    >>> d = paired({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    >>> d.mean, round(d.half, 3), d.seeds
    (2.0, 2.484, 3)
    """
    both = sorted(a.keys() & b.keys())
    if not both:
        return None
    each = [a[s] - b[s] for s in both]
    half = None
    if len(each) > 1:
        half = t_quantile((1 + CONFIDENCE) / 2, len(each) - 1) * statistics.stdev(each) / math.sqrt(len(each))
    return Difference(statistics.fmean(each), half, len(each))


def points(values: Sequence[float]) -> str:
    """Accuracies in percent: the mean, and the standard deviation where there are several.

    >>> points([0.5]), points([0.5, 0.6])
    ('50.00', '55.00 ± 7.07')
    """
    percent = [100 * v for v in values]
    spread = f" ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else ""
    return f"{statistics.fmean(percent):.2f}{spread}"


def difference(found: Difference | None) -> str:
    """A difference of accuracies in points, with its interval.

    >>> difference(Difference(0.012, 0.02, 3)), difference(Difference(-0.012, None, 1))
    ('+1.20 [-0.80, +3.20]', '-1.20')
    """
    if found is None:
        return ""
    text = f"{100 * found.mean:+.2f}"
    if found.half is not None:
        text += f" [{100 * (found.mean - found.half):+.2f}, {100 * (found.mean + found.half):+.2f}]"
    return text
