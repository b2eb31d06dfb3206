"""One trial by itself: the data read from its run, and the facts derived from them alone.

Every derived value is computed once: simple ones are cached properties of Facts, and `once` caches
in the Facts the values that other modules derive.

For the client (`Outcome`), a request is answered, answered wrongly, or never answered. A cause in
ANSWERED means that the client received an unexpected response. Any other cause (timeout, reset,
refused, connect, ...) means that it received none, and it is unknown whether the request reached
the app.

The exception is dropped handshakes: if the kernel dropped some, a request without a span was never
accepted, and that becomes its cause. ab counts a connection that closes without a byte as complete,
so its responses in excess of the spans are requests that were never accepted. If the load tool
sends request ids, they show which requests these are.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from workerlab.analysis.samples import (
    NS,
    Intervals,
    Window,
    by_worker,
    durations_s,
    steady_window,
    usage,
)
from workerlab.finding import Finding, Note
from workerlab.model.evidence import (
    Beats,
    Counters,
    FaultKind,
    Measurement,
    NullCounts,
    Observations,
    Record,
    Span,
    Spans,
    Stacks,
    Summary,
    Timing,
)
from workerlab.model.plan import UNKNOWN_CLASS, Cell, Trial, WorkerClass
from workerlab.model.result import Usage
from workerlab.numbers.samples import summarise

T = TypeVar("T")

UNEXPECTED = "unexpected_2xx"
ANSWERED = frozenset({"non_2xx", "status", "length", "body", "wrong_status", UNEXPECTED})
NEVER_ACCEPTED = "never_accepted"


class Outcome(Struct, frozen=True):
    """Requests counted by the client. The report shows `failed` and `errors`."""

    answered: int  # with any status
    wrong: int  # answered, but not as expected
    unanswered: int
    failed: int
    errors: Mapping[str, int]

    @property
    def successes(self) -> int:
        return self.answered - self.wrong

    @property
    def never_accepted(self) -> int:
        return self.errors.get(NEVER_ACCEPTED, 0)

    @property
    def success_share(self) -> float:
        """The share of responses that were the expected ones; 0 without responses."""
        return self.successes / self.answered if self.answered else 0.0


class TrialData(Struct, dict=True, frozen=True):
    """A trial as read from its run. Only `facts` is derived, on first access."""

    trial: Trial
    record: Record | None  # None: the trial did not run to its end
    measurement: Measurement | None  # None: no output, or it could not be read
    parse_error: str | None  # why the output could not be read
    spans: Spans
    app: str
    sleep_s: float | None
    lone_first: bool  # the load tool sends its first request alone (ab)
    fixed_count: bool  # the load is a fixed number of requests; False: a fixed duration
    can_trace: bool = False  # the load tool can time every request and send an id with it
    expect_status: int = 200
    good_statuses: range | None = None  # statuses that the load tool always counts as good
    worker_class: WorkerClass = UNKNOWN_CLASS
    observations: Observations = field(default_factory=Observations)
    ramp_s: float = 0.0  # time over which the connections start, one by one
    tool_units: int = 1  # threads or processes of the load tool, and so the most cores it can use
    faster_tools: tuple[str, ...] = ()  # load tools that reach a higher throughput
    remote_load: bool = False  # the load comes from other hosts, whose CPU is not measured
    body_sha256: str | None = None  # of the only correct response, if known beforehand
    beats: Beats = Beats()
    stacks: Stacks = Stacks()
    null: NullCounts | None = None  # the null server's counts, if it was the server

    @property
    def cell(self) -> Cell:
        return self.trial.cell

    @property
    def slots_configured(self) -> int | None:
        """The slots that the settings allow; None: unlimited, or unknown for the worker class."""
        return self.worker_class.slots_of(self.cell.server)

    @cached_property
    def facts(self) -> "Facts | Finding":
        """The facts of a finished trial, or the reason why there are none."""
        record, measurement = self.record, self.measurement
        if record is None:
            return Note("the trial did not run to its end")
        if record.fault is not None:
            return TrialFault(record.fault.kind, record.fault.reason, record.fault.detail or None)
        if record.load_start_ns is None or record.load_end_ns is None:
            return Note("the load was never started")
        if self.parse_error is not None:
            return Note(f"the load tool's output cannot be read: {self.parse_error}")
        if measurement is None:
            return Note(f"{self.cell.tool} wrote no output")
        return Facts(self, record, measurement, record.load_start_ns, record.load_end_ns)


class Facts(Struct, dict=True, frozen=True, eq=False):
    """A trial whose output could be read; `checks` decides whether it is valid."""

    data: TrialData
    record: Record
    measurement: Measurement
    started_ns: int  # start of the load
    ended_ns: int
    derived: dict[object, Any] = {}  # the cache of `once`

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
    def worker_class(self) -> WorkerClass:
        return self.data.worker_class

    @property
    def open_model(self) -> bool:
        return self.cell.rate is not None

    @property
    def slots(self) -> int | None:
        return self.data.slots_configured

    @property
    def slots_per_worker(self) -> int | None:
        return self.worker_class.slots_per_worker(self.cell.server)

    @property
    def workers(self) -> int:
        """Workers of all server instances."""
        return self.cell.server.workers * self.cell.server.instances

    @property
    def cores(self) -> int | None:
        """Cores that the workers may use; None: unknown."""
        return self.cell.server.cores or self.observations.cores

    @property
    def workers_busy(self) -> float:
        """CPU use of the workers as a share of the cores that they can use, one each; 0 if
        unknown."""
        return (self.usage.server_cores or 0.0) / min(self.workers, self.cores or self.workers)

    @property
    def limit_note(self) -> str | None:
        """The text printed instead of the number of slots; None if the number is known."""
        if self.slots is not None:
            return None
        return "no limit configured" if self.worker_class.slots_known else "limit not known"

    @property
    def max_parallel(self) -> int:
        """Requests that can be served at once: min(N, slots)."""
        return self.connections if self.slots is None else min(self.connections, self.slots)

    @property
    def load_s(self) -> float:
        return (self.ended_ns - self.started_ns) / NS

    @property
    def connections(self) -> int:
        """Connections kept busy; in the open model, the maximum, which is not in the plan because
        it depends on the response time of a lone request."""
        return (self.open_model and self.record.planned_connections) or self.cell.concurrency

    @property
    def asked_rps(self) -> float:
        """Arrivals per second; 0 in a closed loop."""
        return self.record.asked_rps or self.measurement.asked_rps or 0.0

    @cached_property
    def observations(self) -> Observations:
        """The observations without those of failed samplers, whose sums would be wrong."""
        recorded, empty = self.data.observations, Observations()
        failed = (name for name in recorded.missing if hasattr(empty, name))
        return replace(recorded, **{name: getattr(empty, name) for name in failed})

    @cached_property
    def counters(self) -> Counters:
        """Kernel counters. If trials ran side by side, only the server's own: counters of the
        network namespace cannot be attributed to one trial."""
        counters = self.observations.counters or Counters()
        return Counters(socket_drops=counters.socket_drops) if self.record.beside else counters

    @property
    def dropped_handshakes(self) -> int | None:
        """Handshakes dropped during the load: by this server's sockets or, if the kernel does not
        report these, by full accept queues of the network namespace. None: unknown."""
        own = self.counters.socket_drops
        return self.counters.listen_overflows if own is None else own

    @property
    def overflowed(self) -> bool:
        return (self.dropped_handshakes or 0) > 0

    @cached_property
    def accept_queue(self) -> tuple[int | None, int | None]:
        """The longest observed length and the last limit; None: not observed."""
        queue = self.observations.queue
        longest = max((sample.length for sample in queue), default=None)
        return longest, queue[-1].limit if queue else None

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Spans that start during the load, by start, without readiness check and warm-up. They
        include ab's lone first request, because the tool's response times include it."""
        from_ns, until_ns = self.started_ns, self.ended_ns
        inside = [span for span in self.data.spans.spans if from_ns <= span.start_ns <= until_ns]
        return tuple(sorted(inside, key=attrgetter("start_ns", "pid")))

    @cached_property
    def under_load(self) -> tuple[Span, ...]:
        """The spans without the lone first request."""
        return self.spans[1:] if self.data.lone_first else self.spans

    @cached_property
    def finished(self) -> tuple[Span, ...]:
        """Spans that ended; in a load of fixed duration, only those that ended before the tool."""
        until_ns = sys.maxsize if self.data.fixed_count else self.ended_ns
        return tuple(
            span for span in self.spans if span.end_ns is not None and span.end_ns <= until_ns
        )

    @cached_property
    def success_spans(self) -> Sequence[Span] | None:
        """The spans of successes, by start; None if it is unknown which spans these are."""
        if not self.outcome.failed:
            return self.finished
        timings = self.measurement.timings
        successes = {timing.request_id for timing in timings if timing.cause is None} - {None}
        if not successes or any(span.request_id is None for span in self.finished):
            return None
        return tuple(span for span in self.finished if span.request_id in successes)

    @cached_property
    def outcome(self) -> Outcome:
        """The client's counts, corrected for dropped handshakes."""
        by_client = outcome(self.measurement, self.data.expect_status, self.data.good_statuses)
        if self.data.fixed_count and self.overflowed:
            return outcome_with_drops(self, by_client)
        return by_client

    def timed_requests(self) -> Iterator[tuple[Timing, int, int | None]]:
        """The requests that the client timed, each with the nanoseconds on the workers' clock at
        which it was sent and answered (None: never)."""
        origin_ns = self.measurement.origin_ns
        if origin_ns is None:
            return
        for timing in self.measurement.timings:
            sent_ns = origin_ns + round(timing.start_s * NS)
            end_s = timing.end_s
            yield timing, sent_ns, None if end_s is None else sent_ns + round(end_s * NS)

    @property
    def planned_stop_ns(self) -> int | None:
        """When a load of fixed duration stops sending; None: unknown."""
        planned_s, origin_ns = self.record.planned_duration_s, self.measurement.origin_ns
        if planned_s is None or origin_ns is None:
            return None
        return origin_ns + round(planned_s * NS)

    @cached_property
    def steady(self) -> Window | Finding:
        """The steady window, or the reason why there is none. A tool that stops sending after a
        fixed duration keeps fewer connections busy while it waits for its last responses."""
        stopped_ns = min(self.ended_ns, self.planned_stop_ns or self.ended_ns)
        return steady_window(
            self.under_load,
            self.connections,
            stopped_ns=None if self.data.fixed_count else stopped_ns,
            begun_ns=self.started_ns + round(self.data.ramp_s * NS),
            tail_ns=self.tail_ns,
        )

    @cached_property
    def tail_ns(self) -> int | None:
        """The length at the end of each span that counts (`samples`): at a rate, the length of the
        shortest span. None: the whole span counts."""
        if not self.open_model:
            return None
        lengths = [span.end_ns - span.start_ns for span in self.finished if span.end_ns is not None]
        return min(lengths, default=0)

    @property
    def steady_part(self) -> Window:
        """The steady window of a valid trial; a trial without one is invalid."""
        assert isinstance(self.steady, Window)
        return self.steady

    @property
    def window(self) -> Window | None:
        return self.steady if isinstance(self.steady, Window) else None

    @property
    def rps(self) -> float:
        """Completions per second in the steady window, of any status; 0 without a window."""
        return self.window.rps if self.window else 0.0

    @property
    def throughput_rps(self) -> float:
        """Successful responses per second in the steady window."""
        return self.rps * self.outcome.success_share

    @cached_property
    def service(self) -> Summary:
        """Times in the app, in seconds."""
        return Summary(*summarise(durations_s(self.finished)))

    @cached_property
    def max_in_app(self) -> int:
        """The most requests in the app at once, limited to the number of connections: a response
        reaches the client before its span ends, so the next request may overlap in another
        worker."""
        return min(_max_open(self.spans), self.connections)

    @cached_property
    def spans_by_worker(self) -> Mapping[int, Sequence[Span]]:
        """Spans by pid, those of each worker by start; workers without requests are missing."""
        return by_worker(self.spans)

    @cached_property
    def served_two_at_once(self) -> bool:
        """Whether any worker ever had two requests in the app at once."""
        return any(_max_open(spans) > 1 for spans in self.spans_by_worker.values())

    @cached_property
    def requests_per_worker(self) -> Mapping[int, int]:
        """Requests by pid; 0 for a worker without requests."""
        pids = dict.fromkeys(sorted(self.record.worker_pids), 0)
        return pids | Counter(map(attrgetter("pid"), self.spans))

    @cached_property
    def accepts(self) -> tuple[int, int]:
        """The number of timed accepts, and of requests on the accepted connections."""
        timed = [(span.pid, span.accept_ns) for span in self.spans if span.accept_ns is not None]
        return len(set(timed)), len(timed)

    @cached_property
    def usage(self) -> Usage:
        received, length_s = self.measurement.received_bytes, self.measurement.duration_s
        bytes_per_s = None if received is None or not length_s else received / length_s
        calls_s = {f"{name}_calls_s": s for name, s in self.measurement.calls_s.items()}
        sampled = usage(self.observations, self.record, self.load_s)
        return replace(sampled, received_bytes_per_s=bytes_per_s, **calls_s)


