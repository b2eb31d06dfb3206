"""The live page in a real browser, with real servers: the lesson by keyboard, a changing load, tabs
that watch or close, and requests of other sites."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.browser.conftest import SLOW_DISPLAY, serious
from tests.builders.conditions import until

pytest.importorskip("starlette")

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S, TIMEOUT_MS = 90.0, 90_000
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


def wait_for(page: Any, expression: str) -> None:
    """Wait until the expression is true in the page, whose policy forbids eval."""
    until(lambda: bool(page.evaluate(expression)), expression)


def wait_for_text(page: Any, selector: str, text: str) -> None:
    wait_for(page, f"document.querySelector({selector!r}).innerText.includes({text!r})")


def fits_width(page: Any) -> bool:
    """Whether the page does not scroll horizontally."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


class Lab:
    """`workerlab live` as a process; `tabs` watch it."""

    def __init__(self, browser: Any, directory: Path, *arguments: str) -> None:
        self.browser, self.contexts = browser, list[Any]()
        self.complaints, self.requested_urls = list[str](), list[str]()
        output = directory / "output.txt"
        with output.open("w") as file:
            self.process = psutil.Popen(
                [sys.executable, "-m", "workerlab", "live", "--no-browser", *arguments],
                cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT / "harness")},
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        until(lambda: "http://" in output.read_text(), "an address")
        url = re.search(r"http://\S+", output.read_text())
        assert url is not None
        self.address = url[0]

    def tab(self, **options: Any) -> Any:
        page = self._page(**{**PROJECTOR, **options})
        page.on("request", lambda request: self.requested_urls.append(request.url))
        page.goto(self.address)
        wait_for(page, "document.querySelector('#lesson-name').textContent !== ''")
        return page

    def running_tab(self, **options: Any) -> Any:
        """A tab that has started the server."""
        page = self.tab(**options)
        press(page, "Start")
        wait_until_running(page)
        return page

    def _page(self, **options: Any) -> Any:
        """A page in a context of its own, until the lab has ended."""
        context = self.browser.new_context(**options)
        self.contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(SLOW_DISPLAY)
        page = context.new_page()
        page.on("console", self._complain)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _complain(self, message: Any) -> None:
        if "status of 400" not in message.text:  # the page shows what the lab refuses
            self.complaints.append(f"{message.type}: {message.text}")

    @property
    def servers(self) -> list[psutil.Process]:
        """All processes of the lab's servers, workers included."""
        return list(self.process.children(recursive=True)) if self.process.is_running() else []

    def close(self) -> None:
        """End the lab while its pages are open, then close these, which would keep drawing and
        reconnecting. Their messages about the end of the lab are not complaints."""
        complaints = list(self.complaints)
        try:
            if self.process.is_running():
                started = self.servers
                self.process.terminate()
                assert self.process.wait(TIMEOUT_S) == 0
                until(lambda: not any(process.is_running() for process in started), "all gone")
        finally:
            for context in self.contexts:
                context.close()
            self.complaints = complaints


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
    assert {urlsplit(url).netloc for url in lab.requested_urls} <= {own, ""}


def press(page: Any, name: str) -> None:
    """Press a button by keyboard."""
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")


def wait_until_running(page: Any) -> None:
    page.wait_for_selector(".lab-side[data-phase=running]")


# Combines parts that never occur together
LONGEST_STATUS = (
    "16 requests in flight, 12 of them left over from the previous load, 3 of them abandoned by "
    "their clients: 4 in the app, 9 in the accept queue, 3 connecting; 3.98 requests/s, not "
    "settled yet; all 2 cores are busy: server 0.42, load 0.21, workerlab 0.35, everything else, "
    "including this page 1.02; each is in the app too briefly to be seen: slow it down; 12 failed "
    "(12 timeouts)"
)
LAYOUT_WITH = """(text) => {
  document.querySelector('#words').textContent = text;
  for (const law of document.querySelectorAll('.lab-chart-law'))
    law.textContent = text.slice(0, 99);
  const scene = document.querySelector('.lab-scene').getBoundingClientRect();
  const charts = document.querySelector('.lab-stage').lastElementChild.getBoundingClientRect();
  return [scene.height, charts.bottom <= innerHeight];
}"""

