"""The trials of one cell, and their statistics.

A trial is a fresh launch of the server, and the unit of replication: launches differ far more than
the requests within one, so the interval of a comparison is over trials (Welch's, of logarithms).
Throughput is averaged geometrically because its ratios are compared, everything else arithmetically
so that the parts of a response time still add up to it.

A mean covers the trials that have the value. It is None, not 0, if none has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from math import isfinite
from statistics import fmean, geometric_mean, median
from typing import Any, Generic, TypeVar

from msgspec import Struct

from workerlab.model.plan import Cell
from workerlab.model.result import CoreWait, Result, TrialResult, Verdict
from workerlab.numbers.intervals import Ratio, ratio
from workerlab.numbers.units import value_at

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
# A value of a result: its dotted path ("response.p95"), or a function of the result
Field = str | Callable[[Any], float | None]


def grouped(results: Iterable[R], key: Callable[[R], K]) -> dict[K, list[R]]:
    """The results by key, in the order of the first result of each key."""
    groups: dict[K, list[R]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


class Replicates(Struct, Generic[R], frozen=True):
    """The valid results of repeated measurements of one thing."""

    valid: tuple[R, ...]

    def values(self, field: Field) -> list[float]:
        """The field's finite values, in the order of the results."""
        return [
            value
            for result in self.valid
            if (value := _value_of(result, field)) is not None and isfinite(value)
        ]

    def count(self, field: Field) -> int:
        """The number of results with a positive value of the field."""
        return len(self.positive(field))

    def _over(self, field: Field, statistic: Callable[[list[float]], float]) -> float | None:
        values = self.values(field)
        return statistic(values) if values else None

    def mean(self, field: Field) -> float | None:
        return self._over(field, fmean)

    def difference(self, base: Replicates[Any], field: Field) -> float | None:
        """The difference between the means; None if one of them is unknown."""
        mean, base_mean = self.mean(field), base.mean(field)
        return None if mean is None or base_mean is None else mean - base_mean

    def median(self, field: Field) -> float | None:
        return self._over(field, median)

    def mean_of_all(self, field: Field) -> float | None:
        """The mean; None if one of the results lacks the field."""
        return self.mean(field) if len(self.values(field)) == len(self.valid) else None

    def total(self, field: Field) -> float | None:
        return self._over(field, sum)

    def largest(self, field: Field) -> float | None:
        return self._over(field, max)

    def mostly(self, field: Field) -> bool | None:
        """Whether the field is true in at least half of the results that have it. Exactly half
        counts, so figures distorted in half of the trials are not used as valid. None if no result
        has the field."""
        values = self.values(field)
        return 2 * sum(values) >= len(values) if values else None

    def geometric_mean(self, field: Field) -> float | None:
        values = self.positive(field)
        return geometric_mean(values) if values else None

    def ratio(self, base: Replicates[Any], field: Field = "throughput_rps") -> Ratio:
        """The ratio of the geometric means. Raises StatisticsError without positive values."""
        return ratio(self.positive(field), base.positive(field))

    def positive(self, field: Field) -> list[float]:
        """The field's values above 0."""
        return [value for value in self.values(field) if value > 0]

    @property
    def core_wait(self) -> CoreWait | None:
        """The core wait of the result with the largest share; disturbed results first."""
        waits = filter(None, (_value_of(result, "core_wait") for result in self.valid))
        return max(waits, key=lambda wait: (wait.disturbed, wait.share), default=None)


class Trials(Replicates[Result], frozen=True, kw_only=True):
    """The trials of one cell. Statistics are over `valid`; `left_out`: the other trials."""

    cell: Cell
    left_out: tuple[TrialResult, ...] = ()

    @property
    def throughput_rps(self) -> float | None:
        return self.geometric_mean("throughput_rps")

    @property
    def verdict(self) -> Verdict:
        """The most frequent verdict of the trials with a success, or else of the other trials; the
        first one if tied."""
        results = tuple(filter(has_throughput, self.valid)) or self.left_out or self.valid
        verdicts = Counter(result.verdict for result in results)
        return verdicts.most_common(1)[0][0]

    @property
    def errors(self) -> dict[str, int] | None:
        """Failed requests by cause; None if none failed."""
        return dict(sum((Counter(result.errors) for result in self.valid), Counter[str]())) or None

    @property
    def generator_bound(self) -> bool | None:
        """Whether the load tool was the limit in at least half of the trials that show it."""
        return self.mostly("generator_bound")


def valid_results(results: Iterable[TrialResult]) -> list[Result]:
    return [result for result in results if isinstance(result, Result)]


def has_throughput(result: Result) -> bool:
    return bool(result.throughput_rps)


def conclusive(result: Result) -> bool:
    return result.verdict != "inconclusive"


def by_cell(
    results: Iterable[TrialResult], keep: Callable[[Result], bool] = has_throughput
) -> dict[Cell, Trials]:
    """The trials by cell, in the order of each cell's first trial. `keep`: whether the statistics
    include a valid result."""
    return {
        cell: Trials(
            valid=tuple(filter(keep, valid_results(trials))),
            left_out=tuple(
                result for result in trials if not (isinstance(result, Result) and keep(result))
            ),
            cell=cell,
        )
        for cell, trials in grouped(results, lambda result: result.trial.cell).items()
    }


def by_level(results: Iterable[Result]) -> dict[int, list[Result]]:
    """Results of the closed loop by number of connections, in the order of the results."""
    return grouped(results, lambda result: result.trial.cell.concurrency)


def mean_of(field: Field) -> Callable[[Replicates[Any]], float | None]:
    """A column's value: the mean of a field."""
    return lambda replicates: replicates.mean(field)


def _value_of(result: object, field: Field) -> Any:
    """The value of a field; None if a part of its path is None."""
    return field(result) if callable(field) else value_at(result, field)
