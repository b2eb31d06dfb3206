"""Values for machines: schema 2, names with units, nothing non-finite.

Rounded to what the clocks can tell: 3 decimals of a millisecond, 4 of a rate.
"""

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, TypeVar, overload

from msgspec import Struct
from msgspec.structs import asdict

from workerlab.finding import Finding
from workerlab.model import (
    AbReport,
    AbTimes,
    Breakdown,
    CellResult,
    ClassResult,
    Column,
    Label,
    Server,
    Summary,
    Value,
)
from workerlab.report import shapes
from workerlab.report.naming import AMOUNTS, taken

S = TypeVar("S", bound=Struct)
R = TypeVar("R", bound=shapes.JsonCellRow)

AB_TIMES = ("connect", "processing", "waiting", "total")  # as in AbReport
CORES = ("share", "others_share", "others_cores", "steal_cores")  # of waiting for a core
DIGITS = 6  # significant ones of a value in a finding or a table: no clock of this lab tells more


def text(label: Label | None) -> str:
    """The sentence of a finding, a name as it is, "" for none."""
    return str(label or "")


def heading(column: Column) -> str:
    """The words above a column; where it has none, its name without its unit, which stands below,
    or beside each value."""
    name = column.name.removesuffix("_bytes").replace("_rps", " req/s")
    name = name.removesuffix("_s") if column.form == "seconds" else name
    return column.heading or name.replace("_", " ")


def counts_text(counts: Mapping[str, int]) -> str:
    """ "no_files 8982, reset 1"."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


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


def filled(kind: type[S], source: object, **values: Any) -> S:
    """A `kind` of these values, and of what `source` has where the other keys say; `NAME_ms` is a
    distribution NAME in seconds."""
    paths = {
        name: key.path or name.removesuffix("_ms")
        for name, key in shapes.keys_of(kind).items()
        if name not in values
    }
    own = {name: _plain(attrgetter(path)(source)) for name, path in paths.items()}
    return kind(**own, **values)


def _plain(value: object) -> object:
    if isinstance(value, Summary):
        return milliseconds(shapes.JsonMilliseconds, value)
    if isinstance(value, Finding):
        return spoken(value)
    if isinstance(value, Mapping):
        return {str(key): count for key, count in sorted(value.items())}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return rounded(value) if isinstance(value, float) else value


def milliseconds(kind: type[S], of: Summary | Breakdown | AbTimes) -> S:
    """Its times in ms; the names of the source may end in their unit. None: unknown."""
    seconds = {
        name: getattr(of, f"{name}_s" if isinstance(of, Breakdown) else name)
        for name in kind.__struct_fields__
    }
    return kind(
        **{
            name: None if time_s is None else rounded(time_s * 1e3, 3)
            for name, time_s in seconds.items()
        }
    )


def cell(result: CellResult, kind: type[R], **more: Any) -> R:
    """One trial. `more`: what a `kind` has beside a row."""
    return filled(
        kind,
        result,
        **_settings(result.server),
        served_by=shapes.JsonServedBy(
            gunicorn=result.served_by.get("gunicorn"), python=result.served_by.get("python")
        ),
        in_force=shapes.JsonInForce(**{name: result.in_force.get(name) for name in AMOUNTS}),
        not_taken=[name for name in AMOUNTS if not taken(name, result)],
        sleep_s=rounded(result.sleep_s, 6),
        waiting_split_ms=milliseconds(shapes.JsonSplit, result.breakdown),
        **_machine(result),
        **_ab(result.ab),
        rate=result.trial.cell.rate and result.trial.cell.rate.label,
        routes={name: filled(shapes.JsonRoute, route) for name, route in result.routes.items()},
        **more,
    )


def _machine(result: CellResult) -> dict[str, Struct]:
    """What kernel, CPU and memory showed."""
    usage, wait = result.usage, result.core_wait
    shares = {name: rounded(getattr(wait, name, None)) for name in CORES}
    seconds = {name: rounded(getattr(wait, name, None), 6) for name in ("worker_s", "tool_s")}
    return {
        "kernel": filled(
            shapes.JsonKernel,
            result.counters,
            accept_queue_max=result.accept_queue_max,
            accept_queue_limit=result.accept_queue_limit,
        ),
        "cpu": filled(shapes.JsonCpu, usage),
        "core_wait": shapes.JsonCoreWait(**shares, **seconds),
        "rss_bytes": shapes.JsonRss(
            server_max=usage.server_rss_bytes, generator_max=usage.generator_rss_bytes
        ),
    }


def _ab(printed: AbReport | None) -> dict[str, Struct]:
    totals = {name: getattr(printed, name, None) for name in shapes.JsonAb.__struct_fields__}
    times = printed.times if printed else dict.fromkeys(AB_TIMES, AbTimes())
    rows = {f"ab_{name}_ms": milliseconds(shapes.JsonAbTimes, row) for name, row in times.items()}
    return {"ab": shapes.JsonAb(**totals), **rows}


def group(result: ClassResult) -> shapes.JsonClass:
    """One (server, tool, processes, keep-alive)."""
    return filled(
        shapes.JsonClass, result, **_settings(result.server), knee=rounded(result.knee, 3)
    )


def _settings(server: Server) -> dict[str, Any]:
    """Versions are null where they are those of the run, whose environment has them."""
    own = {name: getattr(server, name) for name in shapes.JsonSettings.__struct_fields__}
    return {**own, "gunicorn": server.gunicorn or None, "python": server.python or None}


def spoken(label: Label | None) -> shapes.JsonText | str:
    """A text with the code and the values it was made of; a name as it is; "" for none."""
    if not isinstance(label, Finding):
        return label or ""
    values: Any = jsonable(label.values, DIGITS)
    return shapes.JsonText(code=label.code, values=values, text=text(label))


def jsonable(value: object, digits: int = 17) -> object:
    """What JSON can say, in base units; what it has no word for, as text. `digits`: significant."""
    if isinstance(value, Finding):
        return spoken(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner, digits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner, digits) for inner in value]
    if isinstance(value, Struct):
        return jsonable(asdict(value), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") + 0.0 if math.isfinite(value) else None  # not -0.0
    return value if value is None or isinstance(value, str | int | bool) else str(value)