# Whether notes neither move the picture nor cover the elements below
NOTES_LAYOUT_WITH = """(text) => {
  const notes = [...document.querySelectorAll('.lab-notes p')];
  const before = notes.map(({ textContent, hidden }) => [textContent, hidden]);
  const show = (all) => notes.forEach((note, i) => [note.textContent, note.hidden] = all[i]);
  const boxOf = (name) => document.querySelector(name).getBoundingClientRect();
  const boxes = [['', true], [text, false]].map((note) => {
    show(notes.map(() => note));
    return JSON.stringify(boxOf('.lab-scene'));
  });
  const uncovered = boxOf('.lab-notes').bottom <= boxOf('.lab-aside').top;
  show(before);
  return [boxes[0] === boxes[1], uncovered];
}"""
# Whether this many connecting dots do not touch
CONNECTING_DOTS_APART = """(count) => {
  const { scene } = Lab.live.sides[0];
  scene.arrange();
  scene.capacities.waiting[0] = count;
  scene.placeBoxes();
  const { cell, r, line } = scene.grids.waiting[0];
  return 2 * r + line < cell;
}"""


def test_the_lesson_by_keyboard_and_its_recording(live: Lab, screenshots: Path) -> None:
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
        wait_for_text(page, "#lesson", "The law")
        pictures.append(page.locator(".lab-scene").bounding_box())
        assert "Then this." in panel.inner_text()
        wait_for_text(page, "#lesson", "Measured")
        outcomes.append(panel.inner_text())
        law = page.locator(".lab-chart-law").last.inner_text()
        assert law.startswith({"queue": "law: 2", "full": "law: at most 2"}.get(title, "")), title
        pictures.append(page.locator(".lab-scene").bounding_box())
        assert "One. Two. Three." in outcomes[-1]
    assert pictures == [pictures[0]] * len(pictures)  # the picture does not move
    assert page.evaluate(LAYOUT_WITH, LONGEST_STATUS) == [pictures[0]["height"], True]
    page.screenshot(path=str(screenshots / "live-told.png"))
    for size in ({"width": 853, "height": 480}, PROJECTOR["viewport"], PHONE["viewport"]):
        page.set_viewport_size(size)
        assert page.evaluate(NOTES_LAYOUT_WITH, LONGEST_STATUS[:100]) == [True, True]
        if size != PHONE["viewport"]:
            assert page.evaluate(CONNECTING_DOTS_APART, 512)
    page.set_viewport_size(PROJECTOR["viewport"])
    press(page, "Hands on")
    wait_for(page, "document.querySelector('#lesson').hidden")
    # The recording is still available
    recording = page.context.request.get(f"{live.address}lesson.html").text()
    press(page, "Lesson")  # resumes
    wait_for(page, "!document.querySelector('#lesson').hidden")
    assert "Step 4 of 4" in page.locator("#lesson").inner_text()
    data = re.search(r'id="lab-recorded-data">(.*?)</script>', recording, re.DOTALL)
    assert data is not None
    recorded = json.loads(data[1])
    assert [step["title"] for step in recorded["steps"]] == ["room", "queue", "full", "threads"]
    for step, outcome in zip(recorded["steps"], outcomes, strict=True):
        (measured,) = [line for line in step["outcome"] if line.startswith("Measured")]
        assert measured in outcome.replace("\n", " ")
        (side,) = step["trace"]["sides"]
        answered = [move for move in side["moves"] if move[1] == 4]
        assert len(answered) >= 10


LEFTOVER_STATUS = "/left over from the previous load:.* requests\\/s, not settled yet/"
BEGIN_TIMES = """() => {
  const { byId, begun } = Lab.live.sides[0].scene.crowd;
  return [...byId].map(([id, dot]) => [id, begun[dot]]);
}"""


