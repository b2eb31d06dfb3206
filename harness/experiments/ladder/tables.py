"""The tables of `workerlab ladder`. The columns that say least stand on the right: a narrow
terminal hides them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.experiments.ladder.limits import SPENT, limit, other_code_s
from harness.experiments.ladder.steps import ONE_USER, Ladder, Step
from harness.model import Column, Finding, Form, Table, Value

Getter = Callable[[Step], Value]
Field = tuple[str, Form, Getter]


def _mean(field: str) -> Getter:
    return lambda step: step.mean(field)


def _metric(field: str, name: str) -> Getter:
    return lambda step: step.metric(field, name)


def _ratio(end: str) -> Getter:
    return lambda step: getattr(step.ratio, end) if step.ratio else None


REMOVED: Field = ("removed", "text", lambda step: step.removed)
RATES: tuple[Field, ...] = (
    REMOVED,
    ("throughput_rps", "number", lambda step: step.rps),
    ("response_p50_s", "seconds", _mean("response.p50")),
    ("response_p95_s", "seconds", _mean("response.p95")),
    ("failed", "count", lambda step: sum(cell.failed or 0 for cell in step.cells)),
    ("factor", "number", _ratio("value")),
    ("factor_low", "number", _ratio("low")),
    ("factor_high", "number", _ratio("high")),
)
LAUNCHES: Field = ("launches", "count", lambda step: len(step.cells))
TRIPS: tuple[Field, ...] = (
    REMOVED,
    ("redis_trips", "number", _metric("per_request", "redis_trips")),
    ("storage_trips", "number", _metric("per_request", "storage_trips")),
    ("local_hit_ratio", "percent", _metric("hit_ratio", "local")),
    ("redis_hit_ratio", "percent", _metric("hit_ratio", "redis")),
    ("ledger_requests", "count", lambda step: _requests(step) or None),
)
CORES: tuple[Field, ...] = (
    REMOVED,
    ("app_cores", "number", _mean("usage.server_cores")),
    ("storage_cores", "number", _metric("cores", "storage")),
    ("cache_cores", "number", _metric("cores", "cache")),
    ("tool_cores", "number", _mean("usage.generator_cores")),
    ("host_busy", "percent", _mean("usage.host_busy")),
    ("app_cpu_per_request_s", "seconds", lambda step: step.app_cpu_s),
)
# Where a request is, from the client's first step to its last
PARTS: tuple[tuple[str, Getter], ...] = (
    ("connect", _mean("breakdown.connect_s")),
    ("accept_queue", _mean("breakdown.accept_queue_s")),
    ("in_worker", _mean("breakdown.in_worker_s")),
    *((name, _metric("spent_s", name)) for name in SPENT),
    ("other", lambda step: _other_s(step)),
    ("transfer", _mean("breakdown.transfer_s")),
    ("unattributed", _mean("breakdown.unattributed_s")),
)


def _requests(step: Step) -> int:
    return sum(cell.app_metrics.requests for cell in step.cells if cell.app_metrics)


def _other_s(step: Step) -> float | None:
    """In the app and in nothing that it times: all of it, where it times nothing."""
    other_s = other_code_s(step)
    return step.mean("breakdown.service_s") if other_s is None else other_s


def tables(ladder: Ladder) -> tuple[Table, ...]:
    """In the order of the questions: throughput, round trips, CPU, where the time goes. What is
    explained below the first of a kind holds for the others."""
    many = list(ladder.many_users.values())
    rates = [*many, ladder.one_user]
    times = [ladder.one_user, ladder.conclusive]
    return (
        _settings(ladder),
        *_each("ladder.table.rates", rates, lambda steps: _rates(ladder, steps)),
        *_each("ladder.table.trips", [ladder.conclusive or ladder.one_user], lambda _: TRIPS),
        *_each("ladder.table.cores", many, lambda _: CORES),
        *_each("ladder.table.times", times, _times),
    )


def _each(
    code: str,
    loads: Sequence[Sequence[Step]],
    fields: Callable[[Sequence[Step]], Sequence[Field]],
) -> list[Table]:
    """A table for each load."""
    made: list[Table] = []
    for steps in filter(None, loads):
        columns = fields(steps)
        table = Table(
            Finding(code, {"load": steps[0].load.text}),
            tuple(Column(name, form=form) for name, form, _ in columns),
            tuple(tuple(value(step) for _, _, value in columns) for step in steps),
            note="" if made else Finding(f"{code}.note"),
        )
        made.append(table)
    return made


def _settings(ladder: Ladder) -> Table:
    """Every configuration, with those that could not be run."""
    names = ["removed", "settings", "why_not"]
    if not any(one.why_not for one in ladder.configurations):
        names.pop()
    rows = (
        (ladder.removed.get(one.name, ""), one.text, one.why_not or None)
        for one in ladder.configurations
    )
    columns = tuple(Column(name, form="text") for name in names)
    note = Finding("ladder.table.steps.note")
    return Table(
        Finding("ladder.table.steps"), columns, tuple(row[: len(names)] for row in rows), note
    )


def _rates(ladder: Ladder, steps: Sequence[Step]) -> Sequence[Field]:
    """A single user waits for nobody's limit."""
    limits: Field = ("limit", "text", lambda step: limit(step, ladder.cores).name)
    return (*RATES, *([limits] if steps[0].load.users > ONE_USER else []), LAUNCHES)


def _times(steps: Sequence[Step]) -> Sequence[Field]:
    response: Field = ("response_s", "seconds", _mean("breakdown.response_s"))
    parts: list[Field] = [
        (f"{name}_s", "seconds", value) for name, value in PARTS if any(map(value, steps))
    ]
    return (REMOVED, response, *parts)
