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

    async def fails(*_: object) -> Any:
        raise error

    for name in names:
        monkeypatch.setattr(blog.site.storage, name, fails)


# --- pages --------------------------------------------------------------------------------


def test_a_post_is_written_listed_shown_and_edited(blog: Blog) -> None:
    made = blog.form("/posts/new", title=" On <queues> ", body="They\r\nare *long*.")
    assert (made.status, made.body) == (303, b"")
    path = made.headers["location"]
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


def test_a_post_page_is_reproducible_and_matches_its_function(blog: Blog, post: str) -> None:
    stored = blog.get(f"/api{post}").json
    page = blog.get(post)
    assert page.body == blog.get(post).body
    assert page.body == pages.post_page(pages.Post(**stored)).get_data()
    assert page.headers["content-length"] == str(len(page.body))


def test_lists_have_pages_newest_first(blog: Blog) -> None:
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
    """A new post with a typed body and a file."""
    typed = [("title", b"Mine", None), ("body", b"typed", None)]
    return blog.multipart("/posts/new", *typed, ("file", file, name))


@pytest.mark.parametrize(
    ("file", "name", "body"),
    [("\ufeff# Héllo\r\n\r\nworld", "../../etc/x.md", "# Héllo\n\nworld"), ("", "", "typed")],
    ids=["BOM and carriage returns", "no file"],
)
def test_the_body_is_that_of_the_file_or_else_the_typed_one(
    blog: Blog, file: str, name: str, body: str
) -> None:
    made = upload(blog, file.encode(), name)
    assert blog.get(f"/api{made.headers['location']}").json["body"] == body


def test_an_image_is_added_shown_and_served(blog: Blog) -> None:
    data = picture()
    page = blog.multipart("/images", ("image", data, "x.png"))
    assert page.status == 201
    (path,) = set(re.findall(r"/images/[0-9a-f]{64}\.png", page.text))
    image = blog.get(path)
    assert (image.status, image.body, image.headers["content-type"]) == (200, data, "image/png")
    assert "immutable" in image.headers["cache-control"]


# --- refused forms keep what was typed ----------------------------------------------------


def field(page: Answer, name: str) -> str:
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
    assert "Nothing has been written yet" in blog.get("/").text


def test_a_refused_file_keeps_what_was_typed(blog: Blog) -> None:
    page = upload(blog, b"\xff\xfe\x00", "x.md")
    assert page.status == 422
    assert (field(page, "title"), field(page, "body")) == ("Mine", "typed")


def test_a_conflicting_edit_is_shown_with_the_other(blog: Blog, post: str) -> None:
    blog.form(f"{post}/edit", title="Theirs", body="their words", revision="1")
    page = blog.form(f"{post}/edit", title="Mine", body="my words", revision="1")
    assert page.status == 409
    assert "their words" in page.text
    assert (field(page, "title"), field(page, "body")) == ("Mine", "my words")
    assert field(page, "revision") == "2"
    assert "their words" in blog.get(post).text
    assert blog.form(f"{post}/edit", title="Mine", body="my words", revision="2").status == 303


def test_a_refused_edit_keeps_its_base_revision(blog: Blog, post: str) -> None:
    """Otherwise saving it again would silently overwrite the other edit."""
    blog.form(f"{post}/edit", title="Theirs", body="their words", revision="1")
    page = blog.form(f"{post}/edit", title="", body="my words", revision="1")
    assert page.status == 422
    assert field(page, "revision") == "1"


@pytest.mark.parametrize("revision", ["", "0", "-1", "x", str(2**31), "9" * 30, "%C2%B2"])
def test_an_edit_needs_a_valid_base_revision(blog: Blog, post: str, revision: str) -> None:
    assert blog.form(f"{post}/edit", title="T", body="b", revision=revision).status == 400


