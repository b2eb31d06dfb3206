"""The bundled apps, called in process: their work, invalid requests, and blocking variants."""

from __future__ import annotations

import ast
import asyncio
import importlib
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.knobs import MAX_SLEEP_S, BadValue, burn, work_for
from tests.builders.blog import Request, asgi, wsgi
from workerlab.model.plan import App
from workerlab.options import BadArgument, app_target
from workerlab.paths import APPS, bundled_root, label_of, target_of

ROOT = Path(__file__).parents[3]
APPS_DIR = bundled_root() / "apps"
WSGI = ["sleep_wsgi", "sleep_flask", "imported_sleep"]
ASGI = ["sleep_asgi", "blocking_asgi"]

INVALID = ["-1", "abc", "", "nan", "inf", "1e999", "3600.1", "1_0", "0x1", "%201", "%D9%A1", "1,5"]


def app_named(name):
    if name == "sleep_flask":
        pytest.importorskip("flask")
    return importlib.import_module(f"apps.{name}").app


def call(name, query="", method="GET", body=b""):
    """The status, headers and text of the response. An ASGI app always gets a body of two parts."""
    app, target = app_named(name), f"/?{query}"
    if name in WSGI:
        response = wsgi(app, Request(method, target, {"Content-Length": str(len(body))}, [body]))
    else:
        response = asyncio.run(asgi(app, Request(method, target, {}, [b"x", b"y"])))
    assert response.unread == 0, "the body of the request was not read"
    return response.status, response.headers, response.text


@pytest.mark.parametrize("name", WSGI + ASGI)
def test_the_response_names_the_work(name):
    began_s = time.monotonic()
    status, headers, text = call(name, "sleep=0.05&cpu=2")
    assert time.monotonic() - began_s >= 0.05
    assert (status, text) == (200, "slept 0.05 s and burned 2 ms of CPU\n")
    assert headers["content-length"] == str(len(text))


@pytest.mark.parametrize("name", WSGI + ASGI)
def test_head_has_the_length_and_no_body(name):
    status, headers, text = call(name, "sleep=0", "HEAD")
    assert (status, headers["content-length"]) == (200, str(len("slept 0 s\n")))
    assert text == "" or name == "sleep_flask"  # Flask's server omits the body


@pytest.mark.parametrize("name", ["sleep_wsgi", "sleep_flask"])
def test_a_posted_body_is_read(name):
    assert call(name, "sleep=0", "POST", b"x" * 1000)[0] == 200


@pytest.mark.parametrize("name", WSGI + ASGI)
@pytest.mark.parametrize(
    "query", [f"sleep={value}" for value in INVALID] + ["cpu=-1", "cpu=3600001"]
)
def test_an_invalid_value_is_refused(name, query):
    status, _, text = call(name, query)
    assert status == 400
    assert text.startswith(f"{query.partition('=')[0]} must be a number of ")
    assert text.endswith(".\n")
    assert text.count("\n") == 1


def test_a_value_given_twice_is_refused():
    with pytest.raises(BadValue, match=r"sleep must be given once, not 2 times\."):
        work_for("sleep=1&sleep=2")


def test_the_default_is_one_second_and_other_parameters_are_ignored():
    assert work_for("") == work_for("id=7") == (1.0, 0.0)


@given(st.floats(min_value=0, max_value=MAX_SLEEP_S))
def test_every_number_in_range_is_read(sleep):
    assert work_for(f"sleep={sleep!r}").sleep_s == sleep


@given(st.text(max_size=60))
def test_any_query_is_read_or_refused(query):
    with suppress(BadValue):
        assert 0 <= work_for(query).sleep_s <= MAX_SLEEP_S


def knobs_under(**env):
    code = "from apps.knobs import DEFAULT; print(*DEFAULT)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | env, capture_output=True, text=True
    )


def test_the_environment_sets_the_default():
    assert knobs_under(WORKERLAB_SLEEP="0.25", WORKERLAB_CPU="3").stdout == "0.25 3.0\n"


@pytest.mark.parametrize("name", ["WORKERLAB_SLEEP", "WORKERLAB_CPU"])
def test_an_invalid_environment_fails_at_import(name):
    result = knobs_under(**{name: "nan"})
    assert result.returncode == 1
    assert re.search(f"{name} must be a number of .*not 'nan'\\.$", result.stderr.strip())


def test_burning_is_measured_in_cpu_time(monkeypatch):
    began_s = time.thread_time()
    burn(20)
    assert time.thread_time() - began_s >= 0.02
    readings = iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: next(readings) / 1000)  # 1 ms apart
    burn(20)
    assert 20 <= next(readings) <= 22


def test_sleep_wsgi_calls_the_patched_sleep_and_imported_sleep_does_not(monkeypatch):
    importlib.import_module("apps.imported_sleep")  # before patching, as with preload_app
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    call("sleep_wsgi", "sleep=0.01")
    assert slept == [0.01]
    call("imported_sleep", "sleep=0.01")
    assert slept == [0.01]


@pytest.mark.parametrize(("name", "concurrent"), [("sleep_asgi", True), ("blocking_asgi", False)])
def test_requests_on_one_loop_are_concurrent_unless_the_app_blocks_it(name, concurrent):
    events = []

    async def send_request():
        events.append("start")
        await asgi(app_named(name), Request("GET", "/?sleep=0.05", {}, [b""]))
        events.append("end")

    async def send_ten():
        await asyncio.gather(*(send_request() for _ in range(10)))

    asyncio.run(send_ten())
    assert (events[:10] == ["start"] * 10) is concurrent


@pytest.mark.parametrize("name", ASGI)
def test_an_asgi_app_completes_startup_and_shutdown(name):
    app = app_named(name)
    events, replies = ["lifespan.startup", "lifespan.shutdown"], []

    async def receive():
        return {"type": events.pop(0)}

    async def send(message):
        replies.append(message["type"])

    asyncio.run(app({"type": "lifespan"}, receive, send))
    assert replies == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# --- names of bundled apps ------------------------------------------------------------------------


def has_app(path: Path) -> bool:
    """Whether the module defines `app` at its top level."""
    return any(
        getattr(node, "name", "") == "app"
        or any(getattr(target, "id", "") == "app" for target in getattr(node, "targets", ()))
        for node in ast.parse(path.read_text()).body
    )


def test_every_module_with_an_app_has_a_name() -> None:
    modules = {
        ".".join(path.relative_to(APPS_DIR).with_suffix("").parts)
        for path in APPS_DIR.rglob("*.py")
        if has_app(path)
    }
    assert modules == set(APPS)


def test_names_of_bundled_apps_are_read_and_shown() -> None:
    assert app_target("@blog.wsgi") == "@blog.wsgi"
    assert label_of(App(target_of("@blog.wsgi"))) == "@blog.wsgi"
    assert label_of(App(target_of("@blog.wsgi"), "/srv/shop")) == "apps.blog.wsgi:app"
    assert label_of(App("apps.shop:app")) == "apps.shop:app"
    with pytest.raises(BadArgument, match=r"unknown bundled app '@shop': choose from @sleep_wsgi"):
        app_target("@shop")
