"""Failed requests: refused under load, or failed otherwise.

They are reported in addition, before most diagnoses if they are at least 5 % of the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.facts import ANSWERED, NEVER_ACCEPTED, Facts
from workerlab.analysis.failures import (
    REFUSING_STATUSES,
    refusals_by_status,
    requests_ended,
    shed_count,
    shed_share,
    wrong_statuses,
)
from workerlab.analysis.handshakes import handshakes
from workerlab.model import CellResult

MANY_FAILED_SHARE = 0.05  # of the requests: from here on, failures rank before most diagnoses


class Failures(Diagnosis):
    """Requests that fail."""

    rank, advice = 110, ()
    at_rate = True

    requests: int
    share: float  # of all requests


class Shedding(Failures):
    """{share:percent} of the requests were refused[[ (status {statuses:list})]]
    [[ (non-2xx answers after less than half of a lone request's time in the app; {tool} does not
    report their status)]], and {successes_rps:number} requests/s succeeded"""

    below_slots = "the server refuses further requests"

    statuses: tuple[str, ...]
    tool: str | None  # set if it does not report statuses
    successes_rps: float

    @classmethod
    def diagnose(cls, facts: Facts, cell: CellResult, *_: object) -> Shedding | None:
        if not (count := shed_count(facts)):
            return None
        statuses = tuple(refusals_by_status(facts))
        return cls(
            requests=count,
            share=shed_share(facts),
            statuses=statuses,
            tool=None if statuses else facts.tool,
            successes_rps=cell.throughput_rps or 0.0,
        )


class Failing(Failures):
    """{requests:# request} failed, {share:percent} of all ({causes:counts})
    [[, with status {statuses:list}]]"""

    rank = 120
    below_slots = "failed requests are not counted"

    causes: Mapping[str, int]
    statuses: tuple[str, ...]

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> Failing | None:
        """Failures other than refusals, without those that a full accept queue explains."""
        causes = Counter(facts.outcome.errors)
        if handshakes(facts).dropped:
            del causes[NEVER_ACCEPTED]
            causes["non_2xx"] -= _killed_worker_errors(facts, causes["non_2xx"])
        refusals = shed_count(facts)
        for cause in ANSWERED:
            of_cause = min(refusals, causes[cause])
            causes[cause] -= of_cause
            refusals -= of_cause
        if not (causes := +causes):
            return None
        return cls(
            requests=causes.total(),
            share=min(1.0, causes.total() / requests_ended(facts)),
            causes=dict(sorted(causes.items())),
            statuses=tuple(map(str, sorted(wrong_statuses(facts).keys() - REFUSING_STATUSES))),
        )


def _killed_worker_errors(facts: Facts, non_2xx: int) -> int:
    """How many error responses the server itself sent when it killed a worker that was waiting for
    a request. Counted if some requests never reached the app and the tool (ab) does not say which
    response belongs to which request."""
    timed = bool(facts.measurement.timings)
    never_in_app = 0 if timed else facts.measurement.requests - len(facts.spans)
    return non_2xx if non_2xx <= 2 * never_in_app else 0
