"""Handshakes that a full accept queue dropped, by the client's connect times and kernel counters.

Connecting takes no time on loopback. If the accept queue is full, the kernel drops the client's
SYN, and the client's kernel repeats it after fixed delays, so connect times lie at steps. The
kernel also counts drops, by listening socket and for the whole network namespace. But a socket also
drops stray packets, and the namespace includes other servers, so a counter proves a drop only
together with evidence from this server's queue or this load's connections.

If a handshake's last packet is dropped instead, the connection is established on the client's side
and the connect time is at no step. Only the counters show this, and requests that never reach a
worker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.finding import Finding, Findings
from workerlab.model.evidence import ConnectionSample, Counters
from workerlab.numbers import units

EARLY_TOLERANCE_S = 0.002  # a connect time may be this much below its step
LATE_TOLERANCE_S = 0.25  # or this much above it
ESTABLISHED = "ESTABLISHED"  # the state after a handshake


def at_steps(connects_s: Sequence[float], steps_s: Sequence[float]) -> Mapping[float, int]:
    """The number of connections established at each step (seconds), without empty steps."""
    counts = Counter[float]()
    for step_s, next_s in pairwise((*steps_s, float("inf"))):
        from_s = step_s - EARLY_TOLERANCE_S
        until_s = min(step_s + LATE_TOLERANCE_S, next_s - EARLY_TOLERANCE_S)
        counts[step_s] = sum(from_s <= connect_s < until_s for connect_s in connects_s)
    return +counts


class SynSteps(Finding):
    """Connections established after this kernel repeated a dropped SYN."""

    steps: tuple[tuple[float, int], ...]  # seconds, connections

    def __str__(self) -> str:
        (first_s, count), *later = self.steps
        parts = [f"{units.counted(count, 'connection')} connected after {first_s:g} s"]
        parts += [f"{count} after {step_s:g} s" for step_s, count in later]
        noun = "times" if later else "time"
        return f"{', '.join(parts)}: the {noun} at which this kernel repeats a dropped SYN"


class Handshakes(Struct, frozen=True):
    """The handshakes of one trial."""

    steps: SynSteps | None  # None: no connection was established at a step
    counters: Mapping[str, int]  # increases, by the kernel's names, of those that it has
    where: str  # whether they belong to the server's socket or the network namespace
    queue_full: bool  # in a sample: one above the limit, the most that the queue can hold
    max_half_open: int  # in a sample
    dropped: bool  # measured: a queue overflowed, and the trial shows that it was this server's
    drops_suspected: bool  # connecting took long, and there is no counter of drops


def half_open(sample: ConnectionSample) -> int:
    """Connections established on the client's side only, because the last packet of the handshake
    was dropped."""
    return max(0, sample.client.get(ESTABLISHED, 0) - sample.server.get(ESTABLISHED, 0))


@once
def handshakes(facts: Facts) -> Handshakes:
    observations = facts.data.observations
    by_step = at_steps(facts.measurement.connects_s, observations.syn_steps_s)
    length, limit = facts.accept_queue
    full = length is not None and limit is not None and length > limit
    slow = (facts.measurement.connect.max or 0.0) >= 1 - EARLY_TOLERANCE_S
    counters, where = _counters_by_name(facts.counters)
    return Handshakes(
        steps=SynSteps(tuple(by_step.items())) if by_step else None,
        counters=counters,
        where=where,
        queue_full=full,
        max_half_open=max(map(half_open, observations.connections), default=0),
        dropped=facts.overflowed and bool(by_step or facts.outcome.never_accepted or full),
        drops_suspected=slow and facts.dropped_handshakes is None,
    )


OWN_SOCKET = "counted by the server's own listening socket"
WHOLE_NAMESPACE = "counted in the whole network namespace"


def _counters_by_name(counters: Counters) -> tuple[Mapping[str, int], str]:
    """The counters by the kernel's names, and what they count. If trials ran side by side, only the
    counter of the server's own sockets is available."""
    if counters.listen_overflows is None and counters.socket_drops is not None:
        return {"sk_drops": counters.socket_drops}, OWN_SOCKET
    by_name = {
        "ListenOverflows": counters.listen_overflows,
        "ListenDrops": counters.listen_drops,
        "TCPSynRetrans": counters.syn_retransmits,
    }
    return {name: count for name, count in by_name.items() if count is not None}, WHOLE_NAMESPACE


class HandshakesDropped(Finding):
    """the accept queue was full: {counters:values} ({where})[[; {steps}]]"""

    counters: Mapping[str, int]
    where: str
    steps: SynSteps | None


class DropsSuspected(Finding):
    """connecting took up to {longest_s:duration}, likely because the accept queue was full and the
    kernel dropped handshakes"""

    longest_s: float


def drops_finding(facts: Facts) -> HandshakesDropped | DropsSuspected | None:
    """The drops that were measured, or else suspected; None if there are none."""
    observed = handshakes(facts)
    if observed.dropped:
        return HandshakesDropped(observed.counters, observed.where, observed.steps)
    longest_s = facts.measurement.connect.max or 0.0
    return DropsSuspected(longest_s) if observed.drops_suspected else None


class CountersOfOthers(Finding):
    """{counters:values}: counted in the whole network namespace; nothing shows that this server
    dropped a handshake"""

    counters: Mapping[str, int]


def counters_of_others(facts: Facts) -> Findings:
    """A note if counters grew, but nothing shows a drop by this server."""
    observed, counters = handshakes(facts), facts.counters
    if observed.dropped or not (counters.listen_overflows or counters.syn_retransmits):
        return ()
    return (CountersOfOthers(observed.counters),)
