"""A mix of requests from an access log, in the common or the combined format.

    203.0.113.9 - - [10/Oct/2025:13:55:36 +0000] "GET /post/17?from=feed HTTP/1.1" 200 2326 ...

Only the request and the status of a line are read: addresses, users and agents are never stored,
and whatever precedes the date or follows the size may have any form (a virtual host, IPv6, a
duration). Queries are dropped by default.

Only GET and HEAD are safe to repeat. A path is left out if most of its answers were 4xx or 5xx:
here it would fail too, or cause work that the log's server was spared. For the other paths all
requests count: an occasional error is no reason to send fewer.

Paths that differ only in numbers, UUIDs or hexadecimal ids are one route, such as /post/{id}. The
most frequent paths are sent as they are, the first of every route before the second of any; each
route has the weight of all its requests, so that a page with a thousand addresses does not look
rare.
"""

import gzip
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from workerlab.finding import Finding
from workerlab.model import Route, UsageError

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
# Not part of a word: in /v1/post/17-a.html only 17 matches
IDENTIFIER = re.compile(
    r"(?<![A-Za-z0-9])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\d+|(?=[a-fA-F]*\d)[0-9a-fA-F]{8,})(?![A-Za-z0-9])"
)

Request = tuple[str, str]  # method and path


class Counts(NamedTuple):
    """Of the lines of a log. `answers`: for each request, the number of answers and of 4xx and
    5xx."""

    answers: Mapping[Request, tuple[int, int]]
    other_methods: int
    unreadable: int


class AccessLogRead(Finding):
    """{file}: {paths:# path} of {routes:# route} {paths:is/are} sent: {exact:percent} of its
    {used:# GET or HEAD request} asked for these very paths, {share:percent} for these routes
    [[; {failing_paths:# path} with {failing:# request} mostly answered by 4xx or 5xx left out]]
    [[; {other_methods:# request} of other methods left out]]
    [[; {unreadable:# line} not understood]]"""

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


def mix_of(path: Path, *, queries: bool = False) -> tuple[tuple[Route, ...], AccessLogRead]:
    """The mix of a log and what was left out. Raises UsageError if the log has none."""
    try:
        counts = counted(_lines(path), queries=queries)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read as an access log: {error}") from error
    if not counts.answers:
        what = "no request of GET or HEAD" if counts.other_methods else "no line of such a log"
        raise UsageError(f"{path} has {what} (common or combined format)")
    good = {request: n for request, (n, errors) in counts.answers.items() if 2 * errors <= n}
    if not good:
        raise UsageError(f"{path} has no path that was mostly answered by 2xx or 3xx")
    routes, exact = _routes(good)
    failing = [n for request, (n, _) in counts.answers.items() if request not in good]
    log = AccessLogRead(
        file=str(path),
        used=sum(good.values()),
        paths=len(routes),
        routes=len({route.label for route in routes}),
        exact=exact / sum(good.values()),
        share=sum(route.weight for route in routes) / sum(good.values()),
        failing_paths=len(failing) or None,
        failing=sum(failing) or None,
        other_methods=counts.other_methods or None,
        unreadable=counts.unreadable or None,
    )
    return routes, log


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP
    # Latin-1 decodes any byte, and `_path` escapes the same byte again
    with (gzip.open if zipped else open)(path, "rt", encoding="latin-1") as lines:
        yield from lines


def counted(lines: Iterable[str], *, queries: bool) -> Counts:
    answers, errors = Counter[Request](), Counter[Request]()
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
            answers[request["method"], path] += 1
            errors[request["method"], path] += match["status"] >= "400"
    return Counts(
        {request_key: (n, errors[request_key]) for request_key, n in answers.items()},
        other,
        unreadable,
    )


def _path(target: str, *, queries: bool) -> str | None:
    """The path as it is requested; None if it cannot be."""
    target = ESCAPED.sub(lambda m: chr(int(m[1], 16)) if m[1] else m[2], target)
    if not target.startswith("/"):  # requests to a proxy include the server
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
    """The routes to send, and how many requests of the log were for exactly these paths."""
    by_route = defaultdict[Request, list[Request]](list)
    for request in sorted(requests, key=lambda request: (-requests[request], request)):
        by_route[request[0], route_of(request[1])].append(request)
    totals = {name: sum(requests[request] for request in of) for name, of in by_route.items()}
    firsts = [by_route[name][0] for name in sorted(totals, key=lambda name: -totals[name])]
    others = sorted({*requests} - {*firsts}, key=lambda request: (-requests[request], request))
    sent = dict.fromkeys([*firsts, *others][:MAX_PATHS])
    routes = []
    for name, of in by_route.items():
        sent_paths = [request for request in of if request in sent]
        whole = (
            totals[name] / sum(requests[request] for request in sent_paths) if sent_paths else 0.0
        )
        label = f"{name[0]} {name[1]}" if len(of) > 1 else ""
        routes += [Route(path, method, requests[method, path] * whole, name=label)
                   for method, path in sent_paths]  # fmt: skip
    return tuple(routes), sum(requests[request] for request in sent)
