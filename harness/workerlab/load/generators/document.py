"""The counts and times of a generator, and the document (`format.py`) that it prints at the end."""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workerlab.load.generators.format import (
    FORMAT,
    WRONG_RESPONSE_CAUSES,
    GeneratorDocument,
    RequestedLoad,
    RouteTotals,
)
from workerlab.load.generators.options import LoadOptions
from workerlab.numbers.histogram import Histogram

MAX_KEPT_BODY_BYTES = 8_192  # of an unexpected response; error pages begin with a style sheet
HISTOGRAM_FIELDS = ("response", "connect", "first_byte", "lag")
COUNT_FIELDS = ("sent", "complete", "connections", "reconnects", "in_flight_ns")


@dataclass
class RouteTally:
    """The results of one route of a mix."""

    sent: int = 0
    complete: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    body: bytes | None = None  # the beginning of the first response with an unexpected status
    response: Histogram = field(default_factory=Histogram)
    uncounted_ns: list[int] = field(default_factory=list)  # response times not yet in `response`

    def add_response(
        self, took_ns: int, cause: str | None = None, status: int | None = None, body: bytes = b""
    ) -> None:
        """Count a response that was read to the end. `cause`: None for a success."""
        self.complete += 1
        if cause is None:
            self.uncounted_ns.append(took_ns)
            return
        self.errors[cause] += 1
        self.statuses[status or 0] += 1
        self.body = body if self.body is None else self.body

    def count_response_times(self) -> None:
        self.response.record_all(self.uncounted_ns)
        self.uncounted_ns.clear()

    def add(self, other: RouteTally) -> None:
        self.sent += other.sent
        self.complete += other.complete
        self.errors.update(other.errors)
        self.statuses.update(other.statuses)
        self.response.add(other.response)
        self.body = other.body if self.body is None else self.body

    def totals(self) -> RouteTotals:
        self.count_response_times()
        return RouteTotals(
            sent=self.sent,
            complete=self.complete,
            errors=dict(sorted(self.errors.items())),
            statuses={str(status): n for status, n in sorted(self.statuses.items())},
            body=(self.body or b"").decode(errors="replace"),
            response=self.response,
        )


@dataclass
class Tally:
    """The results of a generator so far, from all its processes."""

    sent: int = 0
    unsent: int = 0
    complete: int = 0
    connections: int = 0
    reconnects: int = 0
    body_sha256: str | None = None  # of the first body, if the others are compared with it
    in_flight_ns: int = 0
    origin_ns: int | None = None  # CLOCK_MONOTONIC
    last_ns: int | None = None
    lone_ns: int | None = None
    deadline_struck: bool = False
    errors: Counter[str] = field(default_factory=Counter)
    response: Histogram = field(default_factory=Histogram)
    connect: Histogram = field(default_factory=Histogram)
    first_byte: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
    notes: list[str] = field(default_factory=list)
    routes: dict[str, RouteTally] = field(default_factory=dict)  # of a mix, by label

    def begin_request(self, now_ns: int) -> None:
        """Count a request that is sent now."""
        self.sent += 1
        if self.origin_ns is None:
            self.origin_ns = now_ns

    def add_connection(self, took_ns: int) -> None:
        self.connections += 1
        self.connect.record(took_ns)

    def add_response(
        self, *, start_ns: int, first_byte_ns: int, end_ns: int, cause: str | None
    ) -> None:
        """Count a response that was read to the end. Times are absolute. `cause`: one of
        WRONG_RESPONSE_CAUSES, or None for a success."""
        self.complete += 1
        self.response.record(end_ns - start_ns)
        self.first_byte.record(first_byte_ns - start_ns)
        self.end_request(cause, start_ns, end_ns)

    def end_request(self, cause: str | None, start_ns: int, end_ns: int) -> None:
        """Record the end of a request (`add_response` calls this). `cause`: None for a success."""
        self.in_flight_ns += end_ns - start_ns
        self.last_ns = end_ns if self.last_ns is None else max(self.last_ns, end_ns)
        if cause is not None:
            self.errors[cause] += 1

    def note_exception(self, error: BaseException) -> None:
        """Note a library's exception that has no named cause. Only the first is kept."""
        self.notes = self.notes or [f"an exception: {error!r}"[:300]]

    def add(self, other: Tally) -> None:
        """Add the tally of a concurrent process. If its first body differs from this one's, all
        successes of the other process count as "body" failures."""
        if self.body_sha256 is None:
            self.body_sha256 = other.body_sha256
        elif other.body_sha256 not in (None, self.body_sha256):
            failures = sum(other.errors[cause] for cause in WRONG_RESPONSE_CAUSES)
            self.errors["body"] += other.complete - failures
        for name in (*COUNT_FIELDS, "unsent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in HISTOGRAM_FIELDS:
            getattr(self, name).add(getattr(other, name))
        self.errors.update(other.errors)
        for label, route in other.routes.items():
            route.count_response_times()
            self.routes.setdefault(label, RouteTally()).add(route)
        self.notes += [note for note in other.notes if note not in self.notes]
        self.deadline_struck = self.deadline_struck or other.deadline_struck
        self.lone_ns = other.lone_ns if self.lone_ns is None else self.lone_ns
        for name, choose in (("origin_ns", min), ("last_ns", max)):
            ends_ns = [ns for tally in (self, other) if (ns := getattr(tally, name)) is not None]
            setattr(self, name, choose(ends_ns, default=None))


def document(name: str, options: LoadOptions, tally: Tally) -> GeneratorDocument:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    origin_ns = time.monotonic_ns() if tally.origin_ns is None else tally.origin_ns
    last_ns = origin_ns if tally.last_ns is None else tally.last_ns
    planned_requests = tally.sent + tally.unsent if options.requests is None else options.requests
    return GeneratorDocument(
        generator=name,
        format=FORMAT,
        load=_requested_load(options),
        sent=tally.sent,
        complete=tally.complete,
        connections=tally.connections,
        reconnects=tally.reconnects,
        in_flight_ns=tally.in_flight_ns,
        unsent=planned_requests - tally.sent,
        failed=tally.errors.total(),
        errors=dict(sorted(tally.errors.items())),
        origin_ns=origin_ns,
        duration_ns=last_ns - origin_ns,
        cpu_ns=int(sum(usage.ru_utime + usage.ru_stime for usage in usages) * 1e9),
        deadline_struck=tally.deadline_struck,
        response=tally.response,
        connect=tally.connect,
        first_byte=tally.first_byte,
        lag=tally.lag,
        lone_ns=tally.lone_ns,
        notes=tally.notes,
        body_sha256=None if tally.errors["body"] else tally.body_sha256,
        routes={label: route.totals() for label, route in tally.routes.items()},
    )


def _requested_load(options: LoadOptions) -> RequestedLoad:
    return RequestedLoad(
        concurrency=options.concurrency,
        processes=options.processes,
        requests=options.requests,
        duration_s=options.duration_s,
        rate_rps=options.rate_rps,
        keepalive=options.keepalive,
        arrivals=options.arrivals,
        seed=options.seed,
        rows=options.rows is not None,
    )


def text_of(document: GeneratorDocument) -> str:
    """The document as one line of JSON, without a newline."""
    return json.dumps(document, default=_fields_of)


def _fields_of(part: GeneratorDocument | RequestedLoad | RouteTotals | Histogram) -> dict[str, Any]:
    return part.to_json() if isinstance(part, Histogram) else vars(part)
