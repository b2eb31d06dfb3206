"""Which lines of the app hold up the event loop, from a trial in which a thread looked at the loop
of one worker (`server/inside/stacks.py`, `Cell.inside` "stacks").

A sample counts where the loop's next beat is overdue: else the loop is not held up, whatever it
runs. Why it is overdue follows from the kernel's counters since the beat before, as for the beats
themselves (`event_loop`); waiting for a core is no doing of the app.

    blocking.line       the thread slept: what neither its CPU, nor waiting for a core, nor other
                        threads explain of being overdue
    blocking.computing  the same call of the app was seen before, no beat came in between, and the
                        thread computed: one long burst. Many short ones in a row, of one request
                        each, hold up a beat as much, but they are the work there is to do
    blocking.gil_held   the sampling thread came late and had not waited for a core: it did not get
                        the GIL. Whatever computes in Python hands it over at the end of a switch
                        interval (0.5 ms in such a trial), and computes no more until it is handed
                        back. So where a thread computed for longer, one call kept the GIL: of the
                        line that the thread stood on when it came free again

A sample stands for the time since the one before. A line's share leaves out its waits for a core;
lines of one function that computes are added up, and the most frequent one is named. A share below
1 % delays no request in a hundred, and a tenth of what the first of a kind has is where its
neighbours are seen when the loop goes on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS
from workerlab.model import CodeLine, Finding, StackSample

HELD_UP_NS = 3_000_000  # overdue for so long, a loop is held up
HELD_NS = 3_000_000  # the GIL
SHARE, LEAST = 0.01, 3  # of the time, and samples
LEAST_HELD = 2  # there are no others while the GIL is held
# So few, of a thread that computed for longer without holding it, are moments in which the machine
# gave the sampler no core and told nobody; they are a quarter at least of what it computed
FEW_HELD, OF_ITS_CPU = 6, 0.25
BESIDE = 0.1  # of the first of a kind
EVERY_NS = 10_000_000  # between two looks: a call lasts for that much longer than it was seen
ALL = 0.7  # of the time without a beat: then it was one call
THREAD = Finding("blocking.thread")

Lines = Mapping[int, CodeLine]  # by number
Part = Callable[[StackSample], float]  # nanoseconds of a sample that count; 0: none


def asleep_ns(one: StackSample) -> float:
    """As `event_loop.unexplained_ns`; 0 where the loop is not held up. A wait for a core that has
    not ended is in no counter yet."""
    if not one.sleeps:
        return 0.0
    explained = one.cpu_ns + one.queued_ns + one.others_cpu_ns
    return one.length_ns if one.overdue_ns - explained > HELD_UP_NS else 0.0


def computing_ns(one: StackSample) -> float:
    """In the same call as before, while the loop's thread had a core."""
    held_up = one.stuck_ns > 0 and one.overdue_ns - one.queued_ns > HELD_UP_NS
    computed = one.cpu_ns >= (one.since_ns - one.queued_ns) / 2
    return _with_core_ns(one) if held_up and computed and not held_ns(one) else 0.0


def held_ns(one: StackSample) -> float:
    """For how long the loop's thread kept the GIL while the sampling thread was due."""
    return 0.0 if _others_held(one) else _kept_ns(one, max(one.ran_ns, 0))


def held_by_others_ns(one: StackSample) -> float:
    """Likewise another thread."""
    return _kept_ns(one, one.others_ran_ns) if _others_held(one) else 0.0


def _others_held(one: StackSample) -> bool:
    return one.others_ran_ns > one.ran_ns


def _kept_ns(one: StackSample, ran_ns: int) -> float:
    """Either it computed while the sampler was due, of which Python code does 0.5 ms; or it slept:
    neither waited for a core. Where it is another thread, the loop's may have kept the GIL without
    a core instead; the two wait at the same time, so that the longer wait counts."""
    others = _others_held(one)
    late_ns = one.late_ns - max(one.waited_ns, one.starved_ns if others else 0)
    computed_ns = min(late_ns, ran_ns - (one.length_ns - one.late_ns))
    slept_ns = 0 if others else late_ns - one.starved_ns - one.others_ran_ns
    kept_ns = max(computed_ns, slept_ns)
    # It has kept it since before the sampler was due, by up to the time between two samples
    return max(kept_ns, min(ran_ns, one.length_ns)) if kept_ns > HELD_NS else 0.0


