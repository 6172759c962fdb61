"""What a handful of seeds can say: paired differences with Student's t interval.

Arms share seeds, hence initial draws and sample order; pairing by seed takes out what these do to both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean of n values and the half width of its confidence interval, None for fewer than two values."""

    mean: float
    half_width: float | None
    spread: float | None  # standard deviation of the values
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.half_width is not None and abs(self.mean) > self.half_width


def interval(values: Sequence[float]) -> Interval:
    """Mean +- t * s / sqrt(n) with n - 1 degrees of freedom: right where the values are normal and independent."""
    count = len(values)
    if count < 2:
        return Interval(fmean(values), None, None, count)
    spread = stdev(values)
    return Interval(fmean(values), t_quantile(CONFIDENCE, count - 1) * spread / math.sqrt(count), spread, count)


def t_quantile(confidence: float, degrees: int) -> float:
    """The t with `confidence` of Student's distribution between -t and t, by bisection."""
    low, high = 0.0, 2.0
    while t_probability(high, degrees) < confidence:
        low, high = high, high * 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def t_probability(t: float, degrees: int) -> float:
    """Student's probability between -t and t: finite sums for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        total, term = 0.0, cosine
        for k in range(1, degrees // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * k) / (2 * k + 1)
        return 2 / math.pi * (angle + sine * total)
    total, term = 0.0, 1.0
    for k in range(1, degrees // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * k - 1) / (2 * k)
    return sine * total
