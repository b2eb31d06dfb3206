"""What `workerlab compare` shows: of each class and load whether B differs, in what, and where the
time went that it takes more or less."""

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from workerlab.analysis.comparison import HELD, PARTS, QUEUES, Change, Metric
from workerlab.bundled import label_of
from workerlab.experiments.budget import used_s
from workerlab.experiments.compare.charts import charts
from workerlab.experiments.compare.gate import Limit
from workerlab.experiments.compare.pairs import MEASURED, Asked, Compared, compared, to_go_on_s
from workerlab.experiments.document import Field, answer, table
from workerlab.experiments.reading import as_argument, notes_of
from workerlab.model import CellResult, Document, Finding, Table, Value
from workerlab.report.messages import text
from workerlab.report.naming import served
from workerlab.run_store import Run

WIDE = 100.0  # times its lower end
UNITS = {"throughput_rps": "rate", "memory_bytes": "bytes", "failed": "share"}


def document(run: Run) -> Document:
    asked, groups = Asked.of(run.plan), compared(run)
    title = _title(asked, groups, run)
    return comparison(groups, title, (run, run), asked.at_least, strict=asked.strict)


def comparison(
    groups: Sequence[Compared],
    title: Finding,
    runs: tuple[Run, Run],
    at_least: float,
    differences: Sequence[Finding] | None = None,
    *,
    strict: bool,
) -> Document:
    """Of pairs of launches, which are of one run; or of two saved runs: what differs between these
    beside the figures (`differences`) is told before them."""
    run, kind = runs[0], "pairs" if differences is None else "saved"
    invalid = [cell for one in groups for cell in one.left_out]
    more = _more(groups, run) if differences is None else Finding("compare.more.saved")
    told = {"differences": tuple(differences or ())}
    first = answer("compare", "differences", "differences", told)
    return Document(
        run=run.name,
        kind="compare",
        title=title,
        environment=run.environment,
        findings=(
            *([first] if differences else ()),
            *(_answer(one, at_least, kind, more) for one in groups),
            *_gate(groups),
        ),
        tables=tuple(_tables(groups, kind)),
        charts=tuple(charts(groups, runs)),
        notes=(*notes_of(run), *map(_invalid, invalid)),
        valid=any(one.pairs for one in groups) and not invalid,
        exit_code=_exit_code(groups, strict=strict),
    )


def _exit_code(groups: Sequence[Compared], *, strict: bool) -> int | None:
    """Of the limits, which go by the launches that are valid; None where there are no limits, or
    nothing to go by."""
    outcomes = {outcome for one in groups for _, outcome in one.outcomes}
    if "exceeded" in outcomes:
        return 4
    if strict and "inconclusive" in outcomes:
        return 5
    return 0 if outcomes and all(one.pairs for one in groups) else None


def _more(groups: Sequence[Compared], run: Run) -> Finding | None:
    """With which budget it would go on."""
    needed_s = to_go_on_s(run, groups)
    if needed_s is None:
        return None
    whole_s = needed_s + sum(map(used_s, run.records.values()))
    values = {"run": as_argument(run), "minutes": math.ceil(1.1 * whole_s / 60)}
    return Finding("compare.more.pairs", values)


def _gate(groups: Sequence[Compared]) -> Iterable[Finding]:
    for outcome in ("exceeded", "inconclusive", "kept"):
        found = tuple(
            Finding("compare.gate.of", {"limit": limit.text, "group": one.name})
            for one in groups
            for limit, its in one.outcomes
            if its == outcome
        )
        if found:
            yield answer("compare", "gate", f"gate.{outcome}", {"limits": found})


def _title(asked: Asked, groups: Sequence[Compared], run: Run) -> Finding:
    a, b = (words or Finding("compare.without") for words in asked.words)
    cells = [cell for one in groups for cell in (one.group.a, one.group.b)]
    tools = tuple(dict.fromkeys(cell.tool for cell in cells))
    apps = {label_of(cell.server.app) for cell in cells}
    by = served(run.environment, (cell.server for cell in cells))
    values = {"app": next(iter(apps)), "served": by}
    app = Finding("compare.app", values) if len(apps) == 1 else None
    return Finding("compare.title", {"a": a, "b": b, "tools": tools, "app": app})


# --- the answers ----------------------------------------------------------------------------------


def _answer(one: Compared, at_least: float, kind: str, more: Finding | None) -> Finding:
    """Of one group: what differs, else what is known to be the same, else nothing."""
    name, pairs = one.name, len(one.pairs)
    measured = [each for each in one.changes if each.metric not in (*PARTS, HELD)]
    by = {word: [each for each in measured if each.word == word] for word in
          ("different", "same", "inconclusive")}  # fmt: skip
    values = {
        "launches": Finding(f"compare.launches.{kind}", {"n": pairs}),
        "at_least": at_least,
        "more": None if kind == "pairs" and not one.goes_on else more,
        "same": tuple(metric_name(each.metric) for each in by["same"]),
        "unknown": tuple(metric_name(each.metric) for each in by["inconclusive"]),
    }
    if not pairs:
        reasons = tuple(_reasons(one))
        return _to(name, "nothing.why" if reasons else "nothing", {"reasons": reasons})
    disturbed = _disturbed(one)
    if by["different"]:
        changed = tuple(map(_said, by["different"]))
        values |= {"changed": changed, "where": _where(one), "disturbed": disturbed}
        return _to(name, "different", values, _evidence(one))
    unknown = any(each.metric.name in MEASURED for each in by["inconclusive"])
    code = "inconclusive" if unknown else "same"
    return _to(name, code, {**values, "disturbed": disturbed}, _evidence(one))


