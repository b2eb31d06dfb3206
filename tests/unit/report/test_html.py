"""The report page and its pictures, as text: what a browser makes of them is in tests/browser."""

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
from tests.builders.html import cell, group, invalid, no_cells, over_time, sweep, trial, with_cells
from tests.builders.page import Page, rendered
from tests.builders.runs import recorded
from tests.builders.sweep import everything, targeted
from workerlab.analysis import RanSideBySide, analyse
from workerlab.analysis.class_findings import NoValidCell
from workerlab.analysis.comparison import is_tie
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.overview import (
    MAX_HEADLINE_CHARS,
    NOTHING_VALID,
    WAIT_PLACES,
    Headline,
    Leads,
    LeadsByChance,
    LevelRate,
)
from workerlab.experiments.results import document_of
from workerlab.model import (
    Chart,
    ChartSeries,
    Column,
    CoreWait,
    Document,
    Report,
    Server,
    Table,
)
from workerlab.report.html import pictures, render
from workerlab.report.html.figure import Figure, spec
from workerlab.report.html.over_time import corners
from workerlab.report.html.page import (
    MAX_PAGE_BYTES,
    emphasised,
    figures,
    headline_of,
    library,
    omitted_cells_note,
)
from workerlab.report.html.pictures import picture
from workerlab.report.html.series import (
    all_series,
    cells_over_time,
    cells_with_timelines,
    most_informative,
    timelines_of,
)
from workerlab.report.html.timeline import MIN_VISIBLE_SHARE
from workerlab.report.html.timeline_data import Bar, Timeline
from workerlab.report.player import SCRIPTS
from workerlab.report.sweep_document import AffectedCells, CellsNote, Overhead, sweep_document
from workerlab.report.values import text

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
ALL = ("sync", "gthread", "eventlet", "gevent", "tornado", "asgi", "uvicorn")


@cache
def all_classes() -> Document:
    return sweep(ALL, (4, 8, 16, 32, 64))


@cache
def page_of_all() -> str:
    return render(all_classes())


def with_timelines(one: Document, **changes: Any) -> Document:
    return replace(one, timelines=tuple(replace(each, **changes) for each in one.timelines))


def rows(pane: dict[str, Any], name: str) -> list[list[str]]:
    """The data of the layer called `name`, without its heads."""
    layers = [pane, *pane.get("layer", [])]
    (layer,) = [layer for layer in layers if layer.get("name") == name]
    data = layer.get("data") or pane["data"]
    return [line.split(",") for line in pane["datasets"][data["name"]].splitlines()[1:]]


def figure_of(figures: list[Figure], name: str) -> Figure:
    (found,) = [figure for figure in figures if figure.name == name]
    return found


# --- one file, and nothing else ---------------------------------------------------------------


def test_nothing_is_fetched_from_anywhere() -> None:
    page = Page(page_of_all())
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"url\(|@import", page.styles)
    for chart in page.json("charts").values():
        assert '"url"' not in json.dumps(chart)


def test_its_policy_allows_only_its_own_scripts() -> None:
    page = Page(page_of_all())
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?:|\*", policy)
    run = [text for attributes, text in page.scripts if attributes.get("type") is None]
    assert len(run) == 2 + len(SCRIPTS)
    for script in run:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_all_classes_at_five_levels_fit_whole() -> None:
    assert len(page_of_all().encode()) < 2_000_000
    assert len(Page(page_of_all()).json("charts")) >= 35 * 4


def test_what_there_is_no_room_for_is_named_and_the_telling_cells_stay() -> None:
    restless = tuple((0.01 * i, i * 7 % 13) for i in range(300))
    states = tuple((at, f"server STATE-{row}", n + row) for at, n in restless for row in range(12))
    full = with_timelines(all_classes(), queue=restless, states=states)
    source = render(full)
    assert MAX_PAGE_BYTES - 70_000 < len(source.encode()) <= MAX_PAGE_BYTES
    page = Page(source)
    drawn = [name for name in page.json("charts") if name.startswith("timeline-")]
    assert 7 <= len(drawn) < 35
    assert omitted_cells_note(["one"] * (35 - len(drawn))) in page.text
    for one in all_series(full):
        best = most_informative(cells_with_timelines(one, timelines_of(full)))
        assert best is not None
        assert f"timeline-{one.slug}-{best[0].trial.cell.concurrency}" in drawn


