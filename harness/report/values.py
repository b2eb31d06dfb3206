"""Values for machines: schema 1, names with units, nothing non-finite.

Rounded to what the clocks can tell: 3 decimals of a millisecond, 4 of a rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, overload

from harness.model import (
    Breakdown,
    CellResult,
    ClassResult,
    Finding,
    Label,
    Phase,
    Server,
    Summary,
    Value,
)
from harness.report.messages import text

STATISTICS = ("mean", "p50", "p95", "p99", "max")
PARTS = ("connect", "accept_queue", "in_worker", "service", "transfer", "unattributed")


DIGITS = 6  # significant ones of a value in a finding or a table: no clock of this lab tells more


@overload
def finite(value: float | None) -> float | None: ...
@overload
def finite(value: Value) -> Value: ...
def finite(value: Value) -> Value:
    """`value`, or None where it is a number that no JSON can hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounded(value: float | None, digits: int = 4) -> float | None:
    """`value` in so many decimals, or None where it is missing or not finite."""
    value = finite(value)
    return None if value is None else round(value, digits) + 0.0  # not -0.0


def milliseconds(summary: Summary) -> dict[str, float | None]:
    """A distribution in ms; every statistic is there, None where unknown."""
    found: dict[str, float | None] = {}
    for name in STATISTICS:
        value: float | None = getattr(summary, name)
        found[name] = None if value is None else rounded(value * 1e3, 3)
    return found


def _settings(server: Server) -> dict[str, Any]:
    return {
        "worker_class": server.worker_class,
        "workers": server.workers,
        "threads": server.threads,
        "backlog": server.backlog,
        "worker_connections": server.worker_connections,
    }


def split_ms(parts: Breakdown) -> dict[str, float | None]:
    """The parts of a response time in ms, their names without unit."""
    found: dict[str, float | None] = {}
    for name in PARTS:
        value: float | None = getattr(parts, f"{name}_s")
        found[name] = None if value is None else rounded(value * 1e3, 3)
    return found


def pairs(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by pid, as JSON names them."""
    return {str(pid): count for pid, count in sorted(counts.items())}


def _outside(result: CellResult) -> dict[str, Any]:
    """What was seen from outside while the load ran."""
    counters, usage = result.counters, result.usage
    return {
        "kernel": {
            "listen_overflows": counters.listen_overflows,
            "listen_drops": counters.listen_drops,
            "syn_retransmits": counters.syn_retransmits,
            "accept_queue_max": result.accept_queue_max,
            "accept_queue_limit": result.accept_queue_limit,
        },
        "cpu": {
            "server_cores": rounded(usage.server_cores),
            "generator_cores": rounded(usage.generator_cores),
            "host_busy": rounded(usage.host_busy),
        },
        "rss_bytes": {
            "server_max": usage.server_rss_bytes,
            "generator_max": usage.generator_rss_bytes,
        },
    }


def cell(result: CellResult) -> dict[str, Any]:
    """One trial, with all keys of the schema."""
    asked, kept = result.trial.cell, result.connections_per_worker
    return {
        **_settings(asked.server),
        "app": result.app,
        "sleep_s": rounded(result.sleep_s, 6),
        "tool": asked.tool,
        "tool_processes": asked.processes,
        "keepalive": asked.keepalive,
        "concurrency": asked.concurrency,
        "trial": result.trial.number,
        "requests": result.requests,
        "failed": result.failed,
        "errors": dict(result.errors),
        "slots_configured": result.slots_configured,
        "slots_known": result.worker_class.slots_known,
        "slots_measured": result.slots_measured,
        "throughput_rps": rounded(result.throughput_rps),
        "tool_rps": rounded(result.tool_rps),
        "bound_rps": rounded(result.bound_rps),
        "response_ms": milliseconds(result.response),
        "connect_ms": milliseconds(result.connect),
        "service_ms": milliseconds(result.service),
        "waiting_ms": milliseconds(result.waiting),
        "waiting_split_ms": split_ms(result.breakdown),
        "split_exact": result.breakdown.exact,
        **_outside(result),
        "requests_per_worker": pairs(result.requests_per_worker),
        "connections_per_worker": None if kept is None else pairs(kept),
        "split_prediction_rps": rounded(result.split_prediction_rps),
        "load_s": rounded(result.load_s),
        "ideal_s": rounded(result.ideal_s),
        "generator_bound": result.generator_bound,
        "bound_reasons": [spoken(reason) for reason in result.bound_reasons],
        "rate": None if asked.rate is None else asked.rate.label,
        "asked_rps": rounded(result.asked_rps),
        "sent_rps": rounded(result.sent_rps),
        "unsent": result.unsent,
        "lag_ms": milliseconds(result.lag),
        "achieved_concurrency": rounded(result.achieved_concurrency),
        "verdict": result.verdict,
        "reason": spoken(result.reason),
        "diagnosis": None if result.diagnosis is None else spoken(result.diagnosis),
        "notes": [spoken(note) for note in result.notes],
    }


def group(result: ClassResult) -> dict[str, Any]:
    """One (server, tool, processes, keep-alive), with all keys of the schema."""
    interval = result.capacity_ci95
    return {
        **_settings(result.server),
        "tool": result.tool,
        "tool_processes": result.processes,
        "keepalive": result.keepalive,
        "slots_configured": result.slots_configured,
        "slots_known": result.worker_class.slots_known,
        "slots_measured": result.slots_measured,
        "capacity_rps": rounded(result.capacity_rps),
        "capacity_ci95": None if interval is None else [rounded(side) for side in interval],
        "knee": rounded(result.knee, 3),
        "knee_note": spoken(result.knee_note),
        "diagnosis": None if result.diagnosis is None else spoken(result.diagnosis),
    }


def phase(one: Phase) -> dict[str, Any]:
    spans = {"start_s": rounded(one.start_s), "end_s": rounded(one.end_s)}
    return {"name": one.name, **spans, "why": spoken(one.why)}


def spoken(label: Label | None) -> object:
    """A text with the code and the values it was made of; a name as it is; "" for none."""
    if not isinstance(label, Finding):
        return label or ""
    return {"code": label.code, "values": jsonable(label.values, DIGITS), "text": text(label)}


def jsonable(value: object, digits: int = 17) -> object:
    """What JSON can say, in base units; what it has no word for, as text. `digits`: significant."""
    if isinstance(value, Finding):
        return spoken(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner, digits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner, digits) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") + 0.0 if math.isfinite(value) else None  # not -0.0
    return value if value is None or isinstance(value, str | int | bool) else str(value)
