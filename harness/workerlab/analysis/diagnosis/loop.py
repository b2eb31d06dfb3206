"""Blocked event loops, found by the beats of the workers' loops (`server/inside/heartbeat.py`).

The delay of a beat is a lower bound of the time in which its loop could not run; the kernel's
counters for that time show why. The time in which the thread or other threads of its process (which
may have held the GIL) computed or waited for a core is subtracted in full, although part of it may
precede the moment when the beat was due. For the rest, the thread slept in a call. So `blocked` is
a lower bound: a call that begins 15 ms before a beat is due and lasts 20 ms counts as 5.

Rejected: dividing the delay in proportion to these times, which finds blocking calls in loops that
compute and then wait for requests.

Time that the host gave to another machine (steal) is in no counter of a thread. All of it is
subtracted from the most blocked loop, because it is unknown which loop lost it. Beats during which
the whole machine was paused (`stall`) are not evidence and are excluded.

A call that sleeps without yielding delays all requests of its worker. It is diagnosed if a loop was
blocked for at least 1 % of the time by calls that delayed at least three beats by more than 10 ms,
or for at least 10 % by calls of any length. A smaller share delays fewer than one in a hundred
requests. The machine occasionally delays a beat or two of any program, so one or two late beats do
not count unless the loop is blocked half of the time. There must be more connections than workers,
or two requests in one worker: otherwise no request was delayed. Workers with one slot (tornado with
a WSGI app) are excluded: they are diagnosed by their slots.

Without beats (an older run, a kernel without schedstat), the spans only show loops that are always
blocked: workers that could serve many requests serve one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

from msgspec import Struct

from workerlab.analysis.diagnosis.base import Advised
from workerlab.analysis.diagnosis.drift import ChangingTimes
from workerlab.analysis.diagnosis.shared import WORKERS_BUSY_SHARE, Shared
from workerlab.analysis.diagnosis.slots import WaitingForSlots, mean_service_s, slower_than_alone
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Intervals, Window, by_worker
from workerlab.analysis.stall import machine_paused
from workerlab.model.evidence import Beat
from workerlab.model.result import Result
from workerlab.numbers.units import fill

LATE_BEAT_NS = 10_000_000  # a beat is late if the unexplained part of its delay exceeds this
MIN_LATE_SHARE = 0.01  # of all beats
# Minimum shares of the time in which a loop is blocked
BLOCKED_BY_LATE_SHARE = 0.01  # by calls that delay beats
BLOCKED_BY_ANY_SHARE = 0.1  # by calls of any length
MOSTLY_BLOCKED_SHARE = 0.5  # by one or two long calls
MIN_LATE_BEATS = 3  # of all workers
MIN_LATE_BEATS_OF_WORKER = 2  # of the most blocked worker
MIN_IN_APP_SHARE = 0.9  # of the time; a hello-world app stays below it
# An app below that share is diagnosed only if its requests take long and wait in the worker
MIN_SERVICE_S = 0.005  # in the app
MIN_QUEUED_SHARE = 0.05  # wait in the worker / time in the app

BY_BEATS = (
    "Something blocks the event loop for at least {blocked:percent} of the time, up to"
    " {longest_s:duration} at a stretch (one call, or several in a row); meanwhile a worker serves"
    " none of its other requests"
    "[[ ({late} of {beats} timers on the event loops fired more than 10 ms late)]]"
)
BY_SPANS = (
    "Workers serve one request at a time: something blocks the event loop"
    " ({connections:# connection} on {workers:# worker}, and no worker ever had two requests in the"
    " app)"
)
MOVE_COMPUTING = (
    "it computes ({cores:cores} for {workers:# worker}): move the work to other processes, or run"
    " as many workers as there are cores"
)
PATCH_BEFORE_PRELOAD = (
    "preload_app loads the app before gevent patches blocking calls: turn it off, or start the app"
    " with gevent.monkey.patch_all()"
)
REPLACE_CALLS = (
    "it sleeps or waits in a call that blocks[[, using {cores:cores}]] (a sleep, a database driver,"
    " an HTTP client): use {calls}"
)
ASYNC_CALLS_OR_THREADS = "asynchronous calls, or make the call in a thread (asyncio.to_thread)"
PATCHABLE_CALLS = "calls its loop can patch, or a class with threads"
ASYNC_CALLS_OR_CLASS = "asynchronous calls, or a class with threads"


# --- what delayed the loops ----------------------------------------------------------------------


class WorkerLoop(Struct, frozen=True):
    """The loop of one worker. Shares are of the observed time, 0 to 1."""

    observed_s: float
    beats: int
    late: int  # beats that blocking delayed by more than 10 ms
    longest_s: float  # lower bound of the longest time blocked at a stretch
    blocked: float  # share, lower bound: asleep in a call
    computing: float  # share
    core_wait: float  # share: ready to run, without a core


class LoopUse(Struct, frozen=True):
    """The workers' loops over the steady window."""

    workers: tuple[WorkerLoop, ...]  # those whose loop was observed, the most blocked first
    stolen_s: float  # CPU time that the host gave to other machines, over all cores

    @property
    def worst(self) -> WorkerLoop:
        return self.workers[0]