def _with_core_ns(one: StackSample) -> float:
    """Its time without what the loop's thread waited for a core, at the rate since its beat."""
    waited = min(1.0, one.queued_ns / one.since_ns) if one.since_ns > 0 else 0.0
    return one.length_ns * (1 - waited)


def blocking(facts: Facts) -> tuple[Finding, ...]:
    """Of a trial with stacks; the lines that take most of the time first. (): nothing holds up its
    loop, or none was looked at."""
    window, stacks = facts.window, facts.data.stacks
    begun_ns, ended_ns = facts.started_ns, facts.ended_ns
    if window is not None:  # else there were few requests, and what held them up is wanted the more
        begun_ns, ended_ns = window.opens_ns, window.closes_ns
    samples = [one for one in stacks.samples if begun_ns <= one.at_ns <= ended_ns]
    others = [replace(one, number=one.other) for one in samples]
    parts: list[tuple[str, list[StackSample], Part]] = [
        ("blocking.line", samples, asleep_ns),
        ("blocking.computing", samples, computing_ns),
        ("blocking.gil_held", samples, held_ns),
        ("blocking.gil_held", others, held_by_others_ns),
    ]
    found = [
        (amount_ns, Finding(code, {**values, "thread": THREAD if of is others else None}))
        for code, of, part in parts
        for amount_ns, values in _lines(code, of, stacks.lines, part)
    ]
    found.sort(key=lambda one: one[0], reverse=True)
    kept: list[Finding] = []
    for _, one in found:
        # What a function does for the most part; steal makes its computing look like sleep
        if not any(_function(one) == _function(two) and one.code != two.code for two in kept):
            kept.append(replace(one, trials=(facts.key,)))
    return tuple(kept)


def _function(found: Finding) -> tuple[str, str]:
    return found.values["file"], found.values["function"]


def _lines(
    code: str, samples: Sequence[StackSample], lines: Lines, part: Part
) -> Iterator[tuple[float, dict[str, Any]]]:
    """(nanoseconds, values) of the findings of one kind."""
    whole_ns = sum(one.length_ns for one in samples)
    held = code == "blocking.gil_held"
    places = defaultdict[object, list[StackSample]](list)
    for one in samples:
        if one.number in lines:
            places[_place(code, lines[one.number])].append(one)
    amounts = {place: sum(map(part, own)) for place, own in places.items()}
    mine = "others_ran_ns" if part is held_by_others_ns else "ran_ns"
    computed_ns = sum(max(getattr(one, mine), 0) for one in samples)
    least_ns = max(SHARE * whole_ns, BESIDE * max(amounts.values(), default=0.0))
    for place, own in places.items():
        counted = [one for one in own if part(one)]
        if amounts[place] < least_ns or len(counted) < (LEAST_HELD if held else LEAST):
            continue
        if held and len(counted) < FEW_HELD and amounts[place] < OF_ITS_CPU * computed_ns:
            continue
        share_ns = amounts[place] if held else sum(map(_with_core_ns, own))
        longest_ns = max(map(part if held else _lasted_ns, counted))
        yield (
            amounts[place],
            {
                **_named(counted, lines, part),
                "share": share_ns / whole_ns,
                "longest_s": longest_ns / NS,
                "call_s": None if held else _one_of_several_s(counted, longest_ns),
                "samples": len(counted),
            },
        )


def _place(code: str, line: CodeLine) -> object:
    """What counts as one: the line, or where it computes, its function."""
    function = line.file, line.function
    return function if code == "blocking.computing" else (*function, line.line)


def _lasted_ns(one: StackSample) -> float:
    return max(0, one.since_ns - one.queued_ns)


def _one_of_several_s(samples: Sequence[StackSample], longest_ns: float) -> float | None:
    """The longest that one call was seen, where several in a row held up the loop for longer."""
    call_ns = max(one.stuck_ns for one in samples) + EVERY_NS
    return call_ns / NS if call_ns < ALL * longest_ns else None


def _named(samples: Sequence[StackSample], lines: Lines, part: Part) -> dict[str, Any]:
    """The line that these samples are of most of the time, and what it calls there mostly."""
    amounts = defaultdict[int, float](float)
    for one in samples:
        amounts[one.number] += part(one)
    line: CodeLine = lines[max(amounts, key=amounts.__getitem__)]
    return {
        "file": line.file,
        "line": line.line,
        "function": line.function,
        "called": line.called or None,
        "inside": line.inside if line.inside not in ("", line.called) else None,
        "library": None if line.app else Finding("blocking.library"),
    }
