"""Every request's way through the blog, whichever interface it came in by.

    route -> (an unsafe method must come from this site) -> pages, forms or api -> an answer

What fails becomes an answer here, or in a form that keeps what was typed: HTML for people, JSON
(RFC 9457) below /api.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from werkzeug.exceptions import (
    BadRequest,
    Forbidden,
    HTTPException,
    MethodNotAllowed,
    NotFound,
    RequestEntityTooLarge,
)
from werkzeug.routing import IntegerConverter, Map, Rule
from werkzeug.wrappers import Request, Response

from apps.blog import api, forms, pages
from apps.blog.failures import EXPECTED, sentence, status_of
from apps.blog.metrics import METRICS
from apps.blog.posts import BODY_MOST, ID_MOST, TITLE_MOST
from apps.blog.site import Site

LOG = logging.getLogger("apps.blog")  # to standard error, where nobody says otherwise
SAFE = {"GET", "HEAD", "OPTIONS"}
OVERHEAD_BYTES = 65_536  # of a form, around what is in it
# A character has 12 bytes at most: four of UTF-8 as %XX in a form, two halves as \uXXXX in JSON
TEXT_MOST_BYTES = 12 * (TITLE_MOST + BODY_MOST) + OVERHEAD_BYTES
TEXT_TOO_LARGE = f"That is too much: a post has {BODY_MOST} characters at most."
RETRY_S = 1
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class Id(IntegerConverter):
    """Digits only. Its range is looked at later: an address whose number was out of it would be
    found for other methods, and answered with 405."""

    regex = "[0-9]{1,19}"


@dataclass(frozen=True)
class Endpoint:
    """`reads`: posts, so that their schema must be up to date. (Forms see to that themselves, to
    keep what was typed where the storage cannot be reached.) `image`: the body is one, or a form
    with one."""

    handler: Callable[..., Awaitable[Response]]
    reads: bool = False
    image: bool = False


def _route(
    method: str,
    path: str,
    handler: Callable[..., Awaitable[Response]],
    *,
    reads: bool = False,
    image: bool = False,
) -> Rule:
    return Rule(path, methods=[method], endpoint=Endpoint(handler, reads, image))


ROUTES = Map(
    [
        _route("GET", "/", pages.posts, reads=True),
        _route("GET", "/style.css", pages.style),
        _route("GET", "/icon.svg", pages.icon),
        _route("GET", "/posts/new", forms.write),
        _route("POST", "/posts/new", forms.create),
        _route("GET", "/posts/<id:number>", pages.post, reads=True),
        _route("GET", "/posts/<id:number>/edit", forms.edit, reads=True),
        _route("POST", "/posts/<id:number>/edit", forms.change),
        _route("GET", "/images", pages.choose),
        _route("POST", "/images", pages.upload, image=True),
        _route("GET", "/images/<name>", pages.image),
        _route("GET", "/api/openapi.json", api.description),
        _route("GET", "/api/posts", api.posts, reads=True),
        _route("POST", "/api/posts", api.add, reads=True),
        _route("GET", "/api/posts/<id:number>", api.post, reads=True),
        _route("PUT", "/api/posts/<id:number>", api.edit, reads=True),
        _route("POST", "/api/images", api.upload, image=True),
    ],
    converters={"id": Id},
    merge_slashes=False,  # nor any other redirect
)


def image_most_bytes(site: Site) -> int:
    """Of a request that brings one, in a form or by itself."""
    return site.uploads.most_bytes + OVERHEAD_BYTES


def body_most_bytes(site: Site) -> int:
    """Of any request."""
    return max(image_most_bytes(site), TEXT_MOST_BYTES)


async def respond(site: Site, request: Request, *, whole: bool = True) -> Response:
    """Raises nothing. `whole`: the body is what was announced."""
    METRICS.add("requests")
    problem = api.problem if request.path.startswith("/api/") else pages.problem
    try:
        response = await _answer(site, request, whole)
    except MethodNotAllowed as error:
        response = _allowed(request, error, problem)
    except HTTPException as error:
        response = problem(HTTPStatus(error.code or 500), str(error.description))
    except EXPECTED as error:
        response = problem(status_of(error), sentence(error))
    except Exception:  # a mistake in here: nobody else's business
        LOG.exception("%s %r failed", request.method, request.path)
        response = problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong in here.")
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(RETRY_S)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _answer(site: Site, request: Request, whole: bool) -> Response:
    endpoint, arguments = ROUTES.bind_to_environ(request.environ).match()
    _refuse_other_sites(request)
    if not whole:
        raise BadRequest("The body ended before it was whole.")
    request.max_content_length = image_most_bytes(site) if endpoint.image else TEXT_MOST_BYTES
    request.max_form_memory_size = TEXT_MOST_BYTES
    if not 0 < arguments.get("number", 1) <= ID_MOST:
        raise NotFound
    if endpoint.reads:
        await site.start()
    try:
        response: Response = await endpoint.handler(site, request, **arguments)
    except RequestEntityTooLarge:  # told in the numbers of the form, not in those of its bytes
        why = site.uploads.too_large if endpoint.image else TEXT_TOO_LARGE
        raise RequestEntityTooLarge(why) from None
    return response


def _allowed(
    request: Request, error: MethodNotAllowed, problem: Callable[[HTTPStatus, str], Response]
) -> Response:
    methods = ", ".join(sorted({*(error.valid_methods or ()), "OPTIONS"}))
    if request.method == "OPTIONS":
        response = Response(status=HTTPStatus.NO_CONTENT)
        del response.headers["Content-Type"]
    else:
        response = problem(HTTPStatus.METHOD_NOT_ALLOWED, f"What can be done here: {methods}.")
    response.headers["Allow"] = methods
    return response


def _refuse_other_sites(request: Request) -> None:
    """Another site's page must not post in its reader's name (CSRF). Browsers say where a request
    comes from; programs need not. Raises Forbidden."""
    if request.method in SAFE:
        return
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin", f"any://{host}")  # "null", where it is kept secret
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none") or origin.partition("://")[2] != host:
        raise Forbidden("This must come from a page of this blog.")
