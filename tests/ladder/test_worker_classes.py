"""The blog under every worker class, with requests that browsers do not send."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
from collections.abc import Iterable, Iterator

import pytest

from tests.builders.blog import picture
from tests.builders.conditions import until
from tests.ladder.conftest import Blog, Blogs, blogs
from workerlab.server.worker_classes import CLASSES

PACKAGES = {"uvicorn": "uvicorn_worker"} | {
    name: name for name in ("gevent", "eventlet", "tornado")
}
MAX_UPLOAD_BYTES = 2_000_000  # exceeds the kernel's socket buffers


@pytest.fixture(scope="module", params=CLASSES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Blog]:
    """One server per class: no test depends on the posts of another."""
    name = request.param
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    start = blogs(tmp_path_factory.mktemp(name))
    with start(name, 1, posts=3, BLOG_UPLOAD_MOST=str(MAX_UPLOAD_BYTES)) as site:
        yield site


def answer_to(blog: Blog, parts: Iterable[bytes], *, truncated: bool = False) -> bytes:
    """The server's answer to these bytes. `truncated`: the client then closes its side early."""
    with socket.create_connection((blog.server.host, blog.server.port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        if truncated:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        # After an incomplete request the server may also reset the connection
        allowed_errors = (ConnectionResetError,) if truncated else ()
        with contextlib.suppress(*allowed_errors):
            while data := connection.recv(65_536):
                answer += data
        return answer


def head(method: str, path: str, *headers: str) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: blog", "Connection: close", *headers, "", "")
    return "\r\n".join(lines).encode()


def post(path: str, body: bytes, content_type: str, length: int | None = None) -> list[bytes]:
    size = len(body) if length is None else length
    return [head("POST", path, f"Content-Type: {content_type}", f"Content-Length: {size}"), body]


def test_posts_are_read_and_written(served: Blog) -> None:
    index, page = served.ask("GET", "/"), served.ask("GET", "/posts/1")
    assert (index.status, page.status) == (200, 200)
    assert 'href="/posts/3"' in index.body
    assert page.body == served.ask("GET", "/posts/1").body
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["content-length"] == str(len(page.body.encode()))
    created = served.ask("POST", "/api/posts", {"title": "T", "body": "**b**"})
    assert created.status == 201
    assert "<strong>b</strong>" in served.ask("GET", f"/posts/{created.json['id']}").body
    assert served.ask("GET", "/nothing").status == 404
    assert served.ask("HEAD", "/posts/1").body == ""
    put = served.ask("PUT", "/")
    assert (put.status, put.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    options = served.ask("OPTIONS", "/api/posts")
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


def test_a_chunked_body_is_posted(served: Blog) -> None:
    pieces = [b'{"title": "t", ', b'"body": "in ', b'pieces"}']
    chunked = head("POST", "/api/posts", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    parts = [chunked, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
    answer = answer_to(served, parts)
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert b"in pieces" in answer


def test_an_oversized_body_gets_a_complete_answer(served: Blog) -> None:
    """The connection is not reset before the client has read it."""
    answer = answer_to(served, post("/api/images", bytes(2 * MAX_UPLOAD_BYTES), "image/png"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 413


def test_a_truncated_body_is_not_posted(served: Blog) -> None:
    form = "application/x-www-form-urlencoded"
    parts = post("/posts/new", b"title=half&body=half", form, 1000)
    answer = answer_to(served, parts, truncated=True)
    assert not answer.startswith(b"HTTP/1.1 303 ")
    assert "half" not in served.ask("GET", "/").body


def test_no_path_escapes_the_image_directory(served: Blog) -> None:
    data = picture()
    stored = answer_to(served, post("/api/images", data, "image/png"))
    assert stored.startswith(b"HTTP/1.1 201 ")
    url = json.loads(stored.partition(b"\r\n\r\n")[2])["url"]
    name = url.rpartition("/")[2]
    assert answer_to(served, [head("GET", url)]).endswith(data)
    for path in (
        f"/images/../images/{name}", f"/images/.%2f{name}", f"/images/%2e%2e%2fuploads%2f{name}",
        f"/images//{name}", f"/images/{name}%00", f"/images/..%5cuploads%5c{name}",
        "/images/..%2fposts.db", "/images/%2e%2e/posts.db", "/images/../posts.db",
        "/images/%2fetc%2fpasswd", "/images/....//posts.db", "/images/..%252fposts.db",
    ):  # fmt: skip
        answer = answer_to(served, [head("GET", path)])
        assert answer.startswith(b"HTTP/1.1 404 "), (path, answer)


def test_an_internal_error_is_shown_only_in_the_log(blog: Blogs) -> None:
    with blog("sync", 1, BLOG_UPLOADS="/dev/null/none") as site:
        answer = answer_to(site, post("/api/images", picture(), "image/png"))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"/dev/null" not in answer
        until(lambda: "NotADirectoryError" in site.server.log.read_text(), "it is logged")
        assert site.ask("GET", "/").status == 200
