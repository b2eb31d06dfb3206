"""Every page and every error of the blog, under WSGI and ASGI."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.blog import pages
from apps.blog.posts import MAX_BODY, MAX_TITLE, Unreachable
from apps.blog.routes import MAX_TEXT_BYTES, ROUTES, max_body_bytes
from tests.builders.blog import FACES, HOST, Answer, Blog, picture

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}
PNG = {"Content-Type": "image/png"}


@pytest.fixture(params=FACES)
def blog(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Blog]:
    site = Blog(request.param, tmp_path, monkeypatch, BLOG_UPLOAD_MOST="100000")
    yield site
    site.close()


@pytest.fixture
def post(blog: Blog) -> str:
    """The path of an existing post."""
    return blog.form("/posts/new", title="Queues", body="They are *long*.").headers["location"]


def make_fail(blog: Blog, monkeypatch: pytest.MonkeyPatch, error: Exception, *names: str) -> None:
    """From now on these methods of the storage raise `error`."""

    async def fail(*_: object) -> Any:
        raise error

    for name in names:
        monkeypatch.setattr(blog.site.storage, name, fail)


def has_no_posts(blog: Blog) -> bool:
    return "Nothing has been written yet" in blog.get("/").text


def image_path(page: Answer) -> str:
    """The path of the only image on a page."""
    (path,) = set(re.findall(r"/images/[0-9a-f]{64}\.png", page.text))
    return str(path)


# --- pages --------------------------------------------------------------------------------


def test_a_post_is_written_listed_shown_and_edited(blog: Blog) -> None:
    created = blog.form("/posts/new", title=" On <queues> ", body="They\r\nare *long*.")
    assert (created.status, created.body) == (303, b"")
    path = created.headers["location"]
    assert re.fullmatch("/posts/[0-9]+", path)
    assert f'<a href="{path}" dir="auto">On &lt;queues&gt;</a>' in blog.get("/").text
    page = blog.get(path)
    assert page.status == 200
    assert "<p>They\nare <em>long</em>.</p>" in page.text
    assert "revision" not in page.text
    form = blog.get(f"{path}/edit").text
    assert "<textarea" in form
    assert "They\nare *long*.</textarea>" in form
    assert 'name="revision" value="1"' in form
    edited = blog.form(f"{path}/edit", title="On queues", body="Short now.", revision="1")
    assert (edited.status, edited.headers["location"]) == (303, path)
    page = blog.get(path)
    assert "<p>Short now.</p>" in page.text
    assert "(revision 2)" in page.text


def test_a_post_page_is_reproducible_and_equals_that_of_the_function(blog: Blog, post: str) -> None:
    stored = blog.get(f"/api{post}").json
    page = blog.get(post)
    assert page.body == blog.get(post).body
    assert page.body == pages.post_page(pages.Post(**stored)).get_data()
    assert page.headers["content-length"] == str(len(page.body))


def test_posts_are_listed_on_pages_newest_first(blog: Blog) -> None:
    assert "Write the first post" in blog.get("/").text
    for number in range(1, 22):
        blog.form("/posts/new", title=f"Number {number}.", body="text")
    first, second = blog.get("/"), blog.get("/?page=2")
    assert [n for n in range(1, 22) if f">Number {n}.<" in first.text] == list(range(2, 22))
    assert ">Number 1.<" in second.text
    assert 'rel="next" href="/?page=2"' in first.text
    assert 'rel="prev" href="/?page=1"' in second.text
    assert blog.get("/?page=3").status == 404


@pytest.mark.parametrize("number", [0, 2**63, 10**19, 10**30])
def test_numbers_that_no_post_can_have_are_not_found(blog: Blog, number: int) -> None:
    edit = {"title": "t", "body": "b", "revision": 1}
    assert blog.api("PUT", f"/api/posts/{number}", edit).status == 404
    assert blog.form(f"/posts/{number}/edit", title="t", body="b", revision="1").status == 404


@pytest.mark.parametrize("page", ["0", "-1", "x", "", "1.5", "%C2%B2", "9" * 25, "0" * 5000 + "1"])
def test_invalid_page_numbers_are_refused(blog: Blog, page: str) -> None:
    assert blog.get(f"/?page={page}").status == 400
    assert blog.get(f"/api/posts?page={page}").status == 400


def upload(blog: Blog, file: bytes, name: str) -> Answer:
    """The response to a new post with a typed body and a file."""
    fields = [("title", b"Mine", None), ("body", b"typed", None), ("file", file, name)]
    return blog.multipart("/posts/new", *fields)


@pytest.mark.parametrize(
    ("file", "name", "body"),
    [("\ufeff# Héllo\r\n\r\nworld", "../../etc/x.md", "# Héllo\n\nworld"), ("", "", "typed")],
    ids=["BOM and carriage returns", "no file"],
)
def test_the_body_is_that_of_the_file_or_else_the_typed_one(
    blog: Blog, file: str, name: str, body: str
) -> None:
    path = upload(blog, file.encode(), name).headers["location"]
    assert blog.get(f"/api{path}").json["body"] == body


def test_an_image_is_added_shown_and_served(blog: Blog) -> None:
    data = picture()
    page = blog.multipart("/images", ("image", data, "x.png"))
    assert page.status == 201
    image = blog.get(image_path(page))
    assert (image.status, image.body, image.headers["content-type"]) == (200, data, "image/png")
    assert "immutable" in image.headers["cache-control"]


# --- refused forms keep the typed text ----------------------------------------------------


def field(page: Answer, name: str) -> str:
    """The value of a form's field."""
    match = re.search(
        rf'<textarea name="{name}"[^>]*>\n(.*?)</textarea>|name="{name}"[^>]* value="(.*?)"',
        page.text,
        re.DOTALL,
    )
    assert match, f"{name} is not in {page.text}"
    return html.unescape(match[1] if match[1] is not None else match[2])


