"""What each step of `workerlab limits` came to. Pure.

    ideal = max(sum of the delays / connections, longest time the server took for one)     seconds

Both are what no client can do better than: the server's delays, shared by all connections all of
the time, and the one that took longest.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from workerlab.analysis.facts import Facts, TrialData, facts_of
from workerlab.model import Finding, Load, Measurement, NullServer, Usage

SPARE_FILES = 64  # what a process has open beside its connections


class Result(Struct, frozen=True):
    """A step as it was executed. `chapter`: of the Step. `missing`: why nothing was measured.
    `failed`: without a success, those never sent among them. `ideal_s`: None where some failed,
    which cost the server nothing, or nothing was counted. `memory_bytes`: the most that was seen of
    the load tool's."""

    data: TrialData
    chapter: str
    what: str
    load: Load
    null: NullServer
    label: Finding
    missing: Finding | None
    measured: Measurement | None
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
    def not_measured(self) -> Finding | None:
        return Finding("limits.not_measured", {"why": self.missing}) if self.missing else None

    @property
    def ratio(self) -> float | None:
        return self.wall_s / self.ideal_s if self.wall_s is not None and self.ideal_s else None

    @property
    def causes(self) -> tuple[Finding, ...]:
        """Limits of the client's machine that made requests fail, with what to change."""
        needed = self.load.concurrency + SPARE_FILES
        values = {**self.label.values, "open_files": self.load.open_files, "needed": needed}
        return tuple(
            Finding(f"limits.{cause}", {**values, "failed": self.errors[cause]})
            for cause in ("no_files", "no_address")
            if self.errors.get(cause)
        )

    @property
    def evidence(self) -> Finding:
        values = {
            "tool": self.tool,
            "requests": self.load.requests,
            "connections": self.load.concurrency,
            "step": self.label,
            "took_s": self.wall_s,
            "ideal_s": self.ideal_s,
            "failed": self.failed,
            "errors": self.errors,
            "memory_bytes": self.memory_bytes,
            "client_cores": self.usage.generator_cores,
            "server_cores": self.usage.server_cores,
        }
        return Finding("limits.step", values)


def results_of(trials: Sequence[TrialData], steps: Mapping[str, Mapping[str, Any]]) -> list[Result]:
    """`steps`: what the plan's details say of each, by the name of its cell."""
    return [_result_of(data, **steps[data.cell.name]) for data in trials]


def _result_of(data: TrialData, chapter: str, what: str) -> Result:
    load, null, counted = data.cell.load, data.cell.server.null or NullServer(), data.null
    assert load is not None, "a step's load is fixed"
    label = {
        "connections": load.concurrency,
        "body_bytes": null.body_bytes,
        "ports": None if load.ports is None else load.ports[1] - load.ports[0] + 1,
        "sources": len(load.sources),
        "tw_reuse": null.tw_reuse,
    }
    facts = facts_of(data)
    missing, usage = (None, facts.usage) if isinstance(facts, Facts) else (facts, Usage())
    measured = None if missing else data.measurement
    failed = None if measured is None else measured.failed + (measured.unsent or 0)
    ideal_s = None
    if counted is not None and failed == 0 and counted.service.max is not None:
        ideal_s = max(counted.delays_s / load.concurrency, counted.service.max)
    sizes = [sample.tool_rss_bytes for sample in data.observations.processes]
    sizes.append(measured.details.get("peak_bytes") if measured else None)
    return Result(
        *(data, chapter, what, load, null, Finding(f"limits.step.{what}", label)),
        missing=missing,
        measured=measured,
        wall_s=measured.duration_s if measured else None,
        failed=failed,
        errors=measured.errors if measured else {},
        ideal_s=ideal_s,
        memory_bytes=max(filter(None, sizes), default=None),
        cpu_s=data.record.tool_cpu_s if data.record else None,
        usage=usage,
    )
