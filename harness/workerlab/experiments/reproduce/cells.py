"""The measurements of the parts of a reproduction: a cell, with a result for each fresh launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from workerlab.experiments.generators.usage import at_low_rate, usage_of
from workerlab.experiments.ladder.configurations import from_details
from workerlab.experiments.limits.results import results_of
from workerlab.experiments.reading import report_of, trial_data
from workerlab.model import Cell
from workerlab.run_store import Run


class MeasuredCell(Struct, frozen=True):
    """`settings`: identify it. `results`: of its valid launches; their type depends on the
    command."""

    settings: Mapping[str, Any]
    results: tuple[object, ...]

    def has(self, settings: Mapping[str, Any]) -> bool:
        return all(self.settings.get(name) == value for name, value in settings.items())

    def values(self, path: str) -> list[Any]:
        """Of the launches that have it."""
        read = (_read(result, path) for result in self.results)
        return [value for value in read if value is not None]

    def pairs(self, path: str, other_path: str) -> list[tuple[Any, Any]]:
        """Of the launches that have both."""
        read = ((_read(result, path), _read(result, other_path)) for result in self.results)
        return [pair for pair in read if None not in pair]


def _read(value: Any, path: str) -> Any:
    """None if any step of the path is None or missing from a mapping."""
    for name in path.split("."):
        if value is None:
            return None
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def measured_cells(run: Run) -> list[MeasuredCell]:
    """In the order of the run's plan. Cells without a valid launch have no results."""
    launches: dict[tuple[tuple[str, Any], ...], list[object]] = {}
    for settings, result in _launches(run):
        kept = launches.setdefault(tuple(settings.items()), [])
        if result is not None:
            kept.append(result)
    return [MeasuredCell(dict(key), tuple(results)) for key, results in launches.items()]


def _launches(run: Run) -> Iterator[tuple[dict[str, Any], object | None]]:
    """None for a launch that was not measured or is invalid."""
    if run.plan.kind == "generators":
        for data in trial_data(run):
            settings: dict[str, Any] = {"tool": data.cell.tool, "processes": data.cell.processes}
            settings |= {"connections": data.cell.concurrency, "low": at_low_rate(data.cell)}
            yield settings, usage_of(data)
    elif run.plan.kind == "limits":
        for step in results_of(trial_data(run), run.plan.details["steps"]):
            yield {"step": step.name}, None if step.missing else step
    else:
        ladder = from_details(run.plan) if run.plan.kind == "ladder" else ()
        caches = {
            step.name: {
                "storage": step.storage, "cache": step.cache, "local_cache": step.local_cache
            }
            for step in ladder
        }  # fmt: skip
        report = report_of(run)
        for group in report.classes:
            yield {**_settings(group.series), "users": "all"}, group
        for result in report.cells:
            settings = _settings(result.trial.cell)
            settings |= caches.get(result.trial.cell.server.name, {})
            yield settings, None if result.verdict == "invalid" else result


def _settings(cell: Cell) -> dict[str, Any]:
    server = cell.server
    return {
        "worker_class": server.worker_class,
        "workers": server.workers,
        "threads": server.threads,
        "backlog": server.backlog,
        "servers": server.instances,
        "server": server.name,
        "cpu_s": server.cpu_s,
        "server_cores": server.cores,
        "tool": cell.tool,
        "processes": cell.processes,
        "users": cell.concurrency,
    }