@pytest.mark.parametrize(
    ("title", "body", "why"),
    [
        ("", "text", "needs a title"),
        (" \t ", "\n\n  <b>&amp;", "needs a title"),
        ('Q"uo<te', " \n ", "needs a body"),
        ("t" * (MAX_TITLE + 1), "text", "the maximum is"),
        ("Title", "b" * (MAX_BODY + 1), "the maximum is"),
        ("Ze\x00ro", "text", "NUL"),
        ("Title", "ze\x00ro", "NUL"),
    ],
)
def test_a_refused_form_is_returned_as_typed(blog: Blog, title: str, body: str, why: str) -> None:
    page = blog.form("/posts/new", title=title, body=body)
    assert page.status == 422
    assert why in page.text
    assert 'role="alert"' in page.text
    assert (field(page, "title"), field(page, "body")) == (title, body)
    assert has_no_posts(blog)


def test_a_form_with_a_refused_file_is_returned_as_typed(blog: Blog) -> None:
    page = upload(blog, b"\xff\xfe\x00", "x.md")
    assert page.status == 422
    assert (field(page, "title"), field(page, "body")) == ("Mine", "typed")


def test_an_edit_of_an_old_revision_never_overwrites_another(blog: Blog, post: str) -> None:
    blog.form(f"{post}/edit", title="Theirs", body="their words", revision="1")
    page = blog.form(f"{post}/edit", title="", body="my words", revision="1")
    assert (page.status, field(page, "revision")) == (422, "1")
    page = blog.form(f"{post}/edit", title="Mine", body="my words", revision="1")
    assert page.status == 409
    assert "their words" in page.text
    assert (field(page, "title"), field(page, "body")) == ("Mine", "my words")
    assert field(page, "revision") == "2"
    assert "their words" in blog.get(post).text
    assert blog.form(f"{post}/edit", title="Mine", body="my words", revision="2").status == 303


@pytest.mark.parametrize("revision", ["", "0", "-1", "x", str(2**31), "9" * 30, "%C2%B2"])
def test_an_edit_needs_a_valid_base_revision(blog: Blog, post: str, revision: str) -> None:
    assert blog.form(f"{post}/edit", title="T", body="b", revision=revision).status == 400


