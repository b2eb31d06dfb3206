"""What people see."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.wrappers import Request, Response

from apps.blog.ledger import LEDGER
from apps.blog.posts import BODY_MOST, TITLE_MOST, Conflict, Draft, Post, Unfit
from apps.blog.settings import POSTS_PER_PAGE
from apps.blog.uploads import NoImage, TooLarge

if TYPE_CHECKING:
    from apps.blog.site import Site

HERE = Path(__file__).parent / "templates"
FOREVER = "public, max-age=31536000, immutable"  # what an image is called says what is in it
MOST_PAGE = 10**9


def _day(seconds: int) -> str:
    at = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return f"{at.day} {at:%B %Y}"


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE), autoescape=True, auto_reload=False, trim_blocks=True
)
TEMPLATES.filters["day"] = _day
STYLE = (HERE / "style.css").read_text(encoding="utf-8")


def shown(template: str, status: HTTPStatus = HTTPStatus.OK, **words: Any) -> Response:
    with LEDGER.timed("template_ns"):
        text = TEMPLATES.get_template(template).render(words)
    return Response(text, status, content_type="text/html; charset=utf-8")


def problem(status: HTTPStatus, why: str) -> Response:
    return shown("problem.html", status, problem=status.phrase, why=why)


def page_number(request: Request) -> int:
    """Raises BadRequest."""
    text = request.args.get("page", "1")
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MOST_PAGE):
        raise BadRequest("A page is a number from 1.")
    return int(text)


async def posts(site: Site, request: Request) -> Response:
    page = await site.shelf.page(page_number(request))
    last = max(1, -(-page.posts // POSTS_PER_PAGE))
    if page.number > last:
        raise NotFound("There are not so many posts.")
    return shown("list.html", page=page, last=last)


def post_page(one: Post) -> Response:
    return shown("post.html", post=one)


async def post(site: Site, request: Request, number: int) -> Response:
    return post_page(await site.shelf.post(number))


async def new(site: Site, request: Request) -> Response:
    if request.method == "GET":
        return _form()
    title, body = _typed(request)
    try:
        added = await site.shelf.add(Draft.of(title, body))
    except Unfit as unfit:
        return _form(HTTPStatus.UNPROCESSABLE_ENTITY, title, body, why=str(unfit))
    return _see(f"/posts/{added.id}")


async def edit(site: Site, request: Request, number: int) -> Response:
    if request.method == "GET":
        one = await site.shelf.newest(number)
        return _form(title=one.title, body=one.body, post=one, revision=one.revision)
    title, body = _typed(request)
    said = request.form.get("revision", "")
    if not (said.isascii() and said.isdigit()):
        raise BadRequest("An edit says which revision it was made from.")
    try:
        await site.shelf.edit(number, Draft.of(title, body), int(said[:20]))
    except (Unfit, Conflict) as error:
        status = (
            HTTPStatus.CONFLICT if isinstance(error, Conflict) else HTTPStatus.UNPROCESSABLE_ENTITY
        )
        one = await site.shelf.newest(number)
        why = _meanwhile(one) if isinstance(error, Conflict) else str(error)
        return _form(status, title, body, post=one, revision=one.revision, why=why)
    return _see(f"/posts/{number}")


async def upload(site: Site, request: Request) -> Response:
    if request.method == "GET":
        return shown("upload.html", most=site.uploads.most_bytes)
    file = request.files.get("image")
    try:
        stored = site.uploads.store(file.read() if file else b"")
    except (Unfit, TooLarge, NoImage) as error:
        status = {Unfit: 422, TooLarge: 413, NoImage: 415}[type(error)]
        return shown(
            "upload.html", HTTPStatus(status), most=site.uploads.most_bytes, why=str(error)
        )
    return shown("upload.html", HTTPStatus.CREATED, most=site.uploads.most_bytes, stored=stored)


async def image(site: Site, request: Request, name: str) -> Response:
    found = site.uploads.load(name)
    if found is None:
        raise NotFound("There is no such image.")
    return Response(found[0], content_type=found[1], headers={"Cache-Control": FOREVER})


async def style(site: Site, request: Request) -> Response:
    return Response(STYLE, content_type="text/css; charset=utf-8")


def _typed(request: Request) -> tuple[str, str]:
    """The title and the body of a form; a Markdown file, where one was chosen, is the body."""
    body = request.form.get("body", "").replace("\r\n", "\n")
    file = request.files.get("file")
    if file is not None and file.filename:
        try:
            body = file.read().decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError:
            raise BadRequest("The file is no text in UTF-8.") from None
    return request.form.get("title", ""), body


def _form(
    status: HTTPStatus = HTTPStatus.OK,
    title: str = "",
    body: str = "",
    *,
    post: Post | None = None,
    revision: int = 0,
    why: str = "",
) -> Response:
    most = {"title_most": TITLE_MOST, "body_most": BODY_MOST}
    words = {"title": title, "body": body, "post": post, "revision": revision, "why": why}
    return shown("form.html", status, **words, **most)


def _meanwhile(one: Post) -> str:
    return (
        f"Somebody edited this post meanwhile; it now is called “{one.title}”. Below is what you"
        " wrote: saving it again replaces theirs."
    )


def _see(path: str) -> Response:
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})


HANDLERS: dict[str, Callable[..., Awaitable[Response]]] = {
    "list": posts,
    "style": style,
    "new": new,
    "post": post,
    "edit": edit,
    "upload": upload,
    "image": image,
}
