"""What delayed the workers' event loops, from their beats (`server/inside/heartbeat.py`).

The delay of a beat is a lower bound of the time its loop could not run; the kernel's counters for
that time show why. The time in which the thread computed or waited for a core, or other threads of
its process did (they may have held the GIL), is subtracted in full, although part of it may precede
the moment the beat was due. For the rest, the thread slept in a call. So `blocked` is a lower
bound: a call that begins 15 ms before a beat is due and lasts 20 ms counts as 5.

Rejected: dividing the delay in proportion to each of these, which finds blocking calls in loops
that compute and then wait for requests.

Time that the host gave to another machine (steal) is in no counter of a thread. All of it is
subtracted from the most blocked loop, as it is unknown which loop it hit. Beats during which the
whole machine was paused (`stall`) show nothing and are left out.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Window, by_worker
from workerlab.analysis.stall import machine_paused
from workerlab.model import Beat

LATE_BEAT_NS = 10_000_000  # a beat is late if its delay, less explained parts, exceeds this
MIN_LATE_BEATS = 3
MIN_LATE_SHARE = 0.01  # of all beats


class WorkerLoop(Struct, frozen=True):
    """The loop of one worker. Shares are of the observed time, 0 to 1."""

    pid: int
    observed_s: float
    beats: int
    late: int  # beats that blocking delayed by more than 10 ms
    longest_s: float  # lower bound of the longest time blocked at a stretch
    blocked: float  # share, lower bound: asleep in a call
    computing: float  # share
    core_wait: float  # share: ready to run, without a core


class LoopUse(Struct, frozen=True):
    """Over the steady window."""

    workers: tuple[WorkerLoop, ...]  # those whose loop was observed, the most blocked first
    stolen_s: float  # CPU time that the host gave to other machines, over all cores

    @property
    def worst(self) -> WorkerLoop:
        return self.workers[0]


@once
def loop_use(facts: Facts) -> LoopUse | None:
    """The loops in the steady window; None if none was observed: the class has no loop, the run is
    older, or the kernel does not report how long a thread waits for a core."""
    workers = sorted(
        (_worker_loop(pid, beats) for pid, beats in _beats(facts).items()),
        key=lambda worker: worker.blocked,
        reverse=True,
    )
    if not workers or facts.window is None:
        return None
    return LoopUse(tuple(workers), _stolen_s(facts, facts.window))


def has_late_beats(facts: Facts) -> bool:
    """Whether more than 1 % of some worker's beats, and at least three, were over 10 ms late for a
    reason other than waiting for a core: the loop was blocked, computed, or lacked the GIL. That
    alone proves no fault: many short requests in a row have the same effect."""

    def late_count(beats: Sequence[Beat]) -> int:
        return sum(
            beat.late_ns - beat.queued_ns - beat.others_queued_ns > LATE_BEAT_NS for beat in beats
        )

    return any(
        MIN_LATE_BEATS <= late_count(beats) > MIN_LATE_SHARE * len(beats)
        for beats in _beats(facts).values()
    )


@once
def _beats(facts: Facts) -> Mapping[int, Sequence[Beat]]:
    """The beats of the steady window by pid, except those during which the machine was paused."""
    window, observations = facts.window, facts.observations
    if window is None:
        return {}
    return by_worker(
        beat
        for beat in facts.data.beats.beats
        if window.contains(beat.at_ns)
        if not machine_paused(observations, beat.at_ns - beat.length_ns, beat.at_ns)
    )


def _worker_loop(pid: int, beats: Sequence[Beat]) -> WorkerLoop:
    length_ns = sum(beat.length_ns for beat in beats)
    blocked_ns = [unexplained_ns(beat) for beat in beats]
    return WorkerLoop(
        pid,
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
    ready to."""
    others_ns = beat.others_cpu_ns + beat.others_queued_ns
    return max(0, beat.late_ns - beat.cpu_ns - beat.queued_ns - others_ns)


def _stolen_s(facts: Facts, window: Window) -> float:
    """CPU seconds stolen from all cores, less the part of other trials, by their CPU use."""
    samples = [
        sample
        for sample in facts.observations.processes
        if window.contains(sample.at_ns) and sample.host_steal_s is not None
    ]
    if not samples:
        return 0.0
    stolen_s, busy_s, beside_s = (
        (getattr(samples[-1], name) or 0.0) - (getattr(samples[0], name) or 0.0)
        for name in ("host_steal_s", "host_busy_s", "beside_cpu_s")
    )
    return stolen_s * (1 - min(1.0, beside_s / busy_s)) if busy_s > 0 else stolen_s