@once
def loop_use(facts: Facts) -> LoopUse | None:
    """The loops in the steady window; None if none was observed because the class has no loop, the
    run is older, or the kernel does not report how long a thread waits for a core."""
    workers = sorted(
        map(_worker_loop, _beats(facts).values()),
        key=attrgetter("blocked"),
        reverse=True,
    )
    if not workers or facts.window is None:
        return None
    return LoopUse(tuple(workers), _stolen_s(facts, facts.window))


@once
def _beats(facts: Facts) -> Mapping[int, Sequence[Beat]]:
    """The beats of the steady window by pid, without those during a pause of the machine."""
    window, observations = facts.window, facts.observations
    if window is None:
        return {}
    return by_worker(
        beat
        for beat in window.select(facts.data.beats.beats)
        if not machine_paused(observations, beat.at_ns - beat.length_ns, beat.at_ns)
    )


def _worker_loop(beats: Sequence[Beat]) -> WorkerLoop:
    length_ns = sum(beat.length_ns for beat in beats)
    blocked_ns = [unexplained_ns(beat) for beat in beats]
    return WorkerLoop(
        observed_s=length_ns / NS,
        beats=len(beats),
        late=sum(ns > LATE_BEAT_NS for ns in blocked_ns),
        longest_s=max(blocked_ns) / NS,
        blocked=sum(blocked_ns) / length_ns,
        computing=sum(beat.cpu_ns for beat in beats) / length_ns,
        core_wait=sum(beat.queued_ns for beat in beats) / length_ns,
    )


def unexplained_ns(beat: Beat) -> int:
    """Lower bound of the part of a beat's delay in which no thread of its process computed or was
    ready to compute."""
    other_threads_ns = beat.others_cpu_ns + beat.others_queued_ns
    return max(0, beat.late_ns - beat.cpu_ns - beat.queued_ns - other_threads_ns)


def _stolen_s(facts: Facts, window: Window) -> float:
    """CPU seconds stolen from all cores, without the share of other trials by their CPU use."""
    samples = [
        sample
        for sample in window.select(facts.observations.processes)
        if sample.host_steal_s is not None
    ]
    if not samples:
        return 0.0
    stolen_s, busy_s, beside_s = (
        (getattr(samples[-1], name) or 0.0) - (getattr(samples[0], name) or 0.0)
        for name in ("host_steal_s", "host_busy_s", "beside_cpu_s")
    )
    return stolen_s * (1 - min(1.0, beside_s / busy_s)) if busy_s > 0 else stolen_s


# --- whether that limits the cell -----------------------------------------------------------------


class BlockedLoop(Advised):
    """{how}"""

    rank = 30
    # Waiting for the loop lengthens the time in the app: requests need not share anything else,
    # more slots would not help, and the many requests that begin together wait longest
    explains = (Shared, WaitingForSlots, ChangingTimes)
    below_slots = "event loops are blocked"
    at_rate = True

    how: str
    # Of the most blocked loop; None: no loop was observed
    blocked: float | None = None  # share of the time
    longest_s: float | None = None
    late: int | None = None  # of the beats of all loops
    beats: int | None = None  # of all loops

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> BlockedLoop | None:
        """Uses the beats or, if there are none, the spans."""
        if not _serves_many(facts):
            return None
        use = loop_use(facts)
        return _diagnosis_by_spans(facts, cell) if use is None else _diagnosis_by_beats(facts, use)


def worth_sampling(facts: Facts) -> bool:
    """Whether another trial with stack samples may find a blocking line: more than 1 % of some
    worker's beats, and at least three, were over 10 ms late for a reason other than waiting for a
    core. The loop was blocked, computed, or waited for the GIL. This is a hint, not a verdict: many
    short requests in a row have the same effect."""

    def late_count(beats: Sequence[Beat]) -> int:
        return sum(
            beat.late_ns - beat.queued_ns - beat.others_queued_ns > LATE_BEAT_NS for beat in beats
        )

    return _serves_many(facts) and any(
        MIN_LATE_BEATS <= late_count(beats) > MIN_LATE_SHARE * len(beats)
        for beats in _beats(facts).values()
    )