@pytest.mark.parametrize("names", [("add", "edit", "post", "page"), ("prepare",)])
def test_without_the_storage_a_form_is_returned_as_typed(
    blog: Blog, post: str, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    make_fail(blog, monkeypatch, Unreachable("secret host name"), *names)
    monkeypatch.setattr(blog.site, "_prepared", "prepare" not in names)
    for path, values in (("/posts/new", {}), (f"{post}/edit", {"revision": "1"})):
        page = blog.form(path, title="Mine", body="my words", **values)
        assert page.status == 503
        assert int(page.headers["retry-after"]) > 0
        assert (field(page, "title"), field(page, "body")) == ("Mine", "my words")
        assert "secret" not in page.text


# --- errors -------------------------------------------------------------------------------


def test_without_the_storage_pages_name_a_retry_time(
    blog: Blog, post: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fail(blog, monkeypatch, Unreachable("secret host name"), "post", "page")
    for path in ("/", post, f"{post}/edit", "/api/posts", f"/api{post}"):
        page = blog.get(path)
        assert (page.status, page.headers["retry-after"]) == (503, "1")
        assert "secret" not in page.text


def test_pages_without_posts_work_without_the_storage(
    blog: Blog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blog.site, "_prepared", False)
    make_fail(blog, monkeypatch, Unreachable("away"), "prepare")
    assert blog.get("/").status == 503
    for path in ("/style.css", "/icon.svg", "/posts/new", "/images", "/api/openapi.json"):
        assert blog.get(path).status == 200
    assert blog.multipart("/images", ("image", picture(), "x")).status == 201


def test_an_internal_error_is_logged_and_not_shown(
    blog: Blog, post: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_fail(blog, monkeypatch, ZeroDivisionError("secret"), "post")
    with caplog.at_level(logging.ERROR):
        page, response = blog.get(post), blog.get(f"/api{post}")
    assert (page.status, response.status) == (500, 500)
    assert "secret" not in page.text + response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert caplog.text.count("ZeroDivisionError: secret") == 2


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/posts/0", "/posts/7", "/posts/x", f"/posts/{2**63}", "/posts/7/edit",
     "/posts/" + "9" * 5000, "/posts/1/", "//posts/1", "/posts//1", "/posts/%00", "/%ff%fe",
     "/images/x", "//evil.example/%2e%2e"],
)  # fmt: skip
def test_unknown_paths_are_not_found(blog: Blog, path: str) -> None:
    page = blog.get(path)
    assert page.status == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "location" not in page.headers
    response = blog.get(f"/api{path}")
    assert (response.status, response.headers["content-type"]) == (404, "application/problem+json")
    assert response.json["status"] == 404


PATHS = sorted({re.sub("<[^>]+>", "1", route.path) for route in ROUTES})


@pytest.mark.parametrize("path", PATHS)
def test_each_path_lists_its_allowed_methods(blog: Blog, post: str, path: str) -> None:
    options = blog.ask("OPTIONS", path)
    assert (options.status, options.body) == (204, b"")
    allowed = options.headers["allow"].split(", ")
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE"):
        response = blog.ask(method, path)
        assert (response.status == 405) == (method not in allowed), method
        if response.status == 405:
            assert response.headers["allow"] == options.headers["allow"]


@pytest.mark.parametrize("path", ["/", "/posts/1", "/posts/new", "/posts/1/edit", "/images",
                                  "/style.css", "/api/posts/1", "/nothing"])  # fmt: skip
def test_the_response_to_head_is_that_to_get_without_the_body(
    blog: Blog, post: str, path: str
) -> None:
    get, head = blog.get(path), blog.ask("HEAD", path)
    assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")
    assert head.headers["content-length"] == str(len(get.body))


def test_head_adds_no_post(blog: Blog) -> None:
    assert blog.ask("HEAD", "/posts/new", b"title=t&body=b", FORM).status == 200
    assert has_no_posts(blog)


# --- permissions and sizes ----------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
        *({"Origin": origin} for origin in ("http://evil.example", "null", "", "http://[::1")),
        *({"Origin": f"http://{host}"} for host in (f"{HOST}.evil.example", f"user@{HOST}")),
    ],
)
def test_posts_from_other_sites_are_refused(blog: Blog, headers: dict[str, str]) -> None:
    for path in ("/posts/new", "/images", "/api/posts", "/api/images"):
        response = blog.ask("POST", path, b"title=t&body=b", {**FORM, **headers})
        assert (path, response.status) == (path, 403)
    assert has_no_posts(blog)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}, {"Sec-Fetch-Site": "none"},
     {"Origin": f"https://{HOST}"}],
)  # fmt: skip
def test_the_blogs_pages_and_programs_may_post(blog: Blog, headers: dict[str, str]) -> None:
    assert blog.ask("POST", "/posts/new", b"title=t&body=b", {**FORM, **headers}).status == 303


