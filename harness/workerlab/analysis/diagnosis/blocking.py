"""The lines of the app that delay an event loop.

The lines are found in a trial in which a thread samples the loop of one worker
(`server/inside/stacks.py`, `Cell.inside` "stacks"). Unless the GIL is held, a sample counts if the
loop's next beat is overdue: otherwise the loop is not delayed, whatever it runs. The kernel's
counters since the last beat show why it is overdue; a wait for a core is not caused by the app.

    blocks    the thread slept: the delay exceeds the sum of its CPU time, its wait for a core, and
              the CPU time of other threads
    computes  the previous sample showed the same call of the app, no beat came in between, and the
              thread computed: one long burst. Many short bursts in a row, one per request, delay a
              beat as much, but are ordinary work
    holds     the sampling thread was late, but had not waited for a core: it did not get the GIL.
              Python code releases the GIL at the end of a switch interval (0.5 ms in such a trial)
              and does not compute until it has it again. So if a thread computed for longer, one
              call kept the GIL: on the line where the thread was when it released the GIL

A sample represents the time since the previous one. A line's share excludes its waits for a core.
The lines of a function that computes are added up under the line with the most time. A line below
1 %, which delays fewer than one in a hundred requests, is dropped. So is a line below a tenth of
the first line of its kind: it is a neighbour, sampled when the loop resumed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS, Intervals, Period
from workerlab.analysis.trials import grouped
from workerlab.finding import Finding
from workerlab.model.evidence import StackSample
from workerlab.numbers.units import format_duration

MIN_OVERDUE_NS = 3_000_000  # of a beat, for the loop to count as delayed
MIN_HELD_NS = 3_000_000  # kept for longer, the GIL counts as held
MIN_SAMPLES = 3  # of a line
MIN_HELD_SAMPLES = 2  # fewer, because no sample is possible while the GIL is held
# Fewer samples of a held GIL must amount to a quarter of the thread's CPU time: otherwise the
# sampler may have waited for a core without any counter showing it
ENOUGH_HELD_SAMPLES = 6
MIN_HELD_CPU_SHARE = 0.25
MIN_LINE_SHARE = 0.01  # of the time; a line with less is dropped
NEIGHBOUR_SHARE = 0.1  # of the first line of its kind; a line with less is its neighbour
SAMPLE_INTERVAL_NS = 10_000_000  # a call may have lasted this much longer than sampled
ONE_CALL_SHARE = 0.7  # of the time without a beat; a shorter call is one of several in a row

Kind = Literal["blocks the event loop", "computes on the event loop", "holds the GIL"]
CountedTime = Callable[[StackSample], float]  # nanoseconds of a sample that count


class BlockingLine(Finding):
    """{file} line {line} in {function}()[[ ({library})]] {how} {share:percent} of the time
    [[, for {per_request_s:duration} per request on average]][[; it calls {called}]]
    [[, which waits in {inside}]]; {effect}."""

    file: str
    line: int
    function: str
    library: str | None  # None: a line of the app
    how: Kind
    share: float
    per_request_s: float | None  # mean; None: unknown, or a call in another thread
    called: str
    inside: str
    effect: str
    longest_s: float
    trial: str

    @property
    def trials(self) -> tuple[str, ...]:
        return (self.trial,)


def blocking_lines(facts: Facts) -> tuple[BlockingLine, ...]:
    """The blocking lines of a trial with stack samples, by time, longest first. (): nothing delays
    the loop, or no loop was sampled."""
    sampled, stacks = _sampled_part(facts), facts.data.stacks
    samples = sampled.select(stacks.samples)
    samples_of_others = [replace(sample, number=sample.other) for sample in samples]
    lines = [
        *_lines(facts, "blocks the event loop", samples, asleep_ns),
        *_lines(facts, "computes on the event loop", samples, computing_ns),
        *_lines(facts, "holds the GIL", samples, held_ns),
        *_lines(facts, "holds the GIL", samples_of_others, held_by_others_ns),
    ]
    # One kind per function, the one with the most time: steal makes computing look like sleep
    main_kind: dict[tuple[str, str], Kind] = {}
    return tuple(
        line
        for _, line in sorted(lines, key=lambda pair: pair[0], reverse=True)
        if main_kind.setdefault((line.file, line.function), line.how) == line.how
    )


def _lines(
    facts: Facts, how: Kind, samples: Sequence[StackSample], counted: CountedTime
) -> Iterator[tuple[float, BlockingLine]]:
    """The lines of this kind, each with its time in nanoseconds."""
    lines = facts.data.stacks.lines
    whole_ns = sum(sample.length_ns for sample in samples)
    holds, by_others = how == "holds the GIL", counted is held_by_others_ns

    def place_of(sample: StackSample) -> tuple[str, str, int]:
        line = lines[sample.number]
        return line.file, line.function, 0 if how == "computes on the event loop" else line.line

    by_place = grouped((sample for sample in samples if sample.number in lines), place_of)
    times_ns = {place: sum(map(counted, group)) for place, group in by_place.items()}
    ran_ns = (sample.others_ran_ns if by_others else sample.ran_ns for sample in samples)
    cpu_ns = sum(max(ns, 0) for ns in ran_ns)
    min_ns = max(MIN_LINE_SHARE * whole_ns, NEIGHBOUR_SHARE * max(times_ns.values(), default=0.0))
    for place, group in by_place.items():
        relevant, time_ns = list(filter(counted, group)), times_ns[place]
        if time_ns < min_ns or len(relevant) < (MIN_HELD_SAMPLES if holds else MIN_SAMPLES):
            continue
        few = len(relevant) < ENOUGH_HELD_SAMPLES
        if holds and few and time_ns < MIN_HELD_CPU_SHARE * cpu_ns:
            continue
        share_ns = time_ns if holds else sum(map(_with_core_ns, group))
        yield time_ns, _line(facts, how, relevant, counted, share_ns / whole_ns)


def _sampled_part(facts: Facts) -> Period:
    """The steady window; without one there were few requests, so the whole load counts."""
    return facts.window or Period(facts.started_ns, facts.ended_ns)


def _line(
    facts: Facts, how: Kind, samples: Sequence[StackSample], counted: CountedTime, share: float
) -> BlockingLine:
    """The line with most of the time of these samples."""
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


def _effect(samples: Sequence[StackSample], longest_ns: float, counted: CountedTime) -> str:
    longest = format_duration(longest_ns / NS)
    if counted in (held_ns, held_by_others_ns):
        effect = f"for up to {longest} no other thread of its worker runs"
        loop_clause = ", nor its event loop: the call is made in another thread"
        return effect + (loop_clause if counted is held_by_others_ns else "")
    # The longest single call, if multiple calls in a row delayed the loop for longer
    call_ns = max(sample.stuck_ns for sample in samples) + SAMPLE_INTERVAL_NS
    calls = f", in several calls in a row of at most {format_duration(call_ns / NS)} each"
    effect = f"the loop is delayed by up to {longest}"
    return effect + (calls if call_ns < ONE_CALL_SHARE * longest_ns else "")


# --- how much of a sample counts ------------------------------------------------------------------


def asleep_ns(sample: StackSample) -> float:
    """The sample's length if the loop's thread slept, by the rule of `loop.unexplained_ns`; 0 if
    the loop is not delayed. A running or ready thread does not count: no counter includes a wait
    for a core before it ends."""
    if not sample.sleeps:
        return 0.0
    explained = sample.cpu_ns + sample.queued_ns + sample.others_cpu_ns
    return sample.length_ns if sample.overdue_ns - explained > MIN_OVERDUE_NS else 0.0


def computing_ns(sample: StackSample) -> float:
    """Time with a core if the loop's thread computed in the same call as in the previous sample."""
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
    for at most 0.5 ms) or slept; neither it nor the sampler waited for a core. If another thread
    computed, the loop's thread may have kept the GIL without a core instead: both waits overlap, so
    the longer one is subtracted."""
    others = _others_held(sample)
    late_ns = sample.late_ns - max(sample.waited_ns, sample.starved_ns if others else 0)
    computed_ns = min(late_ns, ran_ns - (sample.length_ns - sample.late_ns))
    slept_ns = 0 if others else late_ns - sample.starved_ns - sample.others_ran_ns
    kept_ns = max(computed_ns, slept_ns)
    # The GIL was also kept before the sampler was due, for up to the time between two samples
    return max(kept_ns, min(ran_ns, sample.length_ns)) if kept_ns > MIN_HELD_NS else 0.0


def _with_core_ns(sample: StackSample) -> float:
    """The sample's length less the loop thread's wait for a core, estimated from the share of that
    wait in the time since the last beat."""
    waited_share = min(1.0, sample.queued_ns / sample.since_ns) if sample.since_ns > 0 else 0.0
    return sample.length_ns * (1 - waited_share)


def _since_beat_ns(sample: StackSample) -> float:
    return max(0, sample.since_ns - sample.queued_ns)
