"""`fast` under a mix: what was sent is what the server saw, and each route has its own account."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from workerlab.load.fast import FAST, ROWS
from workerlab.load.generators import fast
from workerlab.load.generators.document import document
from workerlab.load.generators.words import OPTIONAL, parse
from workerlab.load.tool import FILE
from workerlab.model import Load, Measurement, Output, ParseError, Route
from workerlab.numbers.schedule import sequence

DEADLINE_S = 60.0  # nothing here takes a tenth of it; only a hang does
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
    """A server on loopback; what it saw."""

    url: str = ""
    requests: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(f"{method} {path}" for method, path, _, _ in self.requests)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits for the client's delayed ACK

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            site.requests.append((self.command, self.path, self.headers.get("X-Kind"), body))
            if self.path == "/gone":
                self.close_connection = True
                return
            text = PAGE if self.path == "/broken" else f"{len(site.requests)} of many"
            self.send_response(STATUSES.get(self.path, 200))
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text.encode())

        do_GET = do_POST = do_HEAD = answer

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}/elsewhere"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


def loaded(place: Path, load: Load) -> tuple[Measurement, Site]:
    """What the tool reads of a load that the program's own code sent."""
    place.joinpath("body").write_bytes(b'{"a": 1}')
    with serving() as site:
        command = FAST.command(load, site.url, str(place))
        for name, text in command.files.items():
            body = json.dumps(str(place / "body"))
            place.joinpath(name).write_text(text.replace('"BODY"', body))
        words = command.argv[command.argv.index("fast") + 1 :]
        asked = parse(words, "fast", supports=OPTIONAL)
        said = json.dumps(document("fast", asked, fast.run(asked)))
        rows = place / ROWS
        files = {ROWS: rows.read_text()} if rows.exists() else {}
        return FAST.parse(Output(said, files=files)), site


def a_load(**more: Any) -> Load:
    return Load(**{"concurrency": 4, "requests": 200, "duration_s": 1.0, "mix": MIX,
                   "deadline_s": DEADLINE_S, "schedule": 7, **more})  # fmt: skip


LOADS = {
    "counted": a_load(),
    "kept": a_load(keepalive=True),
    "kept, without rows": a_load(keepalive=True, summed=True),
    "two processes": a_load(processes=2),
    "timed": a_load(timed=True, duration_s=0.5, keepalive=True),
    "at a rate": a_load(rate_rps=300.0, arrivals="poisson"),
    "at a rate, kept, two processes": a_load(rate_rps=300.0, keepalive=True, processes=2),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_each_route_has_the_account_of_what_the_server_saw(tmp_path: Path, load: Load) -> None:
    found, site = loaded(tmp_path, load)
    seen = site.counts()
    assert found.sent is not None
    assert found.sent == seen.total() - seen["GET /gone"] + found.routes["GET /gone"].failed
    posts, broken = seen["GET /post/1"] + seen["GET /post/2"], seen["GET /broken"]
    expected = {
        "GET /": (seen["GET /"], 0, {}),
        "GET /post/{id}": (posts, 0, {}),
        "GET /moved": (seen["GET /moved"], 0, {}),
        "HEAD /missing": (seen["HEAD /missing"], 0, {}),
        "POST /comment": (seen["POST /comment"], 0, {}),
        "broken": (broken, broken, {"status": broken} if broken else {}),
    }
    routes = dict(found.routes)
    gone = routes.pop("GET /gone")
    assert {n: (one.requests, one.failed, one.errors) for n, one in routes.items()} == expected
    assert gone.requests == 0
    assert gone.errors == ({"closed": gone.failed} if gone.failed else {})
    assert gone.failed <= seen["GET /gone"] <= 2 * gone.failed  # on a kept connection sent twice
    assert {(kind, body) for _, path, kind, body in site.requests if path == "/comment"} == {
        ("comment", b'{"a": 1}')
    }


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_the_n_th_request_is_the_n_th_of_the_sequence(tmp_path: Path, load: Load) -> None:
    found, _ = loaded(tmp_path, load)
    if load.summed:
        assert not found.timings
        return
    drawn = list(islice(sequence([one.weight for one in MIX], 7), 2 * len(found.timings)))
    for timing in found.timings:
        assert timing.request_id is not None
        assert timing.route == drawn[int(timing.request_id) - 1]
    by_label = Counter(MIX[one.route or 0].label for one in found.timings if one.end_s is not None)
    assert by_label == {n: one.requests for n, one in found.routes.items() if one.requests}


def test_the_first_answer_that_was_not_expected_is_told(tmp_path: Path) -> None:
    found, _ = loaded(tmp_path, a_load())
    broken = found.routes["broken"]
    assert broken.statuses == {"500": broken.failed}
    assert broken.answer == "KeyError / 'cart'"
    assert broken.response.p50 is None  # of successes
    assert found.routes["GET /"].answer == ""
    assert (found.routes["GET /"].response.p50 or 0) > 0


def test_a_load_without_a_mix_has_no_routes(tmp_path: Path) -> None:
    found, site = loaded(tmp_path, a_load(mix=(), requests=20))
    assert found.routes == {}
    assert {one.route for one in found.timings} == {None}
    assert site.counts() == {"GET /elsewhere": 20}
    assert FAST.command(a_load(mix=()), "http://h/", "/w").files == {}
    assert list(FAST.command(a_load(), "http://h/", "/w").files) == [FILE]


def test_routes_that_disagree_with_the_load_are_refused(tmp_path: Path) -> None:
    words = ("--url", "http://127.0.0.1:9/", "--concurrency", "1", "--requests", "1")
    asked = parse(words, "fast", supports=OPTIONAL)
    said = document("fast", asked, fast.run(asked))
    nothing = {"count": 0, "sum": 0, "least": None, "most": None, "buckets": {}}
    account = {"sent": 2, "complete": 0, "errors": {"refused": 1}, "statuses": {}, "body": "",
               "response": nothing}  # fmt: skip
    with pytest.raises(ParseError, match="disagrees with itself on requests by route"):
        FAST.parse(Output(json.dumps({**said, "routes": {"GET /": account}})))
    account["sent"] = 0
    with pytest.raises(ParseError, match="incomplete"):
        FAST.parse(Output(json.dumps({**said, "routes": {"GET /": account}})))
