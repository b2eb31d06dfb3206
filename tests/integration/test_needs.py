"""What requests need, of apps that sleep and compute a known amount: bounds that hold however busy
the machine is, for an app burns CPU by its thread's own clock, and a sleep is never shorter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.builders.trials import run_trial
from tests.integration.conftest import app_text
from workerlab.analysis.needs import NO_CPU, needs_of
from workerlab.analysis.slots import queued_gap_s
from workerlab.model.plan import App, Cell, Rate, Route, Server
from workerlab.model.result import Needs, RequestNeed

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="CPU, run queue and memory are counted on Linux"
)

SLEEP_S, CPU_S, MB = 0.05, 0.01, 1 << 20
ASGI = ("asgi", "uvicorn")
SLOTS = ("sync", "gthread")
FEWEST = 20  # requests: twice as many as a gap or a route is known by
EXACT_S = 0.0005  # what clocks that are read one after the other may differ by
HELD_MB = 100

Measure = Callable[..., tuple[Needs, Any]]


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Measure:
    """`measure(app, ...)`: what its requests need, and the facts that is from. Where the machine
    stood still there may be too few of them: then it is loaded again, up to five times."""

    def measured(
        app: App, *, connections: int = 4, preload: bool = False, **cell: Any
    ) -> tuple[Needs, Any]:
        server = Server(worker_class, 2, 1, 2048, 1000, app=app, preload=preload)
        for _ in range(5):
            place = tmp_path_factory.mktemp("needs")
            facts = run_trial(place, Cell(server, "fast", connections, inside="needs", **cell))
            if len(facts.finished) >= FEWEST or not facts.observations.pauses:
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
def of_sleep_and_cpu(measure: Measure, worker_class: str) -> tuple[Needs, Any]:
    """Where the class has slots, six connections wait for two: also on a busy machine, where each
    answer is followed by the next request with a delay, some are always waiting."""
    app = sleeping(worker_class, f"/?sleep={SLEEP_S}&cpu={1e3 * CPU_S:.0f}")
    return measure(app, connections=8 if worker_class in SLOTS else 4)


def test_sleep_and_cpu(of_sleep_and_cpu: tuple[Needs, Any], worker_class: str) -> None:
    needs, facts = of_sleep_and_cpu
    # The clock of the class is in every record, so that none had to be guessed
    assert all(span.cost is not None for span in facts.finished)
    assert all(need.cpu_s + need.nogil_s >= CPU_S for need in needs.requests)
    # The loop holds the GIL; only in a disturbed trial may samples suggest otherwise
    assert needs.disturbed or not any(need.nogil_s for need in needs.requests)
    assert mean(needs, lambda need: need.cpu_s) < 2 * CPU_S
    for span, need in zip(facts.finished, needs.requests, strict=True):
        length_s = (span.end_ns - span.start_ns) / 1e9
        if worker_class in SLOTS:  # one at a time: nothing is taken off by estimate
            # It may have been without a core when the sleep had begun already
            assert need.wait_s >= SLEEP_S - span.cost.queued_ns / 1e9 - EXACT_S
        assert need.wait_s + need.blocked_s <= length_s - CPU_S + EXACT_S
    assert needs.start_s is not None
    assert needs.memory.workers == 2
    assert 0 < needs.memory.private_bytes < needs.memory.total(2)


@pytest.mark.classes(*SLOTS)
def test_the_gap_between_requests_in_a_slot(of_sleep_and_cpu: tuple[Needs, Any]) -> None:
    """A slot is never held for longer than there is."""
    needs, facts = of_sleep_and_cpu
    gap_s = queued_gap_s(facts)
    assert 0 < gap_s < SLEEP_S
    assert "GapFromLoneRequests" not in [note.code for note in needs.notes]
    held_s = mean(needs, lambda need: need.wait_s + need.cpu_s + need.blocked_s) + needs.gap_s
    # It may have been without a core when the sleep had begun already
    queued_s = fmean(span.cost.queued_ns for span in facts.finished) / 1e9
    assert held_s >= SLEEP_S + CPU_S - queued_s - EXACT_S
    assert facts.rps * (SLEEP_S + CPU_S - EXACT_S) <= 2


@pytest.mark.classes("sync")
def test_at_a_low_rate_the_gap_is_of_lone_requests(measure: Measure, worker_class: str) -> None:
    needs, _ = measure(sleeping(worker_class, "/?sleep=0.01"), rate=Rate(rps=5.0))
    assert "GapFromLoneRequests" in [note.code for note in needs.notes]


@pytest.mark.classes("sync", "uvicorn", "gevent")
def test_routes_that_differ(measure: Measure, worker_class: str) -> None:
    light, heavy = "/?sleep=0&cpu=4", "/?sleep=0&cpu=40"
    needs, _ = measure(sleeping(worker_class, light, heavy), duration_s=1.0)
    of = {need.route: need for need in needs.requests}
    assert of.keys() == {f"GET {light}", f"GET {heavy}"}
    cpu_s = {route: mean(needs, lambda need: need.cpu_s, route) for route in of}
    assert cpu_s[f"GET {heavy}"] >= 0.04
    assert 0.004 <= cpu_s[f"GET {light}"] < 0.02


@pytest.mark.classes(*ASGI)
def test_a_call_that_blocks_the_loop(measure: Measure) -> None:
    path = f"/?sleep={SLEEP_S}"
    needs, facts = measure(App("apps.blocking_asgi:app", path=path))
    for span, need in zip(facts.finished, needs.requests, strict=True):
        # It may have been without a core when the sleep had begun already
        assert need.blocked_s >= SLEEP_S - span.cost.queued_ns / 1e9 - EXACT_S
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
def test_what_is_computed_without_the_gil(measure: Measure, tmp_path: Path) -> None:
    place = tmp_path / "apps"
    place.mkdir()
    (place / "computes.py").write_text(COMPUTES)
    mix = (Route("/without"), Route("/within"))
    app = App("computes:app", str(place), path="/without", mix=mix)
    for duration_s in (1.5, 3.0, 6.0, 12.0):
        needs, _ = measure(app, duration_s=duration_s)
        assert mean(needs, lambda need: need.nogil_s, "GET /within") == 0
        assert mean(needs, lambda need: need.cpu_s, "GET /within") >= CPU_S
        without_s = mean(needs, lambda need: need.nogil_s, "GET /without")
        if without_s:  # else too few looks at the GIL to say so: on a busy machine it takes longer
            break
    assert without_s > CPU_S / 4
    assert all(need.nogil_s + need.cpu_s >= CPU_S - EXACT_S for need in needs.requests)


@pytest.mark.once
@pytest.mark.parametrize("preload", [False, True])
def test_memory(measure: Measure, tmp_path: Path, preload: bool) -> None:
    place = tmp_path / "apps"
    place.mkdir()
    held = f'HELD = bytearray(b"x") * ({HELD_MB} << 20)'
    (place / "holds.py").write_text(app_text("sync", setup=held, wait_s=0.01))
    needs, _ = measure(App("holds:app", str(place)), preload=preload)
    memory = needs.memory
    assert memory is not None
    if preload:
        assert memory.shared_bytes >= HELD_MB * MB
        assert memory.private_bytes < HELD_MB * MB
    else:
        assert memory.private_bytes >= HELD_MB * MB
        assert memory.total(2) >= 2 * HELD_MB * MB


@pytest.mark.once
def test_other_trials_have_none_of_it(tmp_path: Path, worker_class: str) -> None:
    server = Server(worker_class, 2, 1, 2048, 1000, app=sleeping(worker_class, "/?sleep=0.01"))
    facts = run_trial(tmp_path, Cell(server, "fast", 2), duration_s=1.0)
    assert all(span.cost is None for span in facts.spans)
    assert not list(tmp_path.rglob("costs-*"))
    assert needs_of(facts) == NO_CPU
