"""A mix: a load of several kinds of requests, from a file or from an access log.

A mix file has one request per line, with words quoted as in a shell:

    # weight method path, then any of header= (repeatable), body=, expect=, name=
    60  GET   /
    25  GET   /post/17      name='a post'
    10  POST  /api/comment  body=comment.json header='Content-Type: application/json' expect=201
     5  GET   /missing      expect=404

Without `expect`, any 2xx or 3xx is a success. Headers of --header are sent with every request
unless its line has a header of that name.
"""

import argparse
import math
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from workerlab import access_log
from workerlab import options as read
from workerlab.finding import Finding
from workerlab.model import Route, UsageError

T = TypeVar("T")

OPTIONS: tuple[read.Row, ...] = (
    ("--mix", read.existing_file, "FILE",
     "requests of several kinds, one a line: weight, method, path, then header='Name: value',"
     " body=FILE, expect=200,404, name=TEXT where needed"),
    ("--access-log", read.existing_file, "FILE",
     "the mix of an access log (common or combined format, also .gz): its GET and HEAD requests,"
     " without addresses and queries"),
    ("--keep-queries", None, "", "send the queries of --access-log, too (off)"),
)  # fmt: skip
REPLACED_OPTIONS = ("path", "method", "body_file", "expect_status")  # that a mix replaces
MAX_ROUTES = 1000
WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|((?:[^\s"'\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+))""")


def requested_mix(options: argparse.Namespace) -> tuple[tuple[Route, ...], tuple[Finding, ...]]:
    """The mix that the options name, () if none, and notes on it. Raises UsageError."""
    if options.keep_queries and not options.access_log:
        raise UsageError("--keep-queries is about the queries of an --access-log: name one")
    flags = [flag for flag in ("mix", "access_log") if getattr(options, flag)]
    if not flags:
        return (), ()
    others = [
        name for name in (*flags[1:], *REPLACED_OPTIONS) if getattr(options, name) is not None
    ]
    if others:
        first, other = (f"--{name.replace('_', '-')}" for name in (flags[0], others[0]))
        raise UsageError(
            f"{first} says what is requested, and so does {other}: leave one of them out"
        )
    notes: list[Finding] = []
    if options.mix:
        routes = mix_of(Path(options.mix))
    else:
        path = Path(options.access_log)
        routes, log = access_log.mix_of(path, queries=options.keep_queries)
        notes.append(log)
    return tuple(_with(options.header or (), route) for route in routes), tuple(notes)


def _with(headers: Iterable[tuple[str, str]], route: Route) -> Route:
    own = {name.lower() for name, _ in route.headers}
    common = tuple(header for header in headers if header[0].lower() not in own)
    return replace(route, headers=(*common, *route.headers))


def mix_of(path: Path) -> tuple[Route, ...]:
    """The requests of a mix file. Raises UsageError, naming the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a mix of requests: {error}") from error
    routes = []
    for number, line in enumerate(lines, 1):
        try:
            if words := _words(line):
                routes.append(_route(words, path.parent))
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
    if not routes:
        raise UsageError(
            f"{path} has no request: a line is weight, method and path, as in 10 GET /"
        )
    if len(routes) > MAX_ROUTES:
        raise UsageError(f"{path} has {len(routes)} requests: at most {MAX_ROUTES} make a mix")
    return tuple(routes)


def _words(line: str) -> list[str]:
    """Its words without quotes, up to a comment. Raises ValueError for an unclosed quote."""
    words, at, end = [], 0, len(line.rstrip())
    while at < end:
        if (match := WORD.match(line, at)) is None:
            raise ValueError(f"a quote or backslash without an end: {line[at:].strip()}")
        if match["comment"]:
            break
        words += shlex.split(match[0])
        at = match.end()
    return words


def _route(words: list[str], directory: Path) -> Route:
    """Raises ValueError, with a message for the user."""
    if len(words) < 3:
        raise ValueError(f"{' '.join(words)!r} is not weight, method and path, as in 10 GET /")
    weight, method, path, *others = words
    route = Route(read.url_path(path), read.method(method), _weight(weight))
    fields: dict[str, Any] = {}
    for word in others:
        name, equals, value = word.partition("=")
        if name not in FIELDS or not equals:
            names = ", ".join(f"{name_}=" for name_ in FIELDS)
            raise ValueError(f"{word!r} is none of {names}; put quotes around blanks")
        field, of = FIELDS[name]
        if name == "header":
            fields.setdefault(field, []).append(of(value, directory))
        elif field in fields:
            raise ValueError(f"{name}= is there twice")
        else:
            fields[field] = of(value, directory)
    if "headers" in fields:
        fields["headers"] = tuple(fields["headers"])
    return replace(route, **fields)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a weight: a line begins with a number") from None
    if not 0 < weight < math.inf:
        raise ValueError(f"a weight of {text}: must be above 0")
    return weight


def _body(text: str, directory: Path) -> str:
    path = directory / Path(text).expanduser()
    if not path.is_file():
        raise ValueError(f"body={text} is not a file in {directory}")
    return str(path.absolute())


def _name(text: str, _: Path) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"name={text!r} has nothing to read")
    return text.strip()


FIELDS: dict[str, tuple[str, Callable[[str, Path], object]]] = {
    "header": ("headers", lambda text, _: read.header(text)),
    "body": ("body_file", _body),
    "expect": ("expect", lambda text, _: read.list_of(read.status)(text)),
    "name": ("name", _name),
}
