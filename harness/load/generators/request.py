"""The bytes of a request, and where it goes."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.load.generators.words import Words

NAME_HEADER = "X-Workerlab-Request"
# Ours to say: what frames the message, ends the connection and names the request.
OWN_HEADERS = {
    *("connection", "content-length", "transfer-encoding", "expect", "keep-alive"),
    NAME_HEADER.lower(),
}
DEFAULT_HEADERS = {"User-Agent": "workerlab", "Accept": "*/*"}


@dataclass(frozen=True)
class Destination:
    """Where a request goes, and its bytes: as they are, and before and after its number."""

    family: socket.AddressFamily
    address: tuple[str | int | bytes, ...]
    request: bytes
    parts: tuple[bytes, bytes]

    def named(self, number: int) -> bytes:
        before, after = self.parts
        return b"%b%d%b" % (before, number, after)


def destination(words: Words, url: str) -> Destination:
    """ValueError for what no HTTP/1 request can carry; OSError for an unknown host."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    lines = _header_lines(words, host)
    strings = [words.method, target, *(word for line in lines for word in line)]
    if any("\r" in one or "\n" in one for one in strings) or " " in words.method + target:
        raise ValueError("a line break or a blank where HTTP allows none")

    def head(lines: list[tuple[str, str]]) -> bytes:
        first = f"{words.method} {target} HTTP/1.1"
        return "\r\n".join([first, *(f"{name}: {value}" for name, value in lines)]).encode(
            "latin-1"
        )

    after = b"\r\n\r\n" + (words.body or b"")
    return Destination(
        family=family,
        address=address,
        request=head(lines) + after,
        parts=(head([*lines, (NAME_HEADER, "")]), after),
    )


def _header_lines(words: Words, host: str) -> list[tuple[str, str]]:
    given = [(name, value) for name, value in words.headers if name.lower() not in OWN_HEADERS]
    names = {name.lower() for name, _ in given}
    defaults = {"Host": host, **DEFAULT_HEADERS}
    if words.body is not None:
        defaults["Content-Type"] = "application/octet-stream"
    lines = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    lines += given if words.keepalive else [*given, ("Connection", "close")]
    if words.body is not None or words.method in ("POST", "PUT", "PATCH"):
        lines.append(("Content-Length", str(len(words.body or b""))))
    return lines
