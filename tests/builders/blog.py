"""Apps called directly, without a server; the blog by WSGI or ASGI, with posts in an SQLite
file."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode
from wsgiref.validate import validator

import pytest
from PIL import Image

FACES = ("wsgi", "asgi")
HOST = "blog.example:8000"
Headers = Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """`headers`: names in lower case. `status` 0: none, because the client disconnected. `unread`:
    bytes of the request's body that the app did not read."""

    status: int
    headers: Headers
    body: bytes
    unread: int

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Request:
    """A request to a server; `parts`: of its body, as they arrive."""

    method: str
    path: str
    headers: Headers
    parts: Sequence[bytes]


class Blog:
    """`ask` sends a request with the length of its body, unless `headers` set another."""

    def __init__(self, face: str, place: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> None:
        self.face, self.place = face, place
        defaults = {
            "BLOG_STORAGE": f"sqlite:///{place}/blog.db",
            "BLOG_UPLOADS": f"{place}/uploads",
        }
        for name, value in {**defaults, **env}.items():
            monkeypatch.setenv(name, value)
        name = f"apps.blog.{face}"
        loaded = sys.modules.get(name)
        module = importlib.reload(loaded) if loaded else importlib.import_module(name)
        self.module: ModuleType = module
        self.site = self.module.SITE
        self.unread = 0  # of the last request
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        headers: Headers = {},  # noqa: B006 - never changed
    ) -> Answer:
        parts = [body] if isinstance(body, bytes) else list(body)
        length = {"Content-Length": str(sum(map(len, parts)))} if any(parts) else {}
        if "Transfer-Encoding" in headers:
            length = {}
        request = Request(method, path, {"Host": HOST, **length, **headers}, parts)
        app = self.module.app
        if self.face == "wsgi":
            answer = wsgi(validator(app), request)
        else:
            answer = self._runner.run(asgi(app, request))
        self.unread = answer.unread
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def form(self, path: str, **values: str) -> Answer:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, urlencode(values).encode(), kind)

    def multipart(self, path: str, *fields: tuple[str, bytes, str | None]) -> Answer:
        """`fields`: name, value, and the file name of a file, else None."""
        return self.ask("POST", path, *multipart(fields))

    def api(self, method: str, path: str, values: object) -> Answer:
        data = values if isinstance(values, bytes) else json.dumps(values).encode()
        return self.ask(method, path, data, {"Content-Type": "application/json"})


def wsgi(app: Any, request: Request) -> Answer:
    path, _, query = request.path.partition("?")
    source = io.BytesIO(b"".join(request.parts))
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": source,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        environ[key if key.startswith("CONTENT_") else f"HTTP_{key}"] = value
    started: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        started.extend([int(status.split()[0]), headers])

    body = app(environ, start)
    data = b"".join(body)
    if hasattr(body, "close"):
        body.close()
    status, headers = started
    names = {name.lower(): value for name, value in headers}
    return Answer(status, names, data, len(source.read()))


async def asgi(app: Any, request: Request) -> Answer:
    path, _, query = request.path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote_to_bytes(path).decode("utf-8", "replace"),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in request.headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    missing = int(request.headers.get("Content-Length", 0)) > sum(map(len, request.parts))
    last = len(request.parts) - 1
    incoming: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": missing or number < last}
        for number, part in enumerate(request.parts)
    ]
    if missing:
        incoming.append({"type": "http.disconnect"})
    messages: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    unread = sum(len(message["body"]) for message in incoming)
    if not messages:
        return Answer(0, {}, b"", unread)
    start, *rest = messages
    headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    body = b"".join(message["body"] for message in rest)
    return Answer(start["status"], headers, body, unread)


def multipart(fields: Sequence[tuple[str, bytes, str | None]]) -> tuple[bytes, Headers]:
    """A body and its headers."""
    parts = []
    for name, value, filename in fields:
        file = f'; filename="{filename}"' if filename is not None else ""
        head = f'--frontier\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        parts.append(head.encode() + value + b"\r\n")
    body = b"".join(parts) + b"--frontier--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=frontier"}


def picture(kind: str = "PNG") -> bytes:
    """An image of noise."""
    buffer = io.BytesIO()
    Image.effect_noise((40, 30), 60).convert("RGB").save(buffer, kind)
    return buffer.getvalue()
