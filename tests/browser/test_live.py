"""The live page in a real browser, with real servers: the lesson by keyboard, the load changed
while it runs, tabs that watch and tabs that die, and nobody else's page."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.browser.conftest import SLOW_DISPLAY, serious

pytest.importorskip("starlette")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S, PATIENCE_MS = 90.0, 90_000
PROJECTOR = {"viewport": {"width": 1280, "height": 720}}
PHONE = {"viewport": {"width": 390, "height": 844}}

STEP = """
[[step]]
title = "{title}"
changed = "{title}."
worker_class = "{worker_class}"
workers = 2
backlog = {backlog}
connections = {connections}
delay = 0.2
question = "What now?"
why = "One. Two. Three."
[[step.choice]]
text = "this"
reaction = "Then this."
right = true
[[step.choice]]
text = "that"
reaction = "Then that."
"""


def lesson() -> str:
    steps = [
        ("room", "sync", 2048, 2), ("queue", "sync", 2048, 4), ("full", "sync", 1, 8),
        ("threads", "gthread", 2048, 4),
    ]  # fmt: skip
    parts = [STEP.format(title=t, worker_class=w, backlog=b, connections=c) for t, w, b, c in steps]
    return 'title = "A short lesson"\n' + "".join(parts)


def until(true: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def shows(page: Any, expression: str) -> None:
    """Waits until it is true in the page, whose policy lets nobody evaluate words by themselves."""
    until(lambda: bool(page.evaluate(expression)), expression)


class Lab:
    """`workerlab live` as a process; `tabs` watch it."""

    def __init__(self, browser: Any, place: Path, *words: str) -> None:
        self.browser, self.complaints, self.asked = browser, list[str](), list[str]()
        said = place / "said.txt"
        with said.open("w") as file:
            self.process = psutil.Popen(
                [sys.executable, "-m", "workerlab", "live", "--no-browser", *words],
                cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT / "harness")},
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        until(lambda: "http://" in said.read_text(), "an address")
        found = re.search(r"http://\S+", said.read_text())
        assert found is not None
        self.address = found[0]

    def tab(self, **context: Any) -> Any:
        one = self.browser.new_context(**{**PROJECTOR, **context})
        one.set_default_timeout(PATIENCE_MS)
        one.add_init_script(SLOW_DISPLAY)
        page = one.new_page()
        page.on("console", lambda said: self._complain(said))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(self.address)
        shows(page, "document.querySelector('#lesson-name').textContent !== ''")
        return page

    def _complain(self, said: Any) -> None:
        if "status of 400" not in said.text:  # what the lab refuses is said on the page
            self.complaints.append(f"{said.type}: {said.text}")

    @property
    def servers(self) -> list[psutil.Process]:
        """All that it has started, workers included."""
        return list(self.process.children(recursive=True)) if self.process.is_running() else []

    def close(self) -> None:
        if self.process.is_running():
            started = self.servers
            self.process.terminate()
            assert self.process.wait(PATIENCE_S) == 0
            until(lambda: not any(one.is_running() for one in started), "all gone")


@pytest.fixture
def live(browser: Any, tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "lesson.toml").write_text(lesson())
    lab = Lab(browser, tmp_path, "--lesson", "lesson.toml")
    try:
        yield lab
    finally:
        lab.close()
    assert lab.complaints == []
    own = urlsplit(lab.address).netloc
    assert {urlsplit(url).netloc for url in lab.asked} <= {own, ""}


def press(page: Any, name: str) -> None:
    """A button, by keyboard alone."""
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")


def running(page: Any) -> None:
    page.wait_for_selector(".lab-side[data-phase=running]")


# As on a machine whose cores are all busy, with more in it than is ever said at once
LONG_WORDS = (
    "16 requests under way, 12 of them left of the load before, 3 of them abandoned by their "
    "clients: 4 in the app, 9 in the accept queue, 3 connecting; 3.98 requests/s, not settled yet; "
    "the machine is full: of 2 cores, server 0.42, load 0.21, this lab 0.35, all else, this page "
    "too 1.02; each is in the app too briefly for the eye: go slower; 12 failed (12 timeouts)"
)
BOXES_WITH = """(words) => {
  document.querySelector('#words').textContent = words;
  for (const law of document.querySelectorAll('.lab-chart-law'))
    law.textContent = words.slice(0, 99);
  const scene = document.querySelector('.lab-scene').getBoundingClientRect();
  const charts = document.querySelector('.lab-stage').lastElementChild.getBoundingClientRect();
  return [scene.height, charts.bottom <= innerHeight];
}"""

# Whether notes move the picture, and what is below them is not covered
NOTES_WITH = """(words) => {
  const notes = [...document.querySelectorAll('.lab-notes p')];
  const before = notes.map(({ textContent, hidden }) => [textContent, hidden]);
  const say = (all) => notes.forEach((note, i) => [note.textContent, note.hidden] = all[i]);
  const boxOf = (name) => document.querySelector(name).getBoundingClientRect();
  const places = [['', true], [words, false]].map((said) => {
    say(notes.map(() => said));
    return JSON.stringify(boxOf('.lab-scene'));
  });
  const below = boxOf('.lab-notes').bottom <= boxOf('.lab-aside').top;
  say(before);
  return [places[0] === places[1], below];
}"""
# Whether so many hollow dots that connect do not touch
APART = """(count) => {
  const { scene } = Lab.live.sides[0];
  scene.arrange();
  scene.rooms.waiting[0] = count;
  scene.placeBoxes();
  const { cell, r, line } = scene.grids.waiting[0];
  return 2 * r + line < cell;
}"""


def test_the_lesson_is_taken_by_keyboard_and_its_numbers_are_on_record(
    live: Lab, screenshots: Path
) -> None:
    page = live.tab()
    press(page, "Lesson")
    outcomes, pictures = [], list[Any]()
    for step, title in enumerate(("room", "queue", "full", "threads")):
        if step:
            page.get_by_role("button", name=f"step {step + 1}: {title}").focus()
            page.keyboard.press("Enter")
        page.wait_for_selector(".lab-choice")
        panel = page.locator("#lesson")
        assert title in panel.inner_text()
        assert "The law" not in panel.inner_text()
        pictures.append(page.locator(".lab-scene").bounding_box())
        page.locator(".lab-choice").first.focus()
        page.keyboard.press("a")
        shows(page, "document.querySelector('#lesson').innerText.includes('The law')")
        pictures.append(page.locator(".lab-scene").bounding_box())
        assert "Then this." in panel.inner_text()
        shows(page, "document.querySelector('#lesson').innerText.includes('Measured')")
        outcomes.append(panel.inner_text())
        law = page.locator(".lab-chart-law").last.inner_text()
        assert law.startswith({"queue": "law: 2", "full": "law: at most 2"}.get(title, "")), title
        pictures.append(page.locator(".lab-scene").bounding_box())
        assert "One. Two. Three." in outcomes[-1]
    assert pictures == [pictures[0]] * len(pictures)  # a class looks at it
    assert page.evaluate(BOXES_WITH, LONG_WORDS) == [pictures[0]["height"], True]
    page.screenshot(path=str(screenshots / "live-told.png"))
    for width, height in ((853, 480), (1280, 720)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate(NOTES_WITH, LONG_WORDS[:100]) == [True, True]
        assert page.evaluate(APART, 512)
    page.set_viewport_size(PHONE["viewport"])
    assert page.evaluate(NOTES_WITH, LONG_WORDS[:100]) == [True, True]
    page.set_viewport_size(PROJECTOR["viewport"])
    press(page, "Hands on")
    shows(page, "document.querySelector('#lesson').hidden")
    whole = page.context.request.get(f"{live.address}lesson.html").text()  # is not lost meanwhile
    press(page, "Lesson")  # goes on where it was left
    shows(page, "!document.querySelector('#lesson').hidden")
    assert "Step 4 of 4" in page.locator("#lesson").inner_text()
    data = re.search(r'id="lab-recorded-data">(.*?)</script>', whole, re.DOTALL)
    assert data is not None
    recorded = json.loads(data[1])
    assert [one["title"] for one in recorded["steps"]] == ["room", "queue", "full", "threads"]
    for one, told in zip(recorded["steps"], outcomes, strict=True):
        (measured,) = [line for line in one["outcome"] if line.startswith("Measured")]
        assert measured in told.replace("\n", " ")
        (side,) = one["trace"]["sides"]
        answered = [move for move in side["moves"] if move[1] == 4]
        assert len(answered) >= 10


LEFT = "/left of the load before:.* requests\\/s, not settled yet/"
WAITING = "36 wait in the kernel's accept queue"
BEGUN = """() => {
  const { byId, begun } = Lab.live.sides[0].scene.crowd;
  return [...byId].map(([id, dot]) => [id, begun[dot]]);
}"""


def test_more_clients_fill_the_queue_while_it_runs(live: Lab, screenshots: Path) -> None:
    page = live.tab()
    press(page, "Start")
    running(page)
    clients = page.get_by_label("Clients", exact=True)
    clients.fill("4")
    shows(page, "Lab.live.sides[0].sample && Lab.live.sides[0].sample.under_way === 4")
    before = page.evaluate("Lab.live.state.sides[0].server")
    pids = {one.pid for one in live.servers}
    clients.fill("40")
    shows(page, "Lab.live.sides[0].sample.under_way === 40")
    shows(page, "document.querySelector('#words').textContent.includes('36')")
    shows(page, f"document.querySelector('.lab-side-said').innerText.includes({WAITING!r})")
    assert page.evaluate("Lab.live.state.sides[0].server") == before
    assert pids <= {one.pid for one in live.servers}  # nothing was restarted
    page.screenshot(path=str(screenshots / "live-queue.png"))
    late = live.tab()
    shows(late, "Lab.live.sides[0].sample && Lab.live.sides[0].sample.under_way === 40")
    begun, heard = (dict(watching.evaluate(BEGUN)) for watching in (page, late))
    assert begun.keys() & heard.keys()
    assert all(begun[number] == heard[number] for number in begun.keys() & heard.keys())


def test_what_the_page_counts_adds_up(live: Lab) -> None:
    """While an open load runs ahead of the server, and when a closed one takes its place."""
    page = live.tab()
    press(page, "Start")
    running(page)
    page.get_by_label("open: they come at random (Poisson)").check()
    page.get_by_label("Requests a second", exact=True).fill("60")
    shows(page, "Lab.live.sides[0].scene.numbers().queued > 30")
    # Charts say what they show, whether there is room for their lines or not
    page.locator(".lab-chart canvas").evaluate_all(
        "all => all.forEach(one => { one.hidden = true })"
    )
    page.get_by_label("closed: each asks again when answered").check()
    shows(page, f"{LEFT}.test(document.querySelector('#words').textContent)")
    (shown,) = page.evaluate(f"({SHOWN})(Lab.live.sides)")
    agree([shown])
    assert sum(shown["dots"]) > 0


# What picture, header, words and chart say at one moment, of each server: requests that connect,
# are in the accept queue, accepted and in the app; by the chart, what is in the queue
SHOWN = """(sides) => {
    const words = document.querySelector('.lab-words').firstChild.textContent.split('. '),
        law = document.querySelector('.lab-chart-law').textContent,
        chart = [...document.querySelectorAll('.lab-chart-now')].at(-1).textContent;
    return sides.map(({ scene }, i) => {
        const { crowd, said } = scene, part = words[i] || '',
            of = (place) => Number((part.match(`(\\\\d+) ${place}`) || [0, 0])[1]),
            places = ['connecting', 'in the accept queue', 'accepted', 'in the app'],
            name = sides.length > 1 ? `${'AB'[i]} ` : '';
        return {
            dots: [...crowd.waiting.map((list) => list.length), crowd.served],
            header: [said.connecting, said.queued, said.accepted, said.served],
            words: places.map(of),
            left: [of('of them left'), Number((law.match(`${name}(\\\\d+) of`) || [0, 0])[1])],
            chart: chart.split(', ')[i].replace(/^[AB] /, ''),
        };
    });
}"""


def agree(shown: list[dict[str, Any]]) -> None:
    for side in shown:
        assert side["dots"] == side["header"] == side["words"], side
        assert side["left"][0] == side["left"][1], side
        assert side["chart"] in ("\u2013", str(side["dots"][1])), side


def test_picture_header_words_and_chart_are_of_one_moment(live: Lab) -> None:
    """Through overload, brief requests, a restart and a second server."""
    page, moments = live.tab(), random.Random(25)
    press(page, "Start")
    running(page)
    loads: list[dict[str, Any]] = [
        {"clients": 40}, {"delay_s": 0.05}, {"model": "open", "rate": 100.0},
        {"model": "closed", "clients": 200, "delay_s": 0.01},
    ]  # fmt: skip
    settings = [{"worker_class": "eventlet"}, {"worker_class": "gthread", "threads": 4}]
    orders = [{"do": "load", **one} for one in loads]
    orders += [{"do": "server", "side": 0, **one} for one in settings]
    orders += [{"do": "compare", "on": True}, {"do": "restart"}]
    waiting = 0
    for order in orders:
        refused = page.evaluate("(order) => Lab.live.order(order)", order)
        assert not refused
        for _ in range(25):
            shown = page.evaluate(f"({SHOWN})(Lab.live.sides)")
            agree(shown)
            waiting += sum(side["dots"][1] for side in shown)
            time.sleep(moments.uniform(0.005, 0.1))
    assert waiting > 0


def test_a_player_says_one_thing_at_a_time(live: Lab, screenshots: Path) -> None:
    page, moments = live.tab(), random.Random(26)
    press(page, "Lesson")
    page.get_by_role("button", name="step 3: full").click()
    page.wait_for_selector(".lab-choice")
    page.keyboard.press("a")  # wherever the focus is
    shows(page, "document.querySelector('#lesson').innerText.includes('Measured')")
    page.goto(f"{live.address}lesson.html")
    page.wait_for_selector(".lab-choice")
    page.evaluate("""() => {
        const data = document.querySelector('#lab-recorded-data').textContent;
        const place = document.querySelector('#lab-recorded');
        Lab.recorded = Lab.recordedLesson(place, JSON.parse(data));
    }""")
    page.evaluate("""() => {
        const picture = CanvasRenderingContext2D.prototype, { fillText } = picture;
        Lab.drawn = [];
        picture.fillText = function (words, ...at) {
            Lab.drawn.push(words);
            fillText.call(this, words, ...at);
        };
    }""")
    page.keyboard.press("b")
    most = 0
    for _ in range(50):
        shown = page.evaluate(f"({SHOWN})(Lab.recorded.player.sides)")
        agree(shown)
        sought = "() => { Lab.recorded.player.seek(%d); return (%s)(Lab.recorded.player.sides) }"
        agree(page.evaluate(sought % (moments.uniform(0, 4000), SHOWN)))
        most = max(most, *(side["dots"][1] for side in shown))
        time.sleep(moments.uniform(0.005, 0.08))
    assert most == 2  # a backlog of 1 lets one more in
    assert page.locator(".lab-chart-law").last.inner_text() == "law: at most 2"
    assert page.evaluate("Lab.drawn.includes('2, full') && !Lab.drawn.includes('2 of 1')")
    for size in (PHONE, PROJECTOR):  # with what was told, and with the table of all steps
        page.set_viewport_size(size["viewport"])
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        page.screenshot(path=str(screenshots / f"take-home-{size['viewport']['width']}.png"))
        page.evaluate("Lab.recorded.go(9)")


def test_a_worker_of_one_slot_has_its_request_in_it(live: Lab) -> None:
    """Though the next one is seen to begin before the client of the one before has its answer."""
    page = live.tab()
    alone = """(() => {
        const crowd = new Lab.Crowd();
        crowd.each = 1;
        crowd.move(1, 3, 0, 10);
        crowd.move(2, 3, 0, 20);
        crowd.move(1, 4, 0, 30);
        return crowd.seats[0].map((dot) => crowd.id[dot]);
    })()"""
    assert page.evaluate(alone) == [2]


def test_of_a_part_that_is_drawn_no_more_is_drawn_than_counted(live: Lab) -> None:
    page = live.tab()
    counts = """(() => {
        const scene = new Lab.Scene(document.createElement('canvas'));
        scene.observe({ drawn: 2, counts: [0, 3, 0, 1] });  // whose request has just been answered
        scene.move(2, 0, null, 10);
        const { connecting, queued, underWay } = scene.numbers();
        return [connecting, queued, underWay];
    })()"""
    assert page.evaluate(counts) == [1, 3, 4]


def test_what_is_wrong_is_said_beside_its_field_and_nothing_starts(live: Lab) -> None:
    page = live.tab()
    workers = page.get_by_label("Workers", exact=True)
    workers.fill("99")
    workers.press("Tab")
    page.wait_for_selector(".lab-error:visible")
    assert workers.get_attribute("aria-invalid") == "true"
    assert page.evaluate("Lab.live.state.sides[0].server.workers") == 4
    page.get_by_label("The app waits, s").fill("0,5")  # as half of the world writes it
    shows(page, "Lab.live.state.load.delay_s === 0.5")
    assert live.servers == []


def test_settings_start_the_server_anew_and_two_are_shown_side_by_side(
    live: Lab, screenshots: Path
) -> None:
    page = live.tab()
    press(page, "Start")
    running(page)
    first = {one.pid for one in live.servers}
    workers = page.get_by_label("Workers", exact=True)
    workers.fill("2")
    workers.press("Tab")
    shows(page, "Lab.live.state.sides[0].slots === 2")
    until(lambda: not first & {one.pid for one in live.servers}, "other processes")
    running(page)
    press(page, "Two servers")
    shows(page, "document.querySelectorAll('.lab-side[data-phase=running]').length === 2")
    shows(page, "Lab.live.sides.every((one) => one.sample && one.sample.answered > 4)")
    page.screenshot(path=str(screenshots / "live-two.png"))
    press(page, "Two servers")  # no longer; who is under way stays in the picture
    shows(page, "Lab.live.sides.length === 1 && Lab.live.sides[0].scene.crowd.underWay > 0")
    before, after = page.evaluate("""(() => {
        const count = () => Lab.live.sides[0].scene.crowd.underWay, before = count();
        Lab.live.buildSides(1);
        return [before, count()];
    })()""")
    assert before == after
    press(page, "Stop")
    until(lambda: live.servers == [], "no server left")


def test_a_second_tab_watches_and_takes_over_when_the_first_is_gone(live: Lab) -> None:
    first, second = live.tab(), live.tab()
    press(first, "Start")
    running(second)
    assert first.locator("#role").is_hidden()
    assert second.locator("#role").is_visible()
    assert second.get_by_role("button", name="Stop").is_disabled()
    shows(second, "Lab.live.sides[0].sample && Lab.live.sides[0].sample.answered > 0")
    first.context.close()
    second.wait_for_selector("#role", state="hidden")
    press(second, "Stop")
    until(lambda: live.servers == [], "no server left")


def test_tabs_that_die_leave_no_server(live: Lab) -> None:
    page = live.tab()
    press(page, "Start")
    running(page)
    assert live.servers
    page.context.close()  # in mid-load
    until(lambda: live.servers == [], "no server left")
    again = live.tab()
    shows(again, "Lab.live.role === 'control'")
    shows(again, "Lab.live.state?.sides[0].phase === 'stopped'")


def test_a_lab_that_dies_leaves_nothing_and_its_page_says_so(live: Lab) -> None:
    page = live.tab()
    press(page, "Start")
    running(page)
    started = live.servers
    assert started
    live.process.kill()
    live.process.wait()
    until(lambda: not any(one.is_running() for one in started), "all gone")
    shows(page, "document.querySelector('#status').textContent.includes('lost')")
    page.context.close()
    live.complaints.clear()  # of connections that were refused


STRANGERS = (
    ("GET", {"Host": "evil.example"}, "{token}", 403),
    ("POST", {"Origin": "http://evil.example"}, "{token}act", 403),
    ("POST", {"Origin": "null"}, "{token}act", 403),
    ("GET", {}, "/", 404),
    ("GET", {}, "/guessed/", 404),
    ("GET", {}, "/guessed/stream", 404),
    ("POST", {}, "/guessed/act", 404),
    ("GET", {}, "{token}../course.py", 404),
    ("GET", {}, "{token}none.js", 404),
    ("POST", {}, "{token}act", 400),  # by nobody's tab
)


def test_nobody_else_gets_in(live: Lab) -> None:
    parts = urlsplit(live.address)
    for method, headers, path, status in STRANGERS:
        connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
        given = {"Host": parts.netloc, **headers}
        body = json.dumps({"do": "start", "tab": "nobody"}) if method == "POST" else None
        connection.request(method, path.replace("{token}", parts.path), body, given)
        answer = connection.getresponse()
        assert answer.status == status, (method, headers, path)
        answer.read()
        connection.close()
        assert live.servers == []


def test_it_is_reached_from_this_machine_only(live: Lab) -> None:
    listening = [one.laddr.ip for one in live.process.net_connections() if one.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("projector", PROJECTOR, "light"), ("phone", PHONE, "dark")]
)
def test_it_is_for_everybody(
    live: Lab, screenshots: Path, name: str, size: dict[str, Any], scheme: str
) -> None:
    """No serious finding of axe, nothing beyond the edge, and motion for those who want it."""
    page = live.tab(**size, color_scheme=scheme, reduced_motion="reduce")
    press(page, "Start")
    running(page)
    shows(page, "Lab.live.sides[0].sample && Lab.live.sides[0].sample.answered > 0")
    for part in ("hands-on", "lesson"):
        if part == "lesson":
            press(page, "Lesson")
            page.wait_for_selector(".lab-choice")
        assert serious(page) == []
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        page.screenshot(path=str(screenshots / f"live-{part}-{name}-{scheme}.png"))
