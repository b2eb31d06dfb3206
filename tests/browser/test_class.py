"""A lab that is shared: pupils join by the room code, guess and watch, and can do nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.conftest import SLOW_DISPLAY, serious
from tests.browser.test_live import PATIENCE_S, PHONE, ROOT, Lab, lesson, press, shows, until

pytest.importorskip("starlette")

PUPILS = 30


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Shared(Lab):
    """`netloc`: where pupils join."""

    def __init__(self, browser: Any, place: Path, *words: str) -> None:
        (place / "lesson.toml").write_text(lesson())
        self.port = free_port()
        share = ("--share", *words, "--share-port", str(self.port))
        super().__init__(browser, place, "--lesson", "lesson.toml", *share)
        until(lambda: "Ctrl-C ends it" in (place / "said.txt").read_text(), "both addresses")
        self.output = (place / "said.txt").read_text()
        (self.address,) = re.findall(r"the live lesson: (\S+)", self.output)
        (self.link,) = re.findall(r"or by the link (\S+)", self.output)
        self.netloc, self.code = urlsplit(self.link).netloc, urlsplit(self.link).fragment

    def pupil(self, address: str, **context: Any) -> Any:
        opened = self.browser.new_context(**{**PHONE, **context})
        opened.add_init_script(SLOW_DISPLAY)
        page = opened.new_page()
        page.on("console", lambda message: self._complain(message))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(address)
        return page


@pytest.fixture
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    browser = request.getfixturevalue("browser") if "screenshots" in request.fixturenames else None
    lab = Shared(browser, tmp_path, "127.0.0.1")
    try:
        yield lab
    finally:
        lab.close()
    assert lab.complaints == []


# --- without a browser ----------------------------------------------------------------------------


class Client:
    """Posts, and reads a stream of events; HTTP/1.0, so that a body ends with its connection."""

    def __init__(self, netloc: str, prefix: str = "/") -> None:
        self.netloc, self.prefix, self.cookie = netloc, prefix, ""
        self.messages: list[dict[str, Any]] = []
        self.news = asyncio.Condition()

    async def _open(
        self, request: str, body: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.netloc.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
        head = f"{request} HTTP/1.0\r\nHost: {self.netloc}\r\nCookie: {self.cookie}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return reader, writer

    async def post(self, path: str, **words: object) -> tuple[int, dict[str, Any]]:
        reader, writer = await self._open(f"POST {self.prefix}{path}", json.dumps(words).encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if cookie := re.search(rb"(?i)set-cookie: ([^;]+)", head):
            self.cookie = cookie[1].decode()
        return int(head.split()[1]), json.loads(body)

    async def listen(self) -> None:
        reader, writer = await self._open(f"GET {self.prefix}stream")
        with contextlib.closing(writer):
            async for line in reader:
                if line.startswith(b"data: "):
                    self.messages.append(json.loads(line[6:]))
                    async with self.news:
                        self.news.notify_all()

    async def first(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that fits, come or to come."""
        async with self.news:
            await self.news.wait_for(lambda: any(map(fits, self.messages)))
        return next(filter(fits, self.messages))

    def ticks(self, phases: tuple[str, str]) -> list[float]:
        """The times of the ticks between the lesson's first message of each phase."""
        first, last = (
            next(n for n, message in enumerate(self.messages) if message.get("phase") == phase)
            for phase in phases
        )
        return [m["t"] for m in self.messages[first:last] if m["kind"] == "tick"]


def test_thirty_pupils_guess_at_once_and_see_the_same_picture(shared: Shared) -> None:
    with ThreadPoolExecutor(1) as pool:  # a browser of this session has its own loop in this thread
        pool.submit(asyncio.run, asyncio.wait_for(one_step(shared), PATIENCE_S)).result()