@pytest.mark.parametrize("names", [("add", "edit", "post", "page"), ("prepare",)])
def test_without_the_storage_a_form_is_returned_as_typed(
    blog: Blog, post: str, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    make_fail(blog, monkeypatch, Unreachable("secret host name"), *names)
    monkeypatch.setattr(blog.site, "_prepared", "prepare" not in names)
    for path, more in (("/posts/new", {}), (f"{post}/edit", {"revision": "1"})):
        page = blog.form(path, title="Mine", body="my words", **more)
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
        page, answer = blog.get(post), blog.get(f"/api{post}")
    assert (page.status, answer.status) == (500, 500)
    assert "secret" not in page.text + answer.text
    assert answer.headers["content-type"] == "application/problem+json"
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
    answer = blog.get(f"/api{path}")
    assert (answer.status, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json["status"] == 404


def _addresses() -> list[str]:
    paths = {route.path.replace("<id:number>", "1") for route in ROUTES}
    return sorted(path.replace("<name>", "x") for path in paths)


@pytest.mark.parametrize("path", _addresses())
def test_each_path_lists_its_allowed_methods(blog: Blog, post: str, path: str) -> None:
    options = blog.ask("OPTIONS", path)
    assert (options.status, options.body) == (204, b"")
    allowed = options.headers["allow"].split(", ")
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE"):
        answer = blog.ask(method, path)
        assert (answer.status == 405) == (method not in allowed), method
        if answer.status == 405:
            assert answer.headers["allow"] == options.headers["allow"]


@pytest.mark.parametrize("path", ["/", "/posts/1", "/posts/new", "/posts/1/edit", "/images",
                                  "/style.css", "/api/posts/1", "/nothing"])  # fmt: skip
def test_head_answers_like_get_without_the_body(blog: Blog, post: str, path: str) -> None:
    got, head = blog.get(path), blog.ask("HEAD", path)
    assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")
    assert head.headers["content-length"] == str(len(got.body))


def test_head_writes_nothing(blog: Blog) -> None:
    assert blog.ask("HEAD", "/posts/new", b"title=t&body=b", FORM).status == 200
    assert "Nothing has been written yet" in blog.get("/").text


# --- permissions and sizes ----------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://[::1"},
        {"Origin": f"http://{HOST}.evil.example"},
        {"Origin": f"http://user@{HOST}"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
    ],
)
@pytest.mark.parametrize("path", ["/posts/new", "/images", "/api/posts", "/api/images"])
def test_posts_from_other_sites_are_refused(blog: Blog, path: str, headers: dict[str, str]) -> None:
    answer = blog.ask("POST", path, b"title=t&body=b", {**FORM, **headers})
    assert answer.status == 403
    assert "Nothing has been written yet" in blog.get("/").text


@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}, {"Sec-Fetch-Site": "none"},
     {"Origin": f"https://{HOST}"}],
)  # fmt: skip
def test_own_pages_and_programs_may_post(blog: Blog, headers: dict[str, str]) -> None:
    assert blog.ask("POST", "/posts/new", b"title=t&body=b", {**FORM, **headers}).status == 303


