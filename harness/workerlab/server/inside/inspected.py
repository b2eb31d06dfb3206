"""The app with which `workerlab settings` finds the effects of a worker class's settings: it
describes the request and its own process. Stdlib only, syntax of Python 3.10.

    /about          JSON: see `about`
    /wait?s=1       waits as its interface should: time.sleep, or asyncio.sleep
    /block?s=6      blocks its thread, even if time.sleep is patched
    /file           a file, by wsgi.file_wrapper if the server has one
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec, module_from_spec
from time import sleep  # as in many apps: bound when the app is imported
from typing import Any
from urllib.parse import parse_qs

IMPORTED_BY = os.getpid()
FILE = os.path.abspath(__file__)
_lock = threading.Lock()
_counts = {"inside": 0, "most": 0, "sendfiles": 0}
_sendfile = os.sendfile


def _counting(*args: Any, **kwargs: Any) -> int:
    _counts["sendfiles"] += 1
    return _sendfile(*args, **kwargs)


os.sendfile = _counting


def _unpatched(name: str) -> Any:
    """A new copy of a built-in module, in which gevent and eventlet have patched nothing."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# In the kernel, with the GIL released; signal handlers run, as in any blocking call
_blocking_sleep = _unpatched("time").sleep


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    """Counts a request that waits or blocks."""
    with _lock:
        _counts["inside"] += 1
        _counts["most"] = max(_counts["most"], _counts["inside"])
    try:
        yield
    finally:
        with _lock:
            _counts["inside"] -= 1


def about(scheme: str, address: str, headers: Mapping[str, str]) -> bytes:
    """JSON. `most`: the maximum of requests that waited or blocked in this worker at once;
    `sendfiles`: its calls of os.sendfile; `imported_by`: pid of the process that imported the app;
    `unpatched`: whether time.sleep was patched only after the import."""
    state = {
        "pid": os.getpid(),
        "arbiter": os.getppid(),
        "imported_by": IMPORTED_BY,
        "unpatched": sleep is not time.sleep,
        "directory": os.getcwd(),
        "scheme": scheme,
        "address": address,
        "headers": dict(headers),
        "word": os.environ.get("LAB_WORD"),
        "most": _counts["most"],
        "sendfiles": _counts["sendfiles"],
    }
    return json.dumps(state).encode()


def _seconds(query: str) -> float:
    return float(parse_qs(query).get("s", ["1"])[0])


def wsgi(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]
) -> Iterable[bytes]:
    path, body = environ["PATH_INFO"], b"done"
    if path in ("/wait", "/block"):
        with _inside():
            (sleep if path == "/wait" else _blocking_sleep)(_seconds(environ["QUERY_STRING"]))
    elif path == "/file":
        size = str(os.path.getsize(FILE))
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", size)])
        wrapper = environ.get("wsgi.file_wrapper")
        file = open(FILE, "rb")  # noqa: SIM115 - the server closes it
        return wrapper(file) if wrapper else [file.read()]
    else:
        headers = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
        address = environ.get("REMOTE_ADDR", "")
        body = about(environ["wsgi.url_scheme"], address, headers)
    size = str(len(body))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", size)])
    return [body]


async def asgi(
    scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[dict[str, Any]], Any]
) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    path, body = scope["path"], b"done"
    if path in ("/wait", "/block"):
        seconds = _seconds(scope["query_string"].decode())
        with _inside():
            if path == "/wait":
                await asyncio.sleep(seconds)
            else:
                _blocking_sleep(seconds)
    elif path == "/file":
        with open(FILE, "rb") as file:
            body = file.read()
    else:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        body = about(scope["scheme"], (scope.get("client") or [""])[0], headers)
    length = str(len(body)).encode()
    head = [(b"content-type", b"text/plain"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})
