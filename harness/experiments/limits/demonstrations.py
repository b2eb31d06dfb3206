"""What the demonstrations of classic mistakes left behind, read from a run's directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.experiments.points import TargetReport, point_from_json, target_report
from harness.model import Point
from harness.run_store import Run, read_text


@dataclass(frozen=True)
class Demonstration:
    """One form of a mistake, run against a target of its own. What the program says of itself, as
    in harness/experiments/limits/mistakes/showing.py, and what the server counted; `why_not`: one
    sentence, where it could not be run or read."""

    key: str
    mistake: str
    form: str
    code: str = ""
    asked: int | None = None
    got: Mapping[str, int] = field(default_factory=dict)
    answers: int | None = None
    seconds: float | None = None
    said: Mapping[str, int] = field(default_factory=dict)
    time_wait: int | None = None
    requests_seen: int | None = None
    connections_seen: int | None = None
    why_not: str | None = None


def read_demonstrations(run: Run) -> tuple[Demonstration, ...]:
    """All that the plan of a run names, in its order."""
    return tuple(
        _read(run, point_from_json(one["point"]), one["mistake"], one["form"])
        for one in run.plan.get("mistakes", ())
    )


def _read(run: Run, point: Point, mistake: str, form: str) -> Demonstration:
    record, raw = run.records.get(point.key), run.directory / "raw" / point.key
    report = target_report(raw)
    if record is None:
        return Demonstration(point.key, mistake, form, why_not="it was not run")
    if record.fault is not None:
        return Demonstration(point.key, mistake, form, why_not=record.fault.reason)
    try:
        said = json.loads(read_text(raw / "tool" / "stdout"))
        return _of(point.key, said, report)
    except (ValueError, KeyError, TypeError, AttributeError):
        last = read_text(raw / "tool" / "stderr").strip().rpartition("\n")[2]
        why = last or f"it ended with exit code {record.exit_code}"
        return Demonstration(point.key, mistake, form, why_not=why)


def _of(key: str, said: Mapping[str, object], report: TargetReport | None) -> Demonstration:
    names = ("mistake", "form", "code", "asked", "got", "answers", "seconds", "said", "time_wait")
    return Demonstration(
        key,
        **{name: said[name] for name in names},  # type: ignore[arg-type]
        requests_seen=report.requests if report else None,
        connections_seen=report.connections if report else None,
    )
