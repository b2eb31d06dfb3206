"""Records when each request enters and leaves the app, inside the worker. Stdlib only.

It is copied into the run directory with the files next to it and loaded from there, in the
interpreter that serves the app (syntax of Python 3.10). It works for every worker class because it
wraps only the app: uvicorn, tornado and gevent's pywsgi do not call Gunicorn's request hooks.

Each worker owns one map (`maps.SPANS`), viewed as an array of 64-bit cells. A record's place comes
from `itertools.count`, whose `next` is atomic under the GIL, so threads need no lock. Its start is
written when the request starts, so a killed worker leaves its open requests behind.

The wrappers are inlined, and share globals that a forked child replaces: a call, a closure or a
check per request costs 1 % of hello-world throughput in the fastest class. Rejected: a line per
request by `os.write` (4 to 20 % of hello-world throughput), a lock (a forked child may inherit it
locked).

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import traceback
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic_ns as now
from types import SimpleNamespace
from typing import Any

from .maps import (
    ACCEPTED,
    CELL,
    END,
    FIRST,
    FULL_CELL,
    HEADER_BYTES,
    NAME,
    SCRATCH,
    SPANS,
    create_cells,
    scratch,
)

MAX_TRACEBACKS = 3  # in a worker's log
BODY = "http.response.body"
PATHSEND = "http.response.pathsend"  # a whole file as the last message
NAME_FIELD = struct.Struct("<16s")  # longer names are cut, shorter ones padded
NAME_HEADER = b"x-workerlab-request"
NAME_KEY = "HTTP_X_WORKERLAB_REQUEST"
WRAPPERS = ("sock", "fd", "_sock")  # where Gunicorn, eventlet and gevent keep the socket they wrap

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Any]


def no_op() -> None:
    """The default for `first_request`."""


# Until `start`: scratch, as in a forked child
cells: memoryview[int] = scratch(HEADER_BYTES)  # of this worker's map
take: Callable[[], int] = itertools.repeat(SCRATCH).__next__  # the cell of the next record
first_request: Callable[[], None] = no_op  # called once, inside the first request
accepted: dict[int, int] = {}  # by the client's port: when its connection was accepted
look_up: Callable[[int, int], int] = accepted.pop
has_names = False  # whether clients name their requests
latest = SCRATCH  # on an event loop, the place of the request that began last


def time_accepts(worker: Any) -> None:
    """Record in `accepted` when `worker` accepts, for all worker classes.

    Every accept in Python calls the method `_accept` of the listening socket: `socket.accept` does
    (sync, gthread, asyncio, tornado, eventlet's green socket), and so does gevent's server. So the
    class of the innermost socket is replaced, in place, by a subclass that overrides it: object and
    descriptor stay the same for all their users. uvloop accepts in C: then nothing is recorded, and
    `accept_timed` is false in the worker's proof.

    A connection is identified by its client's port: all clients of the lab share one address. A
    port is reused only after its earlier connection is closed, so the latest record counts. If a
    proxy's header changes the client address, the port is not found, and the accept is unknown.

    Rejected: an attribute `accept` on Gunicorn's socket objects (asgi and gevent bypass them), a
    new socket on the same descriptor (other code would go on using the old one).
    """
    for listener in worker.sockets:
        sock = innermost(listener)
        if getattr(sock, "family", None) not in (socket.AF_INET, socket.AF_INET6):
            continue  # clients have no port
        try:
            sock.__class__ = timed_class(type(sock))
        except (AttributeError, TypeError):  # not accepted in Python, or no Python class
            continue


def innermost(sock: Any) -> Any:
    """The socket inside all its wrappers."""
    for name in WRAPPERS:
        inner = getattr(sock, name, None)
        if inner is not None:
            return innermost(inner)
    return sock


def timed_class(kind: Any) -> type[Any]:
    """A subclass of `kind` that records accepts."""

    class TimedSocket(kind):  # type: ignore[misc]
        __slots__ = ()  # keeps the layout, so that __class__ can be assigned
        _accept = timed_accept(kind._accept)

    return TimedSocket


def timed_accept(accept: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A replacement for a socket class's `_accept`: records accepts of clients that have a port."""

    def _accept(self: Any) -> Any:
        handle, address = accept(self)
        if isinstance(address, tuple):
            accepted[address[1]] = now()
        return handle, address

    return _accept


def time_all_accepts() -> None:
    """Record in `accepted` for all Python sockets in this process: for a server that opens its
    listening socket only after it has imported the app."""
    socket.socket._accept = timed_accept(socket.socket._accept)  # type: ignore[attr-defined]


def start(
    directory: str,
    capacity: int,
    first: Callable[[], None],
    *,
    names: bool = False,
    keepalive: bool = False,
) -> None:
    """Record this process's requests from now on. `first` is called once, in the first of them;
    `names`: clients name their requests, in the header X-Workerlab-Request; `keepalive`: they send
    several per connection (otherwise accepts are removed once read, to keep the dict small)."""
    global cells, take, first_request, has_names, look_up
    cells = create_cells(directory, SPANS, capacity)
    take = itertools.count(FIRST, SPANS.cells).__next__
    first_request, has_names = first, names
    look_up = accepted.get if keepalive else accepted.pop
    os.register_at_fork(after_in_child=stop)


def stop() -> None:
    """Stop recording in children that the app forks, since they inherit the map. The scratch memory
    is as large as the map: a child that ends the request in which it was forked writes its end."""
    global cells, take
    cells = scratch(cells.nbytes)
    take = itertools.repeat(SCRATCH).__next__


def begin(port: int, name: str) -> int:
    """Write a request's start, the time of its accept, and its name. Returns the record's place.
    For wrappers in which the cost of a function call does not matter."""
    place = take()
    if place == FIRST:
        first_request()
    try:
        cells[place] = now()
        cells[place + ACCEPTED] = look_up(port, 0)
    except IndexError:
        place = overflow()
    if has_names:
        identify(place, name.encode("latin-1"))
    return place


def overflow() -> int:
    """No record is left: set FULL_CELL, and use the scratch cells."""
    cells[FULL_CELL] = 1
    return SCRATCH


def identify(place: int, name: bytes) -> None:
    """Write the client's name for the request."""
    if place != SCRATCH:  # the scratch cells do not hold a name
        NAME_FIELD.pack_into(cells, (place + NAME) * CELL, name)


def end(place: int) -> None:
    cells[place + END] = now()


class TimedBody:
    """A WSGI body that records when the server closes it; otherwise like the wrapped body."""

    __slots__ = ("body", "place")

    def __init__(self, body: Any, place: int) -> None:
        self.body = body
        self.place = place

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.body)

    def __len__(self) -> int:
        return len(self.body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.body, name)

    def close(self) -> None:
        try:
            getattr(self.body, "close", no_op)()
        finally:
            self.mark()

    def mark(self) -> None:
        cells[self.place + END] = now()


