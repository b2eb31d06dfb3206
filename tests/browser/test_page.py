"""The report page in a browser: charts, keyboard, phone, accessibility and print."""

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


def with_late_connections() -> Document:
    """Dropped handshakes, and several trials."""
    timeline = over_time(trial("sync", 8), arrivals_known=False)
    connects = ((0.0, 0.05, 52), (1.0, 1.05, 11))
    dropping = replace(timeline, connects=connects, syn_steps_s=(1.0, 2.0))
    second_trial = replace(cell(trial("sync", 8, number=2)), throughput_rps=4.1)
    document = sweep(("sync",), (4, 8), arrivals_known=False)
    cells = (*document.cells, second_trial)
    return replace(document, cells=cells, timelines=(document.timelines[0], dropping))


def without_bounds(document: Document) -> Document:
    cells = (replace(result, bound_rps=None) for result in document.cells)
    classes = (replace(result, knee=None) for result in document.classes)
    return replace(document, cells=tuple(cells), classes=tuple(classes))


DOCUMENTS = {
    "known": sweep(levels=(4, 16)),
    "unknown": without_bounds(sweep(("sync", "eventlet"), (4, 16), arrivals_known=False)),
    "late": with_late_connections(),
    "requests-only": sweep(("sync", "gthread"), (4, 16), arrivals_known=False, observed=False),
    "empty": no_cells(),
    "study": full_document(),
    "ladder": whole_ladder(),
    "advise": document_of(recorded("advise")),
}


def assert_complete(opened: Opened) -> None:
    """Each pane of each chart has its drawing."""
    opened.open_all()
    panes = opened.page.locator("[data-pane]").count()
    assert opened.page.locator("[data-pane] svg.marks").count() == panes
    assert opened.page.locator(".failed").count() == 0
    charts = opened.page.evaluate("JSON.parse(document.getElementById('charts').textContent)")
    assert sum(map(len, charts.values())) == panes


def assert_marks(opened: Opened, document: Document) -> None:
    """The number of marks matches the data."""
    valid = [result for result in document.cells if isinstance(result, Result)]
    assert opened.marks("throughput", "trials") == (len(valid) if len(valid) > 1 else 0)
    parts = ("connect", "accept_queue", "in_worker", "service", "transfer", "unattributed")
    for group in all_series(document):
        bars = sum(
            getattr(cells.valid[0].breakdown, f"{part}_s") is not None
            for cells in group.levels.values()
            for part in parts
        )
        assert opened.marks(f"waiting-{group.slug}", "bars") == bars
    for entry in cells_over_time(document):
        name = f"{entry.series.slug}-{entry.cell.trial.cell.concurrency}"
        assert opened.marks(f"timeline-{name}", "served") == len(entry.timeline.bars)
        if has_queue(entry.timeline) and not queue_in_timeline(entry.timeline):
            assert opened.marks(f"queue-{name}", "queue") == 1


def assert_bars(opened: Opened, document: Document) -> None:
    """A ladder's charts have a bar per number, and a label per configuration."""
    names = {figure.title: figure.name for figure in chart_figures(document)}
    for chart in document.charts:
        bars = sum(len(series.points) for series in chart.series)
        assert opened.marks(names[chart.title], "bars") == bars
    for chart in opened.page.locator("[data-chart]").all():
        labels = " ".join(chart.locator("text").all_text_contents())
        for name in document.charts[0].names:
            assert all(word in labels for word in text(name).split())


def edges(opened: Opened, selector: str, side: Literal["left", "right"]) -> list[float]:
    """That edge of each of these elements, in pixels."""
    positions: list[float] = opened.page.locator(selector).evaluate_all(
        f"(all) => all.map((element) => element.getBoundingClientRect().{side})"
    )
    return positions


def assert_fits_phone(opened: Opened) -> None:
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert max(edges(opened, "svg.marks", "right"), default=0) <= 360


def assert_works_with_a_screen_reader(opened: Opened) -> None:
    """Headings in order, a name for each chart, headers for each table, unique ids."""
    page = opened.page
    tags = page.locator("h1, h2, h3, h4, h5, h6").evaluate_all(
        "(all) => all.map((element) => element.tagName)"
    )
    levels = [int(tag[1]) for tag in tags]
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


