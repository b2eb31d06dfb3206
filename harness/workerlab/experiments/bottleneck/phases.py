"""The phases of a load whose connections the server closes, and the TCP states of each."""

from collections.abc import Iterable, Iterator, Sequence

from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import phases_of
from workerlab.analysis.samples import NS
from workerlab.experiments.document import answer
from workerlab.model import Finding
from workerlab.report.class_findings import phase_finding

MID_LOAD = 0.9  # of a load: what begins before is not its end


def phases_answer(loads: Iterable[Facts]) -> Sequence[Finding]:
    """Of the first load, on a null server, whose connections were seen to close; else of the first
    one; of none where there is none."""
    return sorted(_answers(loads), key=lambda answer: answer.code != "bottleneck.phases")[:1]


def _answers(loads: Iterable[Facts]) -> Iterator[Finding]:
    for facts in loads:
        phases, measurement, counted = phases_of(facts), facts.measurement, facts.data.null
        begun_s = ((measurement.origin_ns or facts.started_ns) - facts.started_ns) / NS
        ends_s = begun_s + MID_LOAD * measurement.duration_s
        churn = [phase for phase in phases if phase.name == "churn" and phase.start_s < ends_s]
        null = facts.cell.server.null
        values = {
            "phases": tuple(map(phase_finding, phases)),
            "requests": null.requests_per_connection if null else None,
            "at_s": churn[0].start_s if churn else None,
            "opened": counted.connections if counted else None,
            "users": facts.cell.concurrency,
        }
        code = "phases" if churn and counted else "phases.no_churn"
        yield answer("bottleneck", "phases", code, values)