def test_the_library_is_there_once() -> None:
    assert page_of_all().count(library()) == 1


def test_foreign_text_is_only_text() -> None:
    good, bad = cell(trial("sync", 8)), invalid(trial("sync", 16), f"worker 7 said {EVIL}")
    good = replace(good, app=EVIL, reason=sentence(EVIL), diagnosis=sentence(EVIL))
    good = replace(good, notes=(sentence(EVIL),))
    report = Report(
        run=EVIL,
        environment={EVIL: [EVIL], "versions": {"x": EVIL}},
        overhead=None,
        cells=(good, bad),
        classes=(group("sync"),),
        setup_s={},
        notes=(sentence(EVIL),),
    )
    drawn = replace(
        over_time(trial("sync", 8)),
        notes=(sentence(EVIL),),
        states=((0.0, EVIL, 1), (1.0, EVIL, 2)),
    )
    page = rendered(replace(sweep_document(report), timelines=(drawn,)))
    assert len(page.scripts) == 4 + len(SCRIPTS)
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert page.text.count(EVIL) >= 8  # all of it can be read
    assert EVIL in json.dumps(page.json("charts")["states-sync-8"])
    page.json("config")


# --- what is shown ----------------------------------------------------------------------------


def test_a_number_of_cells_is_not_what_a_note_is_about() -> None:
    markup = emphasised(RanSideBySide(6))
    assert markup.startswith("6 trials ran side by side")
    assert "<strong>" not in markup


@pytest.mark.parametrize("name", ["lesson", "good"])  # requests that have names, and others
def test_each_cell_can_be_played(name: str) -> None:
    whole = document_of(recorded(name))
    page = rendered(whole)
    traces = [
        json.loads(text) for attributes, text in page.scripts
        if attributes.get("type") == "application/json" and attributes.get("id") is None
    ]  # fmt: skip
    timelines = timelines_of(whole).values()
    computed = [timeline.trace for timeline in timelines if timeline.trace is not None]
    assert len(traces) == len(timelines) == len(computed) > 0
    assert sorted(len(trace["sides"][0]["moves"]) for trace in traces) == sorted(
        len(trace.moves) for trace in computed
    )
    for trace in traces:
        assert trace["sides"][0]["moves"][-1][3] <= trace["length_ms"]


def test_each_request_is_a_bar_and_each_wait_before_it_a_thin_one() -> None:
    one = sweep(("sync",), (8,))
    (pane,) = rendered(one).json("charts")["timeline-sync-8"]
    waited = [
        bar
        for bar in one.timelines[0].bars
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s > 0.1
    ]
    assert len(rows(pane, "served")) == len(one.timelines[0].bars) == 41
    assert len(rows(pane, "waits")) == len(waited) == 36


def stack(one: Document) -> tuple[list[float], list[list[float]]]:
    """Of the only cell: tops of the served bars; (top, from, to) of each wait."""
    figure = cells_over_time(one)[0].figures[0]
    pane = spec(figure.panes[0])
    tops = [float(row[1]) for row in rows(pane, "served")]
    return tops, [[float(value) for value in row] for row in rows(pane, "waits")]


def test_what_waits_for_any_worker_makes_a_staircase_below_them_all() -> None:
    served, waits = stack(sweep(("sync",), (16,)))
    assert min(top for top, _, _ in waits) > max(served)
    steps = [
        sorted(to for top, _, to in waits if top == row)[0] for row in sorted({w[0] for w in waits})
    ]
    assert steps == [2.0] * 4 + [3.0] * 4 + [4.0] * 4