async def one_step(shared: Shared) -> None:
    parts = urlsplit(shared.address)
    teacher = Client(parts.netloc, parts.path)
    pupils = [Client(shared.netloc) for _ in range(PUPILS)]
    for pupil in pupils:
        assert (await pupil.post("join", code=shared.code.lower()))[0] == 200
    streams = [asyncio.create_task(client.listen()) for client in (teacher, *pupils)]
    tab = (await teacher.first(lambda m: m["kind"] == "hello"))["tab"]
    assert (await teacher.post("act", tab=tab, do="lesson"))[0] == 200
    questions = [await pupil.first(lambda m: m["kind"] == "lesson") for pupil in pupils]
    assert {question["phase"] for question in questions} == {"ask"}
    await teacher.first(lambda m: m["kind"] == "class" and m["pupils"] == PUPILS)

    choices = [min(n % 3, 1) for n in range(PUPILS)]  # 10 and 20
    guesses = (p.post("guess", step=0, choice=c) for p, c in zip(pupils, choices, strict=True))
    assert {status for status, _ in await asyncio.gather(*guesses)} == {200}
    counted = await teacher.first(lambda m: m["kind"] == "class" and m["guessed"] == PUPILS)
    assert counted["tally"] == []  # not before it is asked for
    await pupils[0].post("guess", step=0, choice=1)  # changed
    await teacher.post("act", tab=tab, do="tally")
    assert (await teacher.first(lambda m: bool(m.get("tally"))))["tally"] == [9, 21]

    assert (await teacher.post("act", tab=tab, do="guess", choice=None))[0] == 200
    results = [await pupil.first(lambda m: m.get("phase") == "told") for pupil in pupils]
    assert [result["guess"] for result in results] == [1, *choices[1:]]
    assert all(result["law"] and result["outcome"] for result in results)
    status, answer = await pupils[0].post("guess", step=0, choice=0)
    assert (status, answer["why"]) == (400, "too late: this question is closed")

    pictures = [pupil.ticks(("run", "told")) for pupil in pupils]
    assert len(pictures[0]) > 20  # premise: the step took seconds
    assert pictures == [teacher.ticks(("run", "told"))] * PUPILS
    told_early = [m for p in pupils for m in p.messages if m.get("phase") == "ask" and m["law"]]
    assert told_early == []
    assert not any(m["kind"] == "class" for pupil in pupils for m in pupil.messages)
    for stream in streams:
        stream.cancel()


def answer_to(
    shared: Shared, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=PATIENCE_S)
    connection.request(method, path, body, {"Host": shared.netloc, **headers})
    answer = connection.getresponse()
    status, text = answer.status, answer.read().decode()
    connection.close()
    return status, text


def test_pupils_can_do_nothing_but_join_and_guess(shared: Shared) -> None:
    token = urlsplit(shared.address).path
    order = json.dumps({"do": "start", "tab": "nobody"})
    assert answer_to(shared, "GET", "/")[0] == 200  # premise
    for method, path, headers, statuses in (
        ("GET", "/", {"Host": f"evil.example:{shared.port}"}, {403}),
        ("POST", "/join", {"Origin": "http://evil.example"}, {403}),
        ("POST", "/join", {"Origin": shared.address.partition(token)[0]}, {403}),  # the teacher's
        ("GET", token.rstrip("/"), {}, {404}),
        ("POST", f"{token}act", {}, {404}),
        ("POST", "/act", {}, {404, 405}),
        ("GET", "/lesson.html", {}, {404}),
        ("GET", "/course.py", {}, {404}),
        ("GET", "/stream", {}, {400}),
        ("POST", "/guess", {}, {400}),
    ):
        body = order if method == "POST" else None
        assert answer_to(shared, method, path, body, **headers)[0] in statuses, (method, path)
    assert "too long" in answer_to(shared, "POST", "/join", "x" * 20_000)[1]
    assert shared.servers == []


def test_codes_cannot_be_tried_at_will(shared: Shared) -> None:
    def join(code: str) -> str:
        return answer_to(shared, "POST", "/join", json.dumps({"code": code}))[1]

    for _ in range(20):  # a page without a code asks, too
        assert "not the room code" in join("")
    for _ in range(10):
        assert "not the room code" in join("WRONG2")
    assert "too many wrong codes" in join("WRONG2")
    assert "too many wrong codes" in join(shared.code)


