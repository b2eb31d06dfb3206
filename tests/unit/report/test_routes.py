"""The routes of a mix, in the document of a sweep and in every format."""

from __future__ import annotations

import csv
import io
import json

from msgspec.structs import replace

from tests.builders.analysis import evidence
from tests.builders.document import answer, rows, table
from workerlab.analysis import TrialData, analyse
from workerlab.experiments.sweep.document import FailingRoute, sweep_document
from workerlab.model.evidence import RouteResult, Summary
from workerlab.model.result import Document
from workerlab.report import FORMATS
from workerlab.report.tables import MAX_SHOWN_ROUTES
from workerlab.report.text import render

TITLE = "The routes of the mix"
FAST = RouteResult(30, 0, response=Summary(0.01, 0.01, 0.02, 0.02, 0.03))
TIMES = Summary(0.1, 0.1, 0.2, 0.2, 0.3)
BROKEN = RouteResult(8, 5, {"status": 3, "reset": 2}, TIMES, {"500": 3}, "KeyError / 'cart'")
ROUTES = {"GET /": FAST, "POST /cart": BROKEN}


def mixed(at: int, routes: dict[str, RouteResult]) -> TrialData:
    data = evidence(connections=at, tool="fast", delay_s=0.1)
    return replace(data, measurement=replace(data.measurement, routes=routes))


def sweep(**routes: RouteResult) -> Document:
    return sweep_document(analyse("run", {}, [mixed(at, routes or ROUTES) for at in (4, 8)]))


def test_a_row_for_each_cell_and_route() -> None:
    routes = rows(table(sweep(), TITLE))
    columns = ("concurrency", "route", "requests", "failed")
    assert [tuple(row[name] for name in columns) for row in routes] == [
        (4, "GET /", 30, 0), (4, "POST /cart", 8, 5), (8, "GET /", 30, 0), (8, "POST /cart", 8, 5)
    ]  # fmt: skip
    assert routes[1]["response_p95_s"] == 0.2


def test_without_a_mix_there_is_no_table_of_routes() -> None:
    document = sweep_document(analyse("run", {}, [evidence(connections=4, tool="fast")]))
    assert TITLE not in [table.title for table in document.tables]


def test_a_failing_route_has_status_cause_and_body() -> None:
    failing = answer(sweep(), FailingRoute)
    assert failing.failed == 10
    assert failing.requests == 2 * (8 + 2)
    assert len(failing.trials) == 2
    for part in ("POST /cart", "500", "connection reset", "KeyError / 'cart'"):
        assert part in str(failing)


def test_of_many_routes_the_failing_and_most_frequent_are_in_the_table() -> None:
    many = {f"GET /{n}": replace(FAST, requests=100 - n) for n in range(MAX_SHOWN_ROUTES + 5)}
    many["GET /rare"] = replace(BROKEN, requests=1)
    routes = [row["route"] for row in rows(table(sweep(**many), TITLE)) if row["concurrency"] == 4]
    assert routes == [*(f"GET /{n}" for n in range(MAX_SHOWN_ROUTES - 1)), "GET /rare"]


def test_a_long_table_of_routes_needs_explain() -> None:
    many = {f"GET /{n}": FAST for n in range(MAX_SHOWN_ROUTES)}
    assert "GET /7" not in render(sweep(**many))
    assert "GET /7" in render(sweep(**many), explain=True)
    assert "GET /" in render(sweep())


def test_every_format_has_the_routes() -> None:
    assert all("POST /cart" in write(sweep()) for write in FORMATS.values())


def test_json_and_csv_have_all_routes() -> None:
    routes = json.loads(FORMATS["json"](sweep()))["cells"][0]["routes"]
    assert list(routes) == ["GET /", "POST /cart"]
    cart = routes["POST /cart"]
    assert (cart["errors"], cart["statuses"]) == ({"reset": 2, "status": 3}, {"500": 3})
    assert (cart["answer"], cart["response_ms"]["p95"]) == ("KeyError / 'cart'", 200.0)
    first = next(csv.DictReader(io.StringIO(FORMATS["csv"](sweep()))))
    assert json.loads(first["routes"]) == routes
