"""Every request's way through the blog, whichever face it came in by.

    route -> (an unsafe method must come from this site) -> pages, forms or api -> an answer

What fails becomes an answer here, or in a form that keeps what was typed: HTML for people, JSON
(RFC 9457) below /api.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, ParamSpec, TypeVar

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
from apps.blog.posts import BODY_MOST, ID_MOST, TITLE_MOST, Draft
from apps.blog.settings import Settings
from apps.blog.shelf import Shelf
from apps.blog.storage import Storage, storage_of
from apps.blog.uploads import Stored, Uploads

if TYPE_CHECKING:
    from apps.blog.shared import Shared

P = ParamSpec("P")
T = TypeVar("T")

LOG = logging.getLogger("apps.blog")  # to standard error, where nobody says otherwise
SAFE = {"GET", "HEAD", "OPTIONS"}
BESIDE_BYTES = 65_536  # of a form, around what is in it
# A character has 12 bytes at most: four of UTF-8 as %XX in a form, two halves as \uXXXX in JSON
TEXT_MOST_BYTES = 12 * (TITLE_MOST + BODY_MOST) + BESIDE_BYTES
RETRY_S = 1
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

Handler = Callable[..., Awaitable[Response]]


class Id(IntegerConverter):
    """Digits only. Its range is looked at later: an address whose number was out of it would be
    found for other methods, and answered with 405."""

    regex = "[0-9]{1,19}"


ROUTES = Map(
    [
        Rule("/", endpoint="list", methods=["GET"]),
        Rule("/style.css", endpoint="style", methods=["GET"]),
        Rule("/icon.svg", endpoint="icon", methods=["GET"]),
        Rule("/posts/new", endpoint="write", methods=["GET"]),
        Rule("/posts/new", endpoint="create", methods=["POST"]),
        Rule("/posts/<id:number>", endpoint="post", methods=["GET"]),
        Rule("/posts/<id:number>/edit", endpoint="edit", methods=["GET"]),
        Rule("/posts/<id:number>/edit", endpoint="change", methods=["POST"]),
        Rule("/images", endpoint="choose", methods=["GET"]),
        Rule("/images", endpoint="upload", methods=["POST"]),
        Rule("/images/<name>", endpoint="image", methods=["GET"]),
        Rule("/api/openapi.json", endpoint="api.description", methods=["GET"]),
        Rule("/api/posts", endpoint="api.list", methods=["GET"]),
        Rule("/api/posts", endpoint="api.add", methods=["POST"]),
        Rule("/api/posts/<id:number>", endpoint="api.post", methods=["GET"]),
        Rule("/api/posts/<id:number>", endpoint="api.edit", methods=["PUT"]),
        Rule("/api/images", endpoint="api.upload", methods=["POST"]),
    ],
    converters={"id": Id},
    merge_slashes=False,  # nor any other redirect
)
HANDLERS: dict[str, Handler] = {**pages.HANDLERS, **forms.HANDLERS, **api.HANDLERS}
UPLOADS = {"upload", "api.upload"}
# Those, and forms that keep what was typed where the storage cannot be reached
UNPREPARED = {"style", "icon", "write", "create", "change", "choose", "image", "api.description"}
UNPREPARED |= UPLOADS


def shared_of(settings: Settings, *, waiting: bool) -> Shared | None:
    """Imports Redis' client only now: ImportError where that is not installed."""
    if not settings.redis_url:
        return None
    from apps.blog.shared import Shared

    return Shared(settings, waiting=waiting)


class Site:
    """`waiting`: for ASGI. Opens nothing before `start` or the first request."""

    def __init__(self, settings: Settings, *, waiting: bool) -> None:
        self.storage: Storage = storage_of(settings, waiting=waiting)
        shared = shared_of(settings, waiting=waiting)
        self.shelf = Shelf(settings, self.storage, shared)
        self.uploads = Uploads(settings.uploads, settings.upload_most_bytes)
        self._upload_most_bytes = settings.upload_most_bytes + BESIDE_BYTES
        self.body_most_bytes = max(self._upload_most_bytes, TEXT_MOST_BYTES)
        self._waiting = waiting
        self._prepared = False

    async def start(self) -> None:
        """Bring the schema up to date. Raises Unreachable; it is tried again with every request
        until it has worked once."""
        if not self._prepared:
            await self.storage.prepare()
            self._prepared = True

    async def stop(self) -> None:
        await self.shelf.stop()

    async def draft(self, title: object, body: object) -> Draft:
        """Raises Unfit."""
        return await self._aside(Draft.of, title, body)

    async def store(self, data: bytes) -> Stored:
        """Raises what `Uploads.store` does."""
        return await self._aside(self.uploads.store, data)

    async def _aside(self, work: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """What may keep a core busy for long: not on the event loop, where all wait for it."""
        if self._waiting:
            return await asyncio.to_thread(work, *args, **words)
        return work(*args, **words)

    async def respond(self, request: Request, *, whole: bool = True) -> Response:
        """Raises nothing. `whole`: the body is what was announced."""
        METRICS.add("requests")
        problem = api.problem if request.path.startswith("/api/") else pages.problem
        try:
            response = await self._answer(request, whole)
        except MethodNotAllowed as error:
            response = _allowed(request, error, problem)
        except RequestEntityTooLarge:
            most = f"{request.max_content_length or self.body_most_bytes} bytes is the most"
            response = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"That is too much; {most}.")
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

    async def _answer(self, request: Request, whole: bool) -> Response:
        endpoint, words = ROUTES.bind_to_environ(request.environ).match()
        _from_here(request)
        if not whole:
            raise BadRequest("The body ended before it was whole.")
        large = endpoint in UPLOADS
        request.max_content_length = self._upload_most_bytes if large else TEXT_MOST_BYTES
        request.max_form_memory_size = TEXT_MOST_BYTES
        if not 0 < words.get("number", 1) <= ID_MOST:
            raise NotFound
        if endpoint not in UNPREPARED:
            await self.start()
        return await HANDLERS[endpoint](self, request, **words)


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


def _from_here(request: Request) -> None:
    """Another site's page must not post in its reader's name (CSRF). Browsers say where a request
    comes from; programs need not. Raises Forbidden."""
    if request.method in SAFE:
        return
    host = request.headers.get("Host", "")
    origin = request.headers.get("Origin", f"any://{host}")  # "null", where it is kept secret
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none") or origin.partition("://")[2] != host:
        raise Forbidden("This must come from a page of this blog.")
