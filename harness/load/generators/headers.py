"""The header lines of a request, the same for every generator that leaves HTTP to a library."""

from __future__ import annotations

from harness.load.generators.request import DEFAULT_HEADERS, OWN_HEADERS
from harness.load.generators.words import Words


def headers_of(words: Words) -> list[tuple[str, str]]:
    """(name, value), a name perhaps more than once; without Host and Content-Length."""
    given = [(name, value) for name, value in words.headers if name.lower() not in OWN_HEADERS]
    defaults = {**DEFAULT_HEADERS, "Accept-Encoding": "identity"}
    if words.body is not None:
        defaults["Content-Type"] = "application/octet-stream"
    names = {name.lower() for name, _ in given}
    lines = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    return [*lines, *given, *([] if words.keepalive else [("Connection", "close")])]