def test_every_response_has_security_headers(blog: Blog, post: str) -> None:
    stored = blog.multipart("/images", ("image", picture(), "x.png"))
    paths = (*PATHS, post, image_path(stored), "/nothing", "/?page=x")
    responses = [blog.get(path) for path in paths]
    responses += [stored, blog.ask("OPTIONS", "/"), blog.ask("PUT", "/"), blog.form("/posts/new")]
    responses.append(blog.ask("POST", "/posts/new", b"x", {"Origin": "null"}))
    for response in responses:
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "img-src 'self'" in policy
        assert "script" not in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "cache-control" in response.headers


def test_a_form_larger_than_any_post_is_refused(blog: Blog) -> None:
    page = blog.form("/posts/new", title="t", body="b" * MAX_TEXT_BYTES)
    assert page.status == 413
    response = blog.api("POST", "/api/posts", {"title": "t", "body": "b" * MAX_TEXT_BYTES})
    assert (response.status, response.json["status"]) == (413, 413)


def test_the_longest_post_is_accepted_in_any_encoding(blog: Blog) -> None:
    title, body = "\U0001f40c" * MAX_TITLE, "\U0001f40c" * MAX_BODY
    assert blog.form("/posts/new", title=title, body=body).status == 303  # %F0%9F%90%8C
    assert blog.api("POST", "/api/posts", {"title": title, "body": body}).status == 201  # \ud83d...


def test_an_oversized_body_is_read_up_to_ten_times_the_maximum(blog: Blog) -> None:
    """Reading it lets the client receive the response."""
    max_bytes, piece = max_body_bytes(blog.site), b"x" * 65_536
    count = max_bytes // len(piece)
    assert blog.ask("POST", "/api/images", [piece] * (5 * count), PNG).status == 413
    assert blog.unread == 0
    assert blog.ask("POST", "/api/images", [piece] * (12 * count), PNG).status == 413
    assert max_bytes < blog.unread < 2 * max_bytes + len(piece)


def test_a_truncated_body_is_not_posted(blog: Blog) -> None:
    """A form has no end marker, so a part of it looks complete."""
    response = blog.ask("POST", "/posts/new", b"title=t&body=b", {**FORM, "Content-Length": "99"})
    assert response.status == (400 if blog.face == "wsgi" else 0)
    assert has_no_posts(blog)


def test_a_chunked_body_is_accepted_unless_it_is_too_large(blog: Blog) -> None:
    parts = [b'{"title": "t", ', b'"body"', b': "in pieces"}']
    chunked = {"Transfer-Encoding": "chunked"}
    created = blog.ask("POST", "/api/posts", parts, {**JSON, **chunked})
    assert (created.status, created.json["body"]) == (201, "in pieces")
    assert blog.ask("POST", "/api/images", [b"x" * 65_536] * 40, {**PNG, **chunked}).status == 413


