"""Whose limit it is: findings from cells made by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from tests.builders.null import COUNTS, null_trial
from workerlab import codec
from workerlab.analysis.facts import TrialData
from workerlab.experiments.bottleneck.command import FULL, QUICK, SERVER, Scale, cells
from workerlab.experiments.bottleneck.document import study
from workerlab.model import (
    Breakdown,
    Cell,
    CellResult,
    ConnectionSample,
    CoreWait,
    Document,
    Fault,
    Finding,
    Load,
    Measurement,
    NullServer,
    Observations,
    Plan,
    Record,
    Report,
    Summary,
    Table,
    Trial,
    Usage,
)
from workerlab.report import FORMATS


def finding(document: Document, question: str) -> Finding:
    (one,) = (one for one in document.findings if one.question == f"bottleneck.question.{question}")
    assert isinstance(one, Finding)
    return one


def rates(finding: Finding) -> list[float]:
    """Of a comparison."""
    return [round(one.values["rps"]) for one in finding.values["rates"]]


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
MEASURED = (
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


def document_of(*results: CellResult, cores: int | None = 8) -> Document:
    return study(Report("run", {"cores": cores}, None, thrice(results), (), {}))


def thrice(results: Iterable[CellResult]) -> tuple[CellResult, ...]:
    """Three launches of each, which scatter by a percent."""
    return tuple(
        replace(
            one,
            trial=replace(one.trial, number=number),
            throughput_rps=None if one.throughput_rps is None else one.throughput_rps * noise,
        )
        for one in results
        for number, noise in enumerate((0.99, 1.0, 1 / 0.99), 1)
    )


def test_the_generator_is_detected() -> None:
    document = document_of(*MEASURED)
    verdict = finding(document, "verdict")
    assert document.findings[0] == verdict
    assert (verdict.code, verdict.values["generator"]) == ("bottleneck.generator", "locust")
    assert verdict.values["brings"] == pytest.approx(4690 / 544)
    busy, threads, servers, *others = verdict.evidence
    cores = {"generator": "locust", "generator_cores": 0.98, "server_cores": 0.27}
    assert busy == Finding("bottleneck.busy", cores)
    assert threads.code == "bottleneck.threads.no_more"
    assert servers.code == "bottleneck.servers.no_more"
    assert rates(servers.values["rates"]) == [505, 490]
    assert rates(others[0]) == [544, 4690]
    assert document.valid


def test_nothing_is_blamed_for_what_others_did() -> None:
    """Locust at 0.47 cores of a machine that others keep busy: it waited for them."""
    wait = CoreWait(share=0.4, worker_s=0.001, tool_s=0.004, others_cores=1.4, cores=2)
    slow = replace(cell(90, 500, cores=0.47, bound=None), core_wait=wait)
    document = document_of(*(one for one in MEASURED if one.trial != slow.trial), slow)
    for question in ("verdict", "users", "tool"):
        found = finding(document, question)
        assert found.code == f"bottleneck.disturbed{'' if question == 'verdict' else '_too'}"
        assert found.values["noise"].code == "diagnosis.core_wait"
    assert finding(document, "threads").code == "bottleneck.threads.no"  # of other cells


def test_others_that_kept_nobody_waiting_are_no_disturbance() -> None:
    idle = CoreWait(share=0.01, worker_s=0.0, others_cores=1.9, cores=2)
    document = document_of(*(replace(one, core_wait=idle) for one in MEASURED))
    assert finding(document, "verdict").code == "bottleneck.generator"


@pytest.mark.parametrize(
    ("question", "outcome", "values"),
    [
        ("users", "no", {"more": 5, "brings": pytest.approx(505 / 650)}),
        ("threads", "no", {"change": pytest.approx(0.2)}),
        ("servers", "no", {"change": pytest.approx(0.2)}),
        ("processes", "yes", {"processes": 4, "brings": pytest.approx(1900 / 544)}),
        ("tool", "yes", {"users": 500, "other": "wrk"}),
    ],
)
def test_each_comparison_has_its_answer(
    question: str, outcome: str, values: dict[str, object]
) -> None:
    one = finding(document_of(*MEASURED), question)
    assert one.code == f"bottleneck.{question}.{outcome}"
    assert {name: one.values[name] for name in values} == values
    assert one.evidence


def test_where_a_request_waits() -> None:
    one = finding(document_of(*MEASURED), "inside")
    assert one.values["users"] == 1000
    assert one.values["response_s"] == pytest.approx(1000 / 505)
    assert one.values["inside_s"] == pytest.approx(0.0011)


def test_too_few_cores_to_show_the_cure() -> None:
    few = [*MEASURED[:7], cell(400, 500, processes=4), *MEASURED[8:]]
    one = finding(document_of(*few, cores=2), "processes")
    assert one.code == "bottleneck.processes.few_cores"
    assert (one.values["needed"], one.values["cores"]) == (5, 2)


def test_the_server_is_detected_where_all_get_the_same() -> None:
    """A generator that could do much more, on a server that gives no more to anybody."""
    kept = {"cores": 0.3, "server_cores": 0.99, "bound": False}
    same = (
        *(cell(2000, users, **kept) for users in (200, 500, 1000)),  # type: ignore[arg-type]
        cell(2050, 500, tool="wrk", **kept),  # type: ignore[arg-type]
    )
    verdict = finding(document_of(*same), "verdict")
    assert verdict.code == "bottleneck.server.others"
    assert verdict.evidence[0].code == "bottleneck.cores"
    assert verdict.evidence[0].values == pytest.approx({"generator": 0.3, "server": 0.99})


def test_the_server_is_detected_where_more_of_it_helps() -> None:
    more = (
        cell(500, 500, bound=False, cores=0.2),
        cell(500, 1000, bound=False, cores=0.2),
        cell(990, 1000, bound=False, cores=0.4, servers=2),
    )
    verdict = finding(document_of(*more), "verdict")
    assert verdict.code == "bottleneck.server.kept_up"
    assert rates(verdict.evidence[0]) == [500, 990]


def test_one_trial_of_each_is_not_compared() -> None:
    """But what the load tool itself shows, its CPU, speaks against it."""
    document = study(Report("run", {"cores": 8}, None, MEASURED, (), {}))
    for question in ("users", "threads", "servers", "processes", "tool"):
        found = finding(document, question)
        assert (found.code, found.values["trials"]) == ("bottleneck.few", 3)
    assert finding(document, "verdict").values["brings"] is None
    unbound = (replace(one, generator_bound=None, bound_reasons=()) for one in MEASURED)
    document = study(Report("run", {"cores": 8}, None, tuple(unbound), (), {}))
    assert finding(document, "verdict").code == "bottleneck.few"


def test_identical_cells_whose_launches_scatter_yield_no_difference() -> None:
    rates = ((38.0, 77.0, 60.0), (77.0, 50.0, 38.0))
    scattered = [
        replace(cell(rps, tool=tool), trial=Trial(cell(rps, tool=tool).trial.cell, number))
        for tool, mine in zip(("locust", "wrk"), rates, strict=True)
        for number, rps in enumerate(mine, 1)
    ]
    document = study(Report("run", {"cores": 8}, None, tuple(scattered), (), {}))
    assert finding(document, "tool").code == "bottleneck.chance"


@pytest.mark.parametrize("results", [(), (cell(None),), (cell(500, bound=None),)])
def test_without_comparisons_it_is_inconclusive(results: tuple[CellResult, ...]) -> None:
    document = document_of(*results)
    assert finding(document, "verdict").code == "bottleneck.inconclusive"
    assert document.valid == (bool(results) and results[0].verdict != "invalid")


def test_invalid_cells_are_named_and_left_out() -> None:
    broken = (*MEASURED[:-1], replace(cell(None, 500, tool="fast"), reason="it died"))
    document = document_of(*broken)
    assert not document.valid
    note, *others = document.notes
    assert [other.values["cell"].values["trial"] for other in others] == [2, 3]
    assert (note.code, note.values["reason"]) == ("bottleneck.invalid", "it died")
    assert (note.values["cell"].values["tool"], note.values["cell"].values["users"]) == (
        *("fast", 500),
    )
    assert finding(document, "verdict").code == "bottleneck.generator"


def table(document: Document, factor: str) -> Table:
    wanted = Finding(f"bottleneck.table.{factor}")
    (one,) = (one for one in document.tables if one.title == wanted)
    return one


def test_each_table_is_about_one_factor() -> None:
    document = document_of(*MEASURED)
    assert [row[:2] for row in table(document, "threads").rows] == [
        (1000, 1),
        (1000, 6),
        (1000, 200),
    ]
    assert table(document, "tool").rows[0][0] == "locust"
    assert all(len(row) == len(one.columns) for one in document.tables for row in one.rows)


def test_each_way_to_load_has_a_line() -> None:
    (chart,) = document_of(*MEASURED).charts
    assert [len(one.points) for one in chart.series] == [3, 1, 1, 2, 1, 1, 1]
    names = [one.name.values for one in chart.series if isinstance(one.name, Finding)]
    assert [name["threads"] for name in names][:3] == [None, 1, 200]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_shows_it(name: str) -> None:
    text = FORMATS[name](document_of(*MEASURED))
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
    assert codec.decode(codec.encode(plan), Plan).cells == planned


def test_a_second_server_that_makes_it_worse_does_not_convict_the_server() -> None:
    worse = (*MEASURED[:5], cell(250, 500, servers=2), cell(250, 1000, servers=2), *MEASURED[7:])
    document = document_of(*worse)
    one = finding(document, "servers")
    assert (one.code, one.values["least"]) == ("bottleneck.servers.less", pytest.approx(250 / 544))
    assert finding(document, "verdict").code == "bottleneck.generator"


def test_users_are_compared_on_the_usual_server_only() -> None:
    assert [row[0] for row in table(document_of(*MEASURED), "users").rows] == [200, 500, 1000]


# --- both sides, and the phases --------------------------------------------------------------


def test_users_are_raised_to_1500_and_two_servers_have_as_many() -> None:
    planned = cells("locust", ("wrk",), FULL)
    users = {servers: {one.concurrency for one in planned
                       if one.server.instances == servers and one.tool == "locust"
                       and one.processes == 1 and one.server.threads == SERVER.threads}
             for servers in (1, 2)}  # fmt: skip
    assert users == {1: {200, 500, 1000, 1500}, 2: {500, 1000, 1500}}
    assert {one.concurrency for one in planned if one.server.threads == 200} == {1000}


@pytest.mark.parametrize(("cores", "most"), [(None, {1, 4}), (3, {1, 4}), (4, {1, 3, 4})])
def test_three_cores_of_the_generator_where_there_are_four(
    cores: int | None, most: set[int]
) -> None:
    planned = cells("locust", (), FULL, cores)
    assert {one.processes for one in planned} == most
    assert {one.concurrency for one in planned if one.processes == 3} <= {1500}


def test_both_sides_of_each_load_stand_in_a_table() -> None:
    usage = Usage(
        server_rss_bytes=30 << 20, generator_rss_bytes=90 << 20, received_bytes_per_s=317e3,
        connect_calls_s=0.0001, send_calls_s=0.001, receive_calls_s=0.9,
    )  # fmt: skip
    locust = replace(cell(505, 1000), usage=usage)
    sides = table(document_of(*MEASURED[:2], locust), "sides")
    names = [column.name for column in sides.columns]
    row = dict(zip(names, sides.rows[-1], strict=True))
    assert (row["users"], row["received_bytes_per_s"]) == (1000, 317e3)
    assert (row["generator_rss_bytes"], row["server_rss_bytes"]) == (90 << 20, 30 << 20)
    calls = ("connect_calls_s", "send_calls_s", "receive_calls_s", "service_mean_s")
    assert [row[name] for name in calls] == [0.0001, 0.001, 0.9, 0.0001]
    assert "tool" not in names  # it is the same in all of them
    first = dict(zip(names, sides.rows[0], strict=True))
    assert first["received_bytes_per_s"] is None


def closing(*, churn_s: float | None) -> TrialData:
    """20 users for 8 s, answered after 0.1 s; the server closes their connections from `churn_s`
    on, one after the other in 2 s, and each is opened again."""
    load = Load(20, 20, 8.0, 68.0, keepalive=True, ramp_s=2.0, timed=True)
    samples = []
    for tenth in range(85):
        at_s = tenth / 10
        users = round(20 * min(1.0, at_s / 2)) if at_s <= 8 else 0
        closed = 0 if churn_s is None else round(20 * min(1.0, max(0.0, (at_s - churn_s) / 2)))
        closed = 20 if at_s > 8 else closed
        seen = {"ESTABLISHED": users}
        samples.append(ConnectionSample(
            1 + round(at_s * 1e9), seen | {"TIME_WAIT": closed}, seen | {"CLOSE_WAIT": closed // 9},
            {}, 0,
        ))  # fmt: skip
    answers = [(1 + round(tenth * 1e8), 100_000_000) for tenth in range(1, 80) for _ in range(9)]
    return null_trial(
        "phases",
        "locust",
        load,
        Measurement(711, 0, {}, 8.0, 89.0, Summary(mean=0.1), origin_ns=1,
                    answers_ns=tuple(answers)),
        record=Record("phases-1", None, load_start_ns=1, load_end_ns=8_500_000_001),
        null=NullServer(delay_s=(0.1, 0.1), requests_per_connection=40),
        counts=replace(COUNTS, connections=40 if churn_s else 20),
        observations=Observations(connections=tuple(samples)),
    )  # fmt: skip


def test_connections_that_close_in_mid_load_are_a_phase_with_its_states() -> None:
    document = study(Report("run", {}, None, thrice(MEASURED), (), {}), (), [closing(churn_s=5)])
    one = finding(document, "phases")
    assert one.code == "bottleneck.phases"
    told = {phase.code.removeprefix("phases."): phase for phase in one.values["phases"]}
    assert list(told) == ["ramp-up", "steady", "churn"]
    steady = told["steady"].values["why"].values
    assert (steady["connections"], steady["established"]) == (20, 40)
    churn = told["churn"].values["why"].values
    assert churn["states"] == {"TIME_WAIT": 20, "CLOSE_WAIT": 2}
    assert churn["p50_s"] == pytest.approx(0.1)
    assert 4.9 <= one.values["at_s"] <= 5.3
    assert (one.values["requests"], one.values["opened"], one.values["users"]) == (40, 40, 20)
    assert "1 LISTEN and 40 ESTABLISHED" in " ".join(FORMATS["table"](document).split())
    assert document.valid


def test_connections_that_close_at_the_end_only_are_no_churn_in_mid_load() -> None:
    document = study(Report("run", {}, None, thrice(MEASURED), (), {}), (), [closing(churn_s=None)])
    assert finding(document, "phases").code == "bottleneck.phases.no_churn"


def test_a_load_that_failed_leaves_the_document_invalid_and_says_why() -> None:
    data = closing(churn_s=5)
    broken = replace(data, record=replace(data.record, fault=Fault("tool", "it died")))
    document = study(Report("run", {}, None, thrice(MEASURED), (), {}), (), [broken])
    assert not document.valid
    assert "bottleneck.question.phases" not in [one.question for one in document.findings]
    assert [note.code for note in document.notes if isinstance(note, Finding)] == [
        "note.not_measured"
    ]
