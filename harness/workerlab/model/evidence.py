"""The evidence of a trial: its record, the samples taken while it ran, and the output of its load
tool. Facts only, nothing derived; immutable, in seconds and bytes, as in `workerlab.model.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.finding import Finding, StoredFinding
from workerlab.model.plan import Arrivals

FaultKind = Literal[
    "interrupted",  # the user, or a signal, stopped the harness
    "unavailable",  # a package or program is missing, or the app cannot be imported: exit 3
    "server",  # the server, or one of its workers, failed or died under the load
    "tool",  # the load tool failed, hung, died or printed too much
    "answer",  # the app did not respond as expected
    "storage",  # the disk is full or a file could not be written
    "unmeasured",  # it depends on other cells, which were not measured
]


class Fault(Struct, frozen=True):
    """Why a trial is invalid, if that was found while it ran."""

    kind: FaultKind
    reason: str
    detail: str = ""  # of this trial: a file to read, a pid


class Record(Struct, frozen=True):
    """The facts of one trial; everything else is derived from them and the raw files. `_ns` fields
    are nanoseconds of CLOCK_MONOTONIC, the clock of the spans."""

    key: str
    fault: Fault | None
    lone_s: tuple[float, ...] = ()  # response times of lone requests, before the load
    load_start_ns: int | None = None
    load_end_ns: int | None = None
    start_s: float | None = None  # launch until the workers had loaded the app
    warmup_s: float | None = None  # lone request and warm-up
    stop_s: float | None = None
    planned_requests: int | None = None
    planned_duration_s: float | None = None
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    worker_pids: tuple[int, ...] = ()
    proof: Mapping[str, object] = {}  # effective configuration
    warnings: tuple[StoredFinding, ...] = ()
    tool_cpu_s: float | None = None  # user and system, of the load tool and children it reaped
    asked_rps: float | None = None  # open model: arrivals per second, even if planned as a share
    planned_connections: int | None = None  # maximum at the same time
    pilot_s: float | None = None  # of the earlier loads that determined the length of this one
    lone_end_ns: int | None = None  # after the lone requests
    lone_begun_ns: tuple[int, ...] = ()  # start of each of lone_s; failed requests are left out
    # Mix only (lone_s has its routes in rounds): weights of the requests in a round, with sum 1
    lone_weights: tuple[float, ...] = ()
    beside: tuple[str, ...] = ()  # keys of the trials that ran at the same time
    # Cores that the lab used when the trial ran in parallel; None: it was not repeated alone
    again_cores: float | None = None
    arrivals: Arrivals = "even"  # open model
    schedule: int = 0  # seed; `workerlab.numbers.schedule` computes the due times from it again

    @property
    def interrupted(self) -> bool:
        """Whether the lab was stopped during the trial, which is then repeated."""
        return self.fault is not None and self.fault.kind == "interrupted"

    @property
    def alone_s(self) -> tuple[float, ...]:
        """Response times of lone requests; of a mix, the weighted mean of each round."""
        count = len(self.lone_weights)
        if not count:
            return self.lone_s
        rounds = (self.lone_s[at : at + count] for at in range(0, len(self.lone_s), count))
        return tuple(
            sum(weight * took_s for weight, took_s in zip(self.lone_weights, round_s, strict=True))
            for round_s in rounds
        )


class SpanCost(Struct, frozen=True, gc=False):
    """The time of a request's thread while the request was in the app, in nanoseconds. `queued_ns`:
    ready to run, without a core. On a shared loop, `steps_ns`: wall-clock time of its steps,
    including `cpu_ns` and `queued_ns`; `held_up_ns`: estimated delay by other requests' steps.
    `route`: index in the mix. If the request has a thread of its own, `looks`: samples of the GIL;
    `held`: how many found it held; `slept`: how often the thread gave up its core."""

    cpu_ns: int
    queued_ns: int
    steps_ns: int | None = None
    held_up_ns: int = 0
    route: int | None = None
    looks: int = 0
    held: int = 0
    slept: int = 0


class Span(Struct, frozen=True, gc=False):
    """One request inside a worker. Nanoseconds, CLOCK_MONOTONIC."""

    pid: int
    start_ns: int
    end_ns: int | None  # None: it never ended
    accept_ns: int | None = None  # of its connection, which later requests share; None: not timed
    request_id: str | None = None  # given by the client, if its load tool numbers requests
    cost: SpanCost | None = None  # in a trial that measures it (`Cell.inside` "needs")


class Spans(Struct, frozen=True):
    """All spans of a trial."""

    spans: tuple[Span, ...]
    full: tuple[int, ...] = ()  # workers whose map was full


class Beat(Struct, frozen=True, gc=False):
    """A timer that fired on a worker's event loop. Nanoseconds; `at_ns` is CLOCK_MONOTONIC, the
    others cover the time since the previous beat. `cpu_ns` and `queued_ns` (run-queue time) are the
    loop thread's, `others_*` the sum of all other threads of its process."""

    pid: int
    at_ns: int
    length_ns: int
    late_ns: int  # after it was due
    cpu_ns: int
    queued_ns: int
    others_cpu_ns: int
    others_queued_ns: int


