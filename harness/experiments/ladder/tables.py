"""The tables of `workerlab ladder`. What says least stands on the right: a narrow
terminal leaves it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from harness.experiments.ladder.limits import inside_s, limit
from harness.experiments.ladder.steps import ALONE, Ladder, Load, Step, named
from harness.model import Breakdown, Column, Table, Value

Field = tuple[Column, Callable[[Step], Value]]

RUNG: Field = (Column("removed", "removed", "text"), lambda step: step.name)
# Where a request is, from the client's first step to its last
PARTS: tuple[tuple[str, str, Callable[[Step], float | None]], ...] = (
    ("connect", "connect", lambda step: _split(step, "connect_s")),
    ("accept_queue", "accept queue", lambda step: _split(step, "accept_queue_s")),
    ("in_worker", "in worker", lambda step: _split(step, "in_worker_s")),
    ("pool", "pool", lambda step: step.spent_s("pool")),
    ("storage", "storage", lambda step: step.spent_s("storage")),
    ("redis", "Redis", lambda step: step.spent_s("redis")),
    ("serialise", "serialise", lambda step: step.spent_s("serialise")),
    ("template", "template", lambda step: step.spent_s("template")),
    ("other", "other code", lambda step: rest_s(step)),
    ("transfer", "transfer", lambda step: _split(step, "transfer_s")),
    ("unattributed", "unattributed", lambda step: _split(step, "unattributed_s")),
)
COST: tuple[Field, ...] = (
    RUNG,
    (Column("app_cores", "app"), lambda step: step.mean(lambda c: c.usage.server_cores)),
    (Column("storage_cores", "storage"), lambda step: step.cores("storage")),
    (Column("cache_cores", "cache"), lambda step: step.cores("cache")),
    (Column("tool_cores", "load tool"), lambda step: step.mean(lambda c: c.usage.generator_cores)),
    (
        Column("host_busy", "host busy", "percent"),
        lambda step: step.mean(lambda c: c.usage.host_busy),
    ),
    (Column("app_cpu_per_request_s", "app's CPU per request", "seconds"), lambda s: s.app_cpu_s),
)
TRIPS: tuple[Field, ...] = (
    RUNG,
    (Column("redis_trips", "Redis trips"), lambda step: step.per_request("redis_trips")),
    (Column("storage_trips", "storage trips"), lambda step: step.per_request("storage_trips")),
    (
        Column("local_hit_ratio", "hits in process", "percent"),
        lambda step: step.of_parts(lambda parts: parts.hit_ratio.get("local")),
    ),
    (
        Column("redis_hit_ratio", "hits in Redis", "percent"),
        lambda step: step.of_parts(lambda parts: parts.hit_ratio.get("redis")),
    ),
    (
        Column("ledger_requests", "requests counted", "count"),
        lambda step: (
            sum(cell.app_metrics.requests for cell in step.cells if cell.app_metrics) or None
        ),
    ),
)
RUNGS_NOTE = "Each rung lacks what those above it have removed, and one thing more."
FACTOR_NOTE = (
    "Factor: requests/s (the geometric mean of the launches) over those of the rung before it; from"
    " and to: its 95 % interval over fresh launches of the server."
)
TRIPS_NOTE = (
    "Round trips per request, and the share of what each cache was asked for that it had: counted"
    " in the app's workers during the steady part."
)
COST_NOTE = "Cores: CPU seconds per second. Missing: not started by the lab, or part of the app."
TIME_NOTE = (
    "Means of the steady part. Connect to in worker: before the app was called. Pool: until a"
    " connection to the storage was free. Storage and Redis: their round trips. Other code: in the"
    " app and none of these. In code that waits, a part holds what the worker did for others"
    " meanwhile. Below 0: what several witnesses saw overlaps. Unattributed: seen by nobody; on"
    " kept connections mostly requests that a busy worker has read and not begun, and answers that"
    " the load tool has not read."
)


def _split(step: Step, field: str) -> float | None:
    def part(split: Breakdown) -> float | None:
        found: float | None = getattr(split, field)
        return found

    return step.mean(lambda cell: part(cell.breakdown))


def rest_s(step: Step) -> float | None:
    """In the app and in none of its parts: all of it, where the app keeps no ledger."""
    found = inside_s(step)
    return _split(step, "service_s") if found is None else found


def tables(ladder: Ladder) -> tuple[Table, ...]:
    """In the order of the questions: what came out, round trips, CPU, where the time goes."""
    return (
        _rungs(ladder),
        *_each(ladder, _out, [*ladder.crowds.values(), ladder.alone]),
        *_each(ladder, _counted, [ladder.crowd or ladder.alone]),
        *_each(ladder, _used, list(ladder.crowds.values())),
        *_each(ladder, _times, [ladder.alone, ladder.crowd]),
    )


def _each(
    ladder: Ladder,
    made: Callable[[Ladder, Load, Sequence[Step]], Table],
    loads: Sequence[Sequence[Step]],
) -> Iterable[Table]:
    """One per load. What is said below the first holds for all of them."""
    for place, steps in enumerate(filter(None, loads)):
        table = made(ladder, steps[0].load, steps)
        yield replace(table, note="") if place else table


def _rungs(ladder: Ladder) -> Table:
    skipped = any(rung.why_not for rung in ladder.rungs)
    columns = [Column("removed", "removed", "text"), Column("settings", "settings", "text")]
    columns += [Column("why_not", "left out, as", "text")] if skipped else []
    rows = [
        (
            *("" if rung.why_not else named(rung), rung.title),
            *([rung.why_not or None] if skipped else []),
        )
        for rung in ladder.rungs
    ]
    return Table("The rungs", tuple(columns), tuple(rows), RUNGS_NOTE)


def _table(
    title: str, fields: Sequence[Field], load: Load, steps: Sequence[Step], note: str
) -> Table:
    return Table(
        title=f"{title}, {load.words}",
        columns=tuple(column for column, _ in fields),
        rows=tuple(tuple(value(step) for _, value in fields) for step in steps),
        note=note,
    )


def _counted(_ladder: Ladder, load: Load, steps: Sequence[Step]) -> Table:
    return _table("Round trips", TRIPS, load, steps, TRIPS_NOTE)


def _used(_ladder: Ladder, load: Load, steps: Sequence[Step]) -> Table:
    return _table("Cores", COST, load, steps, COST_NOTE)


def _out(ladder: Ladder, load: Load, steps: Sequence[Step]) -> Table:
    def factor(name: str) -> Callable[[Step], Value]:
        return lambda step: getattr(step.factor, name) if step.factor else None

    fields: list[Field] = [
        RUNG,
        (Column("throughput_rps", "req/s"), lambda step: step.rps),
        (
            Column("response_p50_s", "p50", "seconds"),
            lambda step: step.mean(lambda c: c.response.p50),
        ),
        (
            Column("response_p95_s", "p95", "seconds"),
            lambda step: step.mean(lambda c: c.response.p95),
        ),
        (Column("failed", "failed", "count"), lambda step: sum(c.failed or 0 for c in step.cells)),
        (Column("factor", "factor"), factor("ratio")),
        (Column("factor_low", "from"), factor("low")),
        (Column("factor_high", "to"), factor("high")),
    ]
    if load.users > ALONE:  # who is alone waits for nobody's limit
        fields.append((Column("limit", "limit", "text"), lambda s: limit(s, ladder.cores).who))
    fields.append((Column("launches", "launches", "count"), lambda step: len(step.cells)))
    return _table("The ladder", fields, load, steps, FACTOR_NOTE)


def _times(_ladder: Ladder, load: Load, steps: Sequence[Step]) -> Table:
    fields: list[Field] = [
        RUNG,
        (Column("response_s", "response", "seconds"), lambda step: _split(step, "response_s")),
    ]
    fields += [
        (Column(f"{name}_s", title, "seconds"), value)
        for name, title, value in PARTS
        if any(value(step) for step in steps)
    ]
    return _table("Where the time goes", fields, load, steps, TIME_NOTE)
