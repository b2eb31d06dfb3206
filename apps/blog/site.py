"""Every request's way through the blog, whichever face it came in by.

    route -> (an unsafe method must come from this site) -> pages or api -> an answer

What fails becomes an answer here and nowhere else: HTML for people, JSON (RFC 9457) below /api.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from werkzeug.exceptions import Forbidden, HTTPException
from werkzeug.routing import Map, RequestRedirect, Rule
from werkzeug.wrappers import Request, Response

from apps.blog import api, pages
from apps.blog.ledger import LEDGER
from apps.blog.posts import Conflict, Gone, Unfit, Unreachable
from apps.blog.settings import Settings
from apps.blog.shared import Shared
from apps.blog.shelf import Shelf
from apps.blog.storage import Storage, storage_of
from apps.blog.uploads import NoImage, TooLarge, Uploads

SAFE = {"GET", "HEAD", "OPTIONS"}
BESIDE_BYTES = 65_536  # of a form, around a file of the largest size
RETRY_S = 1
STATUS: dict[type[Exception], HTTPStatus] = {
    Unfit: HTTPStatus.UNPROCESSABLE_ENTITY,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    NoImage: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Gone: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Unreachable: HTTPStatus.SERVICE_UNAVAILABLE,
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

Handler = Callable[..., Awaitable[Response]]
ROUTES = Map(
    [
        Rule("/", endpoint="list", methods=["GET"]),
        Rule("/style.css", endpoint="style", methods=["GET"]),
        Rule("/posts/new", endpoint="new", methods=["GET", "POST"]),
        Rule("/posts/<int:number>", endpoint="post", methods=["GET"]),
        Rule("/posts/<int:number>/edit", endpoint="edit", methods=["GET", "POST"]),
        Rule("/images", endpoint="upload", methods=["GET", "POST"]),
        Rule("/images/<name>", endpoint="image", methods=["GET"]),
        Rule("/api/openapi.json", endpoint="api.description", methods=["GET"]),
        Rule("/api/posts", endpoint="api.list", methods=["GET"]),
        Rule("/api/posts", endpoint="api.add", methods=["POST"]),
        Rule("/api/posts/<int:number>", endpoint="api.post", methods=["GET"]),
        Rule("/api/posts/<int:number>", endpoint="api.edit", methods=["PUT"]),
        Rule("/api/images", endpoint="api.upload", methods=["POST"]),
    ],
    strict_slashes=False,
    redirect_defaults=False,
)
HANDLERS: dict[str, Handler] = {**pages.HANDLERS, **api.HANDLERS}


class Site:
    """`waiting`: for ASGI. Opens nothing before `start` or the first request."""

    def __init__(self, settings: Settings, *, waiting: bool) -> None:
        self.storage: Storage = storage_of(settings, waiting=waiting)
        shared = Shared(settings, waiting=waiting) if settings.redis_url else None
        self.shelf = Shelf(settings, self.storage, shared)
        self.uploads = Uploads(settings.uploads, settings.upload_most_bytes)
        self.body_most_bytes = settings.upload_most_bytes + BESIDE_BYTES
        self._prepared = False

    async def start(self) -> None:
        """Bring the schema up to date. Raises Unreachable; it is tried again with every request
        until it has worked once."""
        if not self._prepared:
            await self.storage.prepare()
            self._prepared = True

    async def stop(self) -> None:
        await self.shelf.stop()

    async def respond(self, request: Request) -> Response:
        """Raises nothing that a request or a component can bring about."""
        LEDGER.add("requests")
        request.max_content_length = self.body_most_bytes
        request.max_form_memory_size = self.body_most_bytes
        problem = api.problem if request.path.startswith("/api/") else pages.problem
        try:
            endpoint, words = ROUTES.bind_to_environ(request.environ).match()
            _from_here(request)
            await self.start()
            response = await HANDLERS[endpoint](self, request, **words)
        except RequestRedirect as redirect:
            response = Response(status=redirect.code, headers={"Location": redirect.new_url})
        except HTTPException as error:
            response = problem(HTTPStatus(error.code or 500), str(error.description))
            for name, value in error.get_headers():
                if name.lower() == "allow":
                    response.headers[name] = value
        except tuple(STATUS) as error:
            response = problem(STATUS[type(error)], _said(error))
            if isinstance(error, Unreachable):
                response.headers["Retry-After"] = str(RETRY_S)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response


def _said(error: Exception) -> str:
    if isinstance(error, Gone):
        return "There is no such post."
    if isinstance(error, Unreachable):
        return "The posts cannot be reached at the moment; please try again."
    if isinstance(error, Conflict):
        return f"Somebody edited this post meanwhile: {error}."
    return str(error)


def _from_here(request: Request) -> None:
    """Another site's page must not post in its reader's name (CSRF). Browsers say where a request
    comes from; programs need not. Raises Forbidden."""
    if request.method in SAFE:
        return
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    origin = request.headers.get("Origin")
    host = urlsplit(origin).netloc if origin else request.headers.get("Host", "")
    if site not in ("same-origin", "none") or host != request.headers.get("Host", ""):
        raise Forbidden("This must come from a page of this blog.")
