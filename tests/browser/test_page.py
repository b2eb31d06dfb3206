"""The report page as people meet it: in a browser, by eye, by keyboard, on a phone, on paper."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from tests.browser.conftest import Open, Opened, serious
from tests.builders.analysis import SYNC, derived, evidence
from tests.builders.document import full_document
from tests.builders.html import EVIL, cell, hostile, no_cells, over_time, sweep, trial
from tests.builders.ladder import whole as whole_ladder
from tests.builders.runs import recorded
from workerlab.experiments.reading import document_of
from workerlab.model.result import Column, Document, Result, Table
from workerlab.report.html.chart_figures import chart_figures
from workerlab.report.html.over_time import has_queue, queue_in_timeline
from workerlab.report.html.series import all_series, cells_over_time
from workerlab.report.html.timeline_data import MAX_BARS, timelines
from workerlab.report.values import text

PHONE = {"viewport": {"width": 360, "height": 740}}


def late() -> Document:
    """Connections that were dropped, and several trials."""
    drawn = over_time(trial("sync", 8), arrivals_known=False)
    dropping = replace(drawn, connects=((0.0, 0.05, 52), (1.0, 1.05, 11)), syn_steps_s=(1.0, 2.0))
    again = replace(cell(trial("sync", 8, number=2)), throughput_rps=4.1)
    whole = sweep(("sync",), (4, 8), arrivals_known=False)
    return replace(whole, cells=(*whole.cells, again), timelines=(whole.timelines[0], dropping))


def limitless(document: Document) -> Document:
    """Of which nothing is known that would bound it."""
    cells = (replace(result, bound_rps=None) for result in document.cells)
    classes = (replace(result, knee=None) for result in document.classes)
    return replace(document, cells=tuple(cells), classes=tuple(classes))


CONSTRUCTED = {
    "known": sweep(levels=(4, 16)),
    "unknown": limitless(sweep(("sync", "eventlet"), (4, 16), arrivals_known=False)),
    "late": late(),
    "requests-only": sweep(("sync", "gthread"), (4, 16), arrivals_known=False, observed=False),
    "empty": no_cells(),
    "study": full_document(),
    "ladder": whole_ladder(),
    "advise": document_of(recorded("advise")),
}


def assert_sound(opened: Opened) -> None:
    assert opened.complaints == []
    assert opened.foreign_requests == []


def assert_whole(opened: Opened) -> None:
    """Every chart has as many drawings as panes."""
    opened.open_all()
    panes = opened.page.locator("[data-pane]").count()
    assert opened.page.locator("[data-pane] svg.marks").count() == panes
    assert opened.page.locator(".failed").count() == 0
    charts = opened.page.evaluate("JSON.parse(document.getElementById('charts').textContent)")
    assert sum(map(len, charts.values())) == panes


def assert_marks(opened: Opened, document: Document) -> None:
    """As many marks as there is to show."""
    valid = [result for result in document.cells if isinstance(result, Result)]
    assert opened.marks("throughput", "trials") == (len(valid) if len(valid) > 1 else 0)
    for group in all_series(document):
        stacks = sum(
            getattr(cells.valid[0].breakdown, f"{part}_s") is not None
            for cells in group.levels.values()
            for part in (
                "connect", "accept_queue", "in_worker", "service", "transfer", "unattributed"
            )
        )  # fmt: skip
        assert opened.marks(f"waiting-{group.slug}", "bars") == stacks
    for entry in cells_over_time(document):
        at = f"{entry.series.slug}-{entry.cell.trial.cell.concurrency}"
        assert opened.marks(f"timeline-{at}", "served") == len(entry.timeline.bars)
        if has_queue(entry.timeline) and not queue_in_timeline(entry.timeline):
            assert opened.marks(f"queue-{at}", "queue") == 1


def assert_bars(opened: Opened, document: Document) -> None:
    """A ladder's charts: a bar for each number, each configuration beside its bars."""
    for chart in document.charts:
        bars = sum(len(series.points) for series in chart.series)
        name = next(
            figure.name for figure in chart_figures(document) if figure.title == chart.title
        )
        assert opened.marks(name, "bars") == bars
    for drawn in opened.page.locator("[data-chart]").all():
        words = " ".join(drawn.locator("text").all_text_contents())
        for name in document.charts[0].names:
            assert all(word in words for word in text(name).split())


def edges(opened: Opened, selector: str, side: Literal["left", "right"]) -> list[float]:
    """Where each of these elements begins or ends, in pixels."""
    ends: list[float] = opened.page.locator(selector).evaluate_all(
        f"(all) => all.map((element) => element.getBoundingClientRect().{side})"
    )
    return ends


def assert_fits(opened: Opened) -> None:
    """Nothing is wider than a phone."""
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert max(edges(opened, "svg.marks", "right"), default=0) <= 360


