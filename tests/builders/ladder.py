"""Cells of a ladder, with figures measured on two cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tests.builders.analysis import result_of
from workerlab.experiments.ladder.document import study
from workerlab.experiments.ladder.steps import Configuration, configurations
from workerlab.model.evidence import Summary
from workerlab.model.plan import Cell, Trial
from workerlab.model.result import (
    AppMetrics,
    Breakdown,
    Document,
    Report,
    Result,
    TrialResult,
    Usage,
)
from workerlab.server.worker_classes import class_named

NOISE = (0.98, 1.0, 1.02)  # of three launches
PAGE_S = 120e-6  # template and all other code of a page, CPU
STORAGES = ("mongodb", "postgresql", "sqlite")
SERVICES = {
    "mongodb": "a server in Java that speaks MongoDB's protocol, version 5.0.0 (no gitVersion)",
    "postgresql": "PostgreSQL 15.18, started by the lab",
    "redis": "Redis 7.0.15, started by the lab",
}


class Measured(Struct, frozen=True):
    """Under load: requests/s, p95 over p50, cores of app, storage, cache and tool."""

    rps: float
    spread: float = 3.0
    app: float = 1.1
    storage: float = 0.3
    cache: float = 0.0
    tool: float = 0.4


MEASURED: Mapping[str, Measured] = {
    "mongodb-redis-local-uvicorn-w2": Measured(6800, storage=0.01, tool=0.6),
    "mongodb-redis-uvicorn-w2": Measured(3000, cache=0.2, storage=0.01),
    "mongodb-uvicorn-w2": Measured(2750),
    "postgresql-uvicorn-w2": Measured(2700, storage=0.4),
    "postgresql-uvicorn-w1": Measured(1900, app=0.97, storage=0.3),
    "postgresql-sync-w1": Measured(1250, spread=1.05, app=0.7, storage=0.2),
}


def all_configurations(lacking: Mapping[str, str] | None = None) -> tuple[Configuration, ...]:
    return configurations(lacking or {}, STORAGES[:2])


def metrics_of(step: Configuration, measured: Measured, slower: float = 1.0) -> AppMetrics:
    """`slower`: times relative to those of a lone user."""
    local, redis = (dict(step.server.app.env)["BLOG_LOCAL"] == "1", bool(step.cache))
    to_redis = 0.001 if local else 1.0 if redis else 0.0
    to_storage = 0.001 if redis or local else 1.0
    spent = {
        "pool": 10e-6 * to_storage,
        "storage": 190e-6 * to_storage,
        "redis": 110e-6 * to_redis,
        "serialise": 20e-6 * to_redis,
        "template": 40e-6,
    }
    return AppMetrics(
        requests=10_000,
        per_request={"redis_trips": to_redis, "storage_trips": to_storage},
        spent_s={name: value * slower for name, value in spent.items()},
        hit_ratio={**({"local": 0.999} if local else {}), **({"redis": 0.999} if redis else {})},
        cores={"storage": measured.storage, **({"cache": measured.cache} if redis else {})},
    )


def cell(step: Configuration, tool: str, users: int, launch: int, measured: Measured) -> Result:
    rps = measured.rps * NOISE[launch - 1]
    mean_s = users / rps
    p50_s = mean_s / (1 + (measured.spread - 1) / 4)
    metrics = metrics_of(step, measured)
    service_s = sum(metrics.spent_s.values()) + PAGE_S
    if users > 1:
        slower = max(1.0, 0.8 * mean_s / service_s)
        metrics, service_s = metrics_of(step, measured, slower), service_s * slower
    planned = Cell(step.server, tool, users, keepalive=True)
    return result_of(
        Trial(planned, launch),
        app=step.server.app.target,
        reason="",
        worker_class=class_named(step.server.worker_class),
        slots_configured=None if step.server.worker_class == "uvicorn" else step.server.workers,
        throughput_rps=rps,
        response=Summary(mean=mean_s, p50=p50_s, p95=p50_s * measured.spread),
        breakdown=Breakdown(
            mean_s, in_worker_s=max(0.0, mean_s - service_s) * 0.9, service_s=service_s
        ),
        usage=Usage(
            measured.app,
            measured.tool,
            min(1.0, (measured.app + measured.storage + measured.tool) / 2 + 0.2),
        ),
        generator_bound=False,
        app_metrics=metrics,
    )


def lone(step: Configuration, launch: int, measured: Measured) -> Result:
    """One user, as fast as sequential requests allow."""
    metrics = metrics_of(step, measured)
    response_s = sum(metrics.spent_s.values()) + PAGE_S + 50e-6
    fast = replace(measured, rps=1 / response_s, spread=1.2, app=0.5, storage=0.1)
    return cell(step, "fast", 1, launch, fast)


def cells(
    planned: Sequence[Configuration],
    measured: Mapping[str, Measured] = MEASURED,
    *,
    tools: Sequence[str] = ("locust-fast", "fast"),
    launches: int = 3,
) -> list[Result]:
    results = []
    for step in planned:
        if step.why_not:
            continue
        for launch in range(1, launches + 1):
            results.append(lone(step, launch, measured[step.name]))
            for tool in tools:
                results.append(cell(step, tool, 100, launch, measured[step.name]))
    return results


def report(results: Sequence[TrialResult], cores: int = 2, **more: object) -> Report:
    environment = {"cores": cores, "services": SERVICES, **more}
    return Report("20261121-220000-ladder", environment, None, tuple(results), (), {})


def whole(measured: Mapping[str, Measured] = MEASURED) -> Document:
    planned = all_configurations()
    return study(report(cells(planned, measured)), planned)