def assert_contrast(opened: Opened, min_texts: int) -> None:
    """Of more than `min_texts` texts, in the light and the dark scheme."""
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        contrasts = opened.page.evaluate(CONTRASTS)
        assert len(contrasts) > min_texts, scheme
        assert contrasts[0][0] >= 4.5, (scheme, contrasts[:5])


# --- charts -------------------------------------------------------------------------------------


MIN_TEXTS = {"late": 150, "study": 50, "ladder": 50, "advise": 150}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_is_complete_readable_and_accessible_on_a_phone(
    name: str, open_page: Open, screenshots: Path
) -> None:
    """One test for all checks, because opening a page costs the most."""
    document = DOCUMENTS[name]
    opened = open_page(document, **PHONE)
    opened.page.screenshot(path=screenshots / f"phone-{name}.png", full_page=True)
    assert_works_with_a_screen_reader(opened)
    assert_complete(opened)
    assert_fits_phone(opened)
    if document.cells:
        assert_marks(opened, document)
    if name == "study":
        assert opened.marks("chart-1-requests-per-second", "points") == 3
    if name == "ladder":
        assert_bars(opened, document)
    if name == "advise":
        assert opened.marks("chart-1-p95-response-time-against-memory", "points") == 11
        assert opened.marks("chart-1-p95-response-time-against-memory", "level") == 1
    if name in MIN_TEXTS:
        assert_contrast(opened, MIN_TEXTS[name])


def test_the_page_of_a_real_run_is_complete_and_fits_a_phone(
    measured: tuple[Document, Path], open_page: Open, screenshots: Path
) -> None:
    document, path = measured
    assert {result.verdict for result in document.cells}.isdisjoint({"invalid"}), document.cells
    opened = open_page(path)
    opened.page.screenshot(path=screenshots / "real-light.png", full_page=True)
    assert_complete(opened)
    assert_marks(opened, document)
    opened = open_page(path, **PHONE)
    opened.page.screenshot(path=screenshots / "real-phone.png", full_page=True)
    assert_fits_phone(opened)


def test_dropped_handshakes_are_drawn_at_their_retransmission(open_page: Open) -> None:
    opened = open_page(DOCUMENTS["late"])
    bars, steps = (
        edges(opened, f"[data-chart='connects-sync-8'] g.{name}_marks > *", "left")
        for name in ("connects", "steps")
    )
    assert (len(bars), len(steps)) == (2, 1)
    assert abs(bars[-1] - steps[-1]) < 3


def test_a_wait_ends_where_its_service_begins(open_page: Open) -> None:
    """With 8 connections to sync, four requests of the first round wait one second."""
    opened = open_page(sweep(("sync",), (8,)))
    marks = "[data-chart='timeline-sync-8'] g.{}_marks > *"
    starts = edges(opened, marks.format("served"), "left")
    for end in edges(opened, marks.format("waits"), "right"):
        assert min(abs(end - start) for start in starts) < 3


def test_of_100_000_requests_a_sample_is_drawn(open_page: Open, screenshots: Path) -> None:
    data = evidence(SYNC, 8, rounds=150, tool="fast")
    spans = data.spans.spans
    spans += spans[-1:] * (10**5 - len(spans))
    (timeline,) = timelines([derived(replace(data, spans=replace(data.spans, spans=spans)))])
    opened = open_page(replace(sweep(("sync",), (8,), tool="fast"), timelines=(timeline,)))
    assert opened.marks("timeline-sync-8", "served") == len(timeline.bars) == MAX_BARS
    assert opened.page.locator("svg.marks path").count() < 3 * MAX_BARS
    assert "800 of 100,000 requests" in opened.page.inner_text("main")
    opened.page.screenshot(path=screenshots / "many.png", full_page=True)


def test_hostile_text_is_shown_and_not_executed(open_page: Open) -> None:
    opened = open_page(hostile())
    assert_complete(opened)
    assert EVIL in opened.page.inner_text("main")


AXES = """() => [...document.querySelectorAll(".chart")]
    .map((chart) => [...chart.querySelectorAll("svg.marks")].map((svg) => {
      const { left, width } = svg.querySelector(".background").getBoundingClientRect();
      return [left, width];
    })).filter((panes) => panes.length > 1)"""