def test_more_clients_fill_the_queue_while_it_runs(live: Lab, screenshots: Path) -> None:
    page = live.running_tab()
    clients = page.get_by_label("Clients", exact=True)
    clients.fill("4")
    wait_for(page, "Lab.live.sides[0]?.sample?.under_way === 4")
    before = page.evaluate("Lab.live.state.sides[0].server")
    pids = {process.pid for process in live.servers}
    clients.fill("40")
    wait_for(page, "Lab.live.sides[0].sample.under_way === 40")
    wait_for_text(page, "#words", "36")
    wait_for_text(page, ".lab-side-sentence", "36 wait in the kernel's accept queue")
    assert page.evaluate("Lab.live.state.sides[0].server") == before
    assert pids <= {process.pid for process in live.servers}  # nothing was restarted
    page.screenshot(path=str(screenshots / "live-queue.png"))
    late_tab = live.tab()
    wait_for(late_tab, "Lab.live.sides[0]?.sample?.under_way === 40")
    times, late_times = (dict(tab.evaluate(BEGIN_TIMES)) for tab in (page, late_tab))
    common_ids = times.keys() & late_times.keys()
    assert common_ids
    assert all(times[number] == late_times[number] for number in common_ids)


def test_the_counts_agree_after_an_overload(live: Lab) -> None:
    """While an open load exceeds the capacity, and after a closed load replaces it."""
    page = live.running_tab()
    page.get_by_label("open: requests arrive at random (Poisson)").check()
    page.get_by_label("Requests per second", exact=True).fill("60")
    wait_for(page, "Lab.live.sides[0].scene.numbers().queued > 30")
    # Charts show their numbers even if there is no room for their lines
    page.locator(".lab-chart canvas").evaluate_all(
        "all => all.forEach(canvas => { canvas.hidden = true })"
    )
    page.get_by_label("closed: a new request after each response").check()
    wait_for(page, f"{LEFTOVER_STATUS}.test(document.querySelector('#words').textContent)")
    (side,) = page.evaluate(f"({COUNTS_BY_SIDE})(Lab.live.sides)")
    assert_consistent([side])
    assert sum(side["dots"]) > 0


# Per server, the numbers in picture, header, status and chart at one moment: requests that connect,
# are in the accept queue, accepted and in the app; in the chart, those in the queue
COUNTS_BY_SIDE = """(sides) => {
    const words = document.querySelector('.lab-words').firstChild.textContent.split('. '),
        law = document.querySelector('.lab-chart-law').textContent,
        chart = [...document.querySelectorAll('.lab-chart-now')].at(-1).textContent;
    return sides.map(({ scene }, i) => {
        const { crowd, figures } = scene, part = words[i] || '',
            of = (place) => Number((part.match(`(\\\\d+) ${place}`) || [0, 0])[1]),
            places = ['connecting', 'in the accept queue', 'accepted', 'in the app'],
            name = sides.length > 1 ? `${'AB'[i]} ` : '';
        return {
            dots: [...crowd.waiting.map((list) => list.length), crowd.served],
            header: [figures.connecting, figures.queued, figures.accepted, figures.served],
            words: places.map(of),
            left: [of('of them left'),
                Number((law.match(`${name}(\\\\d+) left over`) || [0, 0])[1])],
            chart: chart.split(', ')[i].replace(/^[AB] /, ''),
        };
    });
}"""


def assert_consistent(sides: list[dict[str, Any]]) -> None:
    for side in sides:
        assert side["dots"] == side["header"] == side["words"], side
        assert side["left"][0] == side["left"][1], side
        assert side["chart"] in ("\u2013", str(side["dots"][1])), side


