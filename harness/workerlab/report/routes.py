"""The table of the routes of a mix, for all commands that can request one; and the unit that the
times of a table share."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from workerlab.model import CellResult, Column, RouteResult, Table
from workerlab.report.values import joined_table

MAX_SHOWN_ROUTES = 20  # of a cell: most failures first, then most requests
MAX_SCREEN_ROWS = 24  # a longer table is shown with --explain only
EXACT_S = 0.2  # a shorter time, in seconds with two decimals, can be off by more than 2.5 %
NEGLIGIBLE = 0.01  # share of the longest time in a row; digits of shorter times do not matter


def response_column(name: str, meaning: str, expendable: int = 0) -> Column:
    """A percentile of the response times, or their maximum. `expendable`: as in `Column`."""
    return Column(
        f"response_{name}_s",
        "seconds",
        expendable,
        heading=name,
        meaning=meaning,
        value=attrgetter(f"response.{name}"),
    )


SUCCESS_RESPONSE = "response time of successes"
ROUTE_COLUMNS = (
    Column("requests", "count", meaning="complete answers"),
    Column("failed", "count"),
    response_column("p50", SUCCESS_RESPONSE),
    response_column("p95", SUCCESS_RESPONSE, 1),
    response_column("max", SUCCESS_RESPONSE, 2),
)


def route_table(cells: Sequence[CellResult], leading: Sequence[Column]) -> Iterator[Table]:
    """Nothing if no cell has routes. `leading`: the columns that identify a cell."""
    shown = [(cell, name, route) for cell in cells for name, route in _shown_routes(cell)]
    if not shown:
        return
    responses = [route.response for _, _, route in shown]
    times = [[time for time in (each.p50, each.p95, each.max) if time] for each in responses]
    left_out = any(len(cell.routes) > MAX_SHOWN_ROUTES for cell in cells)
    note = (
        f"Only {MAX_SHOWN_ROUTES} routes per cell: the most failures first, then the most requests."
        " The JSON has all."
    )
    yield joined_table(
        "The routes of the mix",
        [leading, [Column("route", "text", value=str)], ROUTE_COLUMNS],
        shown,
        note=note if left_out else "",
        keys=len(leading),
        unit=unit_of(times),
        detailed=len(shown) > MAX_SCREEN_ROWS,
    )


def _shown_routes(cell: CellResult) -> Iterator[tuple[str, RouteResult]]:
    """The cell's routes to show (see MAX_SHOWN_ROUTES), in the order of the mix."""
    names = sorted(cell.routes, key=lambda n: (-cell.routes[n].failed, -cell.routes[n].requests))
    kept = {*names[:MAX_SHOWN_ROUTES]}
    return ((name, route) for name, route in cell.routes.items() if name in kept)


def unit_of(rows: list[list[float]]) -> str:
    """For all rows: "s" if a time reaches 1 s and none that matters loses digits, else "ms"."""
    longest_s = max((time_s for times in rows for time_s in times), default=0.0)
    lost = any(NEGLIGIBLE * max(times) <= time_s < EXACT_S for times in rows for time_s in times)
    return "s" if longest_s >= 1 and not lost else "ms"
