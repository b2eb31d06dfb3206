"""Diagnoses of blocked event loops, and of the lines of the app that block them.

A call that sleeps without yielding delays all requests of its worker. The beats of the loops show
it (`event_loop`): a loop was blocked for at least 1 % of the time by calls that made at least three
beats more than 10 ms late, or for at least 10 % by calls of any length. A smaller share delays
fewer than one request in a hundred. The machine delays one or two beats of any program now and
then, so the time of so few is not counted, unless the loop is blocked half of the time. There must
be more connections than workers, or two requests in one worker: otherwise no request was delayed.
Workers with one slot (tornado with a WSGI app) are excluded: they are diagnosed by their slots.

Without beats (an older run, a kernel without schedstat), the spans only show loops that are always
blocked: workers that could serve many requests serve one at a time.

The lines are found in a trial in which a thread samples the loop of one worker
(`server/inside/stacks.py`, `Cell.inside` "stacks"). Unless the GIL is held, a sample counts if the
loop's next beat is overdue: otherwise the loop is not held up, whatever it runs. The kernel's
counters since the last beat show why it is overdue; a wait for a core is not caused by the app.

    blocks    the thread slept: the delay exceeds the sum of its CPU time, its wait for a core, and
              the CPU time of other threads
    computes  the previous sample showed the same call of the app, no beat came in between, and the
              thread computed: one long burst. Many short bursts in a row, one per request, delay a
              beat as much, but are ordinary work
    holds     the sampling thread was late, but had not waited for a core: it did not get the GIL.
              Python code releases the GIL at the end of a switch interval (0.5 ms in such a trial)
              and computes no more until it gets it back. So if a thread computed for longer, one
              call kept the GIL: on the line where the thread was when it released the GIL

A sample stands for the time since the previous one. A line's share excludes its waits for a core.
The lines of a function that computes are added up under the one with most time. A line below 1 %,
which delays fewer than one request in a hundred, is dropped. So is one below a tenth of the first
line of its kind: it is a neighbour, sampled when the loop resumed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Literal

from msgspec.structs import replace

from workerlab.analysis.diagnosis.base import Advised
from workerlab.analysis.diagnosis.service import ChangingTimes, Shared, are_workers_busy
from workerlab.analysis.diagnosis.slots import WaitingForSlots, mean_service_s, slower_than_alone
from workerlab.analysis.event_loop import LoopUse, has_late_beats, loop_use
from workerlab.analysis.facts import Facts
from workerlab.analysis.intervals import NS, Intervals, Period
from workerlab.finding import Finding
from workerlab.model import CellResult, StackSample
from workerlab.numbers.units import fill, format_duration

BLOCKED_BY_LATE_SHARE = 0.01  # of the time, at least: by calls that delay beats
BLOCKED_BY_ANY_SHARE = 0.1  # by calls of any length
MOSTLY_BLOCKED_SHARE = 0.5  # by one or two long calls
MIN_LATE_BEATS = 3  # of all workers
MIN_LATE_BEATS_OF_WORKER = 2  # of the most blocked one
MIN_IN_APP_SHARE = 0.9  # of the time: a hello-world app stays below it
MIN_SERVICE_S = 0.005  # or at least so long in the app,
MIN_QUEUED_SHARE = 0.05  # and a wait of this share of it in the worker

MIN_OVERDUE_NS = 3_000_000  # of a beat, for the loop to count as held up
MIN_HELD_NS = 3_000_000  # the GIL counts as held if it is kept for longer
MIN_SAMPLES = 3  # of a line
MIN_HELD_SAMPLES = 2  # fewer, as no sample is possible while the GIL is held
# Fewer samples of a held GIL must amount to a quarter of the thread's CPU time: otherwise the
# sampler may have waited for a core without any counter showing it
ENOUGH_HELD_SAMPLES = 6
MIN_HELD_CPU_SHARE = 0.25
MIN_LINE_SHARE = 0.01  # of the time: a line with less is not named
NEIGHBOUR_SHARE = 0.1  # of the first line of its kind: a line with less is a neighbour of it
SAMPLE_INTERVAL_NS = 10_000_000  # a call may have lasted this much longer than sampled
ONE_CALL_SHARE = 0.7  # of the time without a beat: from here on, it was one call

BY_BEATS = (
    "Something blocks the event loop at least {blocked:percent} of the time, for up to"
    " {longest_s:duration}, in one call or in several in a row; meanwhile a worker serves none of"
    " its other requests"
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


class BlockedLoop(Advised):
    """{how}"""

    rank = 30
    # Waiting for the loop lengthens the time in the app: nothing else need be shared, more slots
    # would not help, and the many requests that begin together wait longest
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
    def diagnose(cls, facts: Facts, cell: CellResult, *_: object) -> BlockedLoop | None:
        """Judged by the beats, or by the spans if there are none."""
        if not _serves_many(facts):
            return None
        use = loop_use(facts)
        return _by_spans(facts, cell) if use is None else _by_beats(facts, use)


def worth_sampling(facts: Facts) -> bool:
    """Whether another trial, with stack samples, may find a blocking line. This is a hint, not a
    verdict."""
    return _serves_many(facts) and has_late_beats(facts)


def _serves_many(facts: Facts) -> bool:
    """Whether a worker's loop can serve several requests at once. The class decides, except for a
    native tornado application, which may await."""
    if facts.record.proof.get("app_kind") == "tornado":
        return True
    return facts.data.worker_class.loop and facts.slots_per_worker != 1


def _by_beats(facts: Facts, use: LoopUse) -> BlockedLoop | None:
    worst, late = use.worst, sum(worker.late for worker in use.workers)
    blocked = worst.blocked - use.stolen_s / worst.observed_s
    if late >= MIN_LATE_BEATS and worst.late >= MIN_LATE_BEATS_OF_WORKER:
        alarm = blocked >= BLOCKED_BY_LATE_SHARE
    else:
        max_by_late = worst.late * worst.longest_s / worst.observed_s
        alarm = blocked >= MOSTLY_BLOCKED_SHARE or blocked - max_by_late >= BLOCKED_BY_ANY_SHARE
    requests_meet = facts.connections > len(facts.record.worker_pids) or facts.two_at_once
    if not alarm or not requests_meet:
        return None
    beats = sum(worker.beats for worker in use.workers)
    values = {"blocked": blocked, "longest_s": worst.longest_s, "beats": beats}
    how = fill(BY_BEATS, {**values, "late": late or None})
    return BlockedLoop(
        how,
        advice=(_replace_calls(facts),),
        blocked=blocked,
        longest_s=worst.longest_s,
        late=late,
        beats=beats,
    )


def _by_spans(facts: Facts, cell: CellResult) -> BlockedLoop | None:
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
    if are_workers_busy(facts):
        advice = fill(MOVE_COMPUTING, {"cores": facts.usage.server_cores, **values})
    return BlockedLoop(fill(BY_SPANS, values), advice=(advice,))


def loop_busy_share(facts: Facts) -> float:
    """Share of the time, 0 to 1, in which the workers' loops could take no request, as far as
    known: blocked or computing (mean of the workers) or, if they serve one request at a time, the
    share in which the busiest worker had one."""
    use = loop_use(facts)
    by_beats = fmean(loop.blocked + loop.computing for loop in use.workers) if use else 0.0
    by_spans = (busy_share_one_at_a_time(facts) or 0.0) if _serves_many(facts) else 0.0
    return max(by_beats, by_spans)


def busy_share_one_at_a_time(facts: Facts) -> float | None:
    """The share of the steady window that the busiest worker spent in the app, 0 to 1, if no worker
    ever had two requests in the app. None if some worker had two, or without a steady window.

    The busiest counts because some workers may get all connections by chance. An app that responds
    immediately is also served one request at a time, but its loop is free the rest of the time.
    """
    steady = facts.window
    if steady is None or facts.two_at_once:
        return None
    in_app = (Intervals.of(spans, steady.closes_ns) for spans in facts.spans_by_worker.values())
    return max((spans.inside_s(steady) for spans in in_app), default=0.0) / steady.length_s


def _replace_calls(facts: Facts) -> str:
    """Advice on how to replace blocking calls: by asynchronous ones on ASGI classes and tornado, by
    calls that can be patched on gevent and eventlet."""
    proof, worker_class = facts.record.proof, facts.data.worker_class
    # gevent patches blocking calls in each worker, eventlet before any fork
    if proof.get("preload_app") is True and proof.get("patched") == "gevent":
        return PATCH_BEFORE_PRELOAD
    patches = worker_class.slots == "worker_connections"
    calls = PATCHABLE_CALLS if patches else ASYNC_CALLS_OR_CLASS
    if worker_class.asgi:
        calls = ASYNC_CALLS_OR_THREADS
    return fill(REPLACE_CALLS, {"cores": facts.usage.server_cores, "calls": calls})


# --- which lines ----------------------------------------------------------------------------------

How = Literal["blocks the event loop", "computes on the event loop", "holds the GIL"]
Counted = Callable[[StackSample], float]  # nanoseconds of a sample that count


class BlockingLine(Finding):
    """{file} line {line} in {function}()[[ ({library})]] {how} {share:percent} of the time
    [[, for about {per_request_s:duration} per request]][[; it calls {called}]]
    [[, which waits in {inside}]]; {effect}."""

    file: str
    line: int
    function: str
    library: str | None  # None: a line of the app
    how: How
    share: float
    per_request_s: float | None  # mean; None: unknown, or another thread's call
    called: str
    inside: str
    effect: str
    longest_s: float
    trial: str

    @property
    def trials(self) -> tuple[str, ...]:
        return (self.trial,)


def blocking_lines(facts: Facts) -> tuple[BlockingLine, ...]:
    """The blocking lines of a trial with stack samples, most time first. (): nothing holds up the
    loop, or no loop was sampled."""
    sampled, stacks = _sampled_part(facts), facts.data.stacks
    samples = [sample for sample in stacks.samples if sampled.contains(sample.at_ns)]
    of_others = [replace(sample, number=sample.other) for sample in samples]
    lines = [
        *_lines(facts, "blocks the event loop", samples, asleep_ns),
        *_lines(facts, "computes on the event loop", samples, computing_ns),
        *_lines(facts, "holds the GIL", samples, held_ns),
        *_lines(facts, "holds the GIL", of_others, held_by_others_ns),
    ]
    # One kind per function, the one with most time: steal makes computing look like sleep
    main_kind: dict[tuple[str, str], How] = {}
    return tuple(
        line
        for _, line in sorted(lines, key=lambda pair: pair[0], reverse=True)
        if main_kind.setdefault((line.file, line.function), line.how) == line.how
    )


def _lines(
    facts: Facts, how: How, samples: Sequence[StackSample], counted: Counted
) -> Iterator[tuple[float, BlockingLine]]:
    """The lines of this kind, each with its time in nanoseconds."""
    lines = facts.data.stacks.lines
    whole_ns = sum(sample.length_ns for sample in samples)
    holds, by_others = how == "holds the GIL", counted is held_by_others_ns
    by_place = defaultdict[object, list[StackSample]](list)
    for sample in samples:
        if line := lines.get(sample.number):
            computes = how == "computes on the event loop"
            by_place[line.file, line.function, 0 if computes else line.line].append(sample)
    times_ns = {place: sum(map(counted, of_place)) for place, of_place in by_place.items()}
    ran_ns = (sample.others_ran_ns if by_others else sample.ran_ns for sample in samples)
    cpu_ns = sum(max(ns, 0) for ns in ran_ns)
    min_ns = max(MIN_LINE_SHARE * whole_ns, NEIGHBOUR_SHARE * max(times_ns.values(), default=0.0))
    for place, of_place in by_place.items():
        relevant, time_ns = list(filter(counted, of_place)), times_ns[place]
        if time_ns < min_ns or len(relevant) < (MIN_HELD_SAMPLES if holds else MIN_SAMPLES):
            continue
        few = len(relevant) < ENOUGH_HELD_SAMPLES
        if holds and few and time_ns < MIN_HELD_CPU_SHARE * cpu_ns:
            continue
        share_ns = time_ns if holds else sum(map(_with_core_ns, of_place))
        yield time_ns, _line(facts, how, relevant, counted, share_ns / whole_ns)


def _sampled_part(facts: Facts) -> Period:
    """The steady window; without one there were few requests, and the whole load counts."""
    return facts.window or Period(facts.started_ns, facts.ended_ns)


def _line(
    facts: Facts, how: How, samples: Sequence[StackSample], counted: Counted, share: float
) -> BlockingLine:
    """The line that most of the time of these samples belongs to."""
    by_others = counted is held_by_others_ns  # not by requests of this worker
    spans = () if by_others else facts.spans_by_worker.get(facts.data.stacks.pid or 0, ())
    rate_rps = Intervals.of(spans).per_second(_sampled_part(facts))
    times_ns, lines = defaultdict[int, float](float), facts.data.stacks.lines
    for sample in samples:
        times_ns[sample.number] += counted(sample)
    line = lines[max(times_ns, key=times_ns.__getitem__)]
    waits_inside = how == "blocks the event loop" and line.inside != line.called
    longest_ns = max(map(counted if how == "holds the GIL" else _since_beat_ns, samples))
    return BlockingLine(
        file=line.file,
        line=line.line,
        function=line.function,
        library=None if line.app else "library code, not called by the app",
        how=how,
        share=share,
        per_request_s=share / rate_rps if rate_rps else None,
        called=line.called,
        inside=line.inside if waits_inside else "",
        effect=_effect(samples, longest_ns, counted),
        longest_s=longest_ns / NS,
        trial=facts.key,
    )


def _effect(samples: Sequence[StackSample], longest_ns: float, counted: Counted) -> str:
    longest = format_duration(longest_ns / NS)
    if counted in (held_ns, held_by_others_ns):
        effect = f"for up to {longest} no other thread of its worker runs"
        elsewhere = ", nor its event loop: the call is made in another thread"
        return effect + (elsewhere if counted is held_by_others_ns else "")
    # The longest single call, if several in a row held up the loop for longer
    call_ns = max(sample.stuck_ns for sample in samples) + SAMPLE_INTERVAL_NS
    calls = f", by several calls in a row of at most {format_duration(call_ns / NS)} each"
    effect = f"the loop is held up for up to {longest}"
    return effect + (calls if call_ns < ONE_CALL_SHARE * longest_ns else "")


# --- how much of a sample counts ------------------------------------------------------------------


def asleep_ns(sample: StackSample) -> float:
    """The sample's length if the loop's thread slept, by the rule of `event_loop.unexplained_ns`; 0
    if the loop is not held up. A running or ready thread does not count: a wait for a core that has
    not ended is in no counter yet."""
    if not sample.sleeps:
        return 0.0
    explained = sample.cpu_ns + sample.queued_ns + sample.others_cpu_ns
    return sample.length_ns if sample.overdue_ns - explained > MIN_OVERDUE_NS else 0.0


def computing_ns(sample: StackSample) -> float:
    """Time with a core, if the loop's thread computed in the same call as in the sample before."""
    held_up = sample.stuck_ns > 0 and sample.overdue_ns - sample.queued_ns > MIN_OVERDUE_NS
    computed = sample.cpu_ns >= (sample.since_ns - sample.queued_ns) / 2
    return _with_core_ns(sample) if held_up and computed and not held_ns(sample) else 0.0


