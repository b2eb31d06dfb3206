"""A shared lab: pupils join with the room code, guess and watch, and can do nothing else."""

from __future__ import annotations

import asyncio
import contextlib
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

from tests.browser.conftest import serious
from tests.browser.test_live import (
    PHONE,
    ROOT,
    TIMEOUT_S,
    Lab,
    fits_width,
    lesson,
    press,
    send_request,
    wait_for,
    wait_for_text,
)
from tests.builders.conditions import until
from workerlab.server.services import free_port

pytest.importorskip("starlette")

PUPILS = 30


class Shared(Lab):
    """`netloc`: host and port where pupils join."""

    def __init__(self, browser: Any, directory: Path, *arguments: str) -> None:
        (directory / "lesson.toml").write_text(lesson())
        self.port = free_port()
        share = ("--share", *arguments, "--share-port", str(self.port))
        super().__init__(browser, directory, "--lesson", "lesson.toml", *share)
        output = directory / "output.txt"
        until(lambda: "Ctrl-C ends the lab" in output.read_text(), "both addresses")
        self.output = output.read_text()
        (self.address,) = re.findall(r"the live lesson: (\S+)", self.output)
        (self.link,) = re.findall(r"or with the link (\S+)", self.output)
        self.netloc, self.code = urlsplit(self.link).netloc, urlsplit(self.link).fragment

    def pupil(self, address: str, **options: Any) -> Any:
        page = self._page(**{**PHONE, **options})
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
    """Posts actions and reads the event stream, by HTTP/1.0: a body ends with its connection."""

    def __init__(self, netloc: str, prefix: str = "/") -> None:
        self.netloc, self.prefix, self.cookie = netloc, prefix, ""
        self.messages: list[dict[str, Any]] = []
        self.received = asyncio.Condition()

    async def _open(
        self, request: str, body: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.netloc.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
        head = f"{request} HTTP/1.0\r\nHost: {self.netloc}\r\nCookie: {self.cookie}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return reader, writer

    async def post(self, path: str, **fields: object) -> tuple[int, dict[str, Any]]:
        reader, writer = await self._open(f"POST {self.prefix}{path}", json.dumps(fields).encode())
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
                    async with self.received:
                        self.received.notify_all()

    async def first(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first matching message, received already or later."""
        async with self.received:
            await self.received.wait_for(lambda: any(map(matches, self.messages)))
        return next(filter(matches, self.messages))

    def ticks(self, phases: tuple[str, str]) -> list[float]:
        """The times of the ticks between the lesson's first message of each phase."""
        first, last = (
            next(n for n, message in enumerate(self.messages) if message.get("phase") == phase)
            for phase in phases
        )
        return [m["t"] for m in self.messages[first:last] if m["kind"] == "tick"]


def test_thirty_pupils_guess_at_once_and_receive_the_same_ticks(shared: Shared) -> None:
    with ThreadPoolExecutor(1) as pool:  # a browser has its own event loop in this thread
        pool.submit(asyncio.run, asyncio.wait_for(take_one_step(shared), TIMEOUT_S)).result()


async def take_one_step(shared: Shared) -> None:
    address = urlsplit(shared.address)
    teacher = Client(address.netloc, address.path)
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
    tally_hidden = await teacher.first(lambda m: m["kind"] == "class" and m["guessed"] == PUPILS)
    assert tally_hidden["tally"] == []  # until the teacher shows it
    await pupils[0].post("guess", step=0, choice=1)  # changed
    await teacher.post("act", tab=tab, do="tally")
    assert (await teacher.first(lambda m: bool(m.get("tally"))))["tally"] == [9, 21]

    assert (await teacher.post("act", tab=tab, do="guess", choice=None))[0] == 200
    results = [await pupil.first(lambda m: m.get("phase") == "told") for pupil in pupils]
    assert [result["guess"] for result in results] == [1, *choices[1:]]
    assert all(result["law"] and result["outcome"] for result in results)
    status, answer = await pupils[0].post("guess", step=0, choice=0)
    assert (status, answer["why"]) == (400, "too late: this question is closed")

    ticks = [pupil.ticks(("run", "told")) for pupil in pupils]
    assert len(ticks[0]) > 20  # premise: the step took seconds
    assert ticks == [teacher.ticks(("run", "told"))] * PUPILS
    premature = [m for p in pupils for m in p.messages if m.get("phase") == "ask" and m["law"]]
    assert premature == []
    assert not any(m["kind"] == "class" for pupil in pupils for m in pupil.messages)
    for stream in streams:
        stream.cancel()


def test_pupils_can_only_join_and_guess(shared: Shared) -> None:
    token = urlsplit(shared.address).path
    action = json.dumps({"do": "start", "tab": "nobody"})
    assert send_request(shared.netloc, "GET", "/")[0] == 200  # premise
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
        body = action if method == "POST" else None
        status, _ = send_request(shared.netloc, method, path, body, **headers)
        assert status in statuses, (method, path)
    assert "too long" in send_request(shared.netloc, "POST", "/join", "x" * 20_000)[1]
    assert shared.servers == []


def test_wrong_codes_are_limited(shared: Shared) -> None:
    def join(code: str) -> str:
        return send_request(shared.netloc, "POST", "/join", json.dumps({"code": code}))[1]

    for _ in range(20):  # a page without a code sends an empty one
        assert "wrong room code" in join("")
    for _ in range(10):
        assert "wrong room code" in join("WRONG2")
    assert "too many wrong codes" in join("WRONG2")
    assert "too many wrong codes" in join(shared.code)


def test_pupils_join_at_all_addresses_and_the_teacher_only_on_loopback(tmp_path: Path) -> None:
    lab = Shared(None, tmp_path)
    try:
        connections = lab.process.net_connections()
        sockets = [connection.laddr for connection in connections if connection.status == "LISTEN"]
        teacher = urlsplit(lab.address)
        assert {tuple(laddr) for laddr in sockets} == {
            ("127.0.0.1", teacher.port), ("0.0.0.0", lab.port),
        }  # fmt: skip
        assert "no one there can control the lab" in lab.output
        assert "without encryption" in lab.output
        loopback = f"127.0.0.1:{lab.port}"
        assert send_request(loopback, "GET", "/", Host=f"localhost:{lab.port}")[0] == 200
        assert ("Only this machine" in lab.output) == lab.netloc.startswith("127.")
    finally:
        lab.close()


# The port is in use; the address is that of another machine
@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.77"])
def test_nothing_starts_if_the_shared_address_is_unavailable(address: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        share = ["--share", address, "--share-port", str(listener.getsockname()[1])]
        command = [sys.executable, "-m", "workerlab", "live", "--no-browser", *share]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    assert done.returncode == 2
    assert f"--share-port: cannot listen on {address}:{share[-1]}" in done.stderr
    assert "http://" not in done.stdout + done.stderr


# --- in a browser ---------------------------------------------------------------------------------


SELECTED_CHOICE = (
    "document.querySelector('.lab-choice[aria-pressed=true]')?.innerText.includes('{}')"
)


def test_a_class_takes_a_step(shared: Shared, screenshots: Path) -> None:
    teacher = shared.tab()
    first = shared.pupil(shared.link, color_scheme="dark")
    second = shared.pupil(shared.link.partition("#")[0])
    second.screenshot(path=str(screenshots / "class-join.png"))
    second.get_by_label("Room code").fill("wrong2")
    press(second, "Join")
    wait_for_text(second, "#join-error", "wrong room code")
    second.get_by_label("Room code").fill(shared.code.lower())
    press(second, "Join")
    wait_for(second, "Lab.live.role === 'pupil'")
    buttons = second.get_by_role("button").all_inner_texts()
    assert [text for text in buttons if text not in ("Pause", "Slow motion")] == []
    assert second.locator("#controls").is_hidden()
    second.screenshot(path=str(screenshots / "class-waits.png"))
    assert serious(second) == []
    press(teacher, "Lesson")
    for pupil in (first, second):
        pupil.wait_for_selector(".lab-choice")
    first.locator(".lab-choice").nth(1).click()
    wait_for(first, SELECTED_CHOICE.format("that"))
    first.locator(".lab-choice").nth(0).click()
    wait_for(first, SELECTED_CHOICE.format("this"))
    first.reload()  # keeps the guess
    wait_for(first, SELECTED_CHOICE.format("this"))
    first.screenshot(path=str(screenshots / "class-ask-phone-dark.png"))
    wait_for_text(teacher, "#lesson", "2 pupils, 1 has guessed")
    assert teacher.locator(".lab-tally").count() == 0
    second.locator(".lab-choice").nth(1).click()
    wait_for_text(teacher, "#lesson", "2 have guessed")
    teacher.screenshot(path=str(screenshots / "class-ask-teacher.png"))
    press(teacher, "Show guesses")
    wait_for(teacher, "document.querySelectorAll('.lab-tally').length === 2")
    tally = teacher.locator(".lab-tally").all_inner_texts()
    assert [text.strip() for text in tally] == ["1", "1"]
    assert "The law" not in teacher.locator("#lesson").inner_text()
    teacher.screenshot(path=str(screenshots / "class-tally-teacher.png"))
    assert first.locator(".lab-tally").count() == 0
    press(teacher, "Start the step and close the guesses")
    for pupil, mark in ((first, "this ← your guess, right"), (second, "that ← your guess")):
        wait_for_text(pupil, "#lesson", "Measured")
        assert mark in pupil.locator("#lesson").inner_text()
        assert pupil.evaluate("Lab.live.sides[0].sample.answered") > 0
        assert fits_width(pupil)
        assert serious(pupil) == []
    first.screenshot(path=str(screenshots / "class-told-phone-dark.png"), full_page=True)
    second.screenshot(path=str(screenshots / "class-told-phone.png"))
    teacher.screenshot(path=str(screenshots / "class-told-teacher.png"))
    teacher.evaluate("Lab.live.order({do: 'lesson', step: 4})")
    wait_for_text(first, "#lesson", "Correct guesses: 1 of 1.")
    wait_for_text(second, "#lesson", "Correct guesses: 0 of 1.")
    first.screenshot(path=str(screenshots / "class-end-phone-dark.png"))
