"""A mix: a load of several kinds of requests, from a file or from an access log.

A mix file has one request per line, with words quoted as in a shell:

    # weight method path, then any of header= (repeatable), body=, expect=, name=
    60  GET   /
    25  GET   /post/17      name='a post'
    10  POST  /api/comment  body=comment.json header='Content-Type: application/json' expect=201
     5  GET   /missing      expect=404

Without `expect`, any 2xx or 3xx is a success. Headers from --header are sent with every request
unless its line has a header of the same name.

A mix can also be read from an access log in the common or combined format:

    203.0.113.9 - - [10/Oct/2025:13:55:36 +0000] "GET /post/17?from=feed HTTP/1.1" 200 2326 ...

Only the request and the status of a line are read: addresses, users and user agents are never
stored, and the parts before the date and after the size may have any form (a virtual host, IPv6, a
duration). Queries are dropped by default.

Only GET and HEAD requests are used, because only they are safe to repeat. A path is omitted if most
of its responses were 4xx or 5xx: it would fail here, too, or cause work that the logged server did
not do. For other paths, all requests count: an occasional error is no reason to send fewer.

Paths that differ only in numbers, UUIDs or hexadecimal ids are one route, such as /post/{id}. The
most frequent paths are sent unchanged: first one path per route, then further paths. A route has
the weight of all its requests; otherwise a page with a thousand URLs would seem rare.
"""

import gzip
import math
import re
import shlex
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from workerlab import options as read
from workerlab.errors import UsageError
from workerlab.finding import Finding
from workerlab.model.plan import Route

T = TypeVar("T")


class RequestOptions(read.Options):
    """The requests to send: all alike, or a mix."""

    path = read.option(read.url_path, "PATH", "path to request (/)", default="/")
    method = read.option(read.method, "NAME", "HTTP method (GET)", default="GET")
    header = read.repeatable(read.header, "'K: V'", "request header (repeatable)")
    body_file = read.option(read.existing_file, "FILE", "request body")
    expect_status = read.option(
        read.status, "CODE", "status that counts as success (200)", default=200
    )
    mix = read.option(
        read.existing_file,
        "FILE",
        "requests of several kinds, one per line: weight, method, path, then header='Name: value',"
        " body=FILE, expect=200,404, name=TEXT as needed",
        in_project=True,
    )
    access_log = read.option(
        read.existing_file,
        "FILE",
        "use the mix of an access log (common or combined format; may be .gz): its GET and HEAD"
        " requests, without addresses or queries",
    )
    keep_queries = read.flag("also send the queries of --access-log (off)")