def test_every_worker_has_its_number() -> None:
    """Of more values than it wants ticks, Vega leaves out every second one."""
    figure = cells_over_time(sweep(("sync",), (16,)))[0].figures[0]
    axis = spec(figure.panes[0])["layer"][0]["encoding"]["y"]["axis"]
    assert axis["tickCount"] == len(axis["values"]) == 5  # four workers, and what waits


def test_what_a_worker_holds_waits_below_that_worker() -> None:
    served, waits = stack(sweep(("gthread",), (16,)))
    assert min(top for top, _, _ in waits) < max(served)


times = st.tuples(
    st.floats(0, 50), st.floats(0, 20), st.floats(0.1, 5), st.sampled_from([101, 102])
)


@settings(max_examples=20)
@given(st.lists(times, min_size=1, max_size=40), st.sampled_from(["sync", "gthread"]))
def test_waits_of_a_row_do_not_lie_on_each_other(
    found: list[tuple[float, float, float, int]], worker_class: str
) -> None:
    """Apart from what is too short to be seen."""
    bars = [
        Bar(worker, 0, arrived + wait, arrived + wait + service, arrived)
        for arrived, wait, service, worker in found
    ]
    end_s = max(bar.end_s for bar in bars)
    asked = trial(worker_class, 16)
    drawn = Timeline(asked.key, tuple(bars), (0.0, end_s), len(bars), workers=(101, 102))
    _, waits = stack(replace(sweep((worker_class,), (16,)), timelines=(drawn,)))
    for row in {top for top, _, _ in waits}:
        mine = sorted((since, to) for top, since, to in waits if top == row)
        for (_, before), (after, _) in pairwise(mine):
            assert before - after <= 1.01 * MIN_VISIBLE_SHARE * end_s * (1.0 if end_s >= 1 else 1e3)


def test_where_arrivals_are_not_known_the_queue_is_under_the_rows() -> None:
    served, queue = rendered(sweep(("sync",), (8,), known=False)).json("charts")["timeline-sync-8"]
    assert rows(served, "waits") == []
    lengths = [int(length) for _, length in rows(queue, "queue")]
    assert max(lengths) == 4
    across = served["encoding"]["x"], queue["layer"][0]["encoding"]["x"]
    assert across[0]["scale"] == across[1]["scale"]


def test_a_cell_of_which_nothing_was_seen_says_so() -> None:
    nothing = replace(over_time(trial("sync", 8), observed=False), bars=(), steady=None)
    one = replace(sweep(("sync",), (8,)), timelines=(nothing,))
    page = rendered(one)
    assert "Missing: the accept queue, TCP states and CPU and memory." in page.text
    assert not [name for name in page.json("charts") if name.endswith("-8")]


@pytest.mark.parametrize("known", [True, False])
def test_a_machine_that_shows_only_requests(known: bool) -> None:
    charts = rendered(sweep(("sync",), (8,), known=known, observed=False)).json("charts")
    assert [name for name in charts if name.endswith("-8")] == ["timeline-sync-8"]
    assert len(charts["timeline-sync-8"]) == 1


@pytest.mark.parametrize("unseen", [None, no_cells()])
def test_a_run_without_a_valid_cell(unseen: Document | None) -> None:
    bad = with_cells(sweep(("sync",), (8,)), [invalid(trial("sync", 8), "it died")])
    page = rendered(unseen or bad)
    assert page.json("charts") == {}
    assert str(NOTHING_VALID) in page.text
    assert ("it died" in page.text) is (unseen is None)


def test_a_negative_rest_is_told_and_drawn_below_zero() -> None:
    one = sweep(("sync",), (8,))
    split = replace(one.cells[0].breakdown, unattributed_s=-0.3)
    found = figure_of(
        figures(replace(one, cells=(replace(one.cells[0], breakdown=split),))), "waiting-sync"
    )
    assert found.alternative[-1].endswith(", unattributed -300 ms.")
    assert [key.label for key in found.legend] == ["accept queue", "in the app", "unattributed"]
    drawn = {name: float(time) for name, _, _, time in rows(spec(found.panes[0]), "bars")}
    assert drawn["unattributed"] == pytest.approx(-0.3)
    short = "Too short to be seen, at most 400 us: connect, in the worker and transfer."
    assert short in found.caption