@pytest.mark.parametrize("size", [100_001, 200_000])  # larger than an image, and than a form
def test_an_image_that_is_too_large_is_refused(blog: Blog, size: int) -> None:
    data = b"\x89PNG" + bytes(size)
    page = blog.multipart("/images", ("image", data, "x.png"))
    response = blog.ask("POST", "/api/images", data, PNG)
    assert (page.status, response.status) == (413, 413)
    assert list(blog.place.glob("uploads/*")) == []
    for text in (blog.get("/images").text, page.text, response.text):  # all show the same limit
        assert set(re.findall(r"[0-9.]+ MB|[0-9]{4,}", text)) == {"0.1 MB"}


# --- the API ------------------------------------------------------------------------------


def test_the_api_adds_shows_edits_and_lists(blog: Blog) -> None:
    created = blog.api("POST", "/api/posts", {"title": "Ünï", "body": "**b**"})
    assert (created.status, created.headers["location"]) == (
        201,
        f"/api/posts/{created.json['id']}",
    )
    path = created.headers["location"]
    assert created.json["html"] == "<p><strong>b</strong></p>\n"
    assert blog.get(path).json == created.json
    edit = {"title": "T", "body": "new", "revision": 1}
    changed = blog.api("PUT", path, edit)
    assert (changed.status, changed.json["revision"]) == (200, 2)
    conflict = blog.api("PUT", path, edit)
    assert (conflict.status, conflict.headers["content-type"]) == (409, "application/problem+json")
    page = blog.get("/api/posts").json
    assert [item["title"] for item in page["items"]] == ["T"]
    assert (page["page"], page["posts"]) == (1, 1)
    assert blog.get("/api/posts?page=9").json["items"] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b'{"title": %s}' % (b"9" * 10_000), 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"title": "t"}', 422),
        (b'{"title": "t", "body": "b", "more": 1}', 422),
        (b'{"title": 1, "body": "b"}', 422),
        (b'{"title": null, "body": "b"}', 422),
        (b'{"title": " ", "body": "b"}', 422),
        (b'{"title": "\\u0000t", "body": "b"}', 422),
        (b'{"title": "t", "body": "b\\u0000"}', 422),
        (b'{"title": "\\ud800", "body": "b"}', 422),
        (b'{"title": "t", "body": "\\udfff"}', 422),
        (b'{"title": NaN, "body": "b"}', 422),
    ],
)
def test_the_api_refuses_invalid_posts(blog: Blog, body: bytes, status: int) -> None:
    response = blog.api("POST", "/api/posts", body)
    assert (response.status, response.json["status"]) == (status, status)
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("revision", "status"),
    [*((invalid, 422) for invalid in (0, -1, 2**31, True, "1", None, 1.5)), (1.0, 200)],
)
def test_an_edit_by_the_api_needs_a_valid_base_revision(
    blog: Blog, post: str, revision: object, status: int
) -> None:
    edit = {"title": "t", "body": "b", "revision": revision}
    response = blog.api("PUT", f"/api{post}", edit)
    assert response.status == status
    assert status != 200 or response.json["revision"] == 2


def test_other_content_types_are_refused(blog: Blog) -> None:
    body = b'{"title": "t", "body": "b"}'
    assert blog.ask("POST", "/api/posts", body, {"Content-Type": "text/plain"}).status == 415
    assert blog.ask("POST", "/api/posts", body).status == 415
    html = {"Content-Type": "text/html"}
    assert blog.ask("POST", "/api/images", picture(), html).status == 415
    assert blog.ask("POST", "/api/images", b"<html>", PNG).status == 415
    assert blog.multipart("/images", ("image", b"<html>", "x.png")).status == 415
    assert blog.multipart("/images", ("other", picture(), "x.png")).status == 422


def test_the_api_adds_an_image(blog: Blog) -> None:
    data = picture("WEBP")
    created = blog.ask("POST", "/api/images", data, {"Content-Type": "image/webp"})
    assert (created.status, created.json["width"], created.json["height"]) == (201, 40, 30)
    assert blog.get(created.json["url"]).body == data
    assert created.headers["location"] == created.json["url"]
