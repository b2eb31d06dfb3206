"""The routes of a mix: a row for each cell and route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from workerlab.finding import Answer
from workerlab.model import CellResult, Column, RouteResult, Table
from workerlab.numbers.formats import counted
from workerlab.report.naming import Names

ROUTES_OF_CELL = 20  # those with failures, then those with most requests
SCREEN_ROWS = 24  # more wait until --explain


def response(name: str, meaning: str, expendable: int = 0) -> Column:
    """A percentile of the response times, or the longest one."""
    return Column(
        f"response_{name}_s",
        "seconds",
        expendable,
        heading=name,
        meaning=meaning,
        value=attrgetter(f"response.{name}"),
    )


SUCCESSES = "response time of successes"
COLUMNS = (
    Column("requests", "count", meaning="complete answers"),
    Column("failed", "count"),
    response("p50", SUCCESSES),
    response("p95", SUCCESSES, 1),
    response("max", SUCCESSES, 2),
)


def route_table(
    cells: Sequence[CellResult],
    leading: Sequence[Column],
    unit: Callable[[list[list[float]]], str],
) -> Iterator[Table]:
    """Nothing where no cell has routes. `leading`: the columns that say which cell it is; `unit`:
    of times, by row."""
    shown = [(cell, name, route) for cell in cells for name, route in _shown(cell)]
    if not shown:
        return
    rows = tuple(
        (*(column.of(cell) for column in leading), name, *(column.of(route) for column in COLUMNS))
        for cell, name, route in shown
    )
    responses = [route.response for _, _, route in shown]
    times = [[time for time in (each.p50, each.p95, each.max) if time] for each in responses]
    left_out = max(len(cell.routes) for cell in cells) - ROUTES_OF_CELL
    note = (
        f"{counted(left_out, 'route')} of each cell left out, those with the fewest requests and no"
        " more failures; the JSON has them all."
    )
    yield Table(
        title="The routes of the mix",
        columns=(*leading, Column("route", "text"), *COLUMNS),
        rows=rows,
        note=note if left_out > 0 else None,
        keys=len(leading),
        unit=unit(times),
        detailed=len(rows) > SCREEN_ROWS,
    )


def _shown(cell: CellResult) -> Iterator[tuple[str, RouteResult]]:
    """In the order of the mix."""
    names = sorted(cell.routes, key=lambda n: (-cell.routes[n].failed, -cell.routes[n].requests))
    kept = {*names[:ROUTES_OF_CELL]}
    return ((name, route) for name, route in cell.routes.items() if name in kept)


class FailingRoute(Answer):
    """{cells}: {failed} of {requests:# request} to {route} failed
    [[, with status {statuses:list}]][[ ({causes:counts})]][[: {answer}]]"""

    cells: str
    route: str
    failed: int
    requests: int
    statuses: tuple[str, ...]
    causes: Mapping[str, int]  # but a status
    answer: str | None  # the first lines of a body that was not expected


def failing_routes(cells: Iterable[CellResult], names: Names) -> Iterator[FailingRoute]:
    """Once for each route and what is wrong with it."""
    failures: dict[tuple[str, ...], list[tuple[CellResult, RouteResult]]] = {}
    for cell in cells:
        for name, route in cell.routes.items():
            if route.failed:
                key = (name, *sorted(route.statuses), "", *sorted(route.errors))
                failures.setdefault(key, []).append((cell, route))
    for (name, *_), where in failures.items():
        routes = [route for _, route in where]
        causes = sum((Counter(route.errors) for route in routes), Counter[str]())
        statuses = sum((Counter(route.statuses) for route in routes), Counter[str]())
        answered = sum(route.requests for route in routes)
        del causes["status"]  # the statuses say which
        yield FailingRoute(
            cells=names.places([cell for cell, _ in where]),
            route=name,
            failed=sum(route.failed for route in routes),
            requests=answered + causes.total(),
            statuses=tuple(sorted(statuses)),
            causes=dict(causes),
            answer=next(filter(None, (route.answer for route in routes)), None),
            trials=tuple(cell.trial.key for cell, _ in where),
        )
