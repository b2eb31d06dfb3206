"""The needs of requests to apps that sleep and use a known amount of CPU. The bounds hold on a busy
machine, too: the apps read the CPU clock of their thread, and sleeps are never shorter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.builders.trials import run_trial
from tests.integration.conftest import app_text
from workerlab.analysis.needs import needs_of
from workerlab.analysis.slots import queued_gap_s
from workerlab.model.plan import App, Cell, Rate, Route, Server
from workerlab.model.result import Needs, RequestNeed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CPU and memory require Linux")

SLEEP_S, CPU_S, MB = 0.05, 0.01, 1 << 20
ASGI = ("asgi", "uvicorn")
SLOTS = ("sync", "gthread")
MIN_REQUESTS = 20  # twice as many as the analysis needs for a gap or a route
CLOCK_TOLERANCE_S = 0.0005  # between clocks that are read one after the other
HELD_MB = 100

Measure = Callable[..., tuple[Needs, Any]]


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Measure:
    """`measure(app, ...)`: the needs of its requests and the facts they are based on. Up to five
    loads, if a pause of the machine leaves too few requests."""

    def measured(
        app: App, *, connections: int = 4, preload: bool = False, **cell: Any
    ) -> tuple[Needs, Any]:
        server = Server(worker_class, 2, 1, 2048, 1000, app=app, preload=preload)
        for _ in range(5):
            place = tmp_path_factory.mktemp("needs")
            facts = run_trial(place, Cell(server, "fast", connections, inside="needs", **cell))
            if len(facts.finished) >= MIN_REQUESTS or not facts.observations.pauses:
                break
        needs = needs_of(facts)
        assert isinstance(needs, Needs), needs
        return needs, facts

    return measured


def sleeping(worker_class: str, *paths: str) -> App:
    target = "apps.sleep_asgi:app" if worker_class in ASGI else "apps.sleep_wsgi:app"
    routes = tuple(Route(path) for path in paths)
    return App(target, path=paths[0], mix=routes if len(routes) > 1 else ())


def mean(needs: Needs, value: Callable[[RequestNeed], float], route: str = "") -> float:
    return fmean(value(need) for need in needs.requests if route in ("", need.route))


@pytest.fixture(scope="module")
def sleep_and_cpu(measure: Measure, worker_class: str) -> tuple[Needs, Any]:
    """With slots, six connections wait for two: some are always waiting, even if clients on a busy
    machine send their next request late."""
    app = sleeping(worker_class, f"/?sleep={SLEEP_S}&cpu={1e3 * CPU_S:.0f}")
    return measure(app, connections=8 if worker_class in SLOTS else 4)


def test_needs_contain_sleep_and_cpu(sleep_and_cpu: tuple[Needs, Any], worker_class: str) -> None:
    needs, facts = sleep_and_cpu
    # Every span has the clocks of the class, so none is estimated
    assert all(span.cost is not None for span in facts.finished)
    assert all(need.cpu_s + need.nogil_s >= CPU_S for need in needs.requests)
    # The app holds the GIL; only in a disturbed trial may samples suggest otherwise
    assert needs.disturbed or not any(need.nogil_s for need in needs.requests)
    assert mean(needs, lambda need: need.cpu_s) < 2 * CPU_S
    for span, need in zip(facts.finished, needs.requests, strict=True):
        length_s = (span.end_ns - span.start_ns) / 1e9
        if worker_class in SLOTS:  # one request at a time: nothing is estimated
            # The thread may have waited for a core during the sleep
            assert need.wait_s >= SLEEP_S - span.cost.queued_ns / 1e9 - CLOCK_TOLERANCE_S
        assert need.wait_s + need.blocked_s <= length_s - CPU_S + CLOCK_TOLERANCE_S
    assert needs.start_s is not None
    assert needs.memory.workers == 2
    assert 0 < needs.memory.private_bytes < needs.memory.total(2)


@pytest.mark.classes(*SLOTS)
def test_a_slot_has_a_short_gap_between_requests(sleep_and_cpu: tuple[Needs, Any]) -> None:
    needs, facts = sleep_and_cpu
    gap_s = queued_gap_s(facts)
    assert 0 < gap_s < SLEEP_S
    assert "GapFromLoneRequests" not in [note.code for note in needs.notes]
    held_s = mean(needs, lambda need: need.wait_s + need.cpu_s + need.blocked_s) + needs.gap_s
    # The thread may have waited for a core during the sleep
    queued_s = fmean(span.cost.queued_ns for span in facts.finished) / 1e9
    assert held_s >= SLEEP_S + CPU_S - queued_s - CLOCK_TOLERANCE_S
    assert facts.rps * (SLEEP_S + CPU_S - CLOCK_TOLERANCE_S) <= 2


@pytest.mark.classes("sync")
def test_at_a_low_rate_the_gap_is_of_lone_requests(measure: Measure, worker_class: str) -> None:
    needs, _ = measure(sleeping(worker_class, "/?sleep=0.01"), rate=Rate(rps=5.0))
    assert "GapFromLoneRequests" in [note.code for note in needs.notes]


@pytest.mark.classes("sync", "uvicorn", "gevent")
def test_each_route_has_its_own_cpu_need(measure: Measure, worker_class: str) -> None:
    light, heavy = "/?sleep=0&cpu=4", "/?sleep=0&cpu=40"
    needs, _ = measure(sleeping(worker_class, light, heavy), duration_s=1.0)
    assert {need.route for need in needs.requests} == {f"GET {light}", f"GET {heavy}"}
    assert mean(needs, lambda need: need.cpu_s, f"GET {heavy}") >= 0.04
    assert 0.004 <= mean(needs, lambda need: need.cpu_s, f"GET {light}") < 0.02


@pytest.mark.classes(*ASGI)
def test_a_blocking_call_counts_as_blocked_time(measure: Measure) -> None:
    needs, facts = measure(App("apps.blocking_asgi:app", path=f"/?sleep={SLEEP_S}"))
    for span, need in zip(facts.finished, needs.requests, strict=True):
        # The thread may have waited for a core during the sleep
        assert need.blocked_s >= SLEEP_S - span.cost.queued_ns / 1e9 - CLOCK_TOLERANCE_S
    assert mean(needs, lambda need: need.wait_s) < SLEEP_S


COMPUTES = """
import time, zlib
DATA = bytes(range(256)) * (1 << 14)
def without():
    zlib.crc32(DATA)
