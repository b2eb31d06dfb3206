"""The recorded lesson of the docs in a browser: its numbers and their labels."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import ROOT, Windows
from tests.browser.test_live import wait_for, wait_for_text
from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.live.recording import rebuild_page

MISSING = "\u2013"
# Steps of the lesson, from 0
OVERLOADED, COMPUTING, RANDOM, GIVES_UP = 3, 7, 8, 9

OPEN_PLAYER = """() => {
    const data = document.querySelector('#lab-recorded-data').textContent;
    Lab.recorded = Lab.recordedLesson(document.querySelector('#lab-recorded'), JSON.parse(data));
}"""
# The texts at that time after a guess, on the screen and for a screen reader
TEXTS_AT = """([step, ms]) => {
    if (Lab.recorded.step !== step || Lab.recorded.panel.message.phase === 'ask') {
        Lab.recorded.go(step);
        Lab.recorded.guess(null);
        Lab.recorded.player.play(false);
    }
    const { player } = Lab.recorded;
    player.seek(ms ?? player.length);
    const text = (query) => [...document.querySelectorAll(query)].map((node) => node.textContent);
    const [shown] = text('.lab-words [aria-hidden]'), [spoken] = text('.lab-words [role=status]');
    return {
        title: text('.lab-side-title')[0], shown, spoken,
        now: text('.lab-chart-now'), law: text('.lab-chart-law'),
    };
}"""


@pytest.fixture
def page(windows: Windows, tmp_path: Path) -> Any:
    recorded = lzma.decompress((ROOT / "docs" / "lesson.html.xz").read_bytes()).decode()
    path = tmp_path / "lesson.html"
    path.write_text(rebuild_page(recorded, read_lesson()), encoding="utf-8")
    blank = windows.blank()
    blank.goto(path.as_uri())
    blank.evaluate(OPEN_PLAYER)
    return blank


def test_a_mean_is_labelled_and_shown_once_it_is_known(page: Any) -> None:
    early, late = (page.evaluate(TEXTS_AT, [OVERLOADED, ms]) for ms in (3000, 8000))
    assert early["now"][1] == f"mean {MISSING}, p95 2.0 s"
    assert late["now"][1] == "mean 4.0 s, p95 4.0 s"
    assert late["law"][:2] == [
        "law: 4.0/s; knee at 4 clients; last 2 s",
        "law: 4.0 s on average; mean: in flight / throughput; p95 dotted; last 2 s",
    ]
    assert page.evaluate(TEXTS_AT, [GIVES_UP, 1500])["now"][1].startswith(f"mean {MISSING}")


def test_the_law_of_each_step_is_shown(page: Any) -> None:
    computing, gives_up = (page.evaluate(TEXTS_AT, [step, None]) for step in (COMPUTING, GIVES_UP))
    assert computing["title"] == "gthread: 1 worker, 4 threads, backlog 2048"
    assert computing["law"][0] == "law: 4.0/s; knee at 1 client; last 2 s"
    assert gives_up["law"] == [
        "law: 0/s; last 2 s",
        "law: no response in time; mean: in flight / throughput; p95 dotted; last 2 s",
        "law: it grows until it is full, at 2049",
    ]
    assert page.evaluate(TEXTS_AT, [RANDOM, None])["law"][2] == "law: 1.4"


COUNT_FADED_DOTS = """() => {
    const { scene } = Lab.recorded.player.sides[0], { prototype } = CanvasRenderingContext2D;
    const { arc, beginPath, fill } = prototype, faded = [];
    let dots = 0;
    prototype.beginPath = function () { dots = 0; beginPath.call(this); };
    prototype.arc = function (...at) { dots++; arc.apply(this, at); };
    prototype.fill = function () { if (this.globalAlpha < 0.5) faded.push(dots); fill.call(this); };
    scene.refresh();
    scene.draw(Lab.recorded.player.at, 0, true);
    Object.assign(prototype, { arc, beginPath, fill });
    return faded.reduce((sum, count) => sum + count, 0);
}"""


def test_abandoned_requests_are_drawn_and_counted_separately(page: Any, screenshots: Path) -> None:
    end = page.evaluate(TEXTS_AT, [GIVES_UP, None])
    assert end["shown"] == (
        "40 requests in flight, 24 of them abandoned by their clients: 4 in the app, 36 in the"
        " accept queue; 0.0 requests/s; 64 failed"
    )
    assert page.evaluate(COUNT_FADED_DOTS) == 24
    wait_for_text(page, ".lab-explanation", "Measured")
    assert "clients gave up 64 times" in page.locator(".lab-explanation").inner_text()
    assert "its client has given up" in page.locator(".lab-legend").inner_text()
    before = page.evaluate(TEXTS_AT, [GIVES_UP, 2000])
    assert "abandoned" not in before["shown"]
    assert page.evaluate(COUNT_FADED_DOTS) == 0
    page.screenshot(path=str(screenshots / "gives-up.png"))


def test_the_player_is_paused_at_its_end(page: Any) -> None:
    for step in (1, OVERLOADED, GIVES_UP):
        page.evaluate(TEXTS_AT, [step, 0])
        page.evaluate("() => { const { player } = Lab.recorded; player.seek(player.length - 30);"
                      " player.play(); }")  # fmt: skip
        wait_for(page, "Lab.recorded.panel.message.phase === 'told'")
        assert page.evaluate("Lab.recorded.player.toggle.textContent") == "Play"


def test_the_position_of_the_player_is_announced(page: Any) -> None:
    for ms in (500, 9000, 2200):
        texts = page.evaluate(TEXTS_AT, [GIVES_UP, ms])
        assert texts["spoken"] == texts["shown"]


def test_a_worker_with_one_slot_shows_its_latest_request(page: Any) -> None:
    """Even if that request begins before the previous client has its answer."""
    requests_in_slots = """(() => {
        const crowd = new Lab.Crowd();
        crowd.slotsPerWorker = 1;
        crowd.move(1, 3, 0, 10);
        crowd.move(2, 3, 0, 20);
        crowd.move(1, 4, 0, 30);
        return crowd.slots[0].map((dot) => crowd.id[dot]);
    })()"""
    assert page.evaluate(requests_in_slots) == [2]


def test_a_sampled_picture_counts_no_more_than_the_lab(page: Any) -> None:
    counts = """(() => {
        const scene = new Lab.Scene(document.createElement('canvas'));
        scene.observe({ drawn: 2, counts: [0, 3, 0, 1] });  // its request has just been answered
        scene.move(2, 0, null, 10);
        const { connecting, queued, underWay } = scene.numbers();
        return [connecting, queued, underWay];
    })()"""
    assert page.evaluate(counts) == [1, 3, 4]