class Beats(Struct, frozen=True):
    """The recorded beats of a trial."""

    beats: tuple[Beat, ...] = ()
    cut: tuple[int, ...] = ()  # workers whose first beats were overwritten


class CodeLine(Struct, frozen=True, gc=False):
    """A source line that a worker's event loop was running in a sample. `called`: the name it
    calls, as in the source; `inside`: the running function, if it is another one. Both "" if
    unknown. `app`: whether the line is the app's; if not, the app was not on the stack, and the
    line is a library's."""

    number: int  # in its trial
    file: str  # relative to the app's directory, or to that of installed packages
    line: int
    function: str
    called: str = ""
    inside: str = ""
    app: bool = True


class StackSample(Struct, frozen=True, gc=False):
    """One sample of what an event loop runs. Nanoseconds; `at_ns` is CLOCK_MONOTONIC."""

    at_ns: int
    length_ns: int  # since the previous sample, like the next fields up to `others_ran_ns`
    waited_ns: int  # the sampler had no core
    ran_ns: int  # CPU of the loop's thread
    starved_ns: int  # the loop's thread was ready to run and had no core
    others_ran_ns: int  # CPU of all other threads
    late_ns: int  # after it was due: the sampler got no core, or no GIL
    overdue_ns: int  # of the loop's next beat
    since_ns: int  # since the loop's last beat, like the next fields up to `others_cpu_ns`
    cpu_ns: int  # of the loop's thread
    queued_ns: int  # the loop's thread was ready to run and had no core
    others_cpu_ns: int  # of all other threads
    stuck_ns: int  # how long samples have shown the same call of the app, without a beat
    sleeps: int  # 1: the loop's thread sleeps, 0: it runs or waits for a core
    number: int  # of the line; 0: none, the loop waits or runs its own code; 1: not stored
    other: int  # of the line of another thread that may hold the GIL; 0: none


class Stacks(Struct, frozen=True):
    """Stack samples of one worker's event loop, in order of time."""

    pid: int | None = None  # None: no loop was sampled
    samples: tuple[StackSample, ...] = ()
    lines: Mapping[int, CodeLine] = {}  # by number


class QueueSample(Struct, frozen=True):
    """The listening socket at one moment."""

    at_ns: int
    length: int  # connections waiting to be accepted
    limit: int | None  # the queue holds at most limit + 1; None: unknown


class ProcessSample(Struct, frozen=True):
    """CPU seconds that the processes have used since sampling began, and the memory they hold
    now."""

    at_ns: int
    server_cpu_s: float | None
    tool_cpu_s: float | None
    host_busy_s: float | None  # of all cores together
    server_rss_bytes: int | None
    tool_rss_bytes: int | None
    host_memory_bytes: int | None = None  # used on the whole machine, without caches
    host_irq_s: float | None = None  # part of host_busy_s: interrupts
    server_wait_s: float | None = None  # ready to run without a core, sum of all threads
    tool_wait_s: float | None = None
    host_steal_s: float | None = None  # part of host_busy_s: cores given to other machines
    lab_cpu_s: float | None = None  # of this process, which takes the samples
    beside_cpu_s: float | None = None  # of the lab's parallel trials; None: there were none
    network_bytes: Mapping[str, int] = {}  # "eth0 in", "eth0 out": all traffic since it came up


