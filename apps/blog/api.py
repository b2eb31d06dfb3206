"""The JSON API, described by openapi.json."""

import json
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from werkzeug.exceptions import BadRequest, UnsupportedMediaType
from werkzeug.wrappers import Request, Response

from apps.blog.openapi import DESCRIPTION
from apps.blog.pages import page_number
from apps.blog.posts import MAX_REVISION, BadInput
from apps.blog.site import Site


def json_response(values: Any, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Response:
    text = json.dumps(values, ensure_ascii=False) + "\n"
    return Response(text, status, headers, content_type="application/json")


def problem(status: HTTPStatus, why: str) -> Response:
    """An error response in the format of RFC 9457."""
    values = {"status": status.value, "title": status.phrase, "detail": why}
    return Response(json.dumps(values) + "\n", status, content_type="application/problem+json")


async def description(site: Site, request: Request) -> Response:
    return json_response(DESCRIPTION)


async def posts(site: Site, request: Request) -> Response:
    page = await site.posts.page(page_number(request))
    items = [asdict(line) for line in page.lines]
    return json_response({"page": page.number, "posts": page.posts, "items": items})


async def post(site: Site, request: Request, number: int) -> Response:
    return json_response(asdict(await site.posts.post(number)))


async def add(site: Site, request: Request) -> Response:
    values = _json_object(request, {"title", "body"})
    new_post = await site.posts.add(await site.draft(values["title"], values["body"]))
    return json_response(asdict(new_post), HTTPStatus.CREATED, Location=f"/api/posts/{new_post.id}")


async def edit(site: Site, request: Request, number: int) -> Response:
    values = _json_object(request, {"title", "body", "revision"})
    revision = values["revision"]
    if isinstance(revision, float) and revision.is_integer():  # in JSON, 3.0 is an integer too
        revision = int(revision)
    if type(revision) is not int or not 0 < revision <= MAX_REVISION:
        raise BadInput("An edit needs the revision that it is based on, a number from 1.")
    draft = await site.draft(values["title"], values["body"])
    return json_response(asdict(await site.posts.edit(number, draft, revision)))


async def upload(site: Site, request: Request) -> Response:
    """The body is the image. Its declared type must be image/*, but is not trusted otherwise."""
    if request.mimetype and not request.mimetype.startswith("image/"):
        raise UnsupportedMediaType("The body must be an image, with a type such as image/png.")
    image = await site.store(request.get_data(cache=False))
    url = f"/images/{image.name}"
    return json_response({**asdict(image), "url": url}, HTTPStatus.CREATED, Location=url)


def _json_object(request: Request, names: set[str]) -> dict[str, Any]:
    """The body, an object of `names`. Raises BadRequest, UnsupportedMediaType, BadInput."""
    if request.mimetype != "application/json":
        raise UnsupportedMediaType("The body must be application/json.")
    try:
        values = json.loads(request.get_data(cache=False))
    except (ValueError, RecursionError):
        raise BadRequest("The body is not valid JSON.") from None
    if not isinstance(values, dict) or set(values) != names:
        raise BadInput(f"The body must be an object with {' and '.join(sorted(names))}.")
    return values