def assert_accessible(opened: Opened, *, dark: bool = False) -> None:
    """According to axe, which takes thirty times as long as the contrasts; with `dark` also in the
    dark scheme, where only colours differ."""
    for scheme in ("light", "dark") if dark else ("light",):
        opened.page.emulate_media(color_scheme=scheme)
        assert serious(opened.page) == []
    assert_contrast(opened, 200)


CLASSES = ("sync", "gthread", "gevent", "eventlet", "asgi", "uvicorn")


@pytest.mark.parametrize("arrivals_known", [True, False])
def test_a_page_of_24_cells_is_short_and_readable(
    arrivals_known: bool, open_page: Open, screenshots: Path
) -> None:
    document = sweep(CLASSES, (2, 4, 8, 16), arrivals_known=arrivals_known)
    opened = open_page(document, viewport={"width": 1280, "height": 800})
    opened.page.screenshot(path=screenshots / f"24-cells-{arrivals_known}.png", full_page=True)
    assert opened.page.evaluate("document.documentElement.scrollHeight") <= 7000
    if not arrivals_known:  # the other page has the same kinds of nodes
        assert_contrast(opened, 200)


def test_a_page_of_all_classes_is_accessible(open_page: Open) -> None:
    """With one level, because the time of axe grows with the number of nodes."""
    assert_accessible(open_page(sweep(CLASSES, (16,), arrivals_known=False)))


def test_the_panes_of_a_chart_share_their_axis(open_page: Open) -> None:
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
def test_a_page_with_all_sections_open_is_accessible(name: str, open_page: Open) -> None:
    opened = open_page(DOCUMENTS.get(name) or document_of(recorded(name)))
    opened.open_all()
    assert_accessible(opened, dark=name == "advise")  # has links in its text


# --- interaction ----------------------------------------------------------------------------------


def test_charts_and_sections_are_reached_and_opened_by_keyboard(open_page: Open) -> None:
    opened = open_page(DOCUMENTS["late"])
    assert opened.page.locator("[data-chart='timeline-sync-4'] svg").count() == 0
    elements = set(
        opened.page.evaluate("""() =>
        [...document.querySelectorAll('.chart, summary, .scroll')]
        .filter((element) => element.checkVisibility())
        .map((element, i) => element.dataset.number = String(i))""")
    )
    assert len(elements) >= 10
    focused = set()
    for _ in range(2 * len(elements)):
        opened.page.keyboard.press("Tab")
        focused.add(opened.page.evaluate("document.activeElement.dataset.number"))
        outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        if focused >= elements:
            break
    assert focused >= elements
    closed = opened.page.locator("details.cell:not([open]) > summary").first
    closed.focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_selector("[data-chart='timeline-sync-4'][data-drawn=whole] svg")


def test_a_tooltip_shows_measured_times_until_escape(open_page: Open) -> None:
    # The whole page fits the window: scrolling would hide the tooltip
    opened = open_page(sweep(("sync",), (8,)), viewport={"width": 1200, "height": 4000})
    opened.page.locator("[data-chart='timeline-sync-8'] g.served_marks > *").nth(30).hover()
    tooltip = opened.page.locator("#tip")
    tooltip.wait_for(state="visible")
    for pattern in (r"in the app, s\s*1\b", r"waited before, s\s*1\b"):
        assert re.search(pattern, tooltip.inner_text())
    opened.page.keyboard.press("Escape")
    assert tooltip.is_hidden()


def test_a_candidate_links_to_its_launches(open_page: Open) -> None:
    opened = open_page(DOCUMENTS["advise"], viewport={"width": 1200, "height": 4000})
    # The recommended candidate is drawn last
    opened.page.locator("g.points_marks > *").last.click()
    opened.page.wait_for_url("**#launches-sync-*")
    assert opened.page.locator("tr:target").inner_text().split("\t")[1] == "30.0"
    opened.page.go_back()
    link = opened.page.get_by_role("link", name="sync, 8 workers").first
    link.focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_url("**#launches-sync-*")


