"""The routes of a mix: a row for each cell and route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from workerlab.model import CellResult, Column, Finding, RouteResult, Table, Value
from workerlab.report.naming import Names

MOST = 20  # routes of a cell: those with failures, then those with most requests

Source = tuple[Column, Callable[[RouteResult], Value]]
SOURCES: tuple[Source, ...] = (
    (Column("requests", "count"), lambda one: one.requests),
    (Column("failed", "count"), lambda one: one.failed),
    (Column("response_p50_s", "seconds"), lambda one: one.response.p50),
    (Column("response_p95_s", "seconds", 1), lambda one: one.response.p95),
    (Column("response_max_s", "seconds", 2), lambda one: one.response.max),
)


def route_table(
    cells: Sequence[CellResult],
    which: Sequence[tuple[Column, Callable[[CellResult], Value]]],
    unit: Callable[[list[list[float]]], str],
) -> Iterable[Table]:
    """None where no cell has routes. `which`: the columns that say which cell it is; `unit`: of
    times, by row."""
    shown = [(cell, name, one) for cell in cells for name, one in _shown(cell)]
    if not shown:
        return
    rows = tuple(
        (*(value(cell) for _, value in which), name, *(value(one) for _, value in SOURCES))
        for cell, name, one in shown
    )
    columns = (*(column for column, _ in which), Column("route", "text"))
    columns += tuple(column for column, _ in SOURCES)
    times = [[known for known in (one.response.p50, one.response.p95, one.response.max) if known]
             for _, _, one in shown]  # fmt: skip
    left_out = max(len(cell.routes) for cell in cells) - MOST
    note = Finding("note.routes_left_out", {"routes": left_out}) if left_out > 0 else None
    yield Table(Finding("table.routes"), columns, rows, note, len(which), unit(times))


def _shown(cell: CellResult) -> Iterable[tuple[str, RouteResult]]:
    """In the order of the mix."""
    names = sorted(cell.routes, key=lambda n: (-cell.routes[n].failed, -cell.routes[n].requests))
    kept = {*names[:MOST]}
    return ((name, one) for name, one in cell.routes.items() if name in kept)


def failing_routes(cells: Iterable[CellResult], names: Names) -> Iterable[Finding]:
    """Which route, which status or cause, how often in these cells, and the first lines of a body
    that was not expected."""
    found: dict[tuple[str, ...], list[tuple[CellResult, RouteResult]]] = {}
    for cell in cells:
        for name, one in cell.routes.items():
            if one.failed:
                key = (name, *sorted(one.statuses), "", *sorted(one.errors))
                found.setdefault(key, []).append((cell, one))
    for (name, *_), where in found.items():
        routes = [one for _, one in where]
        causes = sum((Counter(one.errors) for one in routes), Counter[str]())
        statuses = sum((Counter(one.statuses) for one in routes), Counter[str]())
        answered = sum(one.requests for one in routes)
        del causes["status"]  # which, is told
        values = {
            "cells": names.places([cell for cell, _ in where]),
            "route": name,
            "failed": sum(one.failed for one in routes),
            "requests": answered + causes.total(),
            "statuses": tuple(sorted(statuses)),
            "causes": dict(causes),
            "answer": next(filter(None, (one.answer for one in routes)), None),
        }
        yield Finding("cells.routes", values, tuple(cell.trial.key for cell, _ in where))