# Options that a mix replaces
REPLACED_OPTIONS = (
    RequestOptions.path,
    RequestOptions.method,
    RequestOptions.body_file,
    RequestOptions.expect_status,
)
MAX_ROUTES = 1000
WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|((?:[^\s"'\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+))""")


def requested_mix(options: RequestOptions) -> tuple[tuple[Route, ...], tuple[Finding, ...]]:
    """The mix requested by the options, () if there is none, and notes on it. Raises UsageError."""
    if options.keep_queries and not options.access_log:
        raise UsageError("--keep-queries needs --access-log")
    flags = options.given_options(RequestOptions.mix, RequestOptions.access_log, *REPLACED_OPTIONS)
    if (options.mix or options.access_log) and len(flags) > 1:
        first, other, *_ = (option.flag for option in flags)
        raise UsageError(f"{first} and {other} both define the requests: use only one of them")
    routes: tuple[Route, ...] = ()
    notes: list[Finding] = []
    if options.mix:
        routes = mix_of(Path(options.mix))
    elif options.access_log:
        path = Path(options.access_log)
        routes, log = mix_of_log(path, queries=options.keep_queries)
        notes.append(log)
    return tuple(_with_common_headers(options.header, route) for route in routes), tuple(notes)


def _with_common_headers(headers: Iterable[tuple[str, str]], route: Route) -> Route:
    route_names = {name.lower() for name, _ in route.headers}
    common = tuple(header for header in headers if header[0].lower() not in route_names)
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
            f"{path} has no request: write weight, method and path on a line, such as 10 GET /"
        )
    if len(routes) > MAX_ROUTES:
        raise UsageError(f"{path} has {len(routes)} requests: a mix has at most {MAX_ROUTES}")
    return tuple(routes)


def _words(line: str) -> list[str]:
    """The words of the line without quotes or comment. Raises ValueError for an unclosed quote."""
    words, start, end = [], 0, len(line.rstrip())
    while start < end:
        if (match := WORD.match(line, start)) is None:
            raise ValueError(f"unclosed quote or trailing backslash: {line[start:].strip()}")
        if match["comment"]:
            break
        words += shlex.split(match[0])
        start = match.end()
    return words


def _route(words: list[str], directory: Path) -> Route:
    """The route described by the words of a line. Raises ValueError with a message for the user."""
    if len(words) < 3:
        raise ValueError(f"{' '.join(words)!r} is not a weight, method and path, such as 10 GET /")
    weight, method, path, *arguments = words
    route = Route(read.url_path(path), read.method(method), _weight(weight))
    fields: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in FIELDS or not equals:
            names = ", ".join(f"{field_name}=" for field_name in FIELDS)
            raise ValueError(f"{argument!r} is not one of {names}; quote values with spaces")
        field, convert = FIELDS[name]
        if name == "header":
            fields.setdefault(field, []).append(convert(value, directory))
        elif field in fields:
            raise ValueError(f"duplicate {name}=")
        else:
            fields[field] = convert(value, directory)
    if "headers" in fields:
        fields["headers"] = tuple(fields["headers"])
    return replace(route, **fields)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a weight: a line must begin with a number") from None
    if not 0 < weight < math.inf:
        raise ValueError(f"the weight must be a finite number greater than 0, not {text}")
    return weight


def _body(text: str, directory: Path) -> str:
    path = directory / Path(text).expanduser()
    if not path.is_file():
        raise ValueError(f"body={text} is not a file in {directory}")
    return str(path.absolute())


def _name(text: str, _: Path) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"name must be printable text, not {text!r}")
    return text.strip()


FIELDS: dict[str, tuple[str, Callable[[str, Path], object]]] = {
    "header": ("headers", lambda text, _: read.header(text)),
    "body": ("body_file", _body),
    "expect": ("expect", lambda text, _: read.list_of(read.status)(text)),
    "name": ("name", _name),
}


MAX_PATHS = 200
METHODS = ("GET", "HEAD")
GZIP = b"\x1f\x8b"
LINE = re.compile(
    r"\[\d{1,2}/\w{3}/\d{4}:[^\]]*\] "
    r'"(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) (?:\d+|-)(?:\s|$)'
)
REQUEST = re.compile(r"(?P<method>[A-Z]+) (?P<target>\S+) HTTP/\d(?:\.\d)?")
ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")  # nginx: \x22; Apache also: \"
ABSOLUTE = re.compile(r"https?://[^/?#]*(.*)", re.IGNORECASE)
UNSAFE = re.compile(r"[^!-~]")
# Only whole words match: in /v1/post/17-a.html, only 17 does
IDENTIFIER = re.compile(
    r"(?<![A-Za-z0-9])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\d+|(?=[a-fA-F]*\d)[0-9a-fA-F]{8,})(?![A-Za-z0-9])"
)

Request = tuple[str, str]  # method and path


class Counts(NamedTuple):
    """Counts of the lines in a log. `responses`: for each request, the number of its responses, and
    how many were 4xx or 5xx."""

    responses: Mapping[Request, tuple[int, int]]
    other_methods: int
    unreadable: int


class AccessLogRead(Finding):
    """{file}: {paths:# path} of {routes:# route} {paths:is/are} sent: {exact:percent} of its
    {used:# GET or HEAD request} were for exactly these paths, {share:percent} for these routes
    [[; left out: {failing_paths:# path} with {failing:# request}, mostly answered with 4xx or 5xx]]
    [[; left out: {other_methods:# request} with other methods]]
    [[; {unreadable:# line} could not be parsed]]"""

    file: str
    used: int
    paths: int
    routes: int
    exact: float
    share: float
    failing_paths: int | None
    failing: int | None
    other_methods: int | None
    unreadable: int | None