def test_a_part_without_a_source_is_named_and_has_no_bar() -> None:
    one = sweep(("sync",), (8,))
    split = replace(one.cells[0].breakdown, accept_queue_s=None, exact=False)
    found = figure_of(
        figures(replace(one, cells=(replace(one.cells[0], breakdown=split),))), "waiting-sync"
    )
    assert "No source: accept queue." in found.caption
    assert "accept queue" not in [name for name, *_ in rows(spec(found.panes[0]), "bars")]


def test_trials_are_points_around_the_line_of_their_mean() -> None:
    first = cell(trial("sync", 8))
    second = replace(first, trial=trial("sync", 8, number=2), throughput_rps=4.4)
    one = replace(sweep(("sync",), (8,)), cells=(first, second))
    (pane,) = (spec(pane) for pane in figure_of(figures(one), "throughput").panes)
    assert [float(row[3]) for row in rows(pane, "trials")] == [4.0, 4.4]
    assert [float(row[2]) for row in rows(pane, "measured")] == [pytest.approx(4.2)]
    assert rows(pane, "knees") == [["sync", "4", "4.2"]]


def test_a_bound_far_above_is_cut_off_and_said() -> None:
    one = sweep(("sync",), (4, 8))
    far = replace(one, cells=tuple(replace(cell, bound_rps=400.0) for cell in one.cells))
    found = figure_of(figures(far), "throughput")
    assert text(found.caption[0]).endswith("It continues above the chart, up to 400.")
    domain = spec(found.panes[0])["encoding"]["y"]["scale"]["domain"]
    assert 4 < domain[1] < 20


def test_points_that_would_hide_each_other_stand_side_by_side() -> None:
    one = sweep(("sync", "eventlet", "gevent"), (4, 16))
    found = figure_of(figures(one), "throughput")
    assert "Overlapping points are drawn side by side." in found.caption
    points = [tuple(row[:4]) for row in rows(spec(found.panes[0]), "trials")]
    assert len({(beside, rate) for _, _, beside, rate in points}) == len(points) == 6
    assert [beside for name, at, beside, _ in points if (name, at) == ("sync", "16")] == ["16"]


def test_the_interval_of_a_load_is_drawn_and_told() -> None:
    one = sweep(("sync",), (4, 8))
    sure, unsure = one.cells
    unsure = replace(unsure, throughput_rps=20.8, throughput_half_rps=6.9)
    found = figure_of(figures(replace(one, cells=(sure, unsure))), "throughput")
    ((_, _, _, _, low, high, *_),) = rows(spec(found.panes[0]), "intervals")
    assert (float(low), float(high)) == pytest.approx((13.9, 27.7))
    assert spec(found.panes[0])["encoding"]["y"]["scale"]["domain"][1] > 27.7
    assert any(text(each).startswith("Vertical lines: the 95 %") for each in found.caption)
    assert found.rows[1][3] == "6.9"


def test_a_single_point_is_no_chart() -> None:
    one = sweep(("sync",), (8,))
    assert "throughput" not in [figure.name for figure in figures(one)]
    only = Chart("Rates", "x", "y", (ChartSeries("a", ((1.0, 2.0),)), ChartSeries("b", ())))
    assert figures(replace(no_cells(), charts=(only,))) == []


@pytest.mark.parametrize("known", [True, False])
def test_an_accept_queue_that_is_empty_or_drawn_already_has_no_chart(known: bool) -> None:
    """Of sync at 4 nothing waits; at 8 the timeline draws the queue where it knows no arrivals."""
    names = [figure.name for figure in figures(sweep(("sync",), (4, 8), known=known))]
    assert [name for name in names if name.startswith("queue")] == ["queue-sync-8"] * known


