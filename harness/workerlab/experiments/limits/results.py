"""The measurements of each step of `workerlab limits`.

    ideal = max(sum of the delays / connections, the server's longest delay)     seconds

No client can be faster: at best its connections are always busy and share the delays, and no load
is shorter than its longest response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from workerlab.analysis.facts import Facts, TrialData
from workerlab.finding import Finding
from workerlab.model.evidence import Measurement
from workerlab.model.plan import Load, NullServer
from workerlab.model.result import Usage
from workerlab.numbers.units import fill

SPARE_FILES = 64  # files that a process opens besides its connections

# Labels by `what` of the planned step
LABELS = {
    "synchronous": "synchronous: one at a time",
    "asynchronous": "asynchronous: all at once",
    "unbounded": "no bound",
    "raised": "no bound, limit raised",
    "bounded": "at most {step.load.concurrency:count} at once",
    "bodies": "{step.null.body_bytes:bytes} each",
    "all_tasks": "a task for each request",
    "all_bodies": "tasks and bodies of {step.null.body_bytes:bytes}, kept",
    "new_connections": "{step.null.body_bytes:bytes} each, one new connection per request",
    "ports_used_up": "{step.ports:count} ports",
    "time_wait": "all ports, new connections, tcp_tw_reuse {step.null.tw_reuse}",
    "ports_sources": "{step.ports:count} ports, {sources} source addresses",
    "ports_reuse": "{step.ports:count} ports, fewer connections, reused",
    "mistake": "the mistake",
    "abandoned": "the mistake with tasks",
    "cure": "the fix",
}


class StepMeasured(Finding):
    """{tool}, {requests:# request} over {connections:# connection} ({step}): {took_s:duration}
    [[, ideal {ideal_s:duration}]], {failed:count} failed[[: {errors:counts}]]
    [[; at most {memory_bytes:bytes} of memory]]"""

    tool: str
    requests: int
    connections: int
    step: str
    took_s: float
    ideal_s: float | None
    failed: int
    errors: Mapping[str, int]
    memory_bytes: int | None
    client_cores: float | None
    server_cores: float | None


class FilesRanOut(Finding):
    """Errno 24 (too many open files): {failed:# request} failed for lack of a file descriptor.
    {connections:count} connections were attempted at once
    [[, and a process may have {open_files:count} files open]]. Raise the limit (ulimit -n
    {needed}), or bound the number of requests in flight."""

    failed: int
    connections: int
    open_files: int | None
    needed: int


class PortsRanOut(Finding):
    """Errno 99 (cannot assign requested address): {failed:# request} failed for lack of a local
    port. {connections:count} connections were attempted at once
    [[, and there are {ports:count} ports]]; a port serves one connection per pair of source address
    and server. Reuse connections (keep-alive), connect from more source addresses (on loopback
    127.0.0.2, 127.0.0.3, and so on), or widen net.ipv4.ip_local_port_range."""

    failed: int
    connections: int
    ports: int | None


class MistakeForm(Finding):
    """{source}: {returned:counts} returned
    [[, {requests:# request} and {connections:# connection} at the server]]
    [[; reported: {complaints:counts}]]"""

    mistake: str
    form: str
    source: str
    requested: int
    returned: Mapping[str, int]  # by type of the object
    complaints: Mapping[str, int]  # by text
    time_wait: int | None
    took_s: float
    requests: int | None
    connections: int | None


class StepResult(Struct, frozen=True):
    """One step. `chapter`, `what`: as in its plan. `missing`: why nothing was measured, or None.
    `failed`: includes unsent requests. `ideal_s`: None if requests failed, since those cost the
    server no time, or if the server's counts are missing. `memory_bytes`: the load tool's peak."""

    data: TrialData
    chapter: str
    what: str
    load: Load
    null: NullServer
    missing: Finding | None
    measurement: Measurement | None
    wall_s: float | None
    failed: int | None
    errors: Mapping[str, int]
    ideal_s: float | None
    memory_bytes: int | None
    cpu_s: float | None
    usage: Usage

    @property
    def name(self) -> str:
        return self.data.cell.name

    @property
    def tool(self) -> str:
        return self.data.cell.tool

    @property
    def ports(self) -> int | None:
        return None if self.load.ports is None else self.load.ports[1] - self.load.ports[0] + 1

    @property
    def label(self) -> str:
        return fill(LABELS[self.what], {"step": self, "sources": len(self.load.sources)})

    @property
    def not_measured(self) -> str | None:
        return f"not measured: {self.missing}" if self.missing else None

    @property
    def ratio(self) -> float | None:
        return self.wall_s / self.ideal_s if self.wall_s is not None and self.ideal_s else None

    @property
    def causes(self) -> tuple[FilesRanOut | PortsRanOut, ...]:
        """Limits of the client's machine that made requests fail."""
        causes: list[FilesRanOut | PortsRanOut] = []
        connections = self.load.concurrency
        if failed := self.errors.get("no_files"):
            needed_files = connections + SPARE_FILES
            causes.append(FilesRanOut(failed, connections, self.load.open_files, needed_files))
        if failed := self.errors.get("no_address"):
            causes.append(PortsRanOut(failed, connections, self.ports))
        return tuple(causes)

    @property
    def evidence(self) -> StepMeasured | MistakeForm:
        return self.mistake_form if self.chapter == "mistakes" else self.summary

    @property
    def summary(self) -> StepMeasured:
        """Raises AssertionError if nothing was measured."""
        assert self.measurement is not None
        return StepMeasured(
            tool=self.tool,
            requests=self.load.requests,
            connections=self.load.concurrency,
            step=self.label,
            took_s=self.measurement.duration_s,
            ideal_s=self.ideal_s,
            failed=self.failed or 0,
            errors=self.errors,
            memory_bytes=self.memory_bytes,
            client_cores=self.usage.generator_cores,
            server_cores=self.usage.server_cores,
        )

    @property
    def mistake_form(self) -> MistakeForm:
        """For a step that makes or avoids a mistake. Raises AssertionError if nothing was
        measured."""
        assert self.measurement is not None
        details, counts = self.measurement.details, self.data.null
        return MistakeForm(
            mistake=details["mistake"],
            form=details["form"],
            source=details["code"],
            requested=self.load.requests,
            returned=details["returned"],
            complaints=details["complaints"],
            time_wait=details["time_wait"],
            took_s=self.measurement.duration_s,
            requests=counts.requests if counts else None,
            connections=counts.connections if counts else None,
        )


def results_of(
    trials: Sequence[TrialData], steps: Mapping[str, Mapping[str, Any]]
) -> list[StepResult]:
    """The result of each trial. `steps`: `chapter` and `what` of each, by the name of its cell."""
    return [_result_of(data, **steps[data.cell.name]) for data in trials]


def _result_of(data: TrialData, chapter: str, what: str) -> StepResult:
    load, null, counts = data.cell.load, data.cell.server.null or NullServer(), data.null
    assert load is not None, "a step's load is fixed"
    facts = data.facts
    missing, usage = (None, facts.usage) if isinstance(facts, Facts) else (facts, Usage())
    measurement = None if missing else data.measurement
    failed = None if measurement is None else measurement.failed + (measurement.unsent or 0)
    ideal_s = None
    if counts is not None and failed == 0 and counts.service.max is not None:
        ideal_s = max(counts.delays_s / load.concurrency, counts.service.max)
    sizes = [sample.tool_rss_bytes for sample in data.observations.processes]
    sizes.append(measurement.details.get("peak_bytes") if measurement else None)
    return StepResult(
        data=data,
        chapter=chapter,
        what=what,
        load=load,
        null=null,
        missing=missing,
        measurement=measurement,
        wall_s=measurement.duration_s if measurement else None,
        failed=failed,
        errors=measurement.errors if measurement else {},
        ideal_s=ideal_s,
        memory_bytes=max(filter(None, sizes), default=None),
        cpu_s=data.record.tool_cpu_s if data.record else None,
        usage=usage,
    )