def mix_of_log(path: Path, *, queries: bool = False) -> tuple[tuple[Route, ...], AccessLogRead]:
    """The mix of a log, and a note on omitted lines. Raises UsageError if the log has no mix."""
    try:
        counts = count_requests(_lines(path), queries=queries)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read as an access log: {error}") from error
    if not counts.responses:
        missing = "no GET or HEAD request" if counts.other_methods else "no valid line"
        raise UsageError(f"{path} has {missing} (common or combined format)")
    usable = {request: n for request, (n, errors) in counts.responses.items() if 2 * errors <= n}
    if not usable:
        raise UsageError(f"{path} has no path that was mostly answered with 2xx or 3xx")
    routes, exact = _routes(usable)
    failing = [n for request, (n, _) in counts.responses.items() if request not in usable]
    log = AccessLogRead(
        file=str(path),
        used=sum(usable.values()),
        paths=len(routes),
        routes=len({route.label for route in routes}),
        exact=exact / sum(usable.values()),
        share=sum(route.weight for route in routes) / sum(usable.values()),
        failing_paths=len(failing) or None,
        failing=sum(failing) or None,
        other_methods=counts.other_methods or None,
        unreadable=counts.unreadable or None,
    )
    return routes, log


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP
    # Latin-1 decodes any byte, and `_path` percent-encodes it back to the same byte
    with (gzip.open if zipped else open)(path, "rt", encoding="latin-1") as lines:
        yield from lines


def count_requests(lines: Iterable[str], *, queries: bool) -> Counts:
    responses, errors = Counter[Request](), Counter[Request]()
    other = unreadable = 0
    for line in lines:
        if not (match := LINE.search(line)) and not line.strip():
            continue
        request = REQUEST.fullmatch(match["request"]) if match else None
        if match is None or request is None:
            unreadable += 1
        elif request["method"] not in METHODS:
            other += 1
        elif (path := _path(request["target"], queries=queries)) is None:
            unreadable += 1
        else:
            responses[request["method"], path] += 1
            errors[request["method"], path] += match["status"] >= "400"
    return Counts(
        {request_key: (n, errors[request_key]) for request_key, n in responses.items()},
        other,
        unreadable,
    )


def _path(target: str, *, queries: bool) -> str | None:
    """The path to request; None if the target is neither a path nor a URL."""
    target = ESCAPED.sub(lambda m: chr(int(m[1], 16)) if m[1] else m[2], target)
    if not target.startswith("/"):  # a request to a proxy names the server
        if (absolute := ABSOLUTE.fullmatch(target)) is None:
            return None
        target = absolute[1] if absolute[1].startswith("/") else f"/{absolute[1]}"
    path, mark, query = target.partition("#")[0].partition("?")
    path += mark + query if queries and query else ""
    return UNSAFE.sub(lambda m: f"%{ord(m[0]):02X}", path)


def route_of(path: str) -> str:
    """The path with {id} for each number, UUID or hexadecimal id, and without a query."""
    return IDENTIFIER.sub("{id}", path.partition("?")[0])


def _routes(requests: Mapping[Request, int]) -> tuple[tuple[Route, ...], int]:
    """The routes to send, and the number of requests in the log for exactly these paths."""
    by_route = defaultdict[Request, list[Request]](list)
    for request in sorted(requests, key=lambda request: (-requests[request], request)):
        by_route[request[0], route_of(request[1])].append(request)
    totals = {name: sum(requests[request] for request in group) for name, group in by_route.items()}
    firsts = [by_route[name][0] for name in sorted(totals, key=lambda name: -totals[name])]
    others = sorted({*requests} - {*firsts}, key=lambda request: (-requests[request], request))
    chosen = dict.fromkeys([*firsts, *others][:MAX_PATHS])
    routes = []
    for name, group in by_route.items():
        sent_paths = [request for request in group if request in chosen]
        scale = (
            totals[name] / sum(requests[request] for request in sent_paths) if sent_paths else 0.0
        )
        label = f"{name[0]} {name[1]}" if len(group) > 1 else ""
        routes += [Route(path, method, requests[method, path] * scale, name=label)
                   for method, path in sent_paths]  # fmt: skip
    return tuple(routes), sum(requests[request] for request in chosen)
