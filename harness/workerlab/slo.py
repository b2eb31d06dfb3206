"""The language of targets: `p95<300ms, errors<0.1%, rps>=50`. Pure.

    target = term, term, ...        a target is kept if all of its terms are
    term   = METRIC OP LIMIT        p50 p90 p95 p99 max mean (response time), errors, rps

A target limits response times and errors from above, and throughput from below, each metric once.
So terms cannot contradict each other, and a slower server cannot keep a target that it missed
before. A time needs a unit, as 300 could be seconds or milliseconds. `errors<=0` is rejected, as no
number of requests can show it.

Error messages give the column, from 1.
"""

import re
from decimal import Decimal
from typing import Literal, NoReturn, cast, get_args

from msgspec import Struct

Metric = Literal["p50", "p90", "p95", "p99", "max", "mean", "errors", "rps"]
Op = Literal["<", "<=", ">", ">="]
Kind = Literal["time", "errors", "rps"]

METRICS, OPS = get_args(Metric), get_args(Op)
SHAPE = re.compile(
    r"\s*(?P<metric>[^\s<>=!≤≥]*)\s*(?P<op>(?:[<>=!≤≥]\s*)*)"
    r"(?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)?)"
    r"\s*(?P<unit>(?:k\s+)?[^\s0-9<>=/;]*(?:\s*/\s*[a-z]*)?)\s*(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
DECIMAL_COMMA = re.compile(r"[0-9],\s*[0-9]")
US, MS, S = Decimal("1e-6"), Decimal("1e-3"), Decimal(1)
UNITS: dict[Kind, dict[str, Decimal]] = {
    "time": {
        **dict.fromkeys(("us", "µs", "μs"), US),
        "ms": MS,
        **dict.fromkeys(("s", "sec", "second", "seconds"), S),
        **dict.fromkeys(("m", "min", "minute", "minutes"), Decimal(60)),
    },
    "errors": {"": S, "%": Decimal("0.01")},
    "rps": {
        f"{prefix}{unit}": size
        for prefix, size in (("", S), ("k", Decimal(1000)))
        for unit in ("", "/s", "/sec", "rps", "req/s", "requests/s")
    },
}
EXPECTED: dict[Kind, str] = {
    "time": "us, ms, s or m",
    "errors": "% or nothing",
    "rps": "/s, rps, k or nothing",
}
FROM: dict[Kind, str] = {
    "time": "a response time is limited from above, such as {}<300ms",
    "errors": "errors are limited from above, such as {}<0.1%",
    "rps": "throughput is limited from below, such as {}>=50",
}
MAX_LIMITS: dict[Kind, tuple[float, str]] = {
    "time": (3600.0, "a limit must be at most 60 minutes"),
    "rps": (1e6, "a limit must be at most 1,000,000 requests/s"),
}


class TargetSyntaxError(ValueError):
    """An invalid target: one sentence that begins with the column."""


class Term(Struct, frozen=True):
    """`limit` in seconds, as a share of 1 or in requests per second."""

    metric: Metric
    op: Op
    limit: float

    @property
    def kind(self) -> Kind:
        return _kind(self.metric)

    def holds(self, value: float) -> bool:
        """Whether the value is within the limit."""
        if self.op in ("<", ">"):
            return value < self.limit if self.op == "<" else value > self.limit
        return value <= self.limit if self.op == "<=" else value >= self.limit

    def __str__(self) -> str:
        """In common units; `parse` reads the same term from it."""
        limit, unit = Decimal(repr(self.limit)), ""
        if self.kind == "errors":
            limit, unit = limit * 100, "%"
        elif self.kind == "time":
            unit = "us" if limit < MS else "ms" if limit < S else "s"
            limit /= UNITS["time"][unit]
        return f"{self.metric}{self.op}{limit.normalize():f}{unit}"


def parse(text: str) -> tuple[Term, ...]:
    """The terms, in order. Raises TargetSyntaxError."""
    if comma := DECIMAL_COMMA.search(text):
        _fail(comma.start() + 1, "a comma ends a term: write decimals with a point, as in 0.3s")
    terms: dict[Metric, Term] = {}
    begin = 0
    for piece in text.split(","):
        term = _term(piece, begin, last=begin + len(piece) == len(text))
        if term.metric in terms:
            blanks = len(piece) - len(piece.lstrip())
            _fail(begin + blanks, f"{term.metric} has a limit already: {terms[term.metric]}")
        terms[term.metric] = term
        begin += len(piece) + 1
    return tuple(terms.values())


def canonical(text: str) -> str:
    """The target in the spelling of `Term`. Raises TargetSyntaxError."""
    return ",".join(map(str, parse(text)))


def _kind(metric: Metric) -> Kind:
    return metric if metric in ("errors", "rps") else "time"


def _term(piece: str, begin: int, *, last: bool) -> Term:
    """`begin`: offset of the piece in the text; `last`: nothing follows it."""
    match = cast("re.Match[str]", SHAPE.fullmatch(piece))
    column = {name: begin + match.start(name) for name in match.groupdict()}
    name, op = match["metric"].lower(), "".join(match["op"].split())
    op = op.replace("≤", "<=").replace("≥", ">=")
    if name not in METRICS:
        metrics = f"{', '.join(METRICS[:-1])} or {METRICS[-1]}"
        wrong = f"unknown metric {match['metric']!r}: " if name else ""
        _fail(column["metric"], f"{wrong}expected {metrics}")
    if op not in OPS:
        hint = "" if match["number"] or op or not last else " (in quotes: '...', for the shell)"
        got = f", not {op}" if op else ""
        _fail(column["op"], f"expected <, <=, > or >= after {name}{got}{hint}")
    metric, kind = cast("Metric", name), _kind(cast("Metric", name))
    if (op[0] == ">") != (kind == "rps"):
        _fail(column["op"], FROM[kind].format(name))
    if not match["number"].lstrip("+-"):
        _fail(column["number"], f"expected a number after {name}{op}")
    unit = _unit(match, kind, column)
    limit = float(Decimal(match["number"]) * unit)
    _check(kind, limit, column["number"])
    if match["rest"]:
        _fail(column["rest"], f"expected a comma before {match['rest'].strip()!r}")
    return Term(metric, cast("Op", op), limit)


def _unit(match: re.Match[str], kind: Kind, column: dict[str, int]) -> Decimal:
    number, unit = match["number"], "".join(match["unit"].lower().split())
    if not unit and unit not in UNITS[kind]:
        _fail(column["number"] + len(number), f"{number} needs a unit: {EXPECTED[kind]}")
    if unit not in UNITS[kind]:
        _fail(column["unit"], f"unknown unit {match['unit']!r} after {number}: {EXPECTED[kind]}")
    return UNITS[kind][unit]


def _check(kind: Kind, limit: float, at: int) -> None:
    if limit <= 0 and kind == "errors":
        _fail(at, "no number of requests shows that none ever fails: allow a few, as in 0.1%")
    if limit <= 0:
        _fail(at, "a limit must be above 0")
    if kind == "errors" and limit >= 1:
        percent = f": for {limit:g} of 100 requests write {limit:g}%" if 1 <= limit < 100 else ""
        _fail(at, f"errors must be less than 1, all requests{percent}")
    limit_bound, why = MAX_LIMITS.get(kind, (1.0, ""))
    if limit > limit_bound:
        _fail(at, why)


def _fail(at: int, why: str) -> NoReturn:
    raise TargetSyntaxError(f"column {at + 1}: {why}")