class ConnectionSample(Struct, frozen=True):
    """The server's TCP connections at one moment, both ends (load and server share the kernel)."""

    at_ns: int
    server: Mapping[str, int]  # sockets by state, as the kernel names it (SYN_RECV, ...)
    client: Mapping[str, int]
    per_worker: Mapping[int, int]  # connections accepted and not closed, by pid
    unread: int  # how many of these hold unread bytes of a request


class Counters(Struct, frozen=True):
    """Growth of the kernel's counters (TcpExt) during the load, in the whole network namespace;
    `socket_drops` covers this server's listening sockets alone. None: this kernel lacks the
    counter, or it also counts parallel trials."""

    listen_overflows: int | None = None
    listen_drops: int | None = None
    syn_retransmits: int | None = None
    syn_cookies: int | None = None  # TCPReqQFullDoCookies
    socket_drops: int | None = None  # sk_drops


class ServiceSample(Struct, frozen=True):
    """Resources of the app's services (storage, cache), by name: CPU seconds since sampling began,
    and memory. Only services that the lab started on this machine."""

    at_ns: int
    cpu_s: Mapping[str, float]
    rss_bytes: Mapping[str, int]


class WorkersSample(Struct, frozen=True):
    """CPU seconds that each worker has used since it started, by pid: all threads, including ended
    ones, and the child processes it has waited for."""

    at_ns: int
    cpu_s: Mapping[int, float]


class MemorySample(Struct, frozen=True):
    """Memory of the servers' processes, without the lab's own maps."""

    at_ns: int
    pss_bytes: int  # of all processes; shared pages are counted once
    private_bytes: Mapping[int, int]  # of each worker, by pid: pages that are not shared


class AppMetricsSample(Struct, frozen=True):
    """Metrics that the app publishes, summed over all workers since they started;
    `observe/app_metrics.py` defines the names."""

    at_ns: int
    totals: Mapping[str, int]


class Pause(Struct, frozen=True):
    """An interval in which the lab did not run although it did not wait for a core: the machine was
    paused, or the lab was stopped. `from_ns` is when a sleeping thread was due, so the pause may
    have begun up to one sleep earlier (0.1 s in the observer)."""

    from_ns: int
    to_ns: int


