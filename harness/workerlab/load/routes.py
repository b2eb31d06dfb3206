"""The mix of a load: the file that generators read it from, and their results by route.

    [{"label", "weight", "method", "path", "headers": [[name, value]], "body_file", "expect": []}]

in the order of Load.mix; requests with the same label are one route. For each route, generators
print an `Account`.
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
    """The results of a route. `response`: of successes, in nanoseconds; `body`: the beginning of
    the first answer with an unexpected status."""

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
    """The file to write, by name; none if all requests are the same."""
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
    """The results by label, added up over processes."""
    by_label: dict[str, list[Account]] = {}
    for part in parts:
        for label, account in part.items():
            by_label.setdefault(label, []).append(account)
    return {label: _result(accounts) for label, accounts in by_label.items()}


def _result(accounts: Iterable[Account]) -> RouteResult:
    errors, statuses, response = Counter[str](), Counter[str](), Histogram()
    requests, body = 0, ""
    for account in accounts:
        errors.update(account.errors)
        statuses.update(account.statuses)
        response.add(account.response)
        requests, body = requests + account.complete, body or account.body
    return RouteResult(
        requests=requests,
        failed=errors.total(),
        errors=dict(sorted(errors.items())),
        response=summary_of(response),
        statuses=dict(sorted(statuses.items())),
        answer=first_lines(body.encode()),
    )


def percentiles_of(histogram: Histogram) -> dict[float, float]:
    """Seconds by per cent, from a histogram of nanoseconds."""
    percents = percents_of(histogram.count)
    values_ns = {percent: histogram.quantile(percent / 100) for percent in percents}
    return {percent: ns / NS for percent, ns in values_ns.items() if ns is not None}


def summary_of(histogram: Histogram) -> Summary:
    """In seconds, from a histogram of nanoseconds."""
    at = histogram.quantile
    values_ns = (histogram.mean, at(0.50), at(0.95), at(0.99), histogram.most, at(0.90))
    return Summary(*(None if value is None else value / NS for value in values_ns))
