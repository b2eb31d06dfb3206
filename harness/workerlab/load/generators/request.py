"""Builds requests: header lines and, for `fast`, bytes and destinations; and orders the kinds of
requests in a mix."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

from workerlab.load.generators.document import MAX_KEPT_BODY_BYTES, RouteTally, Tally
from workerlab.load.generators.http1 import Recogniser
from workerlab.load.generators.options import LoadOptions
from workerlab.numbers.schedule import sequence

NAME_HEADER = "X-Workerlab-Request"
# Headers that only the generator sets: framing, connection and request number
OWN_HEADERS = {"connection", "content-length", "transfer-encoding", "expect", "keep-alive",
               NAME_HEADER.lower()}  # fmt: skip
DEFAULT_HEADERS = {"User-Agent": "workerlab", "Accept": "*/*"}
LIBRARY_HEADERS = {**DEFAULT_HEADERS, "Accept-Encoding": "identity"}  # libraries add Host


@dataclass(frozen=True)
class Destination:
    """The address and the bytes of a request. `request`: all bytes, without a request number;
    `parts`: the bytes before and after the number of a numbered request."""

    family: socket.AddressFamily
    address: tuple[str | int | bytes, ...]
    request: bytes
    parts: tuple[bytes, bytes]

    def numbered(self, number: int) -> bytes:
        before, after = self.parts
        return b"%b%d%b" % (before, number, after)


def header_lines(
    options: LoadOptions, defaults: Mapping[str, str] = LIBRARY_HEADERS
) -> list[tuple[str, str]]:
    """(name, value) pairs without Content-Length; names may repeat."""
    custom = [(name, value) for name, value in options.headers if name.lower() not in OWN_HEADERS]
    names = {name.lower() for name, _ in custom}
    if options.body is not None:
        defaults = {**defaults, "Content-Type": "application/octet-stream"}
    lines = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    return [*lines, *custom, *([] if options.keepalive else [("Connection", "close")])]


def destination(options: LoadOptions, url: str) -> Destination:
    """The destination of requests to `url`. Raises ValueError if HTTP/1 cannot express the request,
    and OSError for an unknown host."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    addresses = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    family, _, _, _, address = addresses[0]
    lines = header_lines(options, {"Host": parts.netloc.rpartition("@")[2], **DEFAULT_HEADERS})
    if options.body is not None or options.method in ("POST", "PUT", "PATCH"):
        lines.append(("Content-Length", str(len(options.body or b""))))
    text = [f"{options.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in lines)]
    if any("\r" in line or "\n" in line for line in text) or " " in options.method + target:
        raise ValueError("a line break or space where HTTP allows none")
    head = "\r\n".join(text).encode("latin-1")
    after = b"\r\n\r\n" + (options.body or b"")
    before = b"%b\r\n%b: " % (head, NAME_HEADER.encode())
    return Destination(family=family, address=address, request=head + after, parts=(before, after))


@dataclass(slots=True, eq=False)
class RequestKind:
    """A kind of request. `index`: in the mix; `destinations`: one per URL; `tally`: of the route,
    which multiple kinds may share, or None if all requests are the same."""

    index: int
    options: LoadOptions
    destinations: tuple[Destination, ...]
    recogniser: Recogniser
    tally: RouteTally | None = None


def single_kind(options: LoadOptions, destinations: tuple[Destination, ...]) -> RequestKind:
    """The kind of a load whose requests are all the same."""
    recogniser = Recogniser(options.method, options.failure_cause, compare_bodies=options.same_body)
    return RequestKind(0, options, destinations, recogniser)


def kinds_of_mix(
    options: LoadOptions, destinations: tuple[tuple[Destination, ...], ...], tally: Tally
) -> list[RequestKind]:
    """The kinds of a mix, with the destinations of each. Adds a tally per route to `tally`."""
    return [
        RequestKind(
            index=index,
            options=entry.options,
            destinations=destinations[index],
            recogniser=Recogniser(
                entry.options.method,
                entry.options.failure_cause,
                compare_bodies=False,
                kept_bytes=MAX_KEPT_BODY_BYTES,
            ),
            tally=tally.routes.setdefault(entry.label, RouteTally()),
        )
        for index, entry in enumerate(options.mix)
    ]


def mix_order(options: LoadOptions, first: int, step: int) -> Iterator[int]:
    """An endless iterator of indices into the mix, for requests `first`, `first + step`, ...,
    which are numbered from 1."""
    indices = sequence([entry.weight for entry in options.mix], options.seed)
    return islice(indices, first - 1, None, step)