class TimedListBody(TimedBody):
    """For a list, the usual body, which has no close()."""

    __slots__ = ()

    def close(self) -> None:
        cells[self.place + END] = now()


def wrap_wsgi(app: WsgiApp, handled: tuple[object, ...] = ()) -> WsgiApp:
    """`app`, recorded from its call until the server closes the body. `handled`: markers, compared
    by identity, that an app may return if it has sent its response itself."""

    def probed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        place = take()
        if place == FIRST:
            first_request()
        try:
            cells[place] = now()
            cells[place + ACCEPTED] = look_up(int(environ["REMOTE_PORT"]), 0)
        except IndexError:
            place = overflow()
        except (KeyError, ValueError):  # the server does not pass the port
            pass
        if has_names:
            identify(place, environ.get(NAME_KEY, "").encode("latin-1"))
        try:
            body = app(environ, start_response)
        except BaseException:
            end(place)
            raise
        if type(body) is list:
            return TimedListBody(body, place)
        return timed_body(body, place, environ, handled)

    return probed


def timed_body(body: Any, place: int, environ: dict[str, Any], handled: tuple[object, ...]) -> Any:
    """A body of any kind that records when it is closed. A file wrapper must remain one, or the
    server cannot use sendfile."""
    for marker in handled:  # any() with a generator would cost more than the rest
        if body is marker:
            end(place)
            return body
    timed, wrapper, file = TimedBody(body, place), environ.get("wsgi.file_wrapper"), body
    if not (isinstance(wrapper, type) and isinstance(body, wrapper)):
        return timed
    timed.body = SimpleNamespace(close=getattr(body, "close", no_op))
    file.close = timed.close
    return file


