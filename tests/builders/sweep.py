"""Documents of sweeps: a typical one, and one with every feature of a sweep."""

from __future__ import annotations

from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    bare,
    evidence,
    gthread,
    keepalive_trial,
    overflow_trial,
    sentence,
    server,
    with_record,
)
from tests.builders.open_model import closed_loop, open_trial, share
from workerlab.analysis import analyse
from workerlab.experiments.sweep.document import AffectedCells, sweep_document
from workerlab.finding import stored
from workerlab.model.evidence import Fault
from workerlab.model.plan import Rate
from workerlab.model.result import Document
from workerlab.slo import parse


def common() -> Document:
    """A typical sweep."""
    trials = [evidence(server(name), n) for name in ("sync", "eventlet") for n in (4, 8, 16)]
    return sweep_document(analyse("common", {"cpu": "a CPU", "load": 0.5}, trials))


def everything() -> Document:
    """All classes and verdicts, faults, notes, repeated trials, an axis and two tools."""
    trials = [
        evidence(server("sync", workers), n, trial=trial, tool=tool)
        for workers in (2, 4)
        for tool in ("ab", "fast")
        for n in (1, 8)
        for trial in (1, 2, 3)
    ]
    trials += [gthread(n) for n in (8, 16)]
    trials += [evidence(server(name), 16) for name in ("gevent", "asgi", "uvicorn")]
    fault = Fault("server", "worker 7 [died]\x1b[0m | SIGKILL")
    died = with_record(evidence(SYNC, 16), fault=fault)
    warning = stored(sentence("load 3.9: close programs"))
    noted = with_record(evidence(server("tornado"), 4), warnings=(warning,))
    trials += [overflow_trial(), overflow_trial("fast", counters=None)]
    trials += [keepalive_trial(n - 1, 1, connections=n, tool="wrk") for n in (8, 16)]
    trials.append(bare(evidence(server("sync", 3), 6)))
    unfinished = replace(evidence(SYNC, 32), record=None)
    return sweep_document(analyse("everything", {}, [*trials, died, noted, unfinished]))


def at_rates() -> Document:
    """Cells of the open model and of the closed loop."""
    rates = [share(0.5), open_trial(Rate(rps=60), 60.0)]
    return sweep_document(analyse("rates", {}, [*closed_loop(), *rates]))


def targeted() -> Document:
    """Levels and rates that meet a target, miss it or do not show it, and an invalid cell."""
    rounds = {4: 80, 8: 40, 16: 5}
    closed = [
        evidence(server(name), n, tool="fast", delay_s=0.1, rounds=rounds[n])
        for name in ("sync", "eventlet")
        for n in (4, 8, 16)
    ]
    rates = [open_trial(Rate(share=0.5), 20.0, duration_s=20.0), open_trial(Rate(rps=60), 60.0)]
    invalid = replace(evidence(server("gevent"), 4, tool="fast"), measurement=None)
    terms = parse("p95<150ms,errors<1%,rps>=10")
    return sweep_document(analyse("target", {}, [*closed, *rates, invalid], terms=terms))


def empty() -> Document:
    return sweep_document(analyse("empty", {}, []))


def affected(document: Document, state: str) -> list[AffectedCells]:
    """The findings on cells in this state."""
    findings = (finding for finding in document.findings if isinstance(finding, AffectedCells))
    return [finding for finding in findings if finding.state == state]