def held_ns(sample: StackSample) -> float:
    """How long the loop's thread kept the GIL while the sampling thread was due."""
    return 0.0 if _others_held(sample) else _kept_ns(sample, max(sample.ran_ns, 0))


def held_by_others_ns(sample: StackSample) -> float:
    """How long another thread kept the GIL while the sampling thread was due."""
    return _kept_ns(sample, sample.others_ran_ns) if _others_held(sample) else 0.0


def _others_held(sample: StackSample) -> bool:
    return sample.others_ran_ns > sample.ran_ns


def _kept_ns(sample: StackSample, ran_ns: int) -> float:
    """How long the GIL was kept: while the sampler was due, a thread computed (Python code does so
    for 0.5 ms at most) or slept; neither it nor the sampler waited for a core. If another thread
    computed, the loop's thread may have kept the GIL without a core instead: both waits overlap, so
    the longer one is subtracted."""
    others = _others_held(sample)
    late_ns = sample.late_ns - max(sample.waited_ns, sample.starved_ns if others else 0)
    computed_ns = min(late_ns, ran_ns - (sample.length_ns - sample.late_ns))
    slept_ns = 0 if others else late_ns - sample.starved_ns - sample.others_ran_ns
    kept_ns = max(computed_ns, slept_ns)
    # The GIL was kept before the sampler was due, too, for up to the time between two samples
    return max(kept_ns, min(ran_ns, sample.length_ns)) if kept_ns > MIN_HELD_NS else 0.0


def _with_core_ns(sample: StackSample) -> float:
    """The sample's length without the loop thread's wait for a core, at its rate since the last
    beat."""
    waited_share = min(1.0, sample.queued_ns / sample.since_ns) if sample.since_ns > 0 else 0.0
    return sample.length_ns * (1 - waited_share)


def _since_beat_ns(sample: StackSample) -> float:
    return max(0, sample.since_ns - sample.queued_ns)