class TornadoBody(TimedBody):
    """A WSGI body under tornado, whose container runs the app, each chunk and the close in separate
    turns of the loop; blocking calls of other requests run in between. The span ends with the app's
    last code before another request's turn: what follows is waiting in the loop, and would make a
    blocked worker look as if it served all its requests at once."""

    __slots__ = ("chunks",)
    chunks: Iterator[bytes]
    port = 0  # the client's port of the request whose turn it is

    def __iter__(self) -> Iterator[bytes]:
        self.chunks = iter(self.body)
        return self

    def __next__(self) -> bytes:
        try:
            return next(self.chunks)
        finally:
            self.mark()

    def mark(self) -> None:
        if latest == self.place:
            end(self.place)


def probe_container(container: Any) -> Any:
    """Record the app of tornado's WSGI container without threads (see TornadoBody). The environ has
    no client port, but is made in the same turn in which the app is called."""
    make_environ, app = container.environ, container.wsgi_application

    def environ(request: Any) -> Any:
        TornadoBody.port = tornado_port(request)
        return make_environ(request)

    def probed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        global latest
        latest = place = begin(TornadoBody.port, environ.get(NAME_KEY, ""))
        try:
            return TornadoBody(app(environ, start_response), place)
        finally:
            end(place)

    container.environ, container.wsgi_application = environ, probed
    return container


def tornado_port(request: Any) -> int:
    """The client's port; 0 if there is none."""
    try:
        return int(request.connection.context.address[1])
    except (AttributeError, IndexError, TypeError, ValueError):
        return 0


async def send_last(send: Send, message: Message, ended: int) -> None:
    """End a request's span when the server has taken its last message."""
    await send(message)
    cells[ended] = now()


failures = itertools.count()


def report_failure() -> None:
    """Print the exception to the server's log: frameworks raise it after a complete response, and
    Gunicorn's asgi class drops it then."""
    if next(failures) < MAX_TRACEBACKS:
        traceback.print_exc()


def wrap_asgi(app: AsgiApp) -> AsgiApp:
    """`app`, recorded from its call until the last body message has been sent, or the app ends.
    Websockets and lifespan pass through."""

    async def probed(scope: Message, receive: Receive, send: Send) -> None:
        global latest
        if scope["type"] != "http":
            return await app(scope, receive, send)
        place = take()
        if place == FIRST:
            first_request()
        try:
            cells[place] = now()
            cells[place + ACCEPTED] = look_up(scope["client"][1], 0)
        except IndexError:
            place = overflow()
        except (KeyError, TypeError):  # the server does not pass the port
            pass
        if has_names:
            identify(place, dict(scope["headers"]).get(NAME_HEADER, b""))
        latest, ended = place, place + END

        # A type comment: annotations would be attached anew in each request
        def timed_send(message):  # type: (Message) -> Awaitable[None]
            # An extra coroutine for the last message only
            kind = message["type"]
            if kind == "http.response.start":
                return send(message)
            last = not message.get("more_body") if kind == BODY else kind == PATHSEND
            return send_last(send, message, ended) if last else send(message)

        try:
            return await app(scope, receive, timed_send)
        except Exception:
            report_failure()
            raise
        finally:
            cells[ended] = cells[ended] or now()

    return probed


def asgi3_app(app: Callable[[Message], Callable[[Receive, Send], Awaitable[None]]]) -> AsgiApp:
    """An app of the old form, `app(scope)(receive, send)`, which uvicorn still serves."""

    async def asgi3(scope: Message, receive: Receive, send: Send) -> None:
        return await app(scope)(receive, send)

    return asgi3


def probe_tornado(application: Any) -> Any:
    """Record a native tornado application by chaining two methods of the instance."""
    find_handler, log_request = application.find_handler, application.log_request

    def timed_find_handler(request: Any, **names: Any) -> Any:
        name = request.headers.get("X-Workerlab-Request", "") if has_names else ""
        request.workerlab_place = begin(tornado_port(request), name)
        return find_handler(request, **names)

    def timed_log_request(handler: Any) -> Any:
        try:
            return log_request(handler)
        finally:
            end(getattr(handler.request, "workerlab_place", SCRATCH))

    application.find_handler = timed_find_handler
    application.log_request = timed_log_request
    return application
