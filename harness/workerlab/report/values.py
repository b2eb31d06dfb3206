"""Values for machines: schema 1, names with units, nothing non-finite.

Rounded to what the clocks can tell: 3 decimals of a millisecond, 4 of a rate.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, overload

from workerlab.model import (
    Breakdown,
    CellResult,
    ClassResult,
    Finding,
    Label,
    Server,
    Summary,
    Value,
)
from workerlab.report.messages import text
from workerlab.report.naming import AMOUNTS, taken

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
PARTS = ("connect", "accept_queue", "in_worker", "service", "transfer", "unattributed")
COUNTED = "listen_overflows listen_drops syn_retransmits socket_drops"
CORES = ("share", "others_share", "others_cores", "steal_cores")  # of waiting for a core
DIGITS = 6  # significant ones of a value in a finding or a table: no clock of this lab tells more


@overload
def finite(value: float | None) -> float | None: ...
@overload
def finite(value: Value) -> Value: ...
def finite(value: Value) -> Value:
    """`value`, or None where it is a number that no JSON can hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def part_of_load(cells: Iterable[CellResult]) -> Finding:
    """Of which part of their loads throughput, occupancy and breakdown are: the steady one, or the
    whole load where it stalled."""
    stalled = {any(one.code == "diagnosis.stall" for one in cell.findings) for cell in cells}
    kind = "mixed" if len(stalled) > 1 else "whole" if True in stalled else "steady"
    return Finding(f"part_of_load.{kind}")


def rounded(value: float | None, digits: int = 4) -> float | None:
    """`value` in so many decimals, or None where it is missing or not finite."""
    value = finite(value)
    return None if value is None else round(value, digits) + 0.0  # not -0.0


def milliseconds(of: Summary | Breakdown, names: Iterable[str]) -> dict[str, float | None]:
    """These of its numbers in ms, their names without the unit they may have; None: unknown."""
    seconds = ((name, getattr(of, name)) for name in names)
    return {
        name.removesuffix("_s"): None if one is None else rounded(one * 1e3, 3)
        for name, one in seconds
    }


def fields(what: object, names: str) -> dict[str, Any]:
    """These of its attributes as JSON has them; `NAME_ms` is a distribution NAME."""
    return {name: _plain(getattr(what, name.removesuffix("_ms"))) for name in names.split()}


def _plain(value: object) -> object:
    if isinstance(value, Summary):
        return milliseconds(value, STATISTICS)
    if isinstance(value, Finding):
        return spoken(value)
    if isinstance(value, Mapping):
        return {str(key): count for key, count in sorted(value.items())}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return rounded(value) if isinstance(value, float) else value


SETTINGS = f"worker_class {' '.join(AMOUNTS)}"


def cell(result: CellResult) -> dict[str, Any]:
    """One trial, with all keys of the schema."""
    asked = result.trial.cell
    queue = fields(result, "accept_queue_max accept_queue_limit")
    usage, wait = result.usage, result.core_wait
    return {
        **fields(asked.server, SETTINGS),
        **_asked_to_serve(asked.server),
        "served_by": {name: result.served_by.get(name) for name in ("gunicorn", "python")},
        "in_force": {name: result.in_force.get(name) for name in AMOUNTS},
        "not_taken": [name for name in AMOUNTS if not taken(name, result)],
        "app": result.app,
        "sleep_s": rounded(result.sleep_s, 6),
        "tool": asked.tool,
        "tool_processes": asked.processes,
        **fields(asked, "keepalive concurrency"),
        "trial": result.trial.number,
        **fields(result, "requests failed errors slots_configured"),
        "slots_known": result.worker_class.slots_known,
        **fields(result, "slots_measured occupancy throughput_rps throughput_half_rps"),
        **fields(result, "tool_rps whole_rps bound_rps"),
        **fields(result, "response_ms connect_ms service_ms waiting_ms"),
        "waiting_split_ms": milliseconds(result.breakdown, [f"{part}_s" for part in PARTS]),
        "split_exact": result.breakdown.exact,
        "kernel": fields(result.counters, COUNTED) | queue,
        "cpu": fields(usage, "server_cores generator_cores host_busy"),
        "core_wait": {
            **{name: rounded(getattr(wait, name, None)) for name in CORES},
            **{name: rounded(getattr(wait, name, None), 6) for name in ("worker_s", "tool_s")},
        },
        "rss_bytes": {
            "server_max": usage.server_rss_bytes,
            "generator_max": usage.generator_rss_bytes,
        },
        **fields(result, "requests_per_worker connections_per_worker split_prediction_rps"),
        **fields(result, "load_s ideal_s generator_bound bound_reasons"),
        "rate": None if asked.rate is None else asked.rate.label,
        "routes": {
            name: fields(one, "requests failed errors statuses answer response_ms")
            for name, one in result.routes.items()
        },
        **fields(result, "asked_rps arrivals schedule due_rps sent_rps unsent lag_ms"),
        **fields(result, "achieved_concurrency"),
        **fields(result, "verdict target reason diagnosis findings notes"),
    }


def group(result: ClassResult) -> dict[str, Any]:
    """One (server, tool, processes, keep-alive), with all keys of the schema."""
    return {
        **fields(result.server, SETTINGS),
        **_asked_to_serve(result.server),
        "tool": result.tool,
        "tool_processes": result.processes,
        **fields(result, "keepalive slots_configured"),
        "slots_known": result.worker_class.slots_known,
        **fields(result, "slots_measured capacity_rps capacity_ci95"),
        "knee": rounded(result.knee, 3),
        **fields(result, "knee_note diagnosis"),
    }


def _asked_to_serve(server: Server) -> dict[str, str | None]:
    """None: that of the run, whose environment says which."""
    return {"gunicorn": server.gunicorn or None, "python": server.python or None}


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
