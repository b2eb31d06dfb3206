"""How much of a server's slots was taken: requests in them / slots, over the steady window.

Throughput against slots / R0 says the same on average, but R0 comes from few lone requests, and
where service times vary so does that ratio: of 35 cells at 1 to 4 times as many connections as
slots it judged 11 wrongly, occupancy none.

A slot is held for longer than the app runs: to accept, to parse, to answer. What that takes is the
response of a lone request less its span. Two spans that follow each other in one slot at no greater
distance are taken to have held it in between, so that a slot which answers in a hundredth of a
millisecond is not called idle while it accepts and parses.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from statistics import median

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS
from workerlab.analysis.window import Window
from workerlab.model import Span

FULL = 0.95  # from here on all slots are taken


@once
def occupancy(facts: Facts) -> float | None:
    """0 to 1; None where there are no slots configured, or no steady part."""
    return None if facts.window is None else taken(facts, facts.window)


def taken(facts: Facts, window: Window) -> float | None:
    """The same of any part of the load."""
    slots = facts.slots
    if not slots:
        return None
    closes = window.closes_ns
    taken_s = window.inside_s((one.start_ns, one.end_ns or closes) for one in facts.spans)
    capable_s = slots * window.length_s
    if taken_s < FULL * capable_s and facts.connections >= FULL * slots:
        taken_s += window.inside_s(_between(facts, round(overhead_s(facts) * NS)))
    return min(1.0, facts.parallel / slots, taken_s / capable_s)


@once
def overhead_s(facts: Facts) -> float:
    """How much longer a lone request took than its span; 0 where that is not known."""
    lone_s, alone = facts.record.lone_s, _alone(facts)
    if len(alone) < len(lone_s):
        return 0.0
    beside = [
        response_s - (span.end_ns - span.start_ns) / NS
        for response_s, span in zip(lone_s, alone, strict=True)
        if span.end_ns is not None
    ]
    return max(0.0, median(beside)) if beside else 0.0


def _alone(facts: Facts) -> Sequence[Span]:
    """The spans of the lone requests. These are the last of the warm-up, one after the other;
    where some of them failed, those that began when the others had been sent."""
    lone_s, until_ns = facts.record.lone_s, facts.record.lone_end_ns or facts.started_ns
    before = [one for one in facts.data.spans.spans if one.start_ns < until_ns]
    before.sort(key=lambda span: span.start_ns)
    if not facts.record.lone_begun_ns:
        return before[-len(lone_s) :] if lone_s else ()
    times = zip(facts.record.lone_begun_ns, lone_s, strict=True)
    sent = [(begun_ns, begun_ns + round(took_s * NS)) for begun_ns, took_s in times]
    starts = [one.start_ns for one in before]
    found = ((bisect_left(starts, since), until) for since, until in sent)
    return [before[at] for at, until in found if at < len(before) and starts[at] <= until]


def slot_changes(
    facts: Facts, *, closes_ns: int, beside_ns: int
) -> Iterator[tuple[int, int, int, int]]:
    """When, in which worker, and by how many there are more in slots, and accepted before that.
    `beside_ns`: how long a slot is held after its span."""
    for span in facts.spans:
        yield span.start_ns, span.pid, 1, 0
        yield (span.end_ns or closes_ns) + beside_ns, span.pid, -1, 0
        if span.accept_ns is not None and not facts.cell.keepalive:
            yield min(span.accept_ns, span.start_ns), span.pid, 0, 1
            yield span.start_ns, span.pid, 0, -1


def _between(facts: Facts, most_ns: int) -> Iterator[tuple[int, int]]:
    """Where a span begins no later than that after another one of its worker has ended: from the
    one to the other. It takes the slot that became free last."""
    if most_ns <= 0:
        return
    for own in facts.spans_by_worker.values():
        ends = sorted(span.end_ns for span in own if span.end_ns is not None)
        free, number = list[int](), 0
        for span in own:
            while number < len(ends) and ends[number] <= span.start_ns:
                free.append(ends[number])
                number += 1
            if free and span.start_ns - (ended := free.pop()) <= most_ns:
                yield ended, span.start_ns
