"""A mix of requests on a real Gunicorn: the counts of each route match those of the workers."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integration.conftest import CommandResult, Lab, retry_if_disturbed

# Writes a line for each request of the load, which has the lab's User-Agent
APP = """\
import os
import time

TURNS = {"/sometimes": 0}


def app(environ, start_response):
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    text, status, sleep_s = b"hello", "200 OK", 0.04
    if path == "/slow":
        sleep_s = 0.05
    elif path.startswith("/post/"):
        sleep_s = 0.01
    elif path == "/missing":
        status = "404 Not Found"
    elif path == "/comment":
        text, status = body, "201 Created"
    elif path == "/broken":
        status, text = "500 Internal Server Error", b"<h1>KeyError</h1><p>no cart</p>"
    elif path == "/sometimes":
        TURNS[path] += 1
        if TURNS[path] % 2 == 0:
            status, text = "503 Service Unavailable", b"<h1>Closed</h1><p>for lunch</p>"
    time.sleep(sleep_s + float(os.environ.get("LONGER_S", 0)))
    if environ.get("HTTP_USER_AGENT") == "workerlab":
        file = os.open(os.environ["REQUESTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{method} {path} {status[:3]}\\n".encode())
        os.close(file)
    start_response(status, [("Content-Length", str(len(text)))])
    return [] if method == "HEAD" else [text]
"""
MIX = """\
10 GET  /                    # the page of the shop
4  GET  /slow      name='the slow one'
2  GET  /post/1    name='GET /post/{id}'
1  GET  /post/2    name='GET /post/{id}'
2  POST /comment   body=comment.json expect=201 header='Content-Type: application/json'
1  HEAD /missing   expect=404
2  GET  /sometimes
"""
LABELS = {"/slow": "the slow one", "/post/1": "GET /post/{id}", "/post/2": "GET /post/{id}"}


def shop(lab: Lab) -> list[str]:
    """Writes the app. Returns the arguments of a sweep."""
    (lab.place / "shop.py").write_text(APP)
    (lab.place / "comment.json").write_text('{"text": "nice"}')
    return ["sweep", "gthread", "6", "--workers", "2", "--app", "shop:app",
            "--env", f"REQUESTS={lab.place / 'requests'}", "--format", "json"]  # fmt: skip


def mixed(lab: Lab, text: str, *args: str) -> CommandResult:
    (lab.place / "shop.mix").write_text(text)
    return lab(*shop(lab), "--mix", "shop.mix", *args)


def served_requests(lab: Lab) -> Counter[tuple[str, str]]:
    """Requests of the load by (label, status)."""
    counts = Counter[tuple[str, str]]()
    for line in (lab.place / "requests").read_text().splitlines():
        method, path, status = line.split()
        counts[LABELS.get(path, f"{method} {path}"), status] += 1
    return counts


# tests/unit/load/test_generator_mix.py tests other mixes of `fast`
LOADS = {
    "fast": ("--tool", "fast", "--rounds", "20"),
    # So slow that the lab need not measure the ceiling of Locust
    "locust, kept": ("--tool", "locust", "--keepalive", "on", "--duration", "3",
                     "--env", "LONGER_S=0.15"),
    "locust-fast, two processes, at a rate": ("--tool", "locust-fast", "--tool-processes", "2",
                                              "--rate", "60", "--duration", "4"),
}  # fmt: skip


def is_whole(result: CommandResult) -> bool:
    """Whether no cell is invalid and each slow route has a response."""
    cells = result.report["cells"]
    routes = cells[-1]["routes"] or {}
    answered = {label for label, route in routes.items() if route["response_ms"]["p50"]}
    valid = all(cell["verdict"] != "invalid" for cell in cells)
    return valid and answered >= {"the slow one", "GET /post/{id}"}


@pytest.mark.parametrize("args", LOADS.values(), ids=LOADS)
def test_counts_of_each_route_match_those_of_the_workers(lab: Lab, args: tuple[str, ...]) -> None:
    if "locust" in args[1]:
        pytest.importorskip("geventhttpclient")

    def load() -> CommandResult:
        (lab.place / "requests").unlink(missing_ok=True)
        return mixed(lab, MIX, *args)

    result = retry_if_disturbed(lab, load, is_whole)
    cells = result.report["cells"]  # at a rate, a closed-loop cell comes first
    for cell in cells:
        assert cell["verdict"] != "invalid", cell["reason"]["text"]
    served, routes = served_requests(lab), cells[-1]["routes"]

    def total(column: str) -> Counter[str]:
        counts = Counter[str]()
        for cell in cells:
            counts.update({label: route[column] for label, route in cell["routes"].items()})
        return +counts

    assert total("requests") == Counter(label for label, _ in served.elements())
    failed = served["GET /sometimes", "503"]
    assert total("failed") == +Counter({"GET /sometimes": failed})
    if failed and len(cells) == 1:
        assert routes["GET /sometimes"]["statuses"] == {"503": failed}
        assert routes["GET /sometimes"]["answer"] == "Closed / for lunch"
        all_answers = [finding["answer"] for finding in result.report["findings"]]
        (answer,) = [answer for answer in all_answers if answer["code"] == "FailingRoute"]
        assert "503: Closed / for lunch" in answer["text"]
    assert routes["the slow one"]["response_ms"]["p50"] >= 50
    assert routes["GET /post/{id}"]["response_ms"]["p50"] >= 10


def test_all_cells_get_the_same_requests_in_the_same_order(lab: Lab) -> None:
    """By the rows of fast, which number the requests."""
    args = shop(lab)
    args[1:3] = ["sync,gthread", "4"]
    (lab.place / "shop.mix").write_text(MIX)
    result = lab(*args, "--mix", "shop.mix", "--max-seconds", "1", "--seed", "7")
    sent = []
    for rows in sorted((lab.run / "raw").glob("*/tool/requests.csv")):
        lines = [line.split(",") for line in rows.read_text().splitlines()[1:]]
        by_number = sorted((int(line[6]), int(line[8])) for line in lines)
        sent.append([route for _, route in by_number][:21])
    assert len(sent) == len(result.report["cells"]) == 2
    assert sent[0] == sent[1]
    assert len(set(sent[0])) > 1


def test_routes_with_unexpected_responses_are_reported_before_the_load(lab: Lab) -> None:
    result = mixed(lab, f"{MIX}1 GET /broken\n1 POST /missing name=lost\n", "--tool", "fast")
    assert result.code == 1
    (cell,) = result.report["cells"]
    reason = cell["reason"]["text"]
    assert "GET /broken returned 500, expected 2xx or 3xx: KeyError / no cart" in reason
    assert "lost (POST /missing) returned 404, expected 2xx or 3xx" in reason
    assert not (lab.place / "requests").exists()  # no load was sent


def test_lone_requests_of_a_mix_are_weighted(lab: Lab) -> None:
    """One in four requests sleeps for 50 ms, a lower bound on any machine."""
    result = mixed(lab, "3 GET /\n1 GET /slow\n", "--tool", "fast", "--rounds", "5")
    (cell,) = result.report["cells"]
    (record,) = lab.records()
    assert record["lone_weights"] == [0.75, 0.25]
    rounds = len(record["lone_s"]) // 2
    assert rounds >= 3
    assert all(took_s >= 0.05 for took_s in record["lone_s"][1::2])
    assert cell["verdict"] != "invalid"


def test_an_access_log_is_a_mix(lab: Lab) -> None:
    line = '203.0.113.9 - - [10/Oct/2025:13:55:36 +0200] "{}" {} 23 "-" "curl/8"\n'
    requests = [("GET /?secret=1 HTTP/1.1", 200)] * 6 + [("GET /post/1 HTTP/2.0", 200),
                ("GET /post/2 HTTP/2.0", 304), ("POST /comment HTTP/1.1", 201),
                ("GET /gone HTTP/1.1", 404), ("-", 408)]  # fmt: skip
    log = "".join(line.format(*route) for route in requests)
    (lab.place / "access.log").write_text(log)
    result = lab(*shop(lab), "--access-log", "access.log", "--rounds", "5")
    assert result.code == 0, result.err
    output = result.err + result.out
    assert "left out: 1 path with 1 request, mostly answered with 4xx or 5xx" in output
    (cell,) = result.report["cells"]
    by_label = Counter(label for label, _ in served_requests(lab).elements())
    assert {label: route["requests"] for label, route in cell["routes"].items()} == by_label
    assert set(by_label) == {"GET /", "GET /post/{id}"}
    assert "secret" not in (lab.run / "run.json").read_text()
