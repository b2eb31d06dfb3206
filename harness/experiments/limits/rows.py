"""What each step of `workerlab limits` came to, and its row in a table. Pure.

    ideal = max(sum of the delays / connections, longest time the server took for one)     seconds

Both are what no client can do better than: the server's delays, shared by all connections all of
the time, and the one that took longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.experiments.limits.causes import explained
from harness.experiments.points import Shot
from harness.model import Column, Table, Value


@dataclass(frozen=True)
class Seen:
    """A step as it was executed. `open_files`: the most its load tool might have open."""

    shot: Shot
    chapter: str
    what: str
    open_files: int | None

    @property
    def key(self) -> str:
        return self.shot.point.key

    @property
    def requests(self) -> int:
        return self.shot.point.load.requests

    @property
    def connections(self) -> int:
        return self.shot.point.load.concurrency

    @property
    def wall_s(self) -> float | None:
        return self.shot.measurement.duration_s if self.shot.measurement else None

    @property
    def failed(self) -> int | None:
        """Without a success, those never sent among them."""
        found = self.shot.measurement
        return None if found is None else found.failed + (found.unsent or 0)

    @property
    def errors(self) -> Mapping[str, int]:
        return self.shot.measurement.errors if self.shot.measurement else {}

    @property
    def ideal_s(self) -> float | None:
        """None where some failed: they cost the server nothing."""
        server = self.shot.server
        if server is None or self.failed != 0 or server.service.max is None:
            return None
        return max(server.delays_s / self.connections, server.service.max)

    @property
    def ratio(self) -> float | None:
        wall_s, ideal_s = self.wall_s, self.ideal_s
        return wall_s / ideal_s if wall_s is not None and ideal_s else None

    @property
    def memory_bytes(self) -> int | None:
        """The most that was seen of the load tool's."""
        found = [sample.tool_rss_bytes for sample in self.shot.observations.processes]
        return max((one for one in found if one), default=None)

    @property
    def cpu_s(self) -> float | None:
        return self.shot.record.tool_cpu_s if self.shot.record else None

    @property
    def ports(self) -> int | None:
        """Local ones that it might use; None: as many as the machine has."""
        found = self.shot.point.load.ports
        return None if found is None else found[1] - found[0] + 1

    @property
    def explanations(self) -> list[str]:
        return explained(self.errors, self.connections, self.open_files, self.ports)


def seen(shots: tuple[Shot, ...], steps: Mapping[str, Mapping[str, Any]]) -> list[Seen]:
    """`steps`: what the plan says of each, by key."""
    found = []
    for shot in shots:
        step = steps[shot.point.key]
        found.append(Seen(shot, step["chapter"], step["what"], step["open_files"]))
    return found


CHAPTERS = {
    "clients": "A hundred requests, by a client of each kind",
    "unbounded": "With and without a bound, where a process may have 1024 files open",
    "far": "How far it goes",
    "ports": "More connections than local ports",
}

COLUMNS = (
    Column("step", "step", "text"),
    Column("tool", "load tool", "text"),
    Column("requests", "requests", "count"),
    Column("connections", "conn.", "count"),
    Column("wall_s", "took", "seconds"),
    Column("ideal_s", "ideal", "seconds"),
    Column("wall_to_ideal", "took / ideal", "number"),
    Column("failed", "failed", "count"),
    Column("errors", "causes", "counts"),
    Column("memory_bytes", "memory", "bytes"),
    Column("cpu_s", "CPU", "seconds"),
)
NOTE = (
    "ideal: the server's delays, all added up and shared by the connections, and at least its"
    " longest answer. fast sends its first request alone, and at the end connections have nothing"
    " left to send: the fewer requests each has, the more this adds. memory: the most of"
    " the load tool's that was seen. CPU: the load tool's."
)


def causes(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in sorted(errors.items()))


def row(step: Seen) -> tuple[Value, ...]:
    found = step.shot.measurement
    return (
        step.what,
        step.shot.point.tool,
        step.requests,
        step.connections,
        step.wall_s,
        step.ideal_s,
        step.ratio,
        step.failed,
        step.errors if found is not None else f"not measured: {step.shot.why_not}",
        step.memory_bytes,
        step.cpu_s,
    )


def tables(steps: list[Seen]) -> list[Table]:
    """One per chapter that has steps; what the columns mean stands below the last."""
    present = [name for name in CHAPTERS if any(step.chapter == name for step in steps)]
    return [
        Table(
            CHAPTERS[name],
            COLUMNS,
            tuple(row(step) for step in steps if step.chapter == name),
            note=NOTE if name == present[-1] else "",
        )
        for name in present
    ]