def within():
    sum(range(100))
def app(environ, start_response):
    call = without if environ["PATH_INFO"] == "/without" else within
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        call()
    start_response("200 OK", [("Content-Length", "3")])
    return [b"ok\\n"]
"""


@pytest.mark.classes("gthread")
def test_cpu_used_without_the_gil_is_separate(measure: Measure, tmp_path: Path) -> None:
    (tmp_path / "computes.py").write_text(COMPUTES)
    mix = (Route("/without"), Route("/within"))
    app = App("computes:app", str(tmp_path), path="/without", mix=mix)
    for duration_s in (1.5, 3.0, 6.0, 12.0):
        needs, _ = measure(app, duration_s=duration_s)
        assert mean(needs, lambda need: need.nogil_s, "GET /within") == 0
        assert mean(needs, lambda need: need.cpu_s, "GET /within") >= CPU_S
        without_s = mean(needs, lambda need: need.nogil_s, "GET /without")
        if without_s:  # else a busy machine had too few samples of the GIL
            break
    assert without_s > CPU_S / 4
    assert all(need.nogil_s + need.cpu_s >= CPU_S - CLOCK_TOLERANCE_S for need in needs.requests)


@pytest.mark.once
@pytest.mark.parametrize("preload", [False, True])
def test_memory_is_shared_only_by_preload(measure: Measure, tmp_path: Path, preload: bool) -> None:
    setup = f'HELD = bytearray(b"x") * ({HELD_MB} << 20)'
    (tmp_path / "holds.py").write_text(app_text("sync", setup=setup, wait_s=0.01))
    needs, _ = measure(App("holds:app", str(tmp_path)), preload=preload)
    memory = needs.memory
    assert memory is not None
    if preload:
        assert memory.shared_bytes >= HELD_MB * MB
        assert memory.private_bytes < HELD_MB * MB
    else:
        assert memory.private_bytes >= HELD_MB * MB
        assert memory.total(2) >= 2 * HELD_MB * MB