def test_picture_header_status_and_chart_show_the_same_moment(live: Lab) -> None:
    """During an overload, short requests, a restart and with a second server."""
    page, rng = live.running_tab(), random.Random(25)
    loads: list[dict[str, Any]] = [
        {"clients": 40}, {"delay_s": 0.05}, {"model": "open", "rate": 100.0},
        {"model": "closed", "clients": 200, "delay_s": 0.01},
    ]  # fmt: skip
    settings = [{"worker_class": "eventlet"}, {"worker_class": "gthread", "threads": 4}]
    orders = [{"do": "load", **load} for load in loads]
    orders += [{"do": "server", "side": 0, **server} for server in settings]
    orders += [{"do": "compare", "on": True}, {"do": "restart"}]
    waiting = 0
    for order in orders:
        refused = page.evaluate("(order) => Lab.live.order(order)", order)
        assert not refused
        for _ in range(25):
            sides = page.evaluate(f"({COUNTS_BY_SIDE})(Lab.live.sides)")
            assert_consistent(sides)
            waiting += sum(side["dots"][1] for side in sides)
            time.sleep(rng.uniform(0.005, 0.1))
    assert waiting > 0


def test_picture_header_status_and_chart_of_a_recording_agree(live: Lab, screenshots: Path) -> None:
    page, rng = live.tab(), random.Random(26)
    press(page, "Lesson")
    page.get_by_role("button", name="step 3: full").click()
    page.wait_for_selector(".lab-choice")
    page.keyboard.press("a")  # independent of the focus
    wait_for_text(page, "#lesson", "Measured")
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
    max_queued = 0
    for _ in range(50):
        sides = page.evaluate(f"({COUNTS_BY_SIDE})(Lab.recorded.player.sides)")
        assert_consistent(sides)
        seek = "() => { Lab.recorded.player.seek(%d); return (%s)(Lab.recorded.player.sides) }"
        assert_consistent(page.evaluate(seek % (rng.uniform(0, 4000), COUNTS_BY_SIDE)))
        max_queued = max(max_queued, *(side["dots"][1] for side in sides))
        time.sleep(rng.uniform(0.005, 0.08))
    assert max_queued == 2  # a backlog of 1 admits one more
    assert page.locator(".lab-chart-law").last.inner_text() == "law: at most 2"
    assert page.evaluate("Lab.drawn.includes('2, full') && !Lab.drawn.includes('2 of 1')")
    for size in (PHONE, PROJECTOR):  # with the result of a step, and with the final table
        page.set_viewport_size(size["viewport"])
        assert serious(page) == []
        assert fits_width(page)
        page.screenshot(path=str(screenshots / f"take-home-{size['viewport']['width']}.png"))
        page.evaluate("Lab.recorded.go(9)")
    page.set_viewport_size(PHONE["viewport"])
    (hidden_px,) = page.evaluate(
        "[...document.querySelectorAll('.lab-scroll')].map((e) => e.scrollWidth - e.clientWidth)"
    )
    assert hidden_px <= 0  # all columns, up to what was measured


def test_an_invalid_value_is_reported_at_its_field_and_nothing_starts(live: Lab) -> None:
    page = live.tab()
    workers = page.get_by_label("Workers", exact=True)
    workers.fill("99")
    workers.press("Tab")
    page.wait_for_selector(".lab-error:visible")
    assert workers.get_attribute("aria-invalid") == "true"
    assert page.evaluate("Lab.live.state.sides[0].server.workers") == 4
    page.get_by_label("App waits, s").fill("0,5")  # with a decimal comma
    wait_for(page, "Lab.live.state.load.delay_s === 0.5")
    assert live.servers == []


def test_server_settings_restart_it_and_two_servers_are_shown_side_by_side(
    live: Lab, screenshots: Path
) -> None:
    page = live.running_tab()
    first = {process.pid for process in live.servers}
    workers = page.get_by_label("Workers", exact=True)
    workers.fill("2")
    workers.press("Tab")
    wait_for(page, "Lab.live.state.sides[0].slots === 2")
    until(lambda: not first & {process.pid for process in live.servers}, "new processes")
    wait_until_running(page)
    press(page, "Two servers")
    wait_for(page, "document.querySelectorAll('.lab-side[data-phase=running]').length === 2")
    wait_for(page, "Lab.live.sides.every((side) => side.sample && side.sample.answered > 4)")
    page.screenshot(path=str(screenshots / "live-two.png"))
    press(page, "Two servers")  # removes the second; requests in flight stay in the picture
    wait_for(page, "Lab.live.sides.length === 1 && Lab.live.sides[0].scene.crowd.underWay > 0")
    before, after = page.evaluate("""(() => {
        const count = () => Lab.live.sides[0].scene.crowd.underWay, before = count();
        Lab.live.buildSides(1);
        return [before, count()];
    })()""")
    assert before == after
    press(page, "Stop")
    until(lambda: live.servers == [], "no server left")