def test_all_addresses_are_for_pupils_and_loopback_alone_for_the_teacher(tmp_path: Path) -> None:
    lab = Shared(None, tmp_path)
    try:
        sockets = [one.laddr for one in lab.process.net_connections() if one.status == "LISTEN"]
        teacher = urlsplit(lab.address)
        assert {tuple(laddr) for laddr in sockets} == {
            ("127.0.0.1", teacher.port), ("0.0.0.0", lab.port),
        }  # fmt: skip
        assert "nobody there can control the lab" in lab.output
        assert "without encryption" in lab.output
        assert answer_to(lab, "GET", "/", Host=f"localhost:{lab.port}")[0] == 200
        assert ("Only this machine" in lab.output) == lab.netloc.startswith("127.")
    finally:
        lab.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.77"])  # taken; of another machine
def test_what_cannot_be_listened_on_is_said_and_nothing_starts(address: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        share = ["--share", address, "--share-port", str(taken.getsockname()[1])]
        command = [sys.executable, "-m", "workerlab", "live", "--no-browser", *share]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert ended.returncode == 2
    assert f"--share-port: cannot listen on {address}:{share[-1]}" in ended.stderr
    assert "http://" not in ended.stdout + ended.stderr


# --- in a browser ---------------------------------------------------------------------------------


CHOSEN = "document.querySelector('.lab-choice[aria-pressed=true]')?.innerText.includes('{}')"


def test_a_class_takes_a_step(shared: Shared, screenshots: Path) -> None:
    teacher = shared.tab()
    first = shared.pupil(shared.link, color_scheme="dark")
    second = shared.pupil(shared.link.partition("#")[0])
    second.screenshot(path=str(screenshots / "class-join.png"))
    second.get_by_label("Room code").fill("wrong2")
    press(second, "Join")
    shows(second, "document.querySelector('#join-error').textContent.includes('not the room code')")
    second.get_by_label("Room code").fill(shared.code.lower())
    press(second, "Join")
    shows(second, "Lab.live.role === 'pupil'")
    buttons = second.get_by_role("button").all_inner_texts()
    assert [text for text in buttons if text not in ("Pause", "Slow motion")] == []
    assert second.locator("#controls").is_hidden()
    second.screenshot(path=str(screenshots / "class-waits.png"))
    assert serious(second) == []
    press(teacher, "Lesson")
    for pupil in (first, second):
        pupil.wait_for_selector(".lab-choice")
    first.locator(".lab-choice").nth(1).click()
    shows(first, CHOSEN.format("that"))
    first.locator(".lab-choice").nth(0).click()
    shows(first, CHOSEN.format("this"))
    first.reload()  # keeps the guess
    shows(first, CHOSEN.format("this"))
    first.screenshot(path=str(screenshots / "class-ask-phone-dark.png"))
    panel = "document.querySelector('#lesson').innerText"
    shows(teacher, f"{panel}.includes('2 pupils, 1 has guessed')")
    assert teacher.locator(".lab-tally").count() == 0
    second.locator(".lab-choice").nth(1).click()
    shows(teacher, f"{panel}.includes('2 have guessed')")
    teacher.screenshot(path=str(screenshots / "class-ask-teacher.png"))
    press(teacher, "Show guesses")
    shows(teacher, "document.querySelectorAll('.lab-tally').length === 2")
    tally = teacher.locator(".lab-tally").all_inner_texts()
    assert [text.strip() for text in tally] == ["1", "1"]
    assert "The law" not in teacher.locator("#lesson").inner_text()
    teacher.screenshot(path=str(screenshots / "class-tally-teacher.png"))
    assert first.locator(".lab-tally").count() == 0
    press(teacher, "Start the step and close the guesses")
    for pupil, mark in ((first, "this ← your guess, right"), (second, "that ← your guess")):
        shows(pupil, f"{panel}.includes('Measured')")
        assert mark in pupil.locator("#lesson").inner_text()
        assert pupil.evaluate("Lab.live.sides[0].sample.answered") > 0
        wide = pupil.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        assert serious(pupil) == []
    first.screenshot(path=str(screenshots / "class-told-phone-dark.png"), full_page=True)
    second.screenshot(path=str(screenshots / "class-told-phone.png"))
    teacher.screenshot(path=str(screenshots / "class-told-teacher.png"))
    teacher.evaluate("Lab.live.order({do: 'lesson', step: 4})")
    shows(first, f"{panel}.includes('1 of 1 guess was right')")
    shows(second, f"{panel}.includes('0 of 1 guess were right')")
    first.screenshot(path=str(screenshots / "class-end-phone-dark.png"))
