"""`fast` with a mix: the server receives what it sends, and each route has its own totals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.builders import http
from workerlab.errors import ParseError
from workerlab.load.fast import FAST, ROWS_FILE
from workerlab.load.generators import fast
from workerlab.load.generators.document import document, text_of
from workerlab.load.generators.options import OPTIONAL_FIELDS, parse
from workerlab.load.tool import MIX_FILE
from workerlab.model.evidence import Measurement, Output
from workerlab.model.plan import Load, Route
from workerlab.numbers.schedule import sequence

DEADLINE_S = 60.0  # only a hang takes as long
MIX = (
    Route("/", weight=6),
    Route("/post/1", weight=1, name="GET /post/{id}"),
    Route("/post/2", weight=2, name="GET /post/{id}"),
    Route("/moved", weight=1),
    Route("/missing", "HEAD", 1, expect=(404, 410)),
    Route("/comment", "POST", 2, (("X-Kind", "comment"),), "BODY", expect=(201,)),
    Route("/broken", weight=1, name="broken"),
    Route("/gone", weight=1),
)
STATUSES = {"/moved": 302, "/missing": 404, "/comment": 201, "/broken": 500}
PAGE = "<html><head><style>p {}</style></head><h1>KeyError</h1>\n<p>'cart'</p></html>"


@dataclass
class Site:
    """A server on loopback, and what it received."""

    url: str = ""
    requests: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(f"{method} {path}" for method, path, _, _ in self.requests)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Answering(http.Handler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            site.requests.append((self.command, self.path, self.headers.get("X-Kind"), body))
            if self.path == "/gone":
                self.close_connection = True
                return
            text = PAGE if self.path == "/broken" else f"{len(site.requests)} of many"
            self.respond(STATUSES.get(self.path, 200), text.encode())

    with http.serving(Answering) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/elsewhere"
        yield site


def run_load(directory: Path, load: Load) -> tuple[Measurement, Site]:
    """Send a load in this process. Returns the measurement that the tool reads, and the server."""
    directory.joinpath("body").write_bytes(b'{"a": 1}')
    with serving() as site:
        command = FAST.command(load, site.url, str(directory))
        for name, text in command.files.items():
            body = json.dumps(str(directory / "body"))
            directory.joinpath(name).write_text(text.replace('"BODY"', body))
        arguments = command.argv[command.argv.index("fast") + 1 :]
        options = parse(arguments, "fast", supports=OPTIONAL_FIELDS)
        stdout = text_of(document("fast", options, fast.run(options)))
        rows = directory / ROWS_FILE
        files = {ROWS_FILE: rows.read_text()} if rows.exists() else {}
        return FAST.parse(Output(stdout, files=files)), site


def mix_load(**changes: Any) -> Load:
    return Load(**{"concurrency": 4, "requests": 200, "duration_s": 1.0, "mix": MIX,
                   "deadline_s": DEADLINE_S, "schedule": 7, **changes})  # fmt: skip


LOADS = {
    "counted": mix_load(),
    "kept": mix_load(keepalive=True),
    "kept, without rows": mix_load(keepalive=True, summed=True),
    "two processes": mix_load(processes=2),
    "timed": mix_load(timed=True, duration_s=0.5, keepalive=True),
    "at a rate": mix_load(rate_rps=300.0, arrivals="poisson"),
    "at a rate, kept, two processes": mix_load(rate_rps=300.0, keepalive=True, processes=2),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_each_route_counts_what_the_server_received_in_sequence(tmp_path: Path, load: Load) -> None:
    measurement, site = run_load(tmp_path, load)
    received, routes = site.counts(), dict(measurement.routes)
    gone = routes.pop("GET /gone")
    assert measurement.sent == received.total() - received["GET /gone"] + gone.failed
    posts, broken = received["GET /post/1"] + received["GET /post/2"], received["GET /broken"]
    successful = ("GET /", "GET /moved", "HEAD /missing", "POST /comment")
    expected = {
        "GET /post/{id}": (posts, 0, {}),
        "broken": (broken, broken, {"status": broken} if broken else {}),
        **{label: (received[label], 0, {}) for label in successful},
    }
    assert expected == {
        label: (route.requests, route.failed, route.errors) for label, route in routes.items()
    }
    assert gone.requests == 0
    assert gone.errors == ({"closed": gone.failed} if gone.failed else {})
    assert gone.failed <= received["GET /gone"] <= 2 * gone.failed  # resent on a kept connection
    comments = {(kind, body) for _, path, kind, body in site.requests if path == "/comment"}
    assert comments == {("comment", b'{"a": 1}')}
    assert bool(measurement.timings) is (not load.summed)
    timings = measurement.timings
    indices = list(islice(sequence([route.weight for route in MIX], 7), 2 * len(timings)))
    assert all(timing.route == indices[int(timing.request_id) - 1] for timing in timings)
    in_rows = Counter(
        MIX[timing.route or 0].label for timing in timings if timing.end_s is not None
    )
    counted = {label: route.requests for label, route in routes.items() if not load.summed}
    assert in_rows == +Counter(counted)


def test_the_first_unexpected_response_is_kept(tmp_path: Path) -> None:
    measurement, _ = run_load(tmp_path, mix_load())
    broken = measurement.routes["broken"]
    assert broken.statuses == {"500": broken.failed}
    assert broken.answer == "KeyError / 'cart'"
    assert broken.response.p50 is None  # of successes
    assert measurement.routes["GET /"].answer == ""
    assert (measurement.routes["GET /"].response.p50 or 0) > 0


def test_a_load_without_a_mix_has_no_routes(tmp_path: Path) -> None:
    measurement, site = run_load(tmp_path, mix_load(mix=(), requests=20))
    assert measurement.routes == {}
    assert {timing.route for timing in measurement.timings} == {None}
    assert site.counts() == {"GET /elsewhere": 20}
    assert FAST.command(mix_load(mix=()), "http://h/", "/w").files == {}
    assert list(FAST.command(mix_load(), "http://h/", "/w").files) == [MIX_FILE]


def test_routes_that_disagree_with_the_load_are_rejected(tmp_path: Path) -> None:
    arguments = ("--url", "http://127.0.0.1:9/", "--concurrency", "1", "--requests", "1")
    options = parse(arguments, "fast", supports=OPTIONAL_FIELDS)
    printed = json.loads(text_of(document("fast", options, fast.run(options))))
    histogram = {"count": 0, "sum": 0, "least": None, "most": None, "buckets": {}}
    account = {"sent": 1, "complete": 0, "errors": {"refused": 1}, "statuses": {}, "body": "",
               "response": histogram}  # fmt: skip

    def parse_with_route(**changes: object) -> Measurement:
        routes = {"GET /": {**account, **changes}}
        return FAST.parse(Output(json.dumps({**printed, "routes": routes})))

    assert parse_with_route().routes["GET /"].errors == {"refused": 1}
    with pytest.raises(ParseError, match="counts of requests by route disagree"):
        parse_with_route(sent=2)
    wrong_counts = ({"sent": 0}, {"sent": 1.0}, {"errors": {"refused": 2, "reset": -1}},
                    {"statuses": {"500": -1}}, {"statuses": {"500": 2**63}})  # fmt: skip
    for changes in wrong_counts:
        with pytest.raises(ParseError, match="incomplete"):
            parse_with_route(**changes)