def test_a_second_tab_watches_and_takes_over_when_the_first_closes(live: Lab) -> None:
    first, second = live.tab(), live.tab()
    press(first, "Start")
    wait_until_running(second)
    assert first.locator("#role").is_hidden()
    assert second.locator("#role").is_visible()
    assert second.get_by_role("button", name="Stop").is_disabled()
    wait_for(second, "Lab.live.sides[0]?.sample?.answered > 0")
    first.context.close()
    second.wait_for_selector("#role", state="hidden")
    press(second, "Stop")
    until(lambda: live.servers == [], "no server left")


def test_no_server_is_left_after_all_tabs_close(live: Lab) -> None:
    page = live.running_tab()
    assert live.servers
    page.context.close()  # during the load
    until(lambda: live.servers == [], "no server left")
    new_tab = live.tab()
    wait_for(new_tab, "Lab.live.role === 'control'")
    wait_for(new_tab, "Lab.live.state?.sides[0].phase === 'stopped'")


def test_a_killed_lab_leaves_no_process_and_its_page_says_so(live: Lab) -> None:
    page = live.running_tab()
    started = live.servers
    assert started
    live.process.kill()
    live.process.wait()
    until(lambda: not any(process.is_running() for process in started), "all gone")
    wait_for_text(page, "#status", "No connection")
    page.context.close()
    live.complaints.clear()  # about refused connections


def send_request(
    netloc: str, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, str]:
    """(status, body). `Host` is `netloc` unless given."""
    connection = http.client.HTTPConnection(netloc, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Host": netloc, **headers})
        response = connection.getresponse()
        return response.status, response.read().decode()


FOREIGN_REQUESTS = (
    ("GET", {"Host": "evil.example"}, "{token}", 403),
    ("POST", {"Origin": "http://evil.example"}, "{token}act", 403),
    ("POST", {"Origin": "null"}, "{token}act", 403),
    ("GET", {}, "/", 404),
    ("GET", {}, "/guessed/", 404),
    ("GET", {}, "/guessed/stream", 404),
    ("POST", {}, "/guessed/act", 404),
    ("GET", {}, "{token}../course.py", 404),
    ("GET", {}, "{token}none.js", 404),
    ("POST", {}, "{token}act", 400),  # of an unknown tab
)


def test_only_loopback_is_listened_on_and_foreign_requests_are_rejected(live: Lab) -> None:
    connections = live.process.net_connections()
    listening = [connection.laddr.ip for connection in connections if connection.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    parts = urlsplit(live.address)
    for method, headers, path, status in FOREIGN_REQUESTS:
        body = json.dumps({"do": "start", "tab": "nobody"}) if method == "POST" else None
        url = path.replace("{token}", parts.path)
        answer = send_request(parts.netloc, method, url, body, **headers)
        assert answer[0] == status, (method, headers, path)
        assert live.servers == []


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("projector", PROJECTOR, "light"), ("phone", PHONE, "dark")]
)
def test_the_page_is_accessible(
    live: Lab, screenshots: Path, name: str, size: dict[str, Any], scheme: str
) -> None:
    """No serious finding of axe and no horizontal scrolling, with reduced motion."""
    page = live.running_tab(**size, color_scheme=scheme, reduced_motion="reduce")
    wait_for(page, "Lab.live.sides[0]?.sample?.answered > 0")
    for mode in ("hands-on", "lesson"):
        if mode == "lesson":
            press(page, "Lesson")
            page.wait_for_selector(".lab-choice")
            choices = page.locator(".lab-choice").last.bounding_box()
            assert choices is not None
            assert choices["y"] + choices["height"] <= size["viewport"]["height"]
        assert serious(page) == []
        assert fits_width(page)
        page.screenshot(path=str(screenshots / f"live-{mode}-{name}-{scheme}.png"))