def _reasons(group: Compared) -> Iterable[Finding]:
    """Of each side with an invalid launch, the reason of the first."""
    cells = [
        (replace(launch.trial.cell, schedule=None), launch.reason) for launch in group.left_out
    ]
    for side, cell in zip("AB", (group.group.a, group.group.b), strict=True):
        reasons = [reason for own, reason in cells if own == replace(cell, schedule=None)]
        if reasons and reasons[0]:
            yield Finding("compare.nothing.side", {"side": side, "reason": reasons[0]})


def _to(
    name: Finding, code: str, values: dict[str, object], evidence: Iterable[Finding] = ()
) -> Finding:
    return answer("compare", "group", code, {"group": name, **values}, evidence)


def _evidence(one: Compared) -> Iterable[Finding]:
    for each in one.changes:
        yield _said(each)


def _where(one: Compared) -> Finding | None:
    """What changed most of the parts of the response, if any did, and of how long a slot stays
    taken after the app. That it does is in the worker, wherever the next requests wait for it: they
    wait in queues, which are longer for whatever else takes longer."""
    parts = [
        each for each in one.changes if each.metric in (*PARTS, HELD) and each.word == "different"
    ]
    causes = [each for each in parts if each.metric not in QUEUES]
    most = max(causes, key=lambda each: abs(each.value), default=None)
    if most is None or most.metric != HELD:
        most = max(parts, key=lambda each: abs(each.value), default=None)
    if most is None:
        return None
    if most.metric == HELD:
        code = "held" if most.value > 0 else "held.less"
        return Finding(f"compare.where.{code}", {"a": most.a, "b": most.b})
    part = Finding(f"part.{most.metric.name.removesuffix('_s')}")
    return Finding("compare.where", {"part": part, "a": most.a, "b": most.b})


def _disturbed(one: Compared) -> Finding | None:
    """How many of the launches other programs disturbed."""
    launches = [cell for pair in one.pairs for cell in pair]
    disturbed = sum(cell.core_wait is not None and cell.core_wait.doubtful for cell in launches)
    values = {"disturbed": disturbed, "launches": len(launches)}
    return Finding("compare.disturbed", values) if disturbed else None


def outcome_text(one: Compared, limit: Limit) -> str:
    """What was measured of the metric that it limits."""
    found = next((each for each in one.changes if each.metric.name == limit.metric), None)
    return text(Finding("compare.not_measured")) if found is None else text(_said(found))


def metric_name(metric: Metric) -> Finding:
    return Finding(f"compare.metric.{metric.name}")


def _said(each: Change) -> Finding:
    low, high = _interval(each)
    values = {
        "metric": metric_name(each.metric),
        "a": _value(each.metric, each.a),
        "b": _value(each.metric, each.b),
        "value": each.value,
        "low": low,
        "high": high,
    }
    return Finding(f"compare.change.{each.metric.kind}", values)


def _interval(each: Change) -> tuple[float | None, float | None]:
    """None where it is so wide that it says nothing: of what is seen once a launch, after few."""
    wide = each.metric.kind == "ratio" and each.low and each.high and each.high / each.low > WIDE
    return (None, None) if wide else (each.low, each.high)


def _value(metric: Metric, value: float) -> Finding:
    return Finding(f"compare.value.{UNITS.get(metric.name, 'time')}", {"value": value})


# --- the table ------------------------------------------------------------------------------------


def _tables(groups: Sequence[Compared], kind: str) -> Iterable[Table]:
    rows = [(one, each) for one in groups for each in one.changes]
    if rows:
        note = Finding(f"compare.table.{kind}")
        yield table(Finding("compare.table"), _fields(kind), rows, note)


def _change(row: tuple[Compared, Change], which: str) -> Value:
    """As times A for a ratio, else in points."""
    each = row[1]
    low, high = _interval(each)
    value = {"value": each.value, "low": low, "high": high}[which]
    if value is None:
        return None
    code = "times" if each.metric.kind == "ratio" else "points"
    return Finding(f"compare.value.{code}", {"value": value})


def _fields(kind: str) -> tuple[Field, ...]:
    return (
        ("group", "text", lambda row: row[0].name),
        ("metric", "text", lambda row: metric_name(row[1].metric)),
        ("a", "text", lambda row: _value(row[1].metric, row[1].a)),
        ("b", "text", lambda row: _value(row[1].metric, row[1].b)),
        ("change", "text", lambda row: _change(row, "value")),
        ("low", "text", lambda row: _change(row, "low")),
        ("high", "text", lambda row: _change(row, "high")),
        ("pairs" if kind == "pairs" else "launches", "count", lambda row: row[1].n),
        ("word", "text", lambda row: Finding(f"compare.word.{row[1].word}")),
    )


def _invalid(cell: CellResult) -> Finding:
    values = {"side": cell.trial.cell.server.name[:1], "reason": cell.reason}
    return Finding("compare.invalid", values, (cell.trial.key,))