def _max_open(spans: Iterable[Span]) -> int:
    """The most spans open at once; a span that never ended stays open."""
    return Intervals.of(spans, until_ns=sys.maxsize).max_open()


def once(derive: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """Decorator: calls `derive` once for each Facts and caches the result in them."""

    @functools.wraps(derive)
    def cached(facts: Facts) -> T:
        if derive not in facts.derived:
            facts.derived[derive] = derive(facts)
        return cast("T", facts.derived[derive])

    return cached


class TrialFault(Finding):
    """{reason}[[; {detail}]]"""

    kind: FaultKind
    reason: str
    detail: str | None


def why_unusable(data: TrialData) -> Finding | None:
    """The reason why a trial has no facts; None if it has facts."""
    return data.facts if isinstance(data.facts, Finding) else None


# --- outcome --------------------------------------------------------------------------------------


def outcome(
    measurement: Measurement, expect_status: int, good_statuses: range | None = None
) -> Outcome:
    """The load tool's counts, corrected for the expected status. `good_statuses`: those that the
    tool always counts as good (ab: 2xx; wrk: below 400); None: it checks for the expected status.
    If the expected status is not a good one (404, say), the tool counts expected responses as
    failures and unexpected ones (200) as successes: these are swapped."""
    errors = {cause: count for cause, count in measurement.errors.items() if count}
    failed = measurement.failed
    if good_statuses is not None and expect_status not in good_statuses:
        expected = min(errors.pop("non_2xx", 0), measurement.requests)
        failed = max(0, failed - expected) + measurement.requests - expected
        if measurement.requests > expected:
            errors[UNEXPECTED] = measurement.requests - expected
    wrong = sum(count for cause, count in errors.items() if cause in ANSWERED)
    unanswered = sum(errors.values()) - wrong
    return Outcome(
        measurement.requests, min(wrong, measurement.requests), unanswered, failed, errors
    )


def outcome_with_drops(facts: Facts, client_outcome: Outcome) -> Outcome:
    """The outcome if the kernel dropped handshakes: a request without a span is neither a response
    nor a contradiction, and is counted once."""
    if facts.measurement.timings:
        return _outcome_by_request_id(facts, client_outcome)
    unseen = max(0, client_outcome.answered - len(facts.spans))
    if not unseen:
        return client_outcome
    # ab counts a reset after which it continues three times: Receive, Exception, complete request
    errors = Counter(client_outcome.errors)
    read_errors = min(unseen, errors["read"])
    exceptions = min(read_errors, errors["exception"])
    # The server itself sends error responses when it kills a worker that waits for a request
    by_server = min(unseen - read_errors, errors["non_2xx"])
    never_accepted = unseen - by_server
    errors -= Counter(read=read_errors, exception=exceptions)
    errors += Counter({NEVER_ACCEPTED: never_accepted})
    wrong = max(0, client_outcome.wrong - by_server)
    return replace(
        client_outcome,
        answered=client_outcome.answered - unseen,
        wrong=wrong,
        unanswered=errors.total() - wrong,
        failed=client_outcome.failed + never_accepted - read_errors,
        errors=dict(errors),
    )


def _outcome_by_request_id(facts: Facts, client_outcome: Outcome) -> Outcome:
    """The outcome with NEVER_ACCEPTED as the cause of failed requests whose id is in no span;
    `failed` includes them."""
    span_ids = {span.request_id for span in facts.spans}
    unseen = Counter(
        timing.cause
        for timing in facts.measurement.timings
        if timing.cause is not None and timing.end_s is None
        if timing.request_id is not None and timing.request_id not in span_ids
    )
    if not unseen:
        return client_outcome
    accepted = dict(Counter(client_outcome.errors) - unseen)
    return replace(client_outcome, errors=accepted | {NEVER_ACCEPTED: unseen.total()})
