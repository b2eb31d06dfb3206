"""The page of a document as people meet it: whole, asking nobody, readable on a phone and aloud."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.report.html import render
from harness.report.html.charts import chart_figures
from harness.report.messages import text
from tests.browser.conftest import Open, Opened
from tests.browser.test_page import CONTRASTS, DARK, LIGHT, PHONE, assert_sound, assert_whole
from tests.builders.document import full_document
from tests.builders.ladder import whole as whole_ladder


@pytest.fixture
def opened(open_page: Open, tmp_path: Path) -> Any:
    path = tmp_path / "study.html"
    path.write_text(render(full_document()), encoding="utf-8")

    def start(**context: Any) -> Opened:
        return open_page(path, **context)

    return start


def test_every_chart_is_drawn_and_nobody_is_asked(opened: Any, screenshots: Path) -> None:
    page = opened()
    assert_whole(page)
    assert_sound(page)
    assert page.marks("chart-1-requests-per-second", "points") == 3
    page.page.screenshot(path=screenshots / "study.png", full_page=True)


def test_nothing_is_wider_than_a_phone(opened: Any) -> None:
    page = opened(**PHONE)
    page.open_all()
    wide = page.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["viewport"]["width"]


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_all_words_stand_out(scheme: dict[str, Any], opened: Any) -> None:
    page = opened(**scheme)
    page.open_all()
    found = page.page.evaluate(CONTRASTS)
    assert len(found) > 50
    assert found[0][0] >= 4.5, found[:5]


def test_headings_are_in_order(opened: Any) -> None:
    tags = (
        opened()
        .page.locator("h1, h2, h3, h4")
        .evaluate_all("(all) => all.map((one) => one.tagName)")
    )
    levels = [int(tag[1]) for tag in tags]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(later <= before + 1 for before, later in pairwise(levels))


def test_it_says_the_same_without_scripts(opened: Any) -> None:
    page = opened(java_script_enabled=False).page
    text = page.locator("main").inner_text()
    assert "Which generator sends the most at a high rate?" in text
    assert "61,235" in text


# --- a ladder: bars, beside each other and stacked ----------------------------------------


@pytest.fixture
def climbed(open_page: Open, tmp_path: Path) -> Any:
    path = tmp_path / "ladder.html"
    path.write_text(render(whole_ladder()), encoding="utf-8")

    def start(**context: Any) -> Opened:
        return open_page(path, **context)

    return start


def test_bars_are_drawn_whole(climbed: Any, screenshots: Path) -> None:
    page = climbed()
    assert_whole(page)
    assert_sound(page)
    for chart in whole_ladder().charts:
        bars = sum(len(series.points) for series in chart.series)
        name = next(one.name for one in chart_figures(whole_ladder()) if one.title == chart.title)
        assert page.marks(name, "bars") == bars
    page.page.screenshot(path=screenshots / "ladder.png", full_page=True)


def test_every_configuration_is_named_beside_its_bars(climbed: Any) -> None:
    page = climbed()
    for chart in page.page.locator("[data-chart]").all():
        words = " ".join(chart.locator("text").all_text_contents())
        for name in whole_ladder().charts[0].names:
            assert all(word in words for word in text(name).split())


def test_a_ladder_fits_a_phone(climbed: Any, screenshots: Path) -> None:
    page = climbed(**PHONE)
    page.open_all()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    for one in page.page.locator("[data-pane] svg").all():
        box = one.bounding_box()
        assert box["x"] + box["width"] <= PHONE["viewport"]["width"]
    page.page.screenshot(path=screenshots / "ladder-phone.png", full_page=True)


def test_a_ladder_in_the_dark(climbed: Any, screenshots: Path) -> None:
    page = climbed(**DARK)
    page.open_all()
    assert page.page.evaluate(CONTRASTS)[0][0] >= 4.5
    page.page.screenshot(path=screenshots / "ladder-dark.png", full_page=True)