def test_a_class_has_one_colour_in_all_charts() -> None:
    """Also where one that is ten times as fast has a picture of its own."""
    one = sweep(("sync", "gthread", "eventlet"), (4, 64))
    cells = [
        replace(each, throughput_rps=(each.throughput_rps or 0.0) * 100)
        if each.trial.cell.server.worker_class == "gthread"
        else each
        for each in one.cells
    ]
    drawn = [f for f in figures(replace(one, cells=tuple(cells))) if f.name[:10] == "throughput"]
    colours = [key.colour for figure in drawn for key in figure.legend if "class" in key.colour]
    assert len(drawn) == 3
    assert len(colours) == len(set(colours)) == 3


def test_what_explains_a_cell_is_not_folded() -> None:
    one = sweep(("sync",), (8,))
    noise = CoresTaken(0.4, CoreWait(0.4, 0.001, others_cores=1.5, cores=2))
    busy = replace(one.cells[0], findings=(noise,))
    for cells, folded in ((one.cells, ["queue", "states", "cpu", "memory"]),
                          ((busy,), ["queue", "states", "memory"])):  # fmt: skip
        (drawn,) = cells_over_time(replace(one, cells=cells))
        assert [figure.name.split("-")[0] for figure in drawn.folded] == folded


def test_keepalive_shows_bound_prediction_and_measurement() -> None:
    one = sweep_document(
        analyse(
            "kept",
            {},
            [with_keepalive(evidence(server("gthread", 2, 4), 16, tool="wrk", slots=[5]))],
        )
    )
    found = figure_of(figures(one), "keepalive-gthread")
    sides = ["bound", "prediction by worker", "measured"]
    assert [name for name, *_ in rows(spec(found.panes[0]), "bars")] == sides
    assert {key.colour for key in found.legend} == {"bound", "prediction", "measured"}


def dropping(late: tuple[tuple[float, float, int], ...] = ((1.0, 1.05, 11),)) -> Timeline:
    found = over_time(trial("sync", 8))
    return replace(found, connects=((0.0, 0.05, 52), *late), syn_steps_s=(1.0, 2.0, 3.0))


def test_connections_that_came_late_are_shown_with_the_kernels_steps() -> None:
    one = replace(sweep(("sync",), (8,)), timelines=(dropping(),))
    (pane,) = rendered(one).json("charts")["connects-sync-8"]
    assert [row[2] for row in rows(pane, "connects")] == ["52", "11"]
    assert rows(pane, "steps") == [["1"]]
    quiet = replace(one, timelines=(dropping(late=()),))
    assert "connects-sync-8" not in rendered(quiet).json("charts")


points = st.lists(st.integers(0, 3), max_size=40).map(lambda found: list(enumerate(found)))


@given(points)
def test_corners_draw_the_same_line(found: list[tuple[float, int]]) -> None:
    few = corners(found)
    assert set(few) <= set(found)
    for at, value in found:  # in steps
        assert [v for t, v in few if t <= at][-1] == value
    kept_at = {at for at, _ in few}
    for (a, before), (b, here), (c, after) in zip(found, found[1:], found[2:], strict=False):
        assert b in kept_at or before == here == after, (a, c)


# --- findings --------------------------------------------------------------------------------


def test_what_became_of_a_target_stands_beside_its_cells() -> None:
    page = rendered(targeted()).text
    assert "broken: p95" in page
    assert "the highest level that keeps p95<150ms,errors<1%,rps>=10 is 4 connections" in page
    assert "At 8 connections p95<150ms breaks first: p95 200 ms" in page


def test_what_a_finding_is_about_is_bold_and_never_markup() -> None:
    bold = emphasised(NoValidCell("<i>"))
    assert bold.startswith("<strong>&lt;i&gt;</strong>")
    places = CellsNote("sync at 4", sentence(EVIL))
    assert "<strong>sync at 4</strong>" in emphasised(places)
    assert "<script>" not in emphasised(places)
    assert emphasised(sentence("a < b")) == "a &lt; b"