def assert_can_be_heard(opened: Opened) -> None:
    """Headings in order, a name for each chart, heads for each table, one of each id."""
    page = opened.page
    levels = [
        int(tag[1])
        for tag in page.locator("h1, h2, h3, h4, h5, h6").evaluate_all(
            "(all) => all.map((element) => element.tagName)"
        )
    ]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title()
    charts = page.locator("figure .chart")
    for label, role in charts.evaluate_all(
        "(all) => all.map((e) => [e.getAttribute('aria-label'), e.getAttribute('role')])"
    ):
        assert role == "img"
        assert len(label) > 20
        assert "None" not in label
    assert page.locator("figure").count() == charts.count()
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("table:not(:has(thead th))").count() == 0
    ids = page.locator("[id]").evaluate_all("(all) => all.map((element) => element.id)")
    assert len(set(ids)) == len(ids)


CONTRASTS = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = channels(text).slice(0, 3).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor, parts = channels(colour);
      if (parts.length < 4 || parts[3] > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const words = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const contrasts = [];
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    contrasts.push([ratio, words.currentNode.data.trim()]);
  }
  return contrasts.sort((x, y) => x[0] - y[0]);
}"""


def assert_stands_out(opened: Opened, words: int) -> None:
    """At least so many words, by day and by night."""
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        contrasts = opened.page.evaluate(CONTRASTS)
        assert len(contrasts) > words, scheme
        assert contrasts[0][0] >= 4.5, (scheme, contrasts[:5])


# --- drawn --------------------------------------------------------------------------------------


WORDS = {"late": 150, "study": 50, "ladder": 50, "advise": 150}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_a_page_on_a_phone(name: str, open_page: Open, screenshots: Path) -> None:
    """Whole, no wider than the phone, to be read and to be heard. Opening a page costs the most:
    it is done once."""
    document = CONSTRUCTED[name]
    opened = open_page(document, **PHONE)
    opened.page.screenshot(path=screenshots / f"phone-{name}.png", full_page=True)
    assert_can_be_heard(opened)
    assert_whole(opened)
    assert_fits(opened)
    if document.cells:
        assert_marks(opened, document)
    if name == "study":
        assert opened.marks("chart-1-requests-per-second", "points") == 3
    if name == "ladder":
        assert_bars(opened, document)
    if name == "advise":
        assert opened.marks("chart-1-p95-response-time-against-memory", "points") == 11
        assert opened.marks("chart-1-p95-response-time-against-memory", "level") == 1
    if name in WORDS:
        assert_stands_out(opened, WORDS[name])
    assert_sound(opened)


def test_a_real_run_is_drawn_with_its_marks_and_fits_a_phone(
    measured: tuple[Document, Path], open_page: Open, screenshots: Path
) -> None:
    document, path = measured
    assert {result.verdict for result in document.cells}.isdisjoint({"invalid"}), document.cells
    opened = open_page(path)
    opened.page.screenshot(path=screenshots / "real-light.png", full_page=True)
    assert_whole(opened)
    assert_marks(opened, document)
    assert_sound(opened)
    small = open_page(path, **PHONE)
    small.page.screenshot(path=screenshots / "real-phone.png", full_page=True)
    assert_fits(small)


def test_dropped_handshakes_stand_at_the_kernels_steps(open_page: Open) -> None:
    opened = open_page(CONSTRUCTED["late"])
    assert opened.marks("connects-sync-8", "connects") == 2
    assert opened.marks("connects-sync-8", "steps") == 1
    bar, step = (
        opened.page.locator(f"[data-chart='connects-sync-8'] g.{name}_marks > *").last
        for name in ("connects", "steps")
    )
    left, rule = bar.bounding_box(), step.bounding_box()
    assert left is not None
    assert rule is not None
    assert abs(left["x"] - rule["x"]) < 3  # the bar begins where the kernel repeats


def test_a_wait_ends_where_its_service_begins(open_page: Open) -> None:
    """The staircase: of sync at 8, four of the first round wait one second, beside the others."""
    opened = open_page(sweep(("sync",), (8,)))
    at = "[data-chart='timeline-sync-8'] g.{}_marks > *"
    starts = edges(opened, at.format("served"), "left")
    for end in edges(opened, at.format("waits"), "right"):
        assert min(abs(end - start) for start in starts) < 3


def test_a_hundred_thousand_requests_open(open_page: Open, screenshots: Path) -> None:
    small = evidence(SYNC, 8, rounds=150, tool="fast")
    spans = small.spans.spans
    many = spans + spans[-1:] * (10**5 - len(spans))
    (drawn,) = timelines([derived(replace(small, spans=replace(small.spans, spans=many)))])
    opened = open_page(replace(sweep(("sync",), (8,), tool="fast"), timelines=(drawn,)))
    assert opened.marks("timeline-sync-8", "served") == len(drawn.bars) == MAX_BARS
    assert opened.page.locator("svg.marks path").count() < 3 * MAX_BARS
    assert "800 of 100,000 requests" in opened.page.inner_text("main")
    opened.page.screenshot(path=screenshots / "many.png", full_page=True)
    assert_sound(opened)


def test_foreign_text_does_not_run(open_page: Open) -> None:
    opened = open_page(hostile())
    assert_whole(opened)
    assert EVIL in opened.page.inner_text("main")
    assert_sound(opened)


CLASSES = ("sync", "gthread", "gevent", "eventlet", "asgi", "uvicorn")
TALLEST = 7000  # pixels of a page of 24 cells
AXES = """() => [...document.querySelectorAll(".chart")]
    .map((chart) => [...chart.querySelectorAll("svg.marks")].map((svg) => {
      const { left, width } = svg.querySelector(".background").getBoundingClientRect();
      return [left, width];
    })).filter((panes) => panes.length > 1)"""


def assert_accessible(opened: Opened, *, by_night: bool = False) -> None:
    """By axe; by night, where only colours differ, it costs thirty times as much as contrasts."""
    for scheme in ("light", "dark") if by_night else ("light",):
        opened.page.emulate_media(color_scheme=scheme)
        assert serious(opened.page) == []
    assert_stands_out(opened, 200)


@pytest.mark.parametrize("named", [True, False])
def test_a_page_of_24_cells_is_short_and_accessible(
    named: bool, open_page: Open, screenshots: Path
) -> None:
    document = sweep(CLASSES, (2, 4, 8, 16), arrivals_known=named)
    opened = open_page(document, viewport={"width": 1280, "height": 800})
    opened.page.screenshot(path=screenshots / f"24-cells-{named}.png", full_page=True)
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= TALLEST
    assert_sound(opened)
    if not named:  # axe looks at thousands of nodes, which are of the same kinds
        assert_accessible(opened)


def test_the_panes_of_a_chart_share_their_axis(open_page: Open) -> None:
    """On the screen and on paper."""
    opened = open_page(sweep(("sync", "gthread"), (16,), arrivals_known=False))
    for media in ("screen", "print"):
        opened.page.emulate_media(media=media)
        charts = opened.page.evaluate(AXES)
        assert len(charts) == 2
        for (left, width), *others in charts:
            for other_left, other_width in others:
                assert abs(left - other_left) < 1
                assert abs(width - other_width) < 1


@pytest.mark.parametrize("name", ["late", "advise", "lesson"])  # charts, a scatter, the player
def test_a_page_with_all_open_is_accessible(name: str, open_page: Open) -> None:
    opened = open_page(CONSTRUCTED.get(name) or document_of(recorded(name)))
    opened.open_all()
    assert_accessible(opened, by_night=name == "advise")  # with links in its text


# --- by hand --------------------------------------------------------------------------------------


def test_all_can_be_reached_and_opened_by_keyboard(open_page: Open) -> None:
    opened = open_page(CONSTRUCTED["late"])
    assert opened.page.locator("[data-chart='timeline-sync-4'] svg").count() == 0
    want = opened.page.evaluate("""() => [...document.querySelectorAll('.chart, summary, .scroll')]
        .filter((element) => element.checkVisibility())
        .map((one, i) => one.dataset.place = String(i))""")
    reached = set()
    for _ in range(2 * len(want)):
        opened.page.keyboard.press("Tab")
        reached.add(opened.page.evaluate("document.activeElement.dataset.place"))
        outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        if reached >= set(want):
            break
    assert reached >= set(want)
    assert len(want) >= 10
    closed = opened.page.locator("details.cell:not([open]) > summary").first
    closed.focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_selector("[data-chart='timeline-sync-4'][data-drawn=whole] svg")


def test_a_pointer_shows_real_numbers_and_escape_hides_them(open_page: Open) -> None:
    # All of it fits: scrolling to what is pointed at would hide the words again
    opened = open_page(sweep(("sync",), (8,)), viewport={"width": 1200, "height": 4000})
    opened.page.locator("[data-chart='timeline-sync-8'] g.served_marks > *").nth(30).hover()
    tip = opened.page.locator("#tip")
    tip.wait_for(state="visible")
    shown = tip.inner_text()
    assert re.search(r"in the app, s\s*1\b", shown)
    assert re.search(r"waited before, s\s*1\b", shown)
    opened.page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_candidate_leads_to_its_launches(open_page: Open) -> None:
    opened = open_page(CONSTRUCTED["advise"], viewport={"width": 1200, "height": 4000})
    # What is drawn last is what is recommended
    opened.page.locator("g.points_marks > *").last.click()
    opened.page.wait_for_url("**#launches-sync-*")
    assert opened.page.locator("tr:target").inner_text().split("\t")[1] == "30.0"
    opened.page.go_back()
    link = opened.page.get_by_role("link", name="sync, 8 workers").first
    link.focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_url("**#launches-sync-*")
    assert_sound(opened)


def test_a_long_table_can_be_filtered(open_page: Open) -> None:
    """By all words that are typed; a short one cannot."""
    columns = (Column("setting", "text"), Column("sync", "text"))
    rows = tuple((f"setting_{n}", "ignored" if n % 3 else "honoured") for n in range(12))
    tables = (Table("What each class does", columns, rows),
              Table("Where versions differ", columns, rows[:3]))  # fmt: skip
    opened = open_page(replace(no_cells(), kind="settings", tables=tables))
    field = opened.page.get_by_role("searchbox")
    assert field.count() == 1
    shown = opened.page.locator("table").first.locator("tbody tr:visible")
    for typed, left in (("HONOURED", 4), ("ignored _1", 3), ("nothing", 0), ("", 12)):
        field.fill(typed)
        assert shown.count() == left, typed
    assert_sound(opened)


# --- everywhere -----------------------------------------------------------------------------------


def test_light_and_dark(open_page: Open, screenshots: Path) -> None:
    colours = {}
    opened = open_page(CONSTRUCTED["late"])
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        served = opened.page.locator("g.served_marks > *").first
        colours[scheme] = (
            opened.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            served.evaluate("(element) => getComputedStyle(element).fill"),
        )
        opened.page.screenshot(path=screenshots / f"{scheme}.png", full_page=True)
    assert_sound(opened)
    assert colours["light"][0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(colours["light"], colours["dark"], strict=True))


def printed(opened: Opened, path: Path) -> int:
    """Pages of A4."""
    opened.page.pdf(path=path, prefer_css_page_size=True)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", path.read_bytes()))


@pytest.mark.parametrize(
    ("classes", "levels"), [(("sync",), (1, 2, 4, 8, 16, 32)), (("sync", "eventlet"), (4, 8, 16))]
)
def test_six_cells_are_two_pages_a_class(
    classes: tuple[str, ...], levels: tuple[int, ...], open_page: Open, tmp_path: Path
) -> None:
    opened = open_page(sweep(classes, levels))
    assert 1 <= printed(opened, tmp_path / "six.pdf") <= 2 * len(classes)


def test_what_is_opened_is_printed(open_page: Open, screenshots: Path) -> None:
    opened = open_page(sweep(("sync",), (4, 8, 16)))
    few = printed(opened, screenshots / "closed.pdf")
    closed = opened.page.locator("details.cell:not([open]) > summary")
    while closed.count():
        closed.first.click()
    opened.open_all()
    assert printed(opened, screenshots / "opened.pdf") > few


def test_paper_is_white(open_page: Open, screenshots: Path) -> None:
    opened = open_page(CONSTRUCTED["late"], color_scheme="dark")
    opened.page.emulate_media(media="print", color_scheme="dark")
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    opened.page.screenshot(path=screenshots / "print.png", full_page=True)
    assert_sound(opened)


def test_without_scripts_all_words_and_numbers_are_there(open_page: Open) -> None:
    opened = open_page(sweep(("sync",), (4, 16)), java_script_enabled=False)
    words = opened.page.inner_text("main")
    assert "The charts need JavaScript" in words
    assert "With 16 connections" in words
    assert "3.00 s" in opened.page.text_content("#waiting-sync")
    opened = open_page(CONSTRUCTED["advise"], java_script_enabled=False)
    opened.page.get_by_role("link", name="tornado, 5 workers").first.click()
    assert opened.page.locator("tr:target").inner_text().startswith("tornado, 5 workers")
    words = open_page(CONSTRUCTED["study"], java_script_enabled=False).page.inner_text("main")
    assert "Which generator sends the most at a high rate?" in words
    assert "61,235" in words


def test_a_cell_is_played(open_page: Open) -> None:
    """Where each request was: by a button, by a slider, faster."""
    opened = open_page(document_of(recorded("lesson")))
    page = opened.page
    page.locator("details.cell").first.evaluate("element => element.open = true")
    play = page.locator("details.play").first
    play.locator("summary").click()
    play.locator("canvas").first.wait_for()
    scrub = play.get_by_role("slider").first
    play.get_by_role("button", name="Play").press("Enter")
    page.wait_for_function("document.querySelector('.lab-trace input[type=range]').value > 100")
    play.get_by_role("button", name="Pause").press("Enter")
    scrub.focus()
    scrub.press("End")
    page.wait_for_function(
        "(() => { const element = document.querySelector('.lab-trace input[type=range]');"
        " return Number(element.value) > 0.99 * Number(element.max); })()"
    )
    assert_sound(opened)