def test_every_answer_has_security_headers(blog: Blog, post: str) -> None:
    stored = blog.multipart("/images", ("image", picture(), "x.png"))
    (image,) = set(re.findall(r"/images/[0-9a-f]{64}\.png", stored.text))
    answers = [blog.get(path) for path in (*_addresses(), post, image, "/nothing", "/?page=x")]
    answers += [stored, blog.ask("OPTIONS", "/"), blog.ask("PUT", "/"), blog.form("/posts/new")]
    answers.append(blog.ask("POST", "/posts/new", b"x", {"Origin": "null"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "img-src 'self'" in policy
        assert "script" not in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "cache-control" in answer.headers


def test_a_form_larger_than_any_post_is_refused(blog: Blog) -> None:
    page = blog.form("/posts/new", title="t", body="b" * MAX_TEXT_BYTES)
    assert page.status == 413
    answer = blog.api("POST", "/api/posts", {"title": "t", "body": "b" * MAX_TEXT_BYTES})
    assert (answer.status, answer.json["status"]) == (413, 413)


def test_the_longest_post_is_accepted_in_any_encoding(blog: Blog) -> None:
    title, body = "\U0001f40c" * MAX_TITLE, "\U0001f40c" * MAX_BODY
    assert blog.form("/posts/new", title=title, body=body).status == 303  # %F0%9F%90%8C
    assert blog.api("POST", "/api/posts", {"title": title, "body": body}).status == 201  # \ud83d...


def test_an_oversized_body_is_read_up_to_ten_times_the_maximum(blog: Blog) -> None:
    """It is read so that the answer arrives, but not without limit."""
    most, kind = max_body_bytes(blog.site), {"Content-Type": "image/png"}
    piece = b"x" * 65_536
    assert blog.ask("POST", "/api/images", [piece] * (5 * most // len(piece)), kind).status == 413
    assert blog.unread == 0
    assert blog.ask("POST", "/api/images", [piece] * (12 * most // len(piece)), kind).status == 413
    assert most < blog.unread < 2 * most + len(piece)


def test_a_truncated_body_is_not_posted(blog: Blog) -> None:
    """A form has no end marker, so a part of it would be taken for all."""
    answer = blog.ask("POST", "/posts/new", b"title=t&body=b", {**FORM, "Content-Length": "99"})
    assert answer.status == (400 if blog.face == "wsgi" else 0)
    assert "Nothing has been written yet" in blog.get("/").text


def test_a_chunked_body_is_accepted_unless_it_is_too_large(blog: Blog) -> None:
    parts = [b'{"title": "t", ', b'"body"', b': "in pieces"}']
    kind = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    made = blog.ask("POST", "/api/posts", parts, kind)
    assert (made.status, made.json["body"]) == (201, "in pieces")
    kind = {"Content-Type": "image/png", "Transfer-Encoding": "chunked"}
    assert blog.ask("POST", "/api/images", [b"x" * 65_536] * 40, kind).status == 413


@pytest.mark.parametrize("size", [100_001, 200_000])  # larger than an image, and than a form
def test_an_image_that_is_too_large_is_refused(blog: Blog, size: int) -> None:
    data = b"\x89PNG" + bytes(size)
    page = blog.multipart("/images", ("image", data, "x.png"))
    answer = blog.ask("POST", "/api/images", data, {"Content-Type": "image/png"})
    assert (page.status, answer.status) == (413, 413)
    assert list(blog.place.glob("uploads/*")) == []
    for text in (blog.get("/images").text, page.text, answer.text):  # the same limit everywhere
        assert set(re.findall(r"[0-9.]+ MB|[0-9]{4,}", text)) == {"0.1 MB"}


# --- the API ------------------------------------------------------------------------------


def test_the_api_adds_shows_edits_and_lists(blog: Blog) -> None:
    made = blog.api("POST", "/api/posts", {"title": "Ünï", "body": "**b**"})
    assert (made.status, made.headers["location"]) == (201, f"/api/posts/{made.json['id']}")
    path = made.headers["location"]
    assert made.json["html"] == "<p><strong>b</strong></p>\n"
    assert blog.get(path).json == made.json
    edit = {"title": "T", "body": "new", "revision": 1}
    changed = blog.api("PUT", path, edit)
    assert (changed.status, changed.json["revision"]) == (200, 2)
    again = blog.api("PUT", path, edit)
    assert (again.status, again.headers["content-type"]) == (409, "application/problem+json")
    page = blog.get("/api/posts").json
    assert [line["title"] for line in page["items"]] == ["T"]
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
def test_invalid_posts_by_the_api(blog: Blog, body: bytes, status: int) -> None:
    answer = blog.api("POST", "/api/posts", body)
    assert (answer.status, answer.json["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("revision", "status"),
    [*((invalid, 422) for invalid in (0, -1, 2**31, True, "1", None, 1.5)), (1.0, 200)],
)
def test_an_edit_by_the_api_needs_a_valid_base_revision(
    blog: Blog, post: str, revision: object, status: int
) -> None:
    answer = blog.api("PUT", f"/api{post}", {"title": "t", "body": "b", "revision": revision})
    assert answer.status == status
    assert status != 200 or answer.json["revision"] == 2


def test_other_content_types_are_refused(blog: Blog) -> None:
    body = b'{"title": "t", "body": "b"}'
    assert blog.ask("POST", "/api/posts", body, {"Content-Type": "text/plain"}).status == 415
    assert blog.ask("POST", "/api/posts", body).status == 415
    kind = {"Content-Type": "text/html"}
    assert blog.ask("POST", "/api/images", picture(), kind).status == 415
    kind = {"Content-Type": "image/png"}
    assert blog.ask("POST", "/api/images", b"<html>", kind).status == 415
    assert blog.multipart("/images", ("image", b"<html>", "x.png")).status == 415
    assert blog.multipart("/images", ("other", picture(), "x.png")).status == 422


def test_an_image_by_the_api(blog: Blog) -> None:
    data = picture("WEBP")
    made = blog.ask("POST", "/api/images", data, {"Content-Type": "image/webp"})
    assert (made.status, made.json["width"], made.json["height"]) == (201, 40, 30)
    assert blog.get(made.json["url"]).body == data
    assert made.headers["location"] == made.json["url"]