class Observations(Struct, frozen=True):
    """Samples taken from outside the server during the load. Times: CLOCK_MONOTONIC nanoseconds.

    `missing`: the samplers (queue, processes, connections, counters, services, app_metrics,
    workers, memory, pauses) that failed or have no samples, and why. Earlier samples of a
    failed sampler are kept, but must not be summed up.
    """

    queue: tuple[QueueSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    connections: tuple[ConnectionSample, ...] = ()
    counters: Counters | None = None
    services: tuple[ServiceSample, ...] = ()
    app_metrics: tuple[AppMetricsSample, ...] = ()
    workers: tuple[WorkersSample, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    pauses: tuple[Pause, ...] = ()
    cores: int | None = None
    syn_steps_s: tuple[float, ...] = ()  # times after a SYN at which this kernel repeats it
    missing: Mapping[str, str] = {}


class Command(Struct, frozen=True):
    """How to run a load tool: its arguments, and files to write to its directory first."""

    argv: tuple[str, ...]
    files: Mapping[str, str] = {}


class Output(Struct, frozen=True):
    """Everything that a load tool produced. A negative exit code: ended by that signal."""

    stdout: str
    stderr: str = ""
    exit_code: int | None = 0
    files: Mapping[str, str] = {}


class Summary(Struct, frozen=True):
    """A distribution in seconds. Any field may be unknown."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p90: float | None = None  # last, for callers that pass values by position


class Timing(Struct, frozen=True, gc=False):
    """One request as timed by the client, in seconds. `start_s` is since the tool's own start, the
    others are since `start_s`; None: never reached."""

    start_s: float
    connect_s: float | None
    first_byte_s: float | None
    end_s: float | None
    status: int | None
    cause: str | None  # of the failure; None: a success
    request_id: str | None = None
    reused: bool = False  # on an existing connection; `connect_s` is then 0
    route: int | None = None  # of a mix: index in Load.mix


class RouteResult(Struct, frozen=True):
    """Results of the requests of one route of a mix."""

    requests: int  # complete responses with any status
    failed: int
    errors: Mapping[str, int] = {}  # by cause
    response: Summary = Summary()  # of successes
    statuses: Mapping[str, int] = {}  # of responses with an unexpected status
    answer: str = ""  # beginning of the visible text of the first of these


class AbTimes(Struct, frozen=True):
    """A row of ApacheBench's table of connection times, seconds."""

    min: float | None = None
    mean: float | None = None
    sd: float | None = None
    median: float | None = None
    max: float | None = None


class AbReport(Struct, frozen=True):
    """The figures that ApacheBench prints. Both times per request and the rate are None if the run
    took no time; `time_per_request_across_s` is its "(mean, across all concurrent requests)"."""

    concurrency: int
    requests: int
    time_taken_s: float
    time_per_request_s: float | None
    time_per_request_across_s: float | None
    transfer_rate_bytes_per_s: float | None
    total_transferred_bytes: int
    html_transferred_bytes: int
    times: Mapping[str, AbTimes]  # of connect, processing, waiting, total


class Measurement(Struct, frozen=True):
    """The figures in the output of a load tool, with nothing derived. Causes of `errors`: non_2xx,
    timeout, reset, refused, connect, read, write, length, exception, ..."""

    requests: int  # complete responses with any status
    failed: int  # requests that did not succeed
    errors: Mapping[str, int]  # by cause
    duration_s: float
    rps: float | None
    response: Summary
    connect: Summary = Summary()
    first_byte: Summary = Summary()
    lone_s: float | None = None  # response time of the tool's own lone first request
    timings: tuple[Timing, ...] = ()  # of every request, if the tool reports each (fast)
    origin_ns: int | None = None  # zero of the timings in CLOCK_MONOTONIC, if the tool reports it
    responses_s: tuple[float, ...] = ()  # every response time, unordered, if there are no `timings`
    connects_s: tuple[float, ...] = ()  # every connection's time to connect, unordered
    # Percentiles of the response time (0 to 100), if there are no `timings` and `responses_s`
    percentiles_s: Mapping[float, float] = {}
    achieved_concurrency: float | None = None  # mean of requests in flight, as the tool reports it
    connections: int | None = None  # opened by the tool
    asked_rps: float | None = None  # open model: requested arrivals per second
    sent: int | None = None
    unsent: int | None = None  # open model: due during the load and never sent
    lag: Summary = Summary()  # open model: how late requests were sent; part of `response`
    cpu_s: float | None = None  # of the tool, as it reports it
    exact_mean: bool = True  # False: synthetic samples (wrk), useless for Little's law
    body_sha256: str | None = None  # of the body of all complete responses, if they are compared
    received_bytes: int | None = None  # headers and bodies
    # Time per request in socket calls (connect, send, receive), until gevent resumes the user
    calls_s: Mapping[str, float] = {}
    # End (CLOCK_MONOTONIC) and duration of each response, if there are no `timings`
    answers_ns: tuple[tuple[int, int], ...] = ()
    notes: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = {}  # specific to the tool
    routes: Mapping[str, RouteResult] = {}  # of a mix, by label
    ab: AbReport | None = None  # None: another tool


class NullCounts(Struct, frozen=True):
    """The counts of a null server."""

    requests: int
    answers: int
    connections: int
    most_connections: int  # at the same time
    cpu_s: float  # of the whole process
    delays_s: float  # sum of its delays
    service: Summary  # of `answers`: from reading a request to sending its response, with the delay
