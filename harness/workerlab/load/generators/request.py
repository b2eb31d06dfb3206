"""The header lines of a request; for `fast` also its bytes and destination, and the order of the
kinds of requests in a mix."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

from workerlab.load.generators.answers import Answers
from workerlab.load.generators.document import BODY_BYTES, RouteTally, Tally
from workerlab.load.generators.words import Words
from workerlab.numbers.schedule import sequence

NAME_HEADER = "X-Workerlab-Request"
# Set by the generator: framing, connection and request name
OWN_HEADERS = {"connection", "content-length", "transfer-encoding", "expect", "keep-alive",
               NAME_HEADER.lower()}  # fmt: skip
DEFAULT_HEADERS = {"User-Agent": "workerlab", "Accept": "*/*"}
LIBRARY_HEADERS = {**DEFAULT_HEADERS, "Accept-Encoding": "identity"}  # libraries add Host


@dataclass(frozen=True)
class Destination:
    """Where a request goes, and its bytes: without a number, and as parts around its number."""

    family: socket.AddressFamily
    address: tuple[str | int | bytes, ...]
    request: bytes
    parts: tuple[bytes, bytes]

    def named(self, number: int) -> bytes:
        before, after = self.parts
        return b"%b%d%b" % (before, number, after)


def header_lines(
    words: Words, defaults: Mapping[str, str] = LIBRARY_HEADERS
) -> list[tuple[str, str]]:
    """(name, value) pairs, names may repeat; without Content-Length."""
    given = [(name, value) for name, value in words.headers if name.lower() not in OWN_HEADERS]
    names = {name.lower() for name, _ in given}
    if words.body is not None:
        defaults = {**defaults, "Content-Type": "application/octet-stream"}
    lines = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    return [*lines, *given, *([] if words.keepalive else [("Connection", "close")])]


def destination(words: Words, url: str) -> Destination:
    """Raises ValueError if HTTP/1 cannot express the request, OSError for an unknown host."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    addresses = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    family, _, _, _, address = addresses[0]
    lines = header_lines(words, {"Host": parts.netloc.rpartition("@")[2], **DEFAULT_HEADERS})
    if words.body is not None or words.method in ("POST", "PUT", "PATCH"):
        lines.append(("Content-Length", str(len(words.body or b""))))
    text = [f"{words.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in lines)]
    if any("\r" in line or "\n" in line for line in text) or " " in words.method + target:
        raise ValueError("a line break or a blank where HTTP allows none")
    head = "\r\n".join(text).encode("latin-1")
    after = b"\r\n\r\n" + (words.body or b"")
    before = b"%b\r\n%b: " % (head, NAME_HEADER.encode())
    return Destination(family, address, head + after, (before, after))


@dataclass(slots=True, eq=False)
class RouteKind:
    """A kind of request. `place`: index in the mix; `to`: one destination per URL; `tally`: of its
    route, which other kinds may share; None if all requests are the same."""

    place: int
    words: Words
    to: tuple[Destination, ...]
    answers: Answers
    tally: RouteTally | None = None


def only(words: Words, to: tuple[Destination, ...]) -> RouteKind:
    """The kind of a load whose requests are all the same."""
    return RouteKind(0, words, to, Answers(words.method, words.judge, compared=words.same_body))


def of_mix(words: Words, to: tuple[tuple[Destination, ...], ...], tally: Tally) -> list[RouteKind]:
    """The kinds of a mix. `to`: destinations of each kind. Adds a tally per route to `tally`."""
    return [
        RouteKind(
            place=place,
            words=kind.words,
            to=to[place],
            answers=Answers(kind.words.method, kind.words.judge, compared=False, kept=BODY_BYTES),
            tally=tally.routes.setdefault(kind.label, RouteTally()),
        )
        for place, kind in enumerate(words.mix)
    ]


def turns(words: Words, first: int, step: int) -> Iterator[int]:
    """Indices into the mix for requests `first`, `first + step`, ..., counted from 1. Endless."""
    indices = sequence([kind.weight for kind in words.mix], words.seed)
    return islice(indices, first - 1, None, step)
