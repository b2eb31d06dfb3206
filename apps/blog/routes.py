"""The path of a request through the blog, the same for both interfaces.

    body -> route -> (an unsafe method must come from this site) -> pages, forms or api -> response

Errors become responses here, or in a form that keeps its input: HTML for people, JSON (RFC 9457)
below /api.

A body is read before the request is handled, and kept only up to the limit. If it were left unread,
the kernel would reset the connection when the server closes it, and the client would lose the error
response. So the excess is read and discarded. Beyond MAX_READ_RATIO times the limit, reading stops,
and the client may lose the response.
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
from apps.blog.posts import MAX_BODY, MAX_ID, MAX_TITLE, Failure
from apps.blog.site import Site

LOG = logging.getLogger("apps.blog")  # to standard error by default
SAFE = {"GET", "HEAD", "OPTIONS"}
MAX_READ_RATIO = 10  # bytes read, including discarded ones, to the limit of a body
FORM_OVERHEAD_BYTES = 65_536  # of a form, in addition to its content
# At most 12 bytes per character: four of UTF-8 as %XX in a form, two surrogates as \uXXXX in JSON
MAX_TEXT_BYTES = 12 * (MAX_TITLE + MAX_BODY) + FORM_OVERHEAD_BYTES
TEXT_TOO_LARGE = f"The body is too large: a post has at most {MAX_BODY} characters."
RETRY_S = 1
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class Id(IntegerConverter):
    """Digits only. The range is checked later: otherwise an out-of-range number would match for
    other methods, and get a 405."""

    regex = "[0-9]{1,19}"


@dataclass(frozen=True)
class Route:
    """`reads`: uses posts, so their schema must be up to date. (Forms ensure that themselves, to
    keep their input if the storage is unreachable.) `image`: the body is an image, or a form with
    one."""

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
    merge_slashes=False,  # True would redirect
)


def max_body_bytes(site: Site) -> int:
    """The limit of any request's body."""
    return max(site.uploads.max_bytes + FORM_OVERHEAD_BYTES, MAX_TEXT_BYTES)


class Body:
    """Collects a body part by part. Keeps one byte more than the limit, to show the excess."""

    def __init__(self, site: Site) -> None:
        self.size = 0  # bytes received
        self._parts: list[bytes] = []
        self._max_bytes = max_body_bytes(site)
        self._room = self._max_bytes + 1

    def take(self, part: bytes) -> bool:
        """Add a part. Returns whether to continue reading."""
        self.size += len(part)
        if self._room:
            self._parts.append(part[: self._room])
            self._room -= len(self._parts[-1])
        return self.size <= MAX_READ_RATIO * self._max_bytes

    def merge_into(self, environ: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a WSGI environ with this body and its length. Without them, a chunked request
        would be taken for one without a body."""
        data = b"".join(self._parts)
        result = {**environ, "wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}
        result.pop("HTTP_TRANSFER_ENCODING", None)
        return result


async def respond(site: Site, request: Request, *, whole: bool = True) -> Response:
    """The response to a request; never raises. `whole`: the body has the announced length."""
    METRICS.add("requests")
    problem = api.problem if request.path.startswith("/api/") else pages.problem
    try:
        response = await _handle(site, request, whole)
    except exceptions.MethodNotAllowed as error:
        methods = ", ".join(sorted({*(error.valid_methods or ()), "OPTIONS"}))
        if request.method == "OPTIONS":
            response = Response(status=HTTPStatus.NO_CONTENT)
            del response.headers["Content-Type"]
        else:
            response = problem(HTTPStatus.METHOD_NOT_ALLOWED, f"Allowed methods: {methods}.")
        response.headers["Allow"] = methods
    except exceptions.HTTPException as error:
        response = problem(HTTPStatus(error.code or 500), str(error.description))
    except Failure as error:
        response = problem(error.status, error.sentence)
    except Exception:  # a bug: details go to the log, not to the client
        LOG.exception("%s %r failed", request.method, request.path)
        response = problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error.")
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(RETRY_S)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _handle(site: Site, request: Request, whole: bool) -> Response:
    route, arguments = _MAP.bind_to_environ(request.environ).match()
    _refuse_other_sites(request)
    if not whole:
        raise exceptions.BadRequest("The body is shorter than its Content-Length.")
    request.max_form_memory_size = request.max_content_length = MAX_TEXT_BYTES
    if route.image:
        request.max_content_length = site.uploads.max_bytes + FORM_OVERHEAD_BYTES
    if not 0 < arguments.get("number", 1) <= MAX_ID:
        raise exceptions.NotFound
    if route.reads:
        await site.start()
    try:
        response: Response = await route.handler(site, request, **arguments)
    except exceptions.RequestEntityTooLarge:  # report the content's limit, not the form's
        why = site.uploads.too_large if route.image else TEXT_TOO_LARGE
        raise exceptions.RequestEntityTooLarge(why) from None
    return response


def _refuse_other_sites(request: Request) -> None:
    """Reject unsafe requests from other sites' pages (CSRF). Browsers send the origin of a request;
    other clients need not. Raises Forbidden."""
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin", f"any://{host}")  # "null" if it is hidden
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    same_site = site in ("same-origin", "none") and origin.partition("://")[2] == host
    if request.method not in SAFE and not same_site:
        raise exceptions.Forbidden("The request must come from a page of this blog.")