def test_only_a_long_table_can_be_filtered(open_page: Open) -> None:
    columns = (Column("setting", "text"), Column("sync", "text"))
    rows = tuple((f"setting_{n}", "ignored" if n % 3 else "honoured") for n in range(12))
    tables = (Table("What each class does", columns, rows),
              Table("Where versions differ", columns, rows[:3]))  # fmt: skip
    opened = open_page(replace(no_cells(), kind="settings", tables=tables))
    field = opened.page.get_by_role("searchbox")
    assert field.count() == 1
    visible_rows = opened.page.locator("table").first.locator("tbody tr:visible")
    for words, count in (("HONOURED", 4), ("ignored _1", 3), ("nothing", 0), ("", 12)):
        field.fill(words)
        assert visible_rows.count() == count, words


# --- colours, print, no JavaScript ----------------------------------------------------------------


def test_light_and_dark_schemes_differ_and_print_is_on_white(
    open_page: Open, screenshots: Path
) -> None:
    colours = {}
    opened = open_page(DOCUMENTS["late"])
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        mark = opened.page.locator("g.served_marks > *").first
        colours[scheme] = (
            opened.page.evaluate("getComputedStyle(document.body).backgroundColor"),
            mark.evaluate("(element) => getComputedStyle(element).fill"),
        )
        opened.page.screenshot(path=screenshots / f"{scheme}.png", full_page=True)
    assert colours["light"][0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(colours["light"], colours["dark"], strict=True))
    opened.page.emulate_media(media="print", color_scheme="dark")
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    opened.page.screenshot(path=screenshots / "print.png", full_page=True)


def printed_pages(opened: Opened, path: Path) -> int:
    """The number of A4 pages when printed to this file."""
    opened.page.pdf(path=path, prefer_css_page_size=True)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", path.read_bytes()))


@pytest.mark.parametrize(
    ("classes", "levels"), [(("sync",), (1, 2, 4, 8, 16, 32)), (("sync", "eventlet"), (4, 8, 16))]
)
def test_six_cells_are_printed_on_two_pages_per_class(
    classes: tuple[str, ...], levels: tuple[int, ...], open_page: Open, tmp_path: Path
) -> None:
    opened = open_page(sweep(classes, levels))
    assert 1 <= printed_pages(opened, tmp_path / "six.pdf") <= 2 * len(classes)


def test_opened_sections_are_printed(open_page: Open, screenshots: Path) -> None:
    opened = open_page(sweep(("sync",), (4, 8, 16)))
    closed_pages = printed_pages(opened, screenshots / "closed.pdf")
    closed = opened.page.locator("details.cell:not([open]) > summary")
    while closed.count():
        closed.first.click()
    opened.open_all()
    assert printed_pages(opened, screenshots / "opened.pdf") > closed_pages


def test_without_javascript_all_text_and_numbers_are_shown(open_page: Open) -> None:
    opened = open_page(sweep(("sync",), (4, 16)), java_script_enabled=False)
    page_text = opened.page.inner_text("main")
    assert "The charts need JavaScript" in page_text
    assert "With 16 connections" in page_text
    assert "3.00 s" in opened.page.text_content("#waiting-sync")
    opened = open_page(DOCUMENTS["advise"], java_script_enabled=False)
    opened.page.get_by_role("link", name="tornado, 5 workers").first.click()
    assert opened.page.locator("tr:target").inner_text().startswith("tornado, 5 workers")
    page_text = open_page(DOCUMENTS["study"], java_script_enabled=False).page.inner_text("main")
    assert "Which generator sends the most at a high rate?" in page_text
    assert "61,235" in page_text


def test_a_cell_is_played_by_buttons_and_slider(open_page: Open) -> None:
    opened = open_page(document_of(recorded("lesson")))
    page = opened.page
    page.locator("details.cell").first.evaluate("element => element.open = true")
    play = page.locator("details.play").first
    play.locator("summary").click()
    play.locator("canvas").first.wait_for()
    slider = play.get_by_role("slider").first
    play.get_by_role("button", name="Play").press("Enter")
    page.wait_for_function("document.querySelector('.lab-trace input[type=range]').value > 100")
    play.get_by_role("button", name="Pause").press("Enter")
    slider.focus()
    slider.press("End")
    page.wait_for_function(
        "(() => { const element = document.querySelector('.lab-trace input[type=range]');"
        " return Number(element.value) > 0.99 * Number(element.max); })()"
    )
