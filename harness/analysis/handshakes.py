"""Handshakes that a full accept queue dropped: what the client saw and what the kernel counted.

Connecting takes no time on loopback. Where the accept queue is full, the kernel drops the client's
SYN, and the client's kernel repeats it after fixed times: the times to connect stand at steps. The
kernel also counts what it drops, but in the whole network namespace, so the counters prove a drop
only together with what this server's queue or this load's connections showed.

Where the last packet of a handshake is dropped instead, the client believes that it is connected
and connects at no step; only the counters, and what never reaches a worker, show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.analysis.facts import Facts
from harness.analysis.samples import accept_queue, counters
from harness.model import ConnectionSample, Counters
from harness.numbers.words import plural, seconds

EARLY_S, LATE_S = 0.002, 0.25  # how far from its step a connect may stand
DONE = "ESTABLISHED"  # a handshake that is
NAMESPACE = "counted in the whole network namespace"


def at_steps(connects_s: Sequence[float], steps_s: Sequence[float]) -> Mapping[float, int]:
    """How many connections came up at each step, those with any."""
    found: dict[float, int] = {}
    for step, following in pairwise((*steps_s, float("inf"))):
        until = min(step + LATE_S, following - EARLY_S)
        count = sum(1 for connect in connects_s if step - EARLY_S <= connect < until)
        if count:
            found[step] = count
    return found


@dataclass(frozen=True)
class Handshakes:
    """What is known of one trial's handshakes. `full`: the server's accept queue was seen longer
    than its limit, which is all it can hold. `half_open`: the most connections at once that were
    established at the client and not at the server."""

    steps: Mapping[float, int]
    longest_s: float | None
    counters: Counters
    never_accepted: int
    full: bool
    half_open: int = 0

    @property
    def counted(self) -> bool:
        """The kernel has the counters that would show a drop."""
        return self.counters.listen_overflows is not None

    @property
    def dropped(self) -> bool:
        """Measured: a queue overflowed, and this trial shows that it was this server's."""
        overflows = self.counters.listen_overflows or 0
        return overflows > 0 and bool(self.steps or self.never_accepted or self.full)

    @property
    def suspected(self) -> bool:
        """Likely: connections came up late, and the kernel was not asked."""
        late = self.longest_s is not None and self.longest_s >= 1 - EARLY_S
        return late and not self.counted


def half_open(sample: ConnectionSample) -> int:
    """Connections that the client believes to have and the server's kernel does not know: the
    last packet of their handshake was dropped."""
    return max(0, sample.client.get(DONE, 0) - sample.server.get(DONE, 0))


def handshakes(facts: Facts) -> Handshakes:
    seen, said = facts.evidence.observations, facts.said
    length, limit = accept_queue(seen)
    return Handshakes(
        steps=at_steps(said.connects_s, seen.syn_steps_s),
        longest_s=said.connect.max,
        counters=counters(seen),
        never_accepted=facts.outcome.never_accepted,
        full=length is not None and limit is not None and length > limit,
        half_open=max(map(half_open, seen.connections), default=0),
    )


def at_which_steps(found: Handshakes) -> str:
    """'12 connections connected after 1 s, 3 after 2 s: the steps at which ...', or nothing."""
    if not found.steps:
        return ""
    (first, count), *rest = found.steps.items()
    said = [f"{plural(count, 'connection')} connected after {first:g} s"]
    said += [f"{count} after {step:g} s" for step, count in rest]
    what = "the step" if len(said) == 1 else "the steps"
    return f"{', '.join(said)}: {what} at which this kernel repeats a dropped SYN"


def what_was_counted(found: Handshakes) -> str:
    """'ListenOverflows 40, ListenDrops 40, TCPSynRetrans 12, counted in the whole ...'."""
    names = {
        "ListenOverflows": found.counters.listen_overflows,
        "ListenDrops": found.counters.listen_drops,
        "TCPSynRetrans": found.counters.syn_retransmits,
    }
    return ", ".join(f"{name} {count}" for name, count in names.items() if count is not None)


def late_connects(found: Handshakes) -> str:
    """What to add to a verdict's reason where connections came up late; begins with '; '."""
    if found.dropped:
        steps = at_which_steps(found)
        said = f"; the accept queue was full: {what_was_counted(found)} ({NAMESPACE})"
        return said + (f"; {steps}" if steps else "")
    if found.suspected and found.longest_s is not None:
        return (
            f"; connecting took up to {seconds(found.longest_s)}, likely because the accept queue"
            " was full and the kernel dropped handshakes"
        )
    return ""
