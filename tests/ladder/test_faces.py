"""The blog under every worker class, asked as no browser would ask."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import socket
from collections.abc import Iterable, Iterator

import pytest
from PIL import Image

from tests.integration.conftest import until
from tests.ladder.conftest import Blog, Blogs, blogs
from workerlab.server.worker_classes import CLASSES

PACKAGES = {"uvicorn": "uvicorn_worker", "gevent": "gevent", "eventlet": "eventlet"}
PACKAGES["tornado"] = "tornado"
MOST = 2_000_000  # bytes of an upload here: more than the kernel keeps of what nobody reads
NONE = b"HTTP/1.1 404 "


@pytest.fixture(scope="module", params=CLASSES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Blog]:
    """One server for all that is asked of a class: no test minds what another has posted."""
    name = request.param
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    start = blogs(tmp_path_factory.mktemp(name))
    with start(name, 1, posts=3, BLOG_UPLOAD_MOST=str(MOST)) as site:
        yield site


def answer_to(blog: Blog, parts: Iterable[bytes], *, ends: bool = False) -> bytes:
    """All that the server answers to these bytes. `ends`: nothing comes after them, and the server
    is told so."""
    with socket.create_connection((blog.server.host, blog.server.port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        # A server that did not get all of a request may end its connection in any way
        lost = (ConnectionResetError,) if ends else ()
        with contextlib.suppress(*lost):
            while more := connection.recv(65_536):
                received += more
        return received


def head(method: str, path: str, *lines: str) -> bytes:
    whole = (f"{method} {path} HTTP/1.1", "Host: blog", "Connection: close", *lines, "", "")
    return "\r\n".join(whole).encode()


def post(path: str, body: bytes, kind: str, length: int | None = None) -> list[bytes]:
    size = len(body) if length is None else length
    return [head("POST", path, f"Content-Type: {kind}", f"Content-Length: {size}"), body]


def image() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((40, 30), 60).save(buffer, "PNG")
    return buffer.getvalue()


def test_it_is_read_and_written(served: Blog) -> None:
    listed, page = served.ask("GET", "/"), served.ask("GET", "/posts/1")
    assert (listed.status, page.status) == (200, 200)
    assert 'href="/posts/3"' in listed.body
    assert page.body == served.ask("GET", "/posts/1").body
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["content-length"] == str(len(page.body.encode()))
    made = served.ask("POST", "/api/posts", {"title": "T", "body": "**b**"})
    assert made.status == 201
    assert "<strong>b</strong>" in served.ask("GET", f"/posts/{made.json['id']}").body
    assert served.ask("GET", "/nothing").status == 404
    assert served.ask("HEAD", "/posts/1").body == ""
    put = served.ask("PUT", "/")
    assert (put.status, put.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    options = served.ask("OPTIONS", "/api/posts")
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


def test_a_body_comes_in_pieces(served: Blog) -> None:
    pieces = [b'{"title": "t", ', b'"body": "in ', b'pieces"}']
    chunked = head("POST", "/api/posts", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    parts = [chunked, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
    answer = answer_to(served, parts)
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert b"in pieces" in answer


def test_a_body_that_is_too_large_is_told_so(served: Blog) -> None:
    """And the answer arrives: the connection is not reset in the middle of it."""
    answer = answer_to(served, post("/api/images", bytes(2 * MOST), "image/png"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 413


def test_a_body_that_ends_early_is_not_posted(served: Blog) -> None:
    form = "application/x-www-form-urlencoded"
    answer = answer_to(served, post("/posts/new", b"title=half&body=half", form, 1000), ends=True)
    assert not answer.startswith(b"HTTP/1.1 303 ")
    assert "half" not in served.ask("GET", "/").body


def test_no_path_leaves_the_folder_of_images(served: Blog) -> None:
    data = image()
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
        assert answer.startswith(NONE), (path, answer)


def test_a_mistake_in_here_is_told_to_the_log_alone(blog: Blogs) -> None:
    """A folder that cannot be one stands for whatever nobody thought of."""
    with blog("sync", 1, BLOG_UPLOADS="/dev/null/none") as site:
        answer = answer_to(site, post("/api/images", image(), "image/png"))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"/dev/null" not in answer
        until(lambda: "NotADirectoryError" in site.server.log.read_text(), "it is logged")
        assert site.ask("GET", "/").status == 200
