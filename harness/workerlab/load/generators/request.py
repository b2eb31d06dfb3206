"""The header lines of a request, and for `fast` its bytes and destination."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from workerlab.load.generators.words import Words

NAME_HEADER = "X-Workerlab-Request"
# Set by the generator: framing, connection and request name
OWN_HEADERS = {"connection", "content-length", "transfer-encoding", "expect", "keep-alive",
               NAME_HEADER.lower()}  # fmt: skip
DEFAULT_HEADERS = {"User-Agent": "workerlab", "Accept": "*/*"}
LIBRARY_HEADERS = {**DEFAULT_HEADERS, "Accept-Encoding": "identity"}  # libraries add Host


@dataclass(frozen=True)
class Destination:
    """Where a request goes, and its bytes: unnamed, and those before and after its number."""

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
    """ValueError for a request that HTTP/1 cannot express; OSError for an unknown host."""
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