def _serves_many(facts: Facts) -> bool:
    """Whether a worker's loop can serve multiple requests at once. The class decides, except for a
    native tornado application, which may await."""
    if facts.record.proof.get("app_kind") == "tornado":
        return True
    return facts.worker_class.loop and facts.slots_per_worker != 1


def _diagnosis_by_beats(facts: Facts, use: LoopUse) -> BlockedLoop | None:
    worst, late = use.worst, sum(worker.late for worker in use.workers)
    blocked = worst.blocked - use.stolen_s / worst.observed_s
    if late >= MIN_LATE_BEATS and worst.late >= MIN_LATE_BEATS_OF_WORKER:
        is_blocked = blocked >= BLOCKED_BY_LATE_SHARE
    else:
        by_late = worst.late * worst.longest_s / worst.observed_s
        is_blocked = blocked >= MOSTLY_BLOCKED_SHARE or blocked - by_late >= BLOCKED_BY_ANY_SHARE
    loop_is_shared = facts.connections > len(facts.record.worker_pids) or facts.served_two_at_once
    if not is_blocked or not loop_is_shared:
        return None
    values: dict[str, Any] = {
        "blocked": blocked,
        "longest_s": worst.longest_s,
        "beats": sum(worker.beats for worker in use.workers),
    }
    how = fill(BY_BEATS, {**values, "late": late or None})
    return BlockedLoop(how, advice=(_replace_calls(facts),), late=late, **values)


def _diagnosis_by_spans(facts: Facts, cell: Result) -> BlockedLoop | None:
    """Diagnosed if workers that could serve many requests serve one at a time."""
    busy_share = busy_share_one_at_a_time(facts)
    if busy_share is None or not slower_than_alone(facts, cell):
        return None
    queued_s, served_s = cell.breakdown.in_worker_s or 0.0, mean_service_s(cell)
    queues = served_s >= MIN_SERVICE_S and queued_s >= MIN_QUEUED_SHARE * served_s
    if busy_share < MIN_IN_APP_SHARE and not queues:
        return None
    values = {"connections": facts.connections, "workers": facts.workers}
    advice = _replace_calls(facts)
    if facts.workers_busy >= WORKERS_BUSY_SHARE:
        advice = fill(MOVE_COMPUTING, {"cores": facts.usage.server_cores, **values})
    return BlockedLoop(fill(BY_SPANS, values), advice=(advice,))


def loop_busy_share(facts: Facts) -> float:
    """The known share of the time, 0 to 1, in which the workers' loops could take no request:
    blocked or computing (mean of the workers) or, if they serve one request at a time, the share in
    which the busiest worker had a request."""
    use = loop_use(facts)
    by_beats = fmean(loop.blocked + loop.computing for loop in use.workers) if use else 0.0
    by_spans = (busy_share_one_at_a_time(facts) or 0.0) if _serves_many(facts) else 0.0
    return max(by_beats, by_spans)


def busy_share_one_at_a_time(facts: Facts) -> float | None:
    """The share of the steady window that the busiest worker spent in the app, 0 to 1; None if some
    worker ever had two requests in the app.

    The busiest worker counts because some workers may get all connections by chance. Requests to an
    app that responds immediately are also served one at a time, but its loop is free otherwise.
    """
    steady = facts.steady_part
    if facts.served_two_at_once:
        return None
    in_app = (Intervals.of(spans, steady.closes_ns) for spans in facts.spans_by_worker.values())
    return max((spans.inside_s(steady) for spans in in_app), default=0.0) / steady.length_s


def _replace_calls(facts: Facts) -> str:
    """Advice to replace blocking calls: by asynchronous ones for ASGI classes and tornado, by calls
    that can be patched for gevent and eventlet."""
    proof, worker_class = facts.record.proof, facts.worker_class
    # gevent patches blocking calls in each worker, eventlet before any fork
    if proof.get("preload_app") is True and proof.get("patched") == "gevent":
        return PATCH_BEFORE_PRELOAD
    patches = worker_class.slots == "worker_connections"
    calls = PATCHABLE_CALLS if patches else ASYNC_CALLS_OR_CLASS
    if worker_class.asgi:
        calls = ASYNC_CALLS_OR_THREADS
    return fill(REPLACE_CALLS, {"cores": facts.usage.server_cores, "calls": calls})
