"""Cells whose event loops are blocked: a call that sleeps and does not give way holds up every
request of its worker.

Where the loops were observed, their beats say it (`event_loop`): 1 % of the time or more, by calls
that made at least three beats late by more than 10 ms; or 10 % of it, however short the calls. Less
delays no request in a hundred; and one or two late beats are what the machine does to any program
now and then, so that their time is left out, unless it is half of all. It is said where some worker
had more than one connection to serve: a loop is not missed by those who are not there. Of a worker
with one slot (tornado with a WSGI app) it is how the class works, and the slots say it.

Where they were not observed (an older run, a kernel without schedstat), the spans say it, but only
of loops that are blocked all the time: workers that could serve many requests serve one at a time.
"""

from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from statistics import fmean

from workerlab.analysis.diagnosis_slots import service_s, waits
from workerlab.analysis.event_loop import LoopUse, held_up, loop_use
from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import most_open
from workerlab.model import CellResult, Finding, Span

# Of the time: by calls that make beats late, by calls of any length, by one or two long ones
SHARE, SHORT, MOSTLY = 0.01, 0.1, 0.5
LATE, EACH = 3, 2  # late beats, and those of the most blocked worker
BLOCKED = 0.9  # of the time in the app: no hello-world app gets there
LONG_S, QUEUED = 0.005, 0.05  # a request that takes so long, and others that wait so much of it
COMPUTING = 0.7  # of the cores its workers could use


def blocked_loop(facts: Facts, cell: CellResult) -> Finding | None:
    """By the beats; without any, by the spans."""
    if not _serves_many(facts):
        return None
    use = loop_use(facts)
    return _by_spans(facts, cell) if use is None else _by_beats(facts, use)


def worth_a_look(facts: Facts) -> bool:
    """Whether a trial more, which looks at what the loop runs (`blocking`), may name a line: an
    alarm, and no verdict."""
    return _serves_many(facts) and held_up(facts)


def _serves_many(facts: Facts) -> bool:
    """Whether one loop serves many requests of a worker. The class says it, but for an application
    of tornado's own, which may await."""
    row = facts.data.worker_class
    if facts.record.proof.get("app_kind") == "tornado":
        return True
    return row.loop and row.slots_per_worker(facts.cell.server) != 1


def _by_beats(facts: Facts, use: LoopUse) -> Finding | None:
    worst, late = use.worst, sum(worker.late for worker in use.workers)
    blocked = worst.blocked - use.stolen_s / worst.observed_s
    if late >= LATE and worst.late >= EACH:
        alarm = blocked >= SHARE
    else:
        by_late_beats = worst.late * worst.longest_s / worst.observed_s  # at most
        alarm = blocked >= MOSTLY or blocked - by_late_beats >= SHORT
    if not alarm or not _shared(facts):
        return None
    beats = sum(worker.beats for worker in use.workers)
    found: dict[str, object]
    found = {"blocked": blocked, "longest_s": worst.longest_s, "late": late, "beats": beats}
    how = Finding("loop.late", {**found, "late": late or None})
    advice = (_calls(facts),)
    return Finding(
        "diagnosis.blocked_loop", {**found, **_load(facts), "how": how, "advice": advice}
    )


def _load(facts: Facts) -> dict[str, int]:
    return {"connections": facts.connections, "workers": facts.cell.server.workers}


def _shared(facts: Facts) -> bool:
    """Whether some worker had more than one connection at once."""
    if facts.connections > len(facts.record.worker_pids):
        return True
    spans = sorted(facts.spans, key=attrgetter("pid"))
    return any(most_open(list(own)) > 1 for _, own in groupby(spans, attrgetter("pid")))


def _by_spans(facts: Facts, cell: CellResult) -> Finding | None:
    """One request at a time in workers that could serve many."""
    busy = one_at_a_time(facts)
    if busy is None or not waits(facts, cell):
        return None
    queued_s, served_s = cell.breakdown.in_worker_s or 0.0, service_s(cell)
    behind = served_s >= LONG_S and queued_s >= QUEUED * served_s
    if busy < BLOCKED and not behind:
        return None
    found = {**_load(facts), "how": Finding("loop.one_at_a_time", _load(facts))}
    return Finding("diagnosis.blocked_loop", {**found, "advice": (_what_blocks(facts),)})


def loops_in_use(facts: Facts) -> float:
    """The part of their time in which the workers' loops could take no request, as far as that is
    known: they were blocked or computed (on average), or serve one at a time and the busiest had
    one. 0 to 1."""
    use = loop_use(facts)
    by_beats = fmean(one.blocked + one.computing for one in use.workers) if use else 0.0
    return max(by_beats, (one_at_a_time(facts) or 0.0) if _serves_many(facts) else 0.0)


def one_at_a_time(facts: Facts) -> float | None:
    """Where no worker ever had two requests in the app although its loop could: the part of the
    steady window that the busiest one spent in the app, 0 to 1. None where some worker had two.

    The busiest, because chance may deal the connections to a part of the workers. An app that
    answers at once is one at a time as well; it leaves the loop free for the rest of the time.
    """
    server, steady = facts.cell.server, facts.window
    # More open at once than there are workers: two in one of them, without looking.
    if steady is None or facts.open_at_once > server.workers:
        return None
    by_worker: dict[int, list[Span]] = defaultdict(list)
    for span in facts.spans:
        by_worker[span.pid].append(span)
    if any(most_open(spans) > 1 for spans in by_worker.values()):
        return None
    closes = steady.closes_ns
    busy_s = (
        steady.inside_s((span.start_ns, span.end_ns or closes) for span in spans)
        for spans in by_worker.values()
    )
    return max(busy_s, default=0.0) / steady.length_s


def _what_blocks(facts: Facts) -> Finding:
    """As far as the CPU that the workers used tells it."""
    workers, cores = facts.cell.server.workers, facts.seen.cores
    used, could = facts.usage.server_cores, min(workers, cores or workers)
    if used is not None and used >= COMPUTING * could:
        return Finding("advice.move_computing", {"cores": used, "workers": workers})
    return _calls(facts)


def _calls(facts: Facts) -> Finding:
    """Which calls to replace, and by what."""
    proof = facts.record.proof
    # gevent replaces the calls that block in each worker; eventlet does it before any fork
    if proof.get("preload_app") is True and proof.get("patched") == "gevent":
        return Finding("advice.patch_before_preload")
    # tornado awaits as the ASGI classes do; the others patch
    patches = facts.data.worker_class.slots == "worker_connections"
    if facts.data.worker_class.asgi:
        return Finding("advice.calls_in_threads", {"cores": facts.usage.server_cores})
    code = "advice.patched_calls" if patches else "advice.asynchronous_calls"
    return Finding(code, {"cores": facts.usage.server_cores})
