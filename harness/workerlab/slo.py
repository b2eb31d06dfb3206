"""The language of targets, `p95<300ms, errors<0.1%, rps>=50`, and of limits on changes,
`p95>+10%, rps<-5%`.

    target = term, term, ...        a target is met if all of its terms are
    term   = METRIC OP LIMIT        p50 p90 p95 p99 max mean (response time), errors, rps
    limits = limit, limit, ...      changes to detect: METRIC > +SHARE% or METRIC < -SHARE%

A target sets an upper limit for response times and errors, a lower one for throughput, and at most
one limit per metric. So terms cannot contradict each other, and no server meets a target by getting
slower. A time needs a unit, because 300 could mean seconds or milliseconds. `errors<=0` is
rejected, because no number of requests can show that it is met.

Error messages give the column, counted from 1.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Literal, NamedTuple, NoReturn, cast, get_args

from msgspec import Struct

Metric = Literal["p50", "p90", "p95", "p99", "max", "mean", "errors", "rps"]
Op = Literal["<", "<=", ">", ">="]
Kind = Literal["time", "errors", "rps"]

METRICS = get_args(Metric)
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
TERM_PATTERN = re.compile(
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
EXPECTED_UNITS: dict[Kind, str] = {
    "time": "us, ms, s or m",
    "errors": "% or nothing",
    "rps": "/s, rps, k or nothing",
}
DIRECTION_ERRORS: dict[Kind, str] = {
    "time": "a response time needs an upper limit, such as {}<300ms",
    "errors": "errors need an upper limit, such as {}<0.1%",
    "rps": "throughput needs a lower limit, such as {}>=50",
}
MAX_LIMITS: dict[Kind, tuple[float, str]] = {
    "time": (3600.0, "a limit must be at most 60 minutes"),
    "rps": (1e6, "a limit must be at most 1,000,000 requests/s"),
}


class TargetSyntaxError(ValueError):
    """An invalid target or limit. The message is one sentence that begins with the column."""


class Term(Struct, frozen=True):
    """A term of a target. `limit`: seconds, a fraction from 0 to 1, or requests/s."""

    metric: Metric
    op: Op
    limit: float

    @property
    def kind(self) -> Kind:
        return self.metric if self.metric in ("errors", "rps") else "time"

    def holds(self, value: float) -> bool:
        """Whether the value is within the limit."""
        return bool(COMPARISONS[self.op](value, self.limit))

    def __str__(self) -> str:
        """The term in common units; `parse` reads the same term from it."""
        limit, unit = Decimal(repr(self.limit)), ""
        if self.kind == "errors":
            limit, unit = limit * 100, "%"
        elif self.kind == "time":
            unit = "us" if limit < MS else "ms" if limit < S else "s"
            limit /= UNITS["time"][unit]
        return f"{self.metric}{self.op}{limit.normalize():f}{unit}"


class Limit(NamedTuple):
    """A limit on a change. `share`: of the earlier value; for errors, of the requests;
    `above`: True if it limits increases, False if decreases."""

    metric: str
    above: bool
    share: float
    text: str


class _Piece(NamedTuple):
    """A term or limit as text. `begin`: its offset in the text; `last`: whether it is the last
    one."""

    match: re.Match[str]
    begin: int
    last: bool

    def fail(self, part: str, why: str, *, offset: int = 0) -> NoReturn:
        """Raises TargetSyntaxError. `part`: the group of TERM_PATTERN that is wrong."""
        raise TargetSyntaxError(f"column {self.begin + self.match.start(part) + offset + 1}: {why}")

    def metric(self, metrics: Sequence[str]) -> str:
        name = self.match["metric"].lower()
        if name not in metrics:
            wrong = f"unknown metric {self.match['metric']!r}: " if name else ""
            self.fail("metric", f"{wrong}expected {_either(metrics)}")
        return name

    def op(self, ops: Sequence[str]) -> str:
        name, op = self.match["metric"].lower(), "".join(self.match["op"].split())
        op = op.replace("≤", "<=").replace("≥", ">=")
        if op not in ops:
            open_end = self.last and not op and not self.match["number"]
            hint = " (quote it for the shell: '...')" if open_end else ""
            got = f", not {op}" if op else ""
            self.fail("op", f"expected {_either(ops)} after {name}{got}{hint}")
        return op

    def number(self, units: Mapping[str, Decimal], expected: str) -> float:
        """The number in base units. `expected`: the possible units, in words."""
        number, unit = self.match["number"], "".join(self.match["unit"].lower().split())
        if not number.lstrip("+-"):
            before = "".join(self.match.string[: self.match.start("number")].split()).lower()
            self.fail("number", f"expected a number after {before}")
        if not unit and unit not in units:
            self.fail("number", f"{number} needs a unit: {expected}", offset=len(number))
        if unit not in units:
            self.fail("unit", f"unknown unit {self.match['unit']!r} after {number}: {expected}")
        return float(Decimal(number) * units[unit])

    def end(self) -> None:
        if self.match["rest"]:
            self.fail("rest", f"expected a comma before {self.match['rest'].strip()!r}")


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _pieces(text: str) -> Iterator[_Piece]:
    """The parts of the text between commas. Raises TargetSyntaxError for a decimal comma."""
    if comma := DECIMAL_COMMA.search(text):
        why = "a comma ends a term: write decimals with a point, such as 0.3s"
        raise TargetSyntaxError(f"column {comma.start() + 2}: {why}")
    begin = 0
    for piece in text.split(","):
        match = cast("re.Match[str]", TERM_PATTERN.fullmatch(piece))
        yield _Piece(match, begin, last=begin + len(piece) == len(text))
        begin += len(piece) + 1


def parse(text: str) -> tuple[Term, ...]:
    """The terms, in order. Raises TargetSyntaxError."""
    terms: dict[Metric, Term] = {}
    for piece in _pieces(text):
        term = _term(piece)
        if term.metric in terms:
            piece.fail("metric", f"{term.metric} already has a limit: {terms[term.metric]}")
        terms[term.metric] = term
    return tuple(terms.values())


def canonical(text: str) -> str:
    """The target in the spelling of `Term`. Raises TargetSyntaxError."""
    return ",".join(map(str, parse(text)))


def parse_limits(text: str, metrics: Mapping[str, str]) -> tuple[Limit, ...]:
    """The limits on changes, in order. `metrics`: the metric that each name stands for. Raises
    TargetSyntaxError."""
    limits = []
    for piece in _pieces(text):
        metric, above = metrics[piece.metric(tuple(metrics))], piece.op(("<", ">")) == ">"
        share, limit_text = piece.number({"%": Decimal("0.01")}, "%"), piece.match.string.strip()
        if (share < 0) if above else (share > 0):
            piece.fail("number", f"{limit_text!r} would be exceeded without any change")
        piece.end()
        limits.append(Limit(metric, above, share, limit_text))
    return tuple(limits)


def _term(piece: _Piece) -> Term:
    metric, op = cast("Metric", piece.metric(METRICS)), cast("Op", piece.op(tuple(COMPARISONS)))
    kind = Term(metric, op, 0.0).kind
    if (op[0] == ">") != (kind == "rps"):
        piece.fail("op", DIRECTION_ERRORS[kind].format(metric))
    limit = piece.number(UNITS[kind], EXPECTED_UNITS[kind])
    if why := _why_invalid_limit(kind, limit):
        piece.fail("number", why)
    piece.end()
    return Term(metric, op, limit)


def _why_invalid_limit(kind: Kind, limit: float) -> str:
    """The reason why a target cannot have this limit; "" if it can."""
    if limit <= 0 and kind == "errors":
        return "no number of requests can show that none ever fails: allow a few, such as 0.1%"
    if limit <= 0:
        return "a limit must be above 0"
    if kind == "errors" and limit >= 1:
        percent = f": for {limit:g} of 100 requests, write {limit:g}%" if 1 <= limit < 100 else ""
        return f"errors must be less than 1 (all requests){percent}"
    limit_bound, why = MAX_LIMITS.get(kind, (1.0, ""))
    return why if limit > limit_bound else ""
