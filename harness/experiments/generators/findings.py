"""The conclusions of `workerlab generators`, computed from the ways that were measured.

    low rate     least CPU per request among those that kept the rate; those within the kernel's
                 step of the least are not told apart
    high rate    most requests/s; a lower bound where the server's own core is busy
    GIL          in `generators_gil`
    machine      the most that this machine's generators reach; a server is measured without doubt
                 up to a third of it (a generator whose ceiling is nearer may be what is measured)
    belief       whose response times are its own queueing

Where the numbers do not allow an answer, the answer says what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.generators.gil import gil
from harness.experiments.generators.usage import BUSY, DISTURBED, Way, others_most
from harness.experiments.words import amount, connections, listed, percent
from harness.model import Answer
from harness.numbers.units import format_duration

FOUR_WAYS = ("processes", "threads", "coroutines", "processes-coroutines")  # of writing one
KEPT = 0.9  # of the low rate: who sent less did not keep it
ROOM = 3.0  # a ceiling this many times above a server's throughput does not hide it
OFF = 0.5  # of a believed response time: more of its own than the server's


def findings(full: Sequence[Way], low: Sequence[Way], cores: int | None) -> tuple[Answer, ...]:
    """`full`: as fast as each can; `low`: at the low rate; `cores` of the machine."""
    return (
        _low_rate([way for way in low if not way.doubt]),
        _high_rate([way for way in full if not way.doubt]),
        gil([way for way in full if not way.doubt], cores),
        _machine([way for way in full if not way.doubt]),
        _belief([way for way in (*low, *full) if not way.doubt and not way.server_busy]),
    )


# --- at a low rate ------------------------------------------------------------------------


def _low_rate(ways: Sequence[Way]) -> Answer:
    question = "Who needs the least CPU at a low rate?"
    asked = max((way.rps for way in ways), default=0.0)
    kept = [way for way in ways if way.rps >= KEPT * asked and way.cpu_per_request_s is not None]
    if not kept:
        return Answer(question, "Cannot be said: no CPU was seen of a generator at a low rate.")
    kept.sort(key=_cpu)
    least = kept[0]
    alike = [way for way in kept if _cpu(way) - _step(way) <= _cpu(least) + _step(least)]
    answer = f"At {amount(asked)} requests/s {listed([way.name for way in alike])}"
    if len(alike) == 1:
        answer += f": {format_duration(_cpu(least))} of CPU per request."
    else:
        most = max(map(_cpu, alike))
        answer += f", at most {format_duration(most)} of CPU per request: the kernel's clock does"
        answer += " not tell them apart."
    four = [way for way in kept if way.tool in FOUR_WAYS]
    if len(four) > 1:
        first, second = four[:2]
        answer += f" Of the ways to write one in Python {first.name}"
        answer += f" ({format_duration(_cpu(first))}), then {second.name}"
        answer += f" ({format_duration(_cpu(second))})."
    evidence = [
        f"{way.name}: {amount(way.rps)} requests/s, {format_duration(_cpu(way))} of CPU each"
        f" (give or take {format_duration(_step(way))})"
        for way in kept
    ]
    slow = [f"{way.name} sent {amount(way.rps)} only" for way in ways if way.rps < KEPT * asked]
    return Answer(question, answer, (*evidence, *slow))


def _cpu(way: Way) -> float:
    return way.cpu_per_request_s or 0.0


def _step(way: Way) -> float:
    return way.cpu_step_s or 0.0


# --- at a high rate -----------------------------------------------------------------------


def _high_rate(ways: Sequence[Way]) -> Answer:
    question = "Who sends the most at a high rate?"
    best = _best(ways)
    if not best:
        return Answer(question, "Cannot be said: no generator was measured as fast as it can.")
    first = best[0]
    answer = f"{first.name}: {_reaches(first)}."
    four = [way for way in best if way.tool in FOUR_WAYS]
    if len(four) > 1:
        answer += (
            f" Of the ways to write one in Python {four[0].name}: {_reaches(four[0])},"
            f" {amount(four[0].rps / four[1].rps)} times {four[1].name}."
        )
    return Answer(question, answer, tuple(f"{way.name}: {_reaches(way)}" for way in best))


def _best(ways: Sequence[Way]) -> list[Way]:
    """Each generator where it sends most; the fastest first."""
    found: dict[str, Way] = {}
    for way in ways:
        if way.rps > 0 and (way.name not in found or way.rps > found[way.name].rps):
            found[way.name] = way
    return sorted(found.values(), key=lambda way: -way.rps)


def _reaches(way: Way) -> str:
    said = f"{amount(way.rps)} requests/s at {connections(way.connections)}"
    if way.cores is not None:
        said += f" with {way.cores:.2f} cores"
    if way.server_busy:
        said += f", at least: the server's core was {percent(way.server_cores)} busy"
    return said


# --- a second machine ---------------------------------------------------------------------


def _machine(ways: Sequence[Way]) -> Answer:
    question = "Where is a second machine needed?"
    best = _best(ways)
    if not best:
        return Answer(question, "Cannot be said: no generator was measured as fast as it can.")
    first = best[0]
    lower = ", a lower bound, as the server was busy" if first.server_busy else ""
    if not lower and others_most([first]) > DISTURBED:
        lower = ", a lower bound, as other programs were busy"
    answer = (
        f"From {amount(first.rps)} requests/s on{lower}: that is all that the fastest generator"
        f" here, {first.name}, gets out of this machine. A server that answers more than a third of"
        f" it ({amount(first.rps / ROOM)}) is not measured without doubt by one machine."
    )
    evidence = [
        f"{way.name}: up to {amount(way.rps / ROOM)} requests/s without doubt,"
        f" {amount(way.rps)} at most"
        for way in best
    ]
    evidence += [
        f"{way.name} at {way.connections} connections: server's core"
        f" {percent(way.server_cores)} busy"
        for way in best
        if way.server_cores is not None and way.server_cores >= BUSY
    ]
    return Answer(question, answer, tuple(evidence))


# --- what is believed ---------------------------------------------------------------------


def _belief(ways: Sequence[Way]) -> Answer:
    question = "Whose response times are its own queueing?"
    known = [
        (own, way) for way in ways if (own := way.own_error_s("p50")) is not None
    ]  # of servers that are not busy
    if not known:
        return Answer(question, "Cannot be said: wherever response times are known, the server's"
                                 " core was busy, and requests waited in front of it.")  # fmt: skip
    known.sort(key=lambda pair: -pair[0] / (pair[1].believed.p50 or pair[0]))
    off = [way for own, way in known if own > OFF * (way.believed.p50 or 0.0)]
    worst, of = known[0]
    least, best = known[-1]
    share = f"in {len(off)} of {len(known)} loads more than half of the median it tells"
    answer = (
        f"{share} is the generator's own. Most at {of.name} with {of.connections} connections,"
        f" {format_duration(worst)} of {format_duration(of.believed.p50)}; least at"
        f" {best.name} with {best.connections}, {format_duration(least)} of"
        f" {format_duration(best.believed.p50)}."
    )
    worst_of = {way.name: way for _, way in reversed(known)}  # of each its worst, the last to come
    evidence = tuple(
        f"{way.name} at {way.connections}{' (low rate)' if way.low else ''}: believes"
        f" {format_duration(way.believed.p50)}, the server took {format_duration(way.served.p50)}"
        for _, way in known
        if worst_of[way.name] is way
    )
    return Answer(question, answer[0].upper() + answer[1:], evidence)
