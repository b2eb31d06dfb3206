"""What held up the event loops of the workers, from their beats (`server/inside/heartbeat.py`).

A beat that is late says for how long at least its loop could not run; the kernel's counters of the
same time say why. What the thread computed, waited for a core, or what others of its process
computed or waited (they may have had the GIL) is taken off first, in full, although a part of it
will have been before the beat was due: what is left, the thread slept in a call. So `blocked` is a
lower bound: a call that begins 15 ms before a beat is due and lasts 20 ms counts as 5. Rejected: a
share of the late time in proportion to what was seen of each, which finds calls that block in loops
that compute and then wait for requests.

Time that the host gave to another machine (steal) is in no counter of a thread. It is taken off the
most blocked loop, all of it: nobody knows whom it met. Beats in which the whole machine stood still
(`stall`) say nothing, and are left out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Window
from workerlab.analysis.stall import paused
from workerlab.model import Beat

LATE_NS = 10_000_000  # blocked for so long, a beat counts as late
LEAST_LATE, PART = 3, 0.01  # late beats, and how many of all


class WorkerLoop(Struct, frozen=True):
    """The loop of one worker. Shares of the time that was observed, 0 to 1."""

    pid: int
    observed_s: float
    beats: int
    late: int  # of them, by more than 10 ms of blocking alone
    longest_s: float  # that it was blocked at once, at least
    blocked: float  # slept in a call, at least
    computing: float
    core_wait: float  # ready to run and without a core


class LoopUse(Struct, frozen=True):
    """Over the steady window; `workers`: those whose loop was observed, the most blocked first."""

    workers: tuple[WorkerLoop, ...]
    stolen_s: float  # CPU time of this machine that was given to others, of all cores

    @property
    def worst(self) -> WorkerLoop:
        return self.workers[0]


@once
def loop_use(facts: Facts) -> LoopUse | None:
    """None where no loop was observed: the class has none, the run is older, or the kernel does not
    say how long a thread waits for a core."""
    workers = sorted(
        (_worker_loop(pid, beats) for pid, beats in _beats(facts).items()),
        key=lambda worker: worker.blocked,
        reverse=True,
    )
    if not workers or facts.window is None:
        return None
    return LoopUse(tuple(workers), _stolen_s(facts, facts.window))


def held_up(facts: Facts) -> bool:
    """Whether more than 1 % of some worker's beats came over 10 ms late for another reason than a
    wait for a core: the loop was blocked, computed, or had no GIL. That alone accuses nobody: many
    short requests in a row do it, too."""

    def late(beats: Sequence[Beat]) -> int:
        return sum(
            beat.late_ns - beat.queued_ns - beat.others_queued_ns > LATE_NS for beat in beats
        )

    return any(LEAST_LATE <= late(beats) > PART * len(beats) for beats in _beats(facts).values())


@once
def _beats(facts: Facts) -> Mapping[int, Sequence[Beat]]:
    """Of the steady window by pid, but for those in which the machine stood still."""
    by_worker = defaultdict[int, list[Beat]](list)
    window = facts.window
    for beat in facts.data.beats.beats if window else ():
        begun_ns = beat.at_ns - beat.length_ns
        if window and window.contains(beat.at_ns) and not paused(facts, begun_ns, beat.at_ns):
            by_worker[beat.pid].append(beat)
    return by_worker


def _worker_loop(pid: int, beats: Sequence[Beat]) -> WorkerLoop:
    length_ns = sum(beat.length_ns for beat in beats)
    blocked_ns = [unexplained_ns(beat) for beat in beats]
    return WorkerLoop(
        pid,
        observed_s=length_ns / NS,
        beats=len(beats),
        late=sum(ns > LATE_NS for ns in blocked_ns),
        longest_s=max(blocked_ns) / NS,
        blocked=sum(blocked_ns) / length_ns,
        computing=sum(beat.cpu_ns for beat in beats) / length_ns,
        core_wait=sum(beat.queued_ns for beat in beats) / length_ns,
    )


def unexplained_ns(beat: Beat) -> int:
    """How much of its being late is neither computing nor waiting for a core, by whom ever."""
    others_ns = beat.others_cpu_ns + beat.others_queued_ns
    return max(0, beat.late_ns - beat.cpu_ns - beat.queued_ns - others_ns)


def _stolen_s(facts: Facts, window: Window) -> float:
    """Of all cores; of other trials' part, what they had of the busy time."""
    samples = [
        sample
        for sample in facts.seen.processes
        if window.contains(sample.at_ns) and sample.host_steal_s is not None
    ]
    if not samples:
        return 0.0
    first, last = samples[0], samples[-1]
    stolen_s = (last.host_steal_s or 0.0) - (first.host_steal_s or 0.0)
    busy_s = (last.host_busy_s or 0.0) - (first.host_busy_s or 0.0)
    beside_s = (last.beside_cpu_s or 0.0) - (first.beside_cpu_s or 0.0)
    return stolen_s * (1 - min(1.0, beside_s / busy_s)) if busy_s > 0 else stolen_s
