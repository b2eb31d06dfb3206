"""The HTML pages, except the forms to write and edit posts (`forms`)."""

import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jinja2
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.wrappers import Request, Response

from apps.blog.metrics import METRICS
from apps.blog.posts import Failure, Post
from apps.blog.settings import POSTS_PER_PAGE
from apps.blog.site import Site
from apps.blog.uploads import megabytes

HERE = Path(__file__).parent / "templates"
FOREVER = "public, max-age=31536000, immutable"  # images are named by their content
FOR_A_WHILE = {"Cache-Control": "max-age=300"}
MAX_PAGE = 10**9


def _date(seconds: int) -> datetime.date:
    """The date in UTC, for machines; `_day` is for people."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).date()


def _day(seconds: int) -> str:
    date = _date(seconds)
    return f"{date.day} {date:%B %Y}"


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE), autoescape=True, auto_reload=False, trim_blocks=True
)
TEMPLATES.filters.update(day=_day, date=_date)
STYLE, ICON = (HERE / "style.css").read_bytes(), (HERE / "icon.svg").read_bytes()


def page_of(template: str, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
    with METRICS.timed("template_ns"):
        text = TEMPLATES.get_template(template).render(values)
    return Response(text, status, content_type="text/html; charset=utf-8")


def problem(status: HTTPStatus, why: str) -> Response:
    return page_of("problem.html", status, problem=status.phrase, why=why)


def page_number(request: Request) -> int:
    """The number of the requested page, from 1. Raises BadRequest."""
    text = request.args.get("page", "1")
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_PAGE):
        raise BadRequest("The page must be a number from 1.")
    return int(text)


async def posts(site: Site, request: Request) -> Response:
    page = await site.posts.page(page_number(request))
    last = max(1, -(-page.posts // POSTS_PER_PAGE))
    if page.number > last:
        raise NotFound("There is no such page.")
    return page_of("list.html", page=page, last=last)


def post_page(post: Post) -> Response:
    return page_of("post.html", post=post)


async def post(site: Site, request: Request, number: int) -> Response:
    return post_page(await site.posts.post(number))


async def choose(site: Site, request: Request) -> Response:
    return page_of("upload.html", max_size=megabytes(site.uploads.max_bytes))


async def upload(site: Site, request: Request) -> Response:
    file = request.files.get("image")
    values: dict[str, Any] = {"max_size": megabytes(site.uploads.max_bytes)}
    try:
        values["stored"] = await site.store(file.read() if file else b"")
    except Failure as error:
        return page_of("upload.html", error.status, why=error.sentence, **values)
    return page_of("upload.html", HTTPStatus.CREATED, **values)


async def image(site: Site, request: Request, name: str) -> Response:
    stored = site.uploads.load(name)
    if stored is None:
        raise NotFound("There is no such image.")
    return Response(stored[0], content_type=stored[1], headers={"Cache-Control": FOREVER})


async def style(site: Site, request: Request) -> Response:
    return Response(STYLE, content_type="text/css; charset=utf-8", headers=FOR_A_WHILE)


async def icon(site: Site, request: Request) -> Response:
    return Response(ICON, content_type="image/svg+xml", headers=FOR_A_WHILE)
