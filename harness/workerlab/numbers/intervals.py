"""95 % intervals of a mean, of a difference of two means, and of a ratio.

A mean has Student's interval. A difference has Welch's (Welch 1947), as the two sides may differ
in variance; the Welch-Satterthwaite degrees of freedom are rounded down. A ratio is a difference
of logarithms.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean, variance
from typing import Literal

from msgspec import Struct

from workerlab.numbers.units import three_digits

Effect = Literal["more", "less", "none", "chance"]

COUNTS = 1.03  # times: throughputs that differ by less are the same
ROUNDING = 1e-9  # floating-point error of integer degrees of freedom
FOUR_OF_FIVE = 0.8416  # standard normal quantile
TRIALS = 3  # of each side: with fewer the interval is too wide to be of use
# Student's t, 0.975 quantile, for 1 to 30 degrees of freedom; beyond, the value at 30 is used,
# which is a little too wide rather than too narrow.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student(degrees: int) -> float:
    """Student's t, 0.975 quantile."""
    return T975[min(degrees, len(T975)) - 1]


def half_width(
    left: Sequence[float], right: Sequence[float], quantile: Callable[[int], float] = student
) -> float:
    """Half of Welch's interval of a difference of means: the 95 % interval unless another
    `quantile` of Student's t is given. At least two values on each side."""
    parts = [(variance(side) / len(side), len(side) - 1) for side in (left, right)]
    total = sum(part for part, _ in parts)
    if total <= 0:
        return 0.0
    degrees = total**2 / sum(part**2 / df for part, df in parts)
    return quantile(int(degrees + ROUNDING)) * math.sqrt(total)


def half_of_mean(values: Sequence[float]) -> float | None:
    """Half of Student's 95 % interval of a mean; None for fewer than two values."""
    degrees = len(values) - 1
    if degrees < 1:
        return None
    return student(degrees) * math.sqrt(variance(values) / len(values))


class Ratio(Struct, frozen=True):
    """Of two geometric means. `low`, `high`: its 95 % interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    def beyond(self, times: float) -> bool | None:
        """Whether the whole interval is above `times`, or below its inverse; None where there is no
        interval. Of identical trials 5 % of the intervals exclude 1, but far fewer a range."""
        if self.low is None or self.high is None:
            return None
        return self.low > times or self.high < 1 / times

    @property
    def differs(self) -> bool | None:
        """Whether the interval lies beyond a relevant difference; None without an interval."""
        return self.beyond(COUNTS)

    def effect(self, times: float) -> Effect | None:
        """What the whole interval shows: "more" or "less" by at least `times`, "none" if it is
        within that factor, else "chance"; None without an interval."""
        if self.low is None or self.high is None:
            return None
        if self.low > times:
            return "more"
        if self.high < 1 / times:
            return "less"
        return "none" if self.low > 1 / times and self.high < times else "chance"

    def __format__(self, form: str) -> str:
        """`times`: "1.23 times"; `interval`: " (95 % interval 1.10 to 1.37)", "" where none is."""
        if form == "times":
            return f"{three_digits(self.value)} times"
        if self.low is None or self.high is None:
            return ""
        return f" (95 % interval {three_digits(self.low)} to {three_digits(self.high)})"


def ratio(after: Sequence[float], before: Sequence[float], count: int | None = None) -> Ratio:
    """`after` over `before`: at least one positive value on each side. `count`: the interval to
    expect of `count` (at least two) values on each side with the same variance, widened to a power
    of 80 %: if it decides, the interval of those values will do so in four of five cases."""
    logs = [math.log(value) for value in after], [math.log(value) for value in before]
    centre = fmean(logs[0]) - fmean(logs[1])
    half = half_width(*logs) if min(map(len, logs)) > 1 else None
    if half is not None and count is not None:
        error = math.sqrt(sum(map(variance, logs)) / count)
        half = (student(count - 1) + FOUR_OF_FIVE) * error
    if half is None:
        return Ratio(math.exp(centre))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def within(t: float, degrees: int) -> float:
    """The probability that Student's t lies between -t and t (Abramowitz & Stegun 26.7.3 and
    26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine, total, term = math.cos(angle), 0.0, 1.0
    odd = degrees % 2
    if odd:
        term = cosine
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


@cache
def student_at(confidence: float, degrees: int) -> float:
    """Half of the two-sided interval of Student's t that has this probability."""
    low, high = 0.0, 1.0
    while within(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, degrees) < confidence else (low, middle)
    return high