def test_costs_and_invalid_cells_stand_below_the_tables() -> None:
    findings = (
        AffectedCells("Invalid", "sync at 8", sentence("it died")),
        Overhead(None, 1.0),
        NoValidCell("sync"),
    )
    table = Table(sentence("The table"), (Column("class", form="text"),), (("sync",),))
    words = rendered(replace(no_cells(), findings=findings, tables=(table,))).text
    order = (
        "no valid cell",
        "The table",
        str(findings[1]),
        "Invalid cells: their numbers are withheld",
    )
    assert [words.index(one) for one in order] == sorted(words.index(one) for one in order)


# --- words ------------------------------------------------------------------------------------


def test_the_headline_compares_best_and_worst() -> None:
    headline = headline_of(sweep(("sync", "eventlet")))
    assert isinstance(headline, Headline)
    assert (headline.connections, headline.best, headline.worst) == (16, ("eventlet",), "sync")
    assert headline.lead == Leads("answers", LevelRate(16.0, 1.0, None, headline.lead.rate.where))
    assert headline.worst_rate == LevelRate(4.0, 4.0, 3.0, WAIT_PLACES["accept_queue"])
    alike = headline_of(sweep(("eventlet", "gevent")))
    assert isinstance(alike, Headline)
    assert alike.best == ("eventlet", "gevent")
    assert (alike.lead.verb, alike.worst) == ("tie at about", None)


def test_only_what_ties_with_the_best_is_named_beside_it() -> None:
    headline = headline_of(sweep(("sync", "eventlet", "gevent")))
    assert isinstance(headline, Headline)
    assert (headline.best, headline.worst) == (("eventlet", "gevent"), "sync")
    assert headline.lead.verb == "tie at about"


def test_figures_far_apart_are_told_though_their_difference_may_be_chance() -> None:
    one = sweep(("sync", "eventlet"))
    wide = tuple(replace(cell, throughput_half_rps=9.0) for cell in one.cells)
    headline = headline_of(replace(one, cells=wide))
    assert isinstance(headline, Headline)
    assert headline.lead == LeadsByChance(4.0, 16.0)
    assert "4 to 16 requests/s" in str(headline)


@pytest.mark.parametrize(
    ("rates", "other_rates", "half_rps", "expected"),
    [
        ((106.0,), (105.0,), None, True),
        ((106.0,), (95.0,), None, False),
        ((27.0,), (20.8,), 6.9, True),  # the intervals of two single loads meet
        ((27.0,), (20.8,), 1.0, False),
        ((104.0, 104.1, 104.2), (100.0, 100.1, 100.2), None, False),  # trials know better
        ((100.0, 130.0, 90.0), (80.0, 95.0, 110.0), None, True),
    ],
)
def test_what_trials_do_not_tell_apart_is_a_tie(
    rates: Sequence[float], other_rates: Sequence[float], half_rps: float | None, expected: bool
) -> None:
    cells, others = (
        [
            replace(cell(trial("sync", 8)), throughput_rps=x, throughput_half_rps=half_rps)
            for x in xs
        ]
        for xs in (rates, other_rates)
    )
    assert is_tie(cells, others) is is_tie(others, cells) is expected


def test_a_long_headline_leaves_out_who_waits_where() -> None:
    one = sweep(("sync", "eventlet"))
    slow = [
        replace(cell, throughput_rps=cell.throughput_rps and cell.throughput_rps / scale)
        for scale in (1, 2)
        for cell in one.cells
        if cell.trial.cell.server.worker_class == "sync"
    ]
    other = replace(slow[0].trial.cell.server, backlog=4)
    cells = [
        replace(cell, trial=replace(cell.trial, cell=replace(cell.trial.cell, server=other)))
        if place >= len(slow) // 2
        else cell
        for place, cell in enumerate(slow)
    ]
    classes = (group("sync"), replace(group("sync"), server=other))
    headline = headline_of(replace(one, cells=tuple(cells), classes=classes))
    assert isinstance(headline, Headline)
    assert headline.best == ("sync (backlog 2048)",)
    assert headline.worst_rate.rate_rps == 2.0
    assert headline.lead.rate.wait_s is None
    assert len(str(headline)) <= MAX_HEADLINE_CHARS


