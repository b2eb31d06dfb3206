"""Points as they are on file: what was planned, and all that one of them left behind.

Pure but for reading the run's own files, which are the only door to what was measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.load.programs import summary_of
from harness.load.registry import tool_named
from harness.model import (
    Load,
    Measurement,
    Observations,
    ParseError,
    Point,
    Record,
    Summary,
    Target,
)
from harness.numbers.histogram import Histogram
from harness.observe.observations import read_observations
from harness.run_store import Run, tool_output

REPORT = "target.json"


@dataclass(frozen=True)
class TargetReport:
    """What a target counted. `service`: from a request read until its answer was sent, its delay
    included, of `service_count` answers; `delays_s`: the delays it gave, added up; `cpu_s`: from
    its start to its end."""

    requests: int
    connections: int
    most_connections: int
    cpu_s: float
    delays_s: float
    service: Summary
    service_count: int


@dataclass(frozen=True)
class Shot:
    """A Point as it was executed. `why_not`: one sentence, where there is no measurement."""

    point: Point
    record: Record | None
    measurement: Measurement | None
    why_not: str | None
    server: TargetReport | None
    observations: Observations


def point_to_json(point: Point) -> dict[str, Any]:
    return dataclasses.asdict(point)


def point_from_json(values: Mapping[str, Any]) -> Point:
    """The inverse, after a trip through JSON made lists of tuples."""
    load = {name: _tuples(value) for name, value in values["load"].items()}
    target = {name: _tuples(value) for name, value in values["target"].items()}
    return Point(values["key"], Target(**target), values["tool"], Load(**load))


def _tuples(value: object) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def read_shots(run: Run) -> tuple[Shot, ...]:
    """Every point of a run whose plan has `points`, in its order."""
    planned = map(point_from_json, run.plan["points"])
    raw = run.directory / "raw"
    return tuple(read_point(point, run.records.get(point.key), raw) for point in planned)


def read_point(point: Point, record: Record | None, raw: Path) -> Shot:
    """All that is known of `point`; `raw` is the run's directory of that name."""
    directory = raw / point.key
    measurement, why_not = _measured(point, record, directory)
    server = None
    if record is not None and record.load_start_ns is not None:
        server = target_report(directory)
    return Shot(point, record, measurement, why_not, server, read_observations(directory))


def _measured(
    point: Point, record: Record | None, directory: Path
) -> tuple[Measurement | None, str | None]:
    if record is None:
        return None, "it was not run"
    if record.fault is not None:
        return None, record.fault.reason
    try:
        tool = tool_named(point.tool)
        return tool.parse(tool_output(directory, tool.OUTPUT_FILES, record.exit_code)), None
    except ParseError as error:
        return None, str(error)


def target_report(directory: Path) -> TargetReport | None:
    """What the target of a point counted; None where that is missing or damaged."""
    try:
        said = json.loads((directory / REPORT).read_text())
        service = Histogram.from_json(said["service"])
        return TargetReport(
            requests=int(said["requests"]),
            connections=int(said["connections"]),
            most_connections=int(said["most_connections_at_once"]),
            cpu_s=float(said["cpu_s"]),
            delays_s=float(said["delays_s"]),
            service=summary_of(service),
            service_count=service.count,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
