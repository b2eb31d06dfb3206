"""Running null servers, and trials on a null server with known results."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from workerlab.analysis.facts import TrialData
from workerlab.model.evidence import Measurement, NullCounts, Observations, Record, Spans, Summary
from workerlab.model.plan import Load, NullServer, Server, Trial
from workerlab.plan import NULL_BACKLOG, null_cell
from workerlab.server.null_server import RunningNull, null_server

NULL, NO_OBSERVATIONS = NullServer(), Observations()
COUNTS = NullCounts(100, 100, 10, 10, cpu_s=0.1, delays_s=0.0, service=Summary())


def serving(place: Path, null: NullServer = NULL) -> AbstractContextManager[RunningNull]:
    """A listening null server, which writes its counts into `place` at the end."""
    return null_server(Server("null", 1, 1, NULL_BACKLOG, 0, null=null), place)


def null_trial(
    name: str,
    tool: str,
    load: Load,
    measurement: Measurement | None,
    *,
    record: Record | None = None,
    null: NullServer = NULL,
    counts: NullCounts | None = COUNTS,
    observations: Observations = NO_OBSERVATIONS,
) -> TrialData:
    """`record`: by default that of a successful trial."""
    trial = Trial(null_cell(name, null, tool, load), 1)
    record = record or Record(trial.key, None, load_start_ns=1, load_end_ns=2)
    return TrialData(
        trial=trial,
        record=record,
        measurement=measurement,
        parse_error=None,
        spans=Spans(()),
        app="",
        sleep_s=None,
        lone_first=False,
        fixed_count=not load.timed,
        observations=observations,
        null=counts,
    )
