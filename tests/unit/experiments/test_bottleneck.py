"""Whose limit it is: the hunt's findings from cells made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.experiments.bottleneck.command import FULL, QUICK, SERVER, Scale, cells
from harness.experiments.bottleneck.document import study
from harness.model import (
    Answer,
    Breakdown,
    Cell,
    CellResult,
    Document,
    Report,
    Summary,
    Trial,
    Usage,
)
from harness.plan import Plan, from_json, to_json
from harness.report.study import STUDY_FORMATS

VERDICT = "Is it the server or the load generator?"


def cell(
    rps: float | None,
    users: int = 500,
    *,
    tool: str = "locust",
    threads: int = 6,
    servers: int = 1,
    processes: int = 1,
    cores: float = 0.98,
    server_cores: float = 0.27,
    bound: bool | None = True,
) -> CellResult:
    server = replace(SERVER, threads=threads, instances=servers)
    asked = Cell(server, tool, users, keepalive=True, processes=processes)
    found = CellResult(Trial(asked, 1), "app", 0.0, "invalid", "it failed")
    if rps is None:
        return found
    return replace(
        found,
        verdict="generator-bound" if bound else "saturated",
        throughput_rps=rps,
        failed=0,
        response=Summary(mean=users / rps, p95=1.7 * users / rps),
        service=Summary(mean=0.0001),
        breakdown=Breakdown(users / rps, accept_queue_s=0.0, in_worker_s=0.001, service_s=0.0001),
        usage=Usage(server_cores, cores, 0.7),
        generator_bound=bound,
        bound_reasons=(f"it used {cores:.2f} cores",) if bound else (),
    )


# As it was once measured by hand, with one generator on a machine of four cores
HUNT = (
    cell(650, 200),
    cell(544, 500),
    cell(505, 1000),
    cell(500, 1000, threads=1),
    cell(502, 1000, threads=200),
    cell(530, 500, servers=2),
    cell(490, 1000, servers=2),
    cell(1900, 500, processes=4),
    cell(4690, 500, tool="wrk", cores=0.3, server_cores=0.98, bound=False),
    cell(4500, 500, tool="fast", cores=0.4, server_cores=0.98, bound=False),
)


def hunted(*results: CellResult, cores: int | None = 8) -> Document:
    return study(Report("run", {"cores": cores}, None, results, (), {}))


def finding(found: Document, question: str) -> Answer:
    (one,) = (one for one in found.findings if one.question == question)
    return one


def test_the_generator_is_found() -> None:
    found = hunted(*HUNT)
    verdict = finding(found, VERDICT)
    assert found.findings[0] == verdict
    assert verdict.answer == (
        "The generator, locust, is the bottleneck, so its figures are a lower bound of the server:"
        " it did 8.6 times as much under another one."
    )
    assert "locust used 0.98 cores, the server 0.27" in verdict.evidence
    assert any("wrk 4690 requests/s" in said for said in verdict.evidence)
    assert any(said.startswith("a second server brought no more") for said in verdict.evidence)
    assert found.valid


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Do more users bring more?", "No: 5 times as many users bring 0.78 times"),
        ("Do more threads in the server help?", "No: they differ by less than 20 %"),
        ("Does a second server help?", "No: they differ by less than 20 %"),
        ("Do more processes of the generator help?", "Yes: 4 processes of locust bring 3.5 times"),
        ("Does another generator get more out of the same server?", "Yes: with the same 500 users"),
        ("Where is a request while it waits?", "With 1000 users a response takes 2.0 s"),
    ],
)
def test_each_experiment_has_its_answer(question: str, answer: str) -> None:
    assert finding(hunted(*HUNT), question).answer.startswith(answer)


def test_too_few_cores_to_show_the_cure() -> None:
    few = [*HUNT[:7], cell(400, 500, processes=4), *HUNT[8:]]
    said = finding(hunted(*few, cores=2), "Do more processes of the generator help?").answer
    assert said.startswith("This machine has too few cores to show the cure")
    assert "compute on 5, it has 2" in said


def test_the_server_is_found_where_all_get_the_same() -> None:
    """A generator that could do much more, on a server that gives no more to anybody."""
    kept = {"cores": 0.3, "server_cores": 0.99, "bound": False}
    same = (
        *(cell(2000, users, **kept) for users in (200, 500, 1000)),  # type: ignore[arg-type]
        cell(2050, 500, tool="wrk", **kept),  # type: ignore[arg-type]
    )
    verdict = finding(hunted(*same), VERDICT)
    assert verdict.answer.startswith("The server is the bottleneck: no other generator gets more")
    assert "the server used 0.99 cores, the generator 0.30" in verdict.evidence


def test_the_server_is_found_where_more_of_it_helps() -> None:
    more = (
        cell(500, 500, bound=False, cores=0.2),
        cell(500, 1000, bound=False, cores=0.2),
        cell(990, 1000, bound=False, cores=0.4, servers=2),
    )
    verdict = finding(hunted(*more), VERDICT)
    assert verdict.answer.startswith("The server is the bottleneck: locust kept up")
    assert "1 server 500 requests/s, 2 servers 990 requests/s" in verdict.evidence[0]


@pytest.mark.parametrize("results", [(), (cell(None),), (cell(500, bound=None),)])
def test_nothing_is_said_where_nothing_is_known(results: tuple[CellResult, ...]) -> None:
    found = hunted(*results)
    assert finding(found, VERDICT).answer == "It cannot be told from these cells."
    assert found.valid == (bool(results) and results[0].verdict != "invalid")


def test_invalid_cells_are_named_and_left_out() -> None:
    broken = (*HUNT[:-1], replace(cell(None, 500, tool="fast"), reason="it died"))
    found = hunted(*broken)
    assert not found.valid
    assert found.notes == ("fast at 500 users, 6 threads: it died",)
    assert finding(found, VERDICT).answer.startswith("The generator, locust")


def test_each_table_is_about_one_factor() -> None:
    found = hunted(*HUNT)
    shapes = {table.title: [row[:3] for row in table.rows] for table in found.tables}
    assert [row[0] for row in shapes["More users"]][:3] == [200, 500, 1000]
    assert [row[:2] for row in shapes["More threads in the server"]] == [
        (1000, 1),
        (1000, 6),
        (1000, 200),
    ]
    assert shapes["Another generator"][0][0] == "locust"
    assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)


@pytest.mark.parametrize("name", sorted(STUDY_FORMATS))
def test_every_format_shows_it(name: str) -> None:
    text = STUDY_FORMATS[name].render(hunted(*HUNT))
    assert "4690" in text


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_every_planned_cell_differs_from_another_in_one_thing(scale: Scale) -> None:
    planned = cells("locust", ("wrk", "fast"), scale)
    assert len(set(planned)) == len(planned)

    def things(one: Cell) -> tuple[object, ...]:
        server = one.server
        return one.tool, one.concurrency, one.processes, server.threads, server.instances

    for one in planned:
        differences = [
            sum(a != b for a, b in zip(things(one), things(other), strict=True))
            for other in planned
        ]
        assert 1 in differences


def test_a_plan_of_two_servers_survives_its_file() -> None:
    planned = cells("locust", ("wrk",), QUICK)
    plan = Plan("bottleneck", planned, 1, 5, 1, "python", None, {}, (), duration_s=3.0)
    assert from_json(to_json(plan)).cells == planned


def test_a_second_server_that_makes_it_worse_does_not_convict_the_server() -> None:
    worse = (*HUNT[:5], cell(250, 500, servers=2), cell(250, 1000, servers=2), *HUNT[7:])
    found = hunted(*worse)
    said = finding(found, "Does a second server help?").answer
    assert said == "No: less comes out, down to 0.46 times as much."
    assert finding(found, VERDICT).answer.startswith("The generator, locust, is the bottleneck")


def test_users_are_compared_on_the_usual_server_only() -> None:
    (table,) = (table for table in hunted(*HUNT).tables if table.title == "More users")
    assert [row[0] for row in table.rows] == [200, 500, 1000]
