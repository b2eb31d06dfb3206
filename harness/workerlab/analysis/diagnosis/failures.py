"""Requests that fail: refused under load, or failed otherwise. Diagnosed beside everything else,
and first where they are a twentieth of the requests or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.facts import Facts
from workerlab.analysis.failures import REFUSED, ended, refused, shed, shed_share, wrong_statuses
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.outcomes import ANSWERED, NEVER_ACCEPTED
from workerlab.model import CellResult

MANY = 0.05  # of the requests: nothing is more important than such failures


class Failures(Diagnosis):
    """Requests that fail."""

    rank, advice = 110, ()

    requests: int
    share: float  # of all


class Shedding(Failures):
    """{share:percent} of the requests were refused[[ (status {statuses:list})]]
    [[ (answers other than 2xx that took hardly any time; {tool} does not tell their status)]],
    and {successes_rps:number} requests/s succeeded"""

    below_slots = "the server refuses the rest"

    statuses: tuple[str, ...]
    tool: str | None  # that does not tell them
    successes_rps: float


def shedding(facts: Facts, cell: CellResult) -> Shedding | None:
    if not (count := shed(facts)):
        return None
    statuses = tuple(refused(facts))
    return Shedding(
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
    below_slots = "failures are left out"

    causes: Mapping[str, int]
    statuses: tuple[str, ...]


def failing(facts: Facts, _cell: CellResult) -> Failing | None:
    """What failed otherwise, but for what a full accept queue explains."""
    causes = Counter(facts.outcome.errors)
    if handshakes(facts).dropped:
        del causes[NEVER_ACCEPTED]
        causes["non_2xx"] -= _by_server(facts, causes["non_2xx"])
    refusals = shed(facts)
    for cause in ANSWERED:
        of_cause = min(refusals, causes[cause])
        causes[cause] -= of_cause
        refusals -= of_cause
    if not (causes := +causes):
        return None
    return Failing(
        requests=causes.total(),
        share=min(1.0, causes.total() / ended(facts)),
        causes=dict(sorted(causes.items())),
        statuses=tuple(map(str, sorted(wrong_statuses(facts).keys() - REFUSED))),
    )


def _by_server(facts: Facts, wrong: int) -> int:
    """Wrong answers of the server itself, whose worker waited in vain for a request: where some
    requests were never seen by the app, and the tool (ab) does not tell which answer was whose."""
    unseen = 0 if facts.measurement.timings else facts.measurement.requests - len(facts.spans)
    return wrong if wrong <= 2 * unseen else 0