def test_every_chart_has_words_of_its_own() -> None:
    every = figures(sweep(levels=(8,)))
    names = [figure.name for figure in every]
    assert len(set(names)) == len(names)
    for figure in every:
        assert re.fullmatch(r"[a-z0-9-]+", figure.name)
        for one in (figure.title, *figure.caption, *figure.alternative, *figure.header):
            assert text(one)
        assert text(figure.caption[-1]).endswith(".")
        assert text(figure.alternative[-1]).endswith(".")
        assert all(len(row) == len(figure.header) for row in figure.rows)


# --- any sweep -------------------------------------------------------------------------------


def without_twins(one: Document) -> Document:
    """Groups are of different servers, tools or keep-alive, as analysis makes them."""
    found = {(c.server, c.tool, c.keepalive): c for c in one.classes}
    return replace(one, classes=tuple(found.values()))


@settings(max_examples=25)
@given(reports.map(sweep_document).map(without_twins))
def test_any_sweep_makes_a_page(one: Document) -> None:
    page = rendered(one)
    assert len(page.scripts) == 4
    for panes in page.json("charts").values():
        assert not re.search(r"\b(nan|inf)\b", json.dumps(panes))
    tables = [attributes for tag, attributes in page.elements if tag == "th"]
    assert all(attributes.get("scope") in ("col", "row") for attributes in tables)


def test_a_class_without_a_row_is_on_the_page() -> None:
    own = Server("mypackage.workers.MyWorker", 2, 1, 2048, 2)
    trials = [evidence(own, connections, slots=[4]) for connections in (2, 16)]
    assert own.worker_class in rendered(sweep_document(analyse("own", {}, trials))).text


def test_every_verdict_class_and_tool() -> None:
    document = everything()
    page = rendered(
        replace(document, facts=document.facts[7:])
    )  # apart from sync's, again and again
    assert "worker 7 [died]" in page.text
    assert [tag for tag, _ in page.elements].count("h1") == 1


# --- pictures ---------------------------------------------------------------------------------


def test_pictures_bear_speaking_names_and_are_whole() -> None:
    one = sweep(("sync",), (4, 8))
    found = dict(pictures(replace(one, timelines=(dropping(),))))
    kinds = ("timeline", "queue", "states", "cpu", "memory", "connects")
    names = ["throughput", "waiting-sync", *(f"{kind}-sync-8" for kind in kinds)]
    assert sorted(found) == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))
    for name, content in found.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert int.from_bytes(content[16:20], "big") >= 2 * 760  # pixels
        else:
            text = "".join(ElementTree.fromstring(content).itertext())
            assert re.search("[a-z]{4}", text)
            assert b"var(--" not in content
    widths = re.findall(
        rb'<path d="M[^h"]*h([0-9.]+)v[^"]*" fill="#0072b2"', found["waiting-sync.svg"]
    )
    assert len([wide for wide in widths if float(wide) > 20]) == 2  # in the app, at 4 and at 8


def test_a_pictures_signs_are_those_of_its_marks() -> None:
    """Panes of one picture must not share what a sign means."""
    one = sweep(("sync",), (8,))
    cpu = figure_of(cells_over_time(one)[0].figures, "cpu-sync-8")
    drawn = picture(cpu)
    assert drawn["resolve"]["scale"]["strokeDash"] == "independent"
    names = [pane["name"] for pane in drawn["vconcat"] if "name" in pane]
    assert names == ["usage", "host"]
