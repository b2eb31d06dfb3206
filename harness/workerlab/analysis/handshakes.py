"""Handshakes that a full accept queue dropped: what the client saw and what the kernel counted.

Connecting takes no time on loopback. If the accept queue is full, the kernel drops the client's
SYN, and the client's kernel repeats it after fixed times, so connect times lie at steps. The kernel
also counts what it drops, by listening socket and in the whole network namespace. A socket also
drops stray packets, and the namespace includes other servers, so either proves a drop only together
with what this server's queue or this load's connections showed.

If a handshake's last packet is dropped instead, the client's side is established and the connect
time is at no step; only the counters, and requests that never reach a worker, show it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.finding import Finding
from workerlab.model import ConnectionSample, Counters
from workerlab.numbers import units

# How far from its step a connect time may be
EARLY_TOLERANCE_S, LATE_TOLERANCE_S = 0.002, 0.25
ESTABLISHED = "ESTABLISHED"  # the state after a handshake


def at_steps(connects_s: Sequence[float], steps_s: Sequence[float]) -> Mapping[float, int]:
    """The number of connections established at each step (seconds), without empty steps."""
    counts: dict[float, int] = {}
    for step, next_step in pairwise((*steps_s, float("inf"))):
        until = min(step + LATE_TOLERANCE_S, next_step - EARLY_TOLERANCE_S)
        counts[step] = sum(step - EARLY_TOLERANCE_S <= connect < until for connect in connects_s)
    return {step: count for step, count in counts.items() if count}


class Handshakes(Struct, frozen=True):
    """The handshakes of one trial."""

    steps: Mapping[float, int]  # see `at_steps`
    longest_s: float | None
    counters: Counters
    never_accepted: int
    full: bool  # a sample of the accept queue is one above its limit, the most it can hold
    half_open: int  # the largest number in a sample
    dropped: bool  # measured: a queue overflowed, and this trial shows it was this server's
    suspected: bool  # connects took long, and no counter of drops is available


def half_open(sample: ConnectionSample) -> int:
    """Connections that are established on the client's side only: the last packet of their
    handshake was dropped."""
    return max(0, sample.client.get(ESTABLISHED, 0) - sample.server.get(ESTABLISHED, 0))


@once
def handshakes(facts: Facts) -> Handshakes:
    seen, counters = facts.data.observations, facts.counters
    steps = at_steps(facts.measurement.connects_s, seen.syn_steps_s)
    never_accepted = facts.outcome.never_accepted
    length, limit = facts.accept_queue
    full = length is not None and limit is not None and length > limit
    longest_s = facts.measurement.connect.max
    return Handshakes(
        steps=steps,
        longest_s=longest_s,
        counters=counters,
        never_accepted=never_accepted,
        full=full,
        half_open=max(map(half_open, seen.connections), default=0),
        dropped=facts.overflowed and bool(steps or never_accepted or full),
        suspected=facts.dropped is None and (longest_s or 0.0) >= 1 - EARLY_TOLERANCE_S,
    )


def growth(counters: Counters) -> Mapping[str, int]:
    """The counters that this kernel has, by its names for them; with trials side by side, only that
    of the server's own sockets."""
    by_name = {
        "ListenOverflows": counters.listen_overflows,
        "ListenDrops": counters.listen_drops,
        "TCPSynRetrans": counters.syn_retransmits,
    }
    if _own_alone(counters):
        by_name = {"sk_drops": counters.socket_drops}
    return {name: count for name, count in by_name.items() if count is not None}


OWN_SOCKET, WHOLE_NAMESPACE = (
    "counted by its own listening socket",
    "counted in the whole network namespace",
)


def counted(counters: Counters) -> Mapping[str, Any]:
    """Fields of HandshakesDropped: the increase of each counter, and where it is counted."""
    return {
        "counters": growth(counters),
        "where": OWN_SOCKET if _own_alone(counters) else WHOLE_NAMESPACE,
    }


def _own_alone(counters: Counters) -> bool:
    return counters.listen_overflows is None and counters.socket_drops is not None


class SynSteps(Finding):
    """Connections by when they were made: the steps at which this kernel repeats a dropped SYN."""

    steps: tuple[tuple[float, int], ...]

    def __str__(self) -> str:
        (first_s, count), *others = self.steps
        each = [f"{units.counted(count, 'connection')} connected after {first_s:g} s"]
        each += [f"{count} after {step_s:g} s" for step_s, count in others]
        when = "steps" if others else "step"
        return f"{', '.join(each)}: the {when} at which this kernel repeats a dropped SYN"


class HandshakesDropped(Finding):
    """the accept queue was full: {counters:values} ({where})[[; {steps}]]"""

    counters: Mapping[str, int]
    where: str
    steps: SynSteps | None


class DropsSuspected(Finding):
    """connecting took up to {longest_s:duration}, likely because the accept queue was full and the
    kernel dropped handshakes"""

    longest_s: float


def steps(shakes: Handshakes) -> SynSteps | None:
    pairs = tuple(shakes.steps.items())
    return SynSteps(pairs) if pairs else None


def drops(shakes: Handshakes) -> HandshakesDropped | DropsSuspected | None:
    """The finding on dropped handshakes, measured or suspected, to add to a verdict, if any."""
    if shakes.dropped:
        return HandshakesDropped(**counted(shakes.counters), steps=steps(shakes))
    return DropsSuspected(shakes.longest_s or 0.0) if shakes.suspected else None


class CountersOfOthers(Finding):
    """{counters:values}: counted in the whole network namespace, and nothing shows that this server
    dropped anything"""

    counters: Mapping[str, int]


def counters_of_others(facts: Facts) -> tuple[Finding, ...]:
    """Counters that grew although this server dropped nothing."""
    shakes = handshakes(facts)
    increase = shakes.counters.listen_overflows or shakes.counters.syn_retransmits
    if shakes.dropped or not increase:
        return ()
    return (CountersOfOthers(growth(shakes.counters)),)
