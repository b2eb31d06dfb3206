"""The report page and its pictures as text; tests/browser opens them in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import evidence, sentence, server, with_keepalive
from tests.builders.any_document import reports
from tests.builders.html import (
    EVIL,
    cell,
    group,
    hostile,
    invalid,
    no_cells,
    over_time,
    sweep,
    trial,
    with_cells,
)
from tests.builders.page import Page, rendered
from tests.builders.runs import recorded
from tests.builders.sweep import everything, targeted
from workerlab.analysis import RanSideBySide, analyse
from workerlab.analysis.class_findings import NoValidCell
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.overview import (
    MAX_HEADLINE_CHARS,
    NOTHING_VALID,
    WAIT_PLACES,
    Headline,
    Leads,
    LeadsByChance,
    LevelRate,
    is_tie,
)
from workerlab.analysis.trials import Replicates
from workerlab.experiments.reading import document_of
from workerlab.experiments.sweep.document import AffectedCells, CellsNote, Overhead, sweep_document
from workerlab.model.plan import Server
from workerlab.model.result import (
    Breakdown,
    Chart,
    ChartSeries,
    Column,
    CoreWait,
    Document,
    Result,
    Table,
    TrialResult,
)
from workerlab.report.html.figure import Figure, spec
from workerlab.report.html.over_time import corners
from workerlab.report.html.page import (
    MAX_PAGE_BYTES,
    emphasised,
    figures,
    headline_of,
    omitted_cells_note,
    picture,
    pictures,
    render,
)
from workerlab.report.html.series import cells_over_time
from workerlab.report.html.timeline import MIN_VISIBLE_SHARE
from workerlab.report.html.timeline_data import Bar, Timeline
from workerlab.report.player import SCRIPTS

ALL = ("sync", "gthread", "eventlet", "gevent", "tornado", "asgi", "uvicorn")


@cache
def all_classes() -> Document:
    return sweep(ALL, (4, 8, 16, 32, 64))


@cache
def page_of_all() -> str:
    return render(all_classes())


def rows(pane: dict[str, Any], name: str) -> list[list[str]]:
    """The data of the layer `name`, without its header."""
    (layer,) = [layer for layer in (pane, *pane.get("layer", [])) if layer.get("name") == name]
    data = layer.get("data") or pane["data"]
    return [line.split(",") for line in pane["datasets"][data["name"]].splitlines()[1:]]


def figure_of(document: Document, name: str) -> Figure:
    (match,) = [figure for figure in figures(document) if figure.name == name]
    return match


def first_pane(figure: Figure) -> dict[str, Any]:
    return spec(figure.panes[0])


def throughput_of(document: Document, *cells: Result) -> tuple[Figure, dict[str, Any]]:
    """The figure and its pane, with these cells instead of those of the document."""
    figure = figure_of(replace(document, cells=cells or document.cells), "throughput")
    return figure, first_pane(figure)


# --- a self-contained file --------------------------------------------------------------------


def test_the_page_loads_nothing() -> None:
    page = Page(page_of_all())
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"url\(|@import", page.styles)
    for chart in page.json("charts").values():
        assert '"url"' not in json.dumps(chart)


def test_the_policy_allows_only_the_pages_own_scripts() -> None:
    page = Page(page_of_all())
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?:|\*", policy)
    scripts = [text for attributes, text in page.scripts if attributes.get("type") is None]
    assert len(scripts) == 2 + len(SCRIPTS)
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_all_classes_at_five_levels_fit_on_a_page() -> None:
    assert len(page_of_all().encode()) < 2_000_000
    assert len(Page(page_of_all()).json("charts")) >= 35 * 4


def test_omitted_cells_are_named_and_the_most_informative_stay() -> None:
    queue = tuple((0.01 * i, i * 7 % 13) for i in range(300))
    states = tuple((at, f"server STATE-{row}", n + row) for at, n in queue for row in range(12))
    timelines = (replace(line, queue=queue, states=states) for line in all_classes().timelines)
    full = replace(all_classes(), timelines=tuple(timelines))
    source = render(full)
    assert MAX_PAGE_BYTES - 70_000 < len(source.encode()) <= MAX_PAGE_BYTES
    page = Page(source)
    drawn = [name for name in page.json("charts") if name.startswith("timeline-")]
    assert 7 <= len(drawn) < 35
    assert omitted_cells_note(["a cell"] * (35 - len(drawn))) in page.text
    best = [cell for cell in cells_over_time(full) if cell.most_informative]
    assert len(best) == len(ALL)
    assert {cell.figures[0].name for cell in best} <= {*drawn}


def test_foreign_text_is_only_text() -> None:
    page = rendered(hostile())
    assert len(page.scripts) == 4 + len(SCRIPTS)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert page.text.count(EVIL) >= 8  # all of it is visible
    assert EVIL in json.dumps(page.json("charts")["states-sync-8"])
    page.json("config")


# --- charts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lesson", "good"])  # with request ids, and without
def test_each_cell_can_be_played(name: str) -> None:
    whole = document_of(recorded(name))
    page = rendered(whole)
    traces = [
        json.loads(text) for attributes, text in page.scripts
        if attributes.get("type") == "application/json" and attributes.get("id") is None
    ]  # fmt: skip
    cells = cells_over_time(whole)
    computed = [trace for cell in cells if (trace := cell.timeline.trace) is not None]
    assert len(traces) == len(cells) == len(computed) > 0
    moves_by_trace = [trace["sides"][0]["moves"] for trace in traces]
    assert sorted(map(len, moves_by_trace)) == sorted(len(trace.moves) for trace in computed)
    for trace, moves in zip(traces, moves_by_trace, strict=True):
        assert moves[-1][3] <= trace["length_ms"]


def test_each_request_and_each_wait_is_a_bar() -> None:
    document = sweep(("sync",), (8,))
    (pane,) = rendered(document).json("charts")["timeline-sync-8"]
    bars = document.timelines[0].bars
    waits_s = [bar.start_s - bar.arrived_s for bar in bars if bar.arrived_s is not None]
    assert len(rows(pane, "served")) == len(bars) == 41
    assert len(rows(pane, "waits")) == sum(wait_s > 0.1 for wait_s in waits_s) == 36


def timeline_pane(document: Document) -> dict[str, Any]:
    """The timeline of the only cell."""
    return first_pane(cells_over_time(document)[0].figures[0])


def bars_and_waits(document: Document) -> tuple[list[float], list[list[float]]]:
    """Tops of the bars of the only cell, and (top, from, to) of each wait."""
    pane = timeline_pane(document)
    tops = [float(row[1]) for row in rows(pane, "served")]
    return tops, [[float(value) for value in row] for row in rows(pane, "waits")]


def test_requests_waiting_for_any_worker_are_below_all_workers() -> None:
    bar_tops, waits = bars_and_waits(sweep(("sync",), (16,)))
    tops = sorted({top for top, _, _ in waits})
    assert tops[0] > max(bar_tops)
    steps = [min(to for top, _, to in waits if top == row) for row in tops]
    assert steps == [2.0] * 4 + [3.0] * 4 + [4.0] * 4


def test_every_worker_has_a_tick() -> None:
    """Vega skips every second value if there are more than its number of ticks."""
    axis = timeline_pane(sweep(("sync",), (16,)))["layer"][0]["encoding"]["y"]["axis"]
    assert axis["tickCount"] == len(axis["values"]) == 5  # four workers, and the waiting requests


def test_requests_held_by_a_worker_are_below_that_worker() -> None:
    bar_tops, waits = bars_and_waits(sweep(("gthread",), (16,)))
    assert min(top for top, _, _ in waits) < max(bar_tops)


times = st.tuples(
    st.floats(0, 50), st.floats(0, 20), st.floats(0.1, 5), st.sampled_from([101, 102])
)


@settings(max_examples=20)
@given(st.lists(times, min_size=1, max_size=40), st.sampled_from(["sync", "gthread"]))
def test_waits_in_a_row_do_not_overlap(
    requests: list[tuple[float, float, float, int]], worker_class: str
) -> None:
    """Except for overlaps too short to be visible."""
    bars = [
        Bar(worker, 0, arrived + wait, arrived + wait + service, arrived)
        for arrived, wait, service, worker in requests
    ]
    end_s = max(bar.end_s for bar in bars)
    key = trial(worker_class, 16).key
    timeline = Timeline(key, tuple(bars), (0.0, end_s), workers=(101, 102))
    _, waits = bars_and_waits(replace(sweep((worker_class,), (16,)), timelines=(timeline,)))
    for row in {top for top, _, _ in waits}:
        row_waits = sorted((since, to) for top, since, to in waits if top == row)
        for (_, before), (after, _) in pairwise(row_waits):
            assert before - after <= 1.01 * MIN_VISIBLE_SHARE * end_s * (1.0 if end_s >= 1 else 1e3)


def test_without_arrivals_the_queue_is_drawn_below_the_rows() -> None:
    charts = rendered(sweep(("sync",), (8,), arrivals_known=False)).json("charts")
    served, queue = charts["timeline-sync-8"]
    assert rows(served, "waits") == []
    assert max(int(length) for _, length in rows(queue, "queue")) == 4
    queue_x = queue["layer"][0]["encoding"]["x"]
    assert served["encoding"]["x"]["scale"] == queue_x["scale"]


def test_a_cell_without_observations_names_what_is_missing() -> None:
    empty = replace(over_time(trial("sync", 8), observed=False), bars=(), steady=None)
    page = rendered(replace(sweep(("sync",), (8,)), timelines=(empty,)))
    assert "Missing: the accept queue, TCP states and CPU and memory." in page.text
    assert not [name for name in page.json("charts") if name.endswith("-8")]


@pytest.mark.parametrize("arrivals_known", [True, False])
def test_a_machine_without_samplers_has_only_the_timeline(arrivals_known: bool) -> None:
    document = sweep(("sync",), (8,), arrivals_known=arrivals_known, observed=False)
    charts = rendered(document).json("charts")
    assert [name for name in charts if name.endswith("-8")] == ["timeline-sync-8"]
    assert len(charts["timeline-sync-8"]) == 1


@pytest.mark.parametrize("cells", [(), (invalid(trial("sync", 8), "it died"),)])
def test_a_run_without_a_valid_cell(cells: Sequence[TrialResult]) -> None:
    page = rendered(with_cells(sweep(("sync",), (8,)), cells) if cells else no_cells())
    assert page.json("charts") == {}
    assert str(NOTHING_VALID) in page.text
    assert ("it died" in page.text) is bool(cells)


def waiting_figure(**breakdown: Any) -> Figure:
    """The breakdown of sync at 8 connections, with these changes."""
    document = sweep(("sync",), (8,))
    (cell,) = document.cells
    cell = replace(cell, breakdown=replace(cell.breakdown, **breakdown))
    return figure_of(replace(document, cells=(cell,)), "waiting-sync")


def test_a_negative_rest_is_named_and_drawn_below_zero() -> None:
    figure = waiting_figure(unattributed_s=-0.3)
    assert figure.alternative[-1].endswith(", unattributed -300 ms.")
    assert [key.label for key in figure.legend] == ["accept queue", "in the app", "unattributed"]
    bars = {name: float(time) for name, _, _, time in rows(first_pane(figure), "bars")}
    assert bars["unattributed"] == pytest.approx(-0.3)
    note = "Too short to be visible (at most 400 us): connect, in the worker and transfer."
    assert note in figure.caption


def test_a_level_without_parts_is_not_drawn() -> None:
    document = sweep(("sync",), (4, 8))
    low, high = document.cells
    high = replace(high, breakdown=Breakdown(response_s=high.breakdown.response_s))
    figure = figure_of(replace(document, cells=(low, high)), "waiting-sync")
    assert [at for at, *_ in figure.rows] == ["4"]
    assert "Omitted at 8 connections: the parts exceed the response time." in figure.caption


def test_a_part_without_a_source_is_named_and_has_no_bar() -> None:
    figure = waiting_figure(accept_queue_s=None, exact=False)
    assert "No source: accept queue." in figure.caption
    assert "accept queue" not in [name for name, *_ in rows(first_pane(figure), "bars")]


def test_trials_are_points_around_the_line_of_their_mean() -> None:
    first = cell(trial("sync", 8))
    second = replace(first, trial=trial("sync", 8, number=2), throughput_rps=4.4)
    _, pane = throughput_of(sweep(("sync",), (8,)), first, second)
    assert [float(row[3]) for row in rows(pane, "trials")] == [4.0, 4.4]
    assert [float(row[2]) for row in rows(pane, "measured")] == [pytest.approx(4.2)]
    assert rows(pane, "knees") == [["sync", "4", "4.2"]]


def test_a_bound_far_above_is_cut_off_and_noted() -> None:
    document = sweep(("sync",), (4, 8))
    bounded = [replace(cell, bound_rps=400.0) for cell in document.cells]
    figure, pane = throughput_of(document, *bounded)
    assert figure.caption[0].endswith("which continues above the chart, up to 400.")
    assert 4 < pane["encoding"]["y"]["scale"]["domain"][1] < 20


def test_overlapping_points_are_drawn_side_by_side() -> None:
    figure, pane = throughput_of(sweep(("sync", "eventlet", "gevent"), (4, 16)))
    assert "Overlapping points are drawn side by side." in figure.caption
    points = [tuple(row[:4]) for row in rows(pane, "trials")]
    assert len({(drawn_at, rate) for _, _, drawn_at, rate in points}) == len(points) == 6
    sync_at_16 = [drawn_at for name, at, drawn_at, _ in points if (name, at) == ("sync", "16")]
    assert sync_at_16 == ["16"]


def test_the_interval_of_a_load_is_drawn_and_explained() -> None:
    document = sweep(("sync",), (4, 8))
    exact, imprecise = document.cells
    imprecise = replace(imprecise, throughput_rps=20.8, throughput_half_rps=6.9)
    figure, pane = throughput_of(document, exact, imprecise)
    ((_, _, _, _, low, high, *_),) = rows(pane, "intervals")
    assert (float(low), float(high)) == pytest.approx((13.9, 27.7))
    assert pane["encoding"]["y"]["scale"]["domain"][1] > 27.7
    assert any(line.startswith("Vertical lines: the 95 %") for line in figure.caption)
    assert figure.rows[1][3] == "6.9"


def test_a_single_point_is_no_chart() -> None:
    document = sweep(("sync",), (8,))
    assert "throughput" not in [figure.name for figure in figures(document)]
    only = Chart("Rates", "x", "y", (ChartSeries("a", ((1.0, 2.0),)), ChartSeries("b", ())))
    assert figures(replace(no_cells(), charts=(only,))) == []


@pytest.mark.parametrize("arrivals_known", [True, False])
def test_an_empty_or_already_drawn_accept_queue_has_no_chart(arrivals_known: bool) -> None:
    """At 4 nothing waits; at 8 the timeline draws the queue if arrivals are unknown."""
    document = sweep(("sync",), (4, 8), arrivals_known=arrivals_known)
    names = [figure.name for figure in figures(document)]
    assert [name for name in names if name.startswith("queue")] == ["queue-sync-8"] * arrivals_known


def test_a_class_has_one_colour_in_all_charts() -> None:
    """Even if a class ten times as fast has its own picture."""
    document = sweep(("sync", "gthread", "eventlet"), (4, 64))
    factors = {"sync": 1, "gthread": 100, "eventlet": 1}
    cells = tuple(
        replace(cell, throughput_rps=cell.throughput_rps * factors[cell.server.worker_class])
        for cell in document.cells
    )
    drawn = figures(replace(document, cells=cells))
    drawn = [figure for figure in drawn if figure.name.startswith("throughput")]
    colours = [key.colour for figure in drawn for key in figure.legend if "class" in key.colour]
    assert len(drawn) == len(colours) == len(set(colours)) == 3


def test_the_chart_that_explains_a_cell_is_not_folded() -> None:
    document = sweep(("sync",), (8,))
    noise = CoresTaken(0.4, CoreWait(0.4, 0.001, others_cores=1.5, cores=2))
    busy = replace(document.cells[0], findings=(noise,))
    for cells, folded in ((document.cells, ["queue", "states", "cpu", "memory"]),
                          ((busy,), ["queue", "states", "memory"])):  # fmt: skip
        (drawn,) = cells_over_time(replace(document, cells=cells))
        assert [figure.name.split("-")[0] for figure in drawn.folded] == folded


def test_keepalive_shows_bound_prediction_and_measurement() -> None:
    keepalive = with_keepalive(evidence(server("gthread", 2, 4), 16, tool="wrk", slots=[5]))
    document = sweep_document(analyse("keepalive", {}, [keepalive]))
    figure = figure_of(document, "keepalive-gthread")
    sides = ["bound", "prediction by worker", "measured"]
    assert [name for name, *_ in rows(first_pane(figure), "bars")] == sides
    assert {key.colour for key in figure.legend} == {"bound", "prediction", "measured"}


def late_connections(late: tuple[tuple[float, float, int], ...] = ((1.0, 1.05, 11),)) -> Timeline:
    timeline = over_time(trial("sync", 8))
    return replace(timeline, connects=((0.0, 0.05, 52), *late), syn_steps_s=(1.0, 2.0, 3.0))


def test_late_connections_are_drawn_with_the_syn_steps() -> None:
    document = replace(sweep(("sync",), (8,)), timelines=(late_connections(),))
    (pane,) = rendered(document).json("charts")["connects-sync-8"]
    assert [row[2] for row in rows(pane, "connects")] == ["52", "11"]
    assert rows(pane, "steps") == [["1"]]
    without_late = replace(document, timelines=(late_connections(late=()),))
    assert "connects-sync-8" not in rendered(without_late).json("charts")


@given(st.lists(st.integers(0, 3), max_size=40))
def test_corners_draw_the_same_line(values: list[int]) -> None:
    points = list(enumerate(values))
    drawn = corners(points)
    assert set(drawn) <= set(points)
    for at, value in points:  # in steps
        assert [v for t, v in drawn if t <= at][-1] == value
    omitted = {at for at, _ in points} - {at for at, _ in drawn}
    assert all(values[at - 1] == values[at] == values[at + 1] for at in omitted)


# --- findings --------------------------------------------------------------------------------


def test_the_page_shows_the_outcome_of_a_target() -> None:
    page = rendered(targeted()).text
    assert "missed: p95" in page
    assert "the highest level that meets p95<150ms,errors<1%,rps>=10 is 4 connections" in page
    assert "At 8 connections p95<150ms is missed: p95 200 ms" in page


def test_the_subject_of_a_finding_is_bold_and_never_markup() -> None:
    assert emphasised(NoValidCell("<i>")).startswith("<strong>&lt;i&gt;</strong>")
    markup = emphasised(CellsNote("sync at 4", sentence(EVIL)))
    assert "<strong>sync at 4</strong>" in markup
    assert "<script>" not in markup
    assert emphasised(sentence("a < b")) == "a &lt; b"


def test_a_number_of_cells_is_not_bold() -> None:
    markup = emphasised(RanSideBySide(6))
    assert markup.startswith("6 trials ran side by side")
    assert "<strong>" not in markup


def test_overhead_and_invalid_cells_are_below_the_tables() -> None:
    findings = (
        AffectedCells("Invalid", "sync at 8", sentence("it died")),
        Overhead(None, 1.0),
        NoValidCell("sync"),
    )
    table = Table("The table", (Column("class", form="text"),), (("sync",),))
    page = rendered(replace(no_cells(), findings=findings, tables=(table,))).text
    invalid_cells = "Invalid cells: their numbers are withheld"
    order = ("no valid cell", "The table", str(findings[1]), invalid_cells)
    positions = [page.index(part) for part in order]
    assert positions == sorted(positions)


# --- headlines --------------------------------------------------------------------------------


def headline_values(document: Document) -> Headline:
    headline = headline_of(document)
    assert isinstance(headline, Headline)
    return headline


@pytest.mark.parametrize(
    ("classes", "best", "verb", "worst"),
    [
        (("sync", "eventlet"), ("eventlet",), "answers", "sync"),
        (("eventlet", "gevent"), ("eventlet", "gevent"), "tie at about", None),
        (("sync", "eventlet", "gevent"), ("eventlet", "gevent"), "tie at about", "sync"),
    ],
)
def test_the_headline_names_the_best_those_that_tie_and_the_worst(
    classes: tuple[str, ...], best: tuple[str, ...], verb: str, worst: str | None
) -> None:
    headline = headline_values(sweep(classes))
    assert (headline.best, headline.lead.verb, headline.worst) == (best, verb, worst)


def test_the_headline_has_rates_and_the_longest_wait() -> None:
    headline = headline_values(sweep(("sync", "eventlet")))
    assert headline.connections == 16
    assert headline.lead == Leads("answers", LevelRate(16.0, 1.0, None, headline.lead.rate.where))
    assert headline.worst_rate == LevelRate(4.0, 4.0, 3.0, WAIT_PLACES["accept_queue"])


def test_a_large_but_insignificant_difference_is_reported_as_such() -> None:
    document = sweep(("sync", "eventlet"))
    imprecise = tuple(replace(cell, throughput_half_rps=9.0) for cell in document.cells)
    headline = headline_values(replace(document, cells=imprecise))
    assert headline.lead == LeadsByChance(4.0, 16.0)
    assert "4 to 16 requests/s" in str(headline)


@pytest.mark.parametrize(
    ("rates", "other_rates", "half_rps", "expected"),
    [
        ((106.0,), (105.0,), None, True),
        ((106.0,), (95.0,), None, False),
        ((27.0,), (20.8,), 6.9, True),  # the intervals of two single loads overlap
        ((27.0,), (20.8,), 1.0, False),
        ((104.0, 104.1, 104.2), (100.0, 100.1, 100.2), None, False),  # repeated trials are precise
        ((100.0, 130.0, 90.0), (80.0, 95.0, 110.0), None, True),
    ],
)
def test_a_difference_within_the_intervals_is_a_tie(
    rates: Sequence[float], other_rates: Sequence[float], half_rps: float | None, expected: bool
) -> None:
    result = replace(cell(trial("sync", 8)), throughput_half_rps=half_rps)
    level, other = (
        Replicates(tuple(replace(result, throughput_rps=rps) for rps in trial_rates))
        for trial_rates in (rates, other_rates)
    )
    assert is_tie(level, other) is is_tie(other, level) is expected


def test_a_long_headline_leaves_out_the_waits() -> None:
    document = sweep(("sync",))
    other = replace(document.cells[0].server, backlog=4)

    def half_as_fast(cell: Result) -> Result:
        trial = replace(cell.trial, cell=replace(cell.trial.cell, server=other))
        return replace(cell, trial=trial, throughput_rps=cell.throughput_rps / 2)

    cells = (*document.cells, *map(half_as_fast, document.cells))
    classes = (group("sync"), replace(group("sync"), server=other))
    headline = headline_values(replace(document, cells=cells, classes=classes))
    assert headline.best == ("sync (backlog 2048)",)
    assert headline.worst_rate.rate_rps == 2.0
    assert headline.lead.rate.wait_s is None
    assert len(str(headline)) <= MAX_HEADLINE_CHARS


def test_every_chart_has_a_name_and_a_description() -> None:
    drawn = figures(sweep(levels=(8,)))
    names = [figure.name for figure in drawn]
    assert len(set(names)) == len(names)
    for figure in drawn:
        assert re.fullmatch(r"[a-z0-9-]+", figure.name)
        assert all((figure.title, *figure.caption, *figure.alternative, *figure.header))
        assert figure.caption[-1].endswith(".")
        assert figure.alternative[-1].endswith(".")
        assert all(len(row) == len(figure.header) for row in figure.rows)


# --- any sweep -------------------------------------------------------------------------------


def without_duplicates(document: Document) -> Document:
    """Classes differ in server, tool or keep-alive, as in an analysis."""
    classes = {(c.server, c.tool, c.keepalive): c for c in document.classes}
    return replace(document, classes=tuple(classes.values()))


@settings(max_examples=25)
@given(reports.map(sweep_document).map(without_duplicates))
def test_any_sweep_makes_a_page(document: Document) -> None:
    page = rendered(document)
    assert len(page.scripts) == 4
    for panes in page.json("charts").values():
        assert not re.search(r"\b(nan|inf)\b", json.dumps(panes))
    tables = [attributes for tag, attributes in page.elements if tag == "th"]
    assert all(attributes.get("scope") in ("col", "row") for attributes in tables)


def test_a_custom_class_is_on_the_page() -> None:
    settings = Server("mypackage.workers.MyWorker", 2, 1, 2048, 2)
    trials = [evidence(settings, connections, slots=[4]) for connections in (2, 16)]
    page = rendered(sweep_document(analyse("custom", {}, trials)))
    assert settings.worker_class in page.text


def test_a_page_of_every_verdict_class_and_tool() -> None:
    document = everything()
    page = rendered(replace(document, facts=document.facts[7:]))  # omits most facts of sync
    assert "worker 7 [died]" in page.text
    assert [tag for tag, _ in page.elements].count("h1") == 1


# --- pictures ---------------------------------------------------------------------------------


def test_pictures_are_complete_and_named_by_their_chart() -> None:
    document = sweep(("sync",), (4, 8))
    files = dict(pictures(replace(document, timelines=(late_connections(),))))
    kinds = ("timeline", "queue", "states", "cpu", "memory", "connects")
    names = ["throughput", "waiting-sync", *(f"{kind}-sync-8" for kind in kinds)]
    assert sorted(files) == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))
    for name, content in files.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert int.from_bytes(content[16:20], "big") >= 2 * 760  # pixels
        else:
            text = "".join(ElementTree.fromstring(content).itertext())
            assert re.search("[a-z]{4}", text)
            assert b"var(--" not in content
    widths = re.findall(
        rb'<path d="M[^h"]*h([0-9.]+)v[^"]*" fill="#0072b2"', files["waiting-sync.svg"]
    )
    assert len([wide for wide in widths if float(wide) > 20]) == 2  # in the app, at 4 and at 8


def test_the_panes_of_a_picture_have_independent_dashes() -> None:
    document = sweep(("sync",), (8,))
    vega = picture(figure_of(document, "cpu-sync-8"))
    assert vega["resolve"]["scale"]["strokeDash"] == "independent"
    assert [pane["name"] for pane in vega["vconcat"] if "name" in pane] == ["usage", "host"]
