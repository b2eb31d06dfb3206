"""The mix of a load: the file that a generator reads it from, and what it says of each route.

    [{"label", "weight", "method", "path", "headers": [[name, value]], "body_file", "expect": []}]

in the order of Load.mix; requests with one label are one route. Of each, by label, the generator
says what is in `Account`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from workerlab.excerpt import first_lines
from workerlab.model import Load, RouteResult, Summary
from workerlab.numbers.histogram import Histogram
from workerlab.numbers.quantiles import percents_of

FILE = "mix.json"
NS = 1e9
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Account(msgspec.Struct, frozen=True):
    """Of a route. `response`: of successes, nanoseconds; `body`: how the first answer began whose
    status was not expected."""

    sent: Count
    complete: Count
    errors: dict[str, Count]
    statuses: dict[str, Count]
    body: str
    response: Histogram

    def __post_init__(self) -> None:
        if max(self.complete, sum(self.errors.values())) > self.sent:
            raise ValueError("a route has more answers than requests")
        if self.response.count > self.complete:
            raise ValueError("a route has more successes than answers")


def mix_file(load: Load) -> dict[str, str]:
    """The file to write, by name; none where all requests are the same."""
    if not load.mix:
        return {}
    kinds = [
        {
            "label": route.label,
            "weight": route.weight,
            "method": route.method,
            "path": route.path,
            "headers": route.headers,
            "body_file": route.body_file,
            "expect": route.expect,
        }
        for route in load.mix
    ]
    return {FILE: json.dumps(kinds)}


def results(parts: Iterable[Mapping[str, Account]]) -> dict[str, RouteResult]:
    """Of all processes together."""
    every: dict[str, list[Account]] = {}
    for part in parts:
        for label, account in part.items():
            every.setdefault(label, []).append(account)
    return {label: _result(accounts) for label, accounts in every.items()}


def _result(accounts: Iterable[Account]) -> RouteResult:
    errors, statuses, response = Counter[str](), Counter[str](), Histogram()
    requests, body = 0, ""
    for one in accounts:
        errors.update(one.errors)
        statuses.update(one.statuses)
        response.add(one.response)
        requests, body = requests + one.complete, body or one.body
    return RouteResult(
        requests=requests,
        failed=errors.total(),
        errors=dict(sorted(errors.items())),
        response=summary_of(response),
        statuses=dict(sorted(statuses.items())),
        answer=first_lines(body.encode()),
    )


def percentiles_of(histogram: Histogram) -> dict[float, float]:
    """Of nanoseconds, in seconds, by per cent."""
    found = {one: histogram.quantile(one / 100) for one in percents_of(histogram.count)}
    return {one: value / NS for one, value in found.items() if value is not None}


def summary_of(histogram: Histogram) -> Summary:
    """Of nanoseconds, in seconds."""
    at = histogram.quantile
    values_ns = (histogram.mean, at(0.50), at(0.95), at(0.99), histogram.most, at(0.90))
    return Summary(*(None if value is None else value / NS for value in values_ns))
