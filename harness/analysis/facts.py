"""One trial by itself: what was read of it, and everything that follows without another trial.

Whatever is derived is derived once, however many ask for it: the plain facts are cached properties
of Facts, what other modules derive from them is kept with them by `once`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

from harness.analysis import spans as spanning
from harness.analysis.outcomes import Outcome, excused, outcome
from harness.analysis.samples import overflowed, usage
from harness.analysis.window import Window, steady_window
from harness.model import (
    ANY_CLASS,
    Cell,
    Finding,
    Measurement,
    NullCounts,
    Observations,
    Record,
    Span,
    Spans,
    Summary,
    Trial,
    Usage,
    WorkerClass,
)

T = TypeVar("T")


@dataclass(frozen=True)
class TrialData:
    """One trial, as read from its run. Nothing in here is derived.

    `record` None: the trial has not been run to its end. `measurement` None: the tool's output
    could not be read, and `parse_error` says why, or there was none.
    """

    trial: Trial
    record: Record | None
    measurement: Measurement | None
    parse_error: str | None
    spans: Spans
    app: str
    sleep_s: float | None
    lone_first: bool  # the first request is sent alone (ab)
    counted: bool  # the load is a number of requests; False: for a time
    expect_status: int = 200
    worker_class: WorkerClass = ANY_CLASS
    observations: Observations = field(default_factory=Observations)
    ramp_s: float = 0.0  # the connections begin one after the other over this time
    units: int = 1  # cores that the load tool can keep busy at most: its threads or processes
    elsewhere: bool = False  # the load comes from other hosts, whose CPU nobody sees here
    body_sha256: str | None = None  # of the only right answer, where it is known beforehand
    null: NullCounts | None = None  # what the null server counted, where there is one

    @property
    def cell(self) -> Cell:
        return self.trial.cell

    @property
    def slots_configured(self) -> int | None:
        """None: unlimited, or not known to its class."""
        return self.worker_class.slots_of(self.cell.server)


@dataclass(frozen=True, eq=False)
class Facts:
    """A trial whose output could be read; whether it is valid is for `checks` to say."""

    data: TrialData
    record: Record
    measurement: Measurement
    started_ns: int  # of the load
    ended_ns: int
    derived: dict[str, Any] = field(default_factory=dict, repr=False)  # by `once`

    @property
    def cell(self) -> Cell:
        return self.data.cell

    @property
    def key(self) -> str:
        return self.data.trial.key

    @property
    def tool(self) -> str:
        return self.cell.tool

    @property
    def open_model(self) -> bool:
        return self.cell.rate is not None

    @property
    def slots(self) -> int | None:
        return self.data.slots_configured

    @property
    def load_s(self) -> float:
        return (self.ended_ns - self.started_ns) / spanning.NS

    @property
    def connections(self) -> int:
        """Kept busy; of the open model the most at once, which the plan does not know: they follow
        from what a lone request costs."""
        planned = self.record.planned_connections if self.open_model else None
        return planned or self.cell.concurrency

    @property
    def asked_rps(self) -> float:
        """Arrivals per second; 0 in a closed loop."""
        return self.record.asked_rps or self.measurement.asked_rps or 0.0

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Of the load, by start."""
        return spanning.of_load(self.data.spans, self.record)

    @cached_property
    def finished(self) -> tuple[Span, ...]:
        """What was answered while the tool listened."""
        return spanning.ended(self.spans, None if self.data.counted else self.ended_ns)

    @cached_property
    def outcome(self) -> Outcome:
        found = outcome(self.measurement, self.data.expect_status)
        if self.data.counted and overflowed(self.data.observations):
            return excused(found, self.measurement, self.spans)
        return found

    @cached_property
    def steady(self) -> Window | Finding:
        """Or why there is no steady part."""
        return steady_window(
            self.spans,
            self.connections,
            lone_first=self.data.lone_first,
            stopped_ns=self._stopped_ns,
            begun_ns=self.started_ns + round(self.data.ramp_s * spanning.NS),
        )

    @property
    def _stopped_ns(self) -> int | None:
        """When a load that runs for a time sends nothing more; None for a counted one.

        A tool that waits for its last answers keeps fewer and fewer connections busy from then on.
        """
        planned_s, origin_ns = self.record.planned_duration_s, self.measurement.origin_ns
        if self.data.counted:
            return None
        if planned_s is None or origin_ns is None:
            return self.ended_ns
        return min(self.ended_ns, origin_ns + round(planned_s * spanning.NS))

    @property
    def window(self) -> Window | None:
        return self.steady if isinstance(self.steady, Window) else None

    @property
    def rps(self) -> float:
        """Completions per second in the steady part, whatever their status; 0 where there is no
        such part."""
        return self.window.rps if self.window else 0.0

    @property
    def throughput_rps(self) -> float:
        """Successful responses per second in the steady part."""
        return self.rps * self.outcome.success

    @cached_property
    def service(self) -> Summary:
        return spanning.service(self.finished)

    @cached_property
    def open_at_once(self) -> int:
        """An answer reaches the client before its span is closed, and the client's next request may
        start in between on another worker: more than it has connections is that overlap."""
        return min(spanning.most_open(self.spans), self.connections)

    @cached_property
    def per_worker(self) -> Mapping[int, int]:
        """Requests by pid."""
        return spanning.per_worker(self.spans, self.record.worker_pids)

    @cached_property
    def accepts(self) -> tuple[int, int]:
        """How many accepts were timed, and how many requests came on them."""
        timed = [(span.pid, span.accept_ns) for span in self.spans if span.accept_ns is not None]
        return len(set(timed)), len(timed)

    @cached_property
    def usage(self) -> Usage:
        return usage(self.data.observations, self.record, self.load_s)


def once(derive: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """A function of a trial's facts whose result is kept with them."""
    name = f"{derive.__module__}.{derive.__qualname__}"

    @functools.wraps(derive)
    def kept(facts: Facts) -> T:
        if name not in facts.derived:
            facts.derived[name] = derive(facts)
        return cast("T", facts.derived[name])

    return kept


def unusable(data: TrialData) -> Finding | None:
    """Why there is nothing to look at in a finished trial."""
    found = facts_of(data)
    return found if isinstance(found, Finding) else None


def facts_of(data: TrialData) -> Facts | Finding:
    """The facts of a finished trial, or why there are none."""
    record, measurement = data.record, data.measurement
    if record is None:
        return Finding("check.not_finished")
    if record.fault is not None:
        return Finding(f"fault.{record.fault.kind}", {"reason": record.fault.reason})
    if record.load_start_ns is None or record.load_end_ns is None:
        return Finding("check.not_started")
    if data.parse_error is not None:
        return Finding("check.unreadable", {"why": data.parse_error})
    if measurement is None:
        return Finding("check.no_output", {"tool": data.cell.tool})
    return Facts(data, record, measurement, record.load_start_ns, record.load_end_ns)
