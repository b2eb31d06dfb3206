"""Every request's way through the blog, whichever interface it came in by.

    body -> route -> (an unsafe method must come from this site) -> pages, forms or api -> an answer

What fails becomes an answer here, or in a form that keeps what was typed: HTML for people, JSON
(RFC 9457) below /api.

A body is read before anything is done about it, and no more of it kept than may be. Left unread, it
makes the kernel reset the connection when the server closes it, and the client loses the answer
that says why. So what is too much is read and thrown away; who sends DISCARDED times as much as may
be is not listened to any longer, and may lose the answer.
"""

import io
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from werkzeug import exceptions
from werkzeug.routing import IntegerConverter, Map, Rule
from werkzeug.wrappers import Request, Response

from apps.blog import api, forms, pages
from apps.blog.metrics import METRICS
from apps.blog.posts import BODY_MOST, ID_MOST, TITLE_MOST, Failure
from apps.blog.site import Site

LOG = logging.getLogger("apps.blog")  # to standard error, where nobody says otherwise
SAFE = {"GET", "HEAD", "OPTIONS"}
DISCARDED = 10  # times what is kept of a body
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
class Route:
    """`reads`: posts, so that their schema must be up to date. (Forms see to that themselves, to
    keep what was typed where the storage cannot be reached.) `image`: the body is one, or a form
    with one."""

    method: str
    path: str
    handler: Callable[..., Awaitable[Response]]
    reads: bool = False
    image: bool = False


ROUTES = (
    Route("GET", "/", pages.posts, reads=True),
    Route("GET", "/style.css", pages.style),
    Route("GET", "/icon.svg", pages.icon),
    Route("GET", "/posts/new", forms.write),
    Route("POST", "/posts/new", forms.save),
    Route("GET", "/posts/<id:number>", pages.post, reads=True),
    Route("GET", "/posts/<id:number>/edit", forms.edit, reads=True),
    Route("POST", "/posts/<id:number>/edit", forms.save),
    Route("GET", "/images", pages.choose),
    Route("POST", "/images", pages.upload, image=True),
    Route("GET", "/images/<name>", pages.image),
    Route("GET", "/api/openapi.json", api.description),
    Route("GET", "/api/posts", api.posts, reads=True),
    Route("POST", "/api/posts", api.add, reads=True),
    Route("GET", "/api/posts/<id:number>", api.post, reads=True),
    Route("PUT", "/api/posts/<id:number>", api.edit, reads=True),
    Route("POST", "/api/images", api.upload, image=True),
)
_MAP = Map(
    [Rule(route.path, methods=[route.method], endpoint=route) for route in ROUTES],
    converters={"id": Id},
    merge_slashes=False,  # nor any other redirect
)


def body_most_bytes(site: Site) -> int:
    """Of any request."""
    return max(site.uploads.most_bytes + OVERHEAD_BYTES, TEXT_MOST_BYTES)


class Body:
    """Takes parts as they come. Keeps a byte more than may be: so it is seen to be too large."""

    def __init__(self, site: Site) -> None:
        self.size = 0  # of all that came
        self._parts: list[bytes] = []
        self._most_bytes = body_most_bytes(site)
        self._room = self._most_bytes + 1

    def take(self, part: bytes) -> bool:
        """Whether to go on."""
        self.size += len(part)
        if self._room:
            self._parts.append(part[: self._room])
            self._room -= len(self._parts[-1])
        return self.size <= DISCARDED * self._most_bytes

    def into(self, environ: Mapping[str, Any]) -> dict[str, Any]:
        """A WSGI environ with this body, whole, however it came: a request that says "chunked" is
        taken for one without a body otherwise."""
        data = b"".join(self._parts)
        made = {**environ, "wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}
        made.pop("HTTP_TRANSFER_ENCODING", None)
        return made


async def respond(site: Site, request: Request, *, whole: bool = True) -> Response:
    """Raises nothing. `whole`: the body is what was announced."""
    METRICS.add("requests")
    problem = api.problem if request.path.startswith("/api/") else pages.problem
    try:
        response = await _answer(site, request, whole)
    except exceptions.MethodNotAllowed as error:
        methods = ", ".join(sorted({*(error.valid_methods or ()), "OPTIONS"}))
        if request.method == "OPTIONS":
            response = Response(status=HTTPStatus.NO_CONTENT)
            del response.headers["Content-Type"]
        else:
            response = problem(HTTPStatus.METHOD_NOT_ALLOWED, f"What can be done here: {methods}.")
        response.headers["Allow"] = methods
    except exceptions.HTTPException as error:
        response = problem(HTTPStatus(error.code or 500), str(error.description))
    except Failure as error:
        response = problem(error.status, error.sentence)
    except Exception:  # a mistake in here: nobody else's business
        LOG.exception("%s %r failed", request.method, request.path)
        response = problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Something went wrong in here.")
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(RETRY_S)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _answer(site: Site, request: Request, whole: bool) -> Response:
    route, arguments = _MAP.bind_to_environ(request.environ).match()
    _refuse_other_sites(request)
    if not whole:
        raise exceptions.BadRequest("The body ended before it was whole.")
    request.max_form_memory_size = request.max_content_length = TEXT_MOST_BYTES
    if route.image:
        request.max_content_length = site.uploads.most_bytes + OVERHEAD_BYTES
    if not 0 < arguments.get("number", 1) <= ID_MOST:
        raise exceptions.NotFound
    if route.reads:
        await site.start()
    try:
        response: Response = await route.handler(site, request, **arguments)
    except exceptions.RequestEntityTooLarge:  # told in the numbers of the form, not of its bytes
        why = site.uploads.too_large if route.image else TEXT_TOO_LARGE
        raise exceptions.RequestEntityTooLarge(why) from None
    return response


def _refuse_other_sites(request: Request) -> None:
    """Another site's page must not post in its reader's name (CSRF). Browsers say where a request
    comes from; programs need not. Raises Forbidden."""
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin", f"any://{host}")  # "null", where it is kept secret
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    same = site in ("same-origin", "none") and origin.partition("://")[2] == host
    if request.method not in SAFE and not same:
        raise exceptions.Forbidden("This must come from a page of this blog.")
