"""What each step of `workerlab limits` came to. Pure.

    ideal = max(sum of the delays / connections, longest time the server took for one)     seconds

Both are what no client can do better than: the server's delays, shared by all connections all of
the time, and the one that took longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.facts import TrialData, unusable
from harness.model import Finding, Load, Measurement, NullServer

SPARE_FILES = 64  # what a process has open beside its connections


@dataclass(frozen=True)
class Result:
    """A step as it was executed. `chapter`, `what`: of the Step."""

    data: TrialData
    chapter: str
    what: str

    @property
    def name(self) -> str:
        return self.data.cell.name

    @property
    def tool(self) -> str:
        return self.data.cell.tool

    @property
    def load(self) -> Load:
        load = self.data.cell.load
        assert load is not None, "a step's load is fixed"
        return load

    @property
    def null(self) -> NullServer:
        return self.data.cell.server.null or NullServer()

    @property
    def missing(self) -> Finding | None:
        """Why nothing was measured."""
        return unusable(self.data)

    @property
    def measured(self) -> Measurement | None:
        return None if self.missing else self.data.measurement

    @property
    def label(self) -> Finding:
        ports = self.load.ports
        values = {
            "connections": self.load.concurrency,
            "body_bytes": self.null.body_bytes,
            "ports": None if ports is None else ports[1] - ports[0] + 1,
            "sources": len(self.load.sources),
        }
        return Finding(f"limits.step.{self.what}", values)

    @property
    def wall_s(self) -> float | None:
        return self.measured.duration_s if self.measured else None

    @property
    def failed(self) -> int | None:
        """Without a success, those never sent among them."""
        return None if self.measured is None else self.measured.failed + (self.measured.unsent or 0)

    @property
    def errors(self) -> Mapping[str, int]:
        return self.measured.errors if self.measured else {}

    @property
    def ideal_s(self) -> float | None:
        """None where some failed: they cost the server nothing; or nothing was counted."""
        counted = self.data.null
        if counted is None or self.failed != 0 or counted.service.max is None:
            return None
        return max(counted.delays_s / self.load.concurrency, counted.service.max)

    @property
    def ratio(self) -> float | None:
        wall_s, ideal_s = self.wall_s, self.ideal_s
        return wall_s / ideal_s if wall_s is not None and ideal_s else None

    @property
    def memory_bytes(self) -> int | None:
        """The most that was seen of the load tool's."""
        sizes = (sample.tool_rss_bytes for sample in self.data.observations.processes)
        return max(filter(None, sizes), default=None)

    @property
    def cpu_s(self) -> float | None:
        return self.data.record.tool_cpu_s if self.data.record else None

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
        }
        return Finding("limits.step", values)


def results_of(trials: Sequence[TrialData], steps: Mapping[str, Mapping[str, Any]]) -> list[Result]:
    """`steps`: what the plan's details say of each, by the name of its cell."""
    return [Result(data, **steps[data.cell.name]) for data in trials]
