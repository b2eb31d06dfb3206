"""The CPU of each request: which clocks are read, and what must not change."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders.processes import compute
from workerlab.model.evidence import Span
from workerlab.observe.spans import read_spans
from workerlab.server.inside import costs, probe
from workerlab.server.inside.maps import COSTS, FIRST, GIL_SAMPLES, SCRATCH

CPU_S, SLEEP_S = 0.02, 0.05
MIN_SAMPLES = 20
ROUTES = [("GET", "/"), ("POST", "/"), ("GET", "/a%20b?x=1"), ("GET", "/%C3%A9")]


@pytest.fixture(autouse=True)
def _recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _restored_probe: None) -> None:
    for name in ("cells", "routes", "counters", "step_timer"):
        monkeypatch.setattr(costs, name, getattr(costs, name))
    probe.start(str(tmp_path), 8, probe.no_op)
    costs.start(str(tmp_path), 8, ROUTES)


@pytest.fixture
def spans(tmp_path: Path) -> Callable[[], tuple[Span, ...]]:
    return lambda: read_spans(tmp_path).spans


# --- WSGI -----------------------------------------------------------------------------------------


def wsgi(app: Callable[..., Any], handled: tuple[object, ...] = (), **environ: Any) -> Any:
    request = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": "", **environ}
    return costs.wrap_wsgi(app, handled, costs.ThreadClock)(request, lambda *_: None)


def test_only_cpu_of_the_requests_thread_counts_until_the_body_is_closed(spans: Any) -> None:
    burned_ns = []

    def app(*_: Any) -> Any:
        burned_ns.append(compute(CPU_S))
        time.sleep(SLEEP_S)
        yield b"one"
        burned_ns.append(compute(CPU_S))

    other = threading.Thread(target=compute, args=(5 * CPU_S,))
    other.start()
    began_ns = time.thread_time_ns()
    body = wsgi(app)
    assert list(body) == [b"one"]
    body.close()
    thread_ns = time.thread_time_ns() - began_ns
    other.join()
    (span,) = spans()
    assert sum(burned_ns) <= span.cost.cpu_ns <= thread_ns
    assert span.end_ns - span.start_ns >= (2 * CPU_S + SLEEP_S) * 1e9
    assert (span.cost.steps_ns, span.cost.route) == (None, 0)
    assert span.cost.queued_ns >= 0


def test_a_computing_request_holds_the_gil_and_sleeps_are_counted(spans: Any) -> None:
    def cost_of_repeated(work: Callable[[], object]) -> Any:
        """The cost of a request that repeats `work` until there are enough samples."""

        def app(*_: Any) -> list[bytes]:
            cost = FIRST + COSTS.cells * (len(spans()) - 1)
            while costs.cells[cost + GIL_SAMPLES] < MIN_SAMPLES:
                work()
            return [b"x"]

        wsgi(app).close()
        return spans()[-1].cost

    assert cost_of_repeated(lambda: compute(0.001)).held > 0
    assert cost_of_repeated(lambda: time.sleep(0.001)).slept >= MIN_SAMPLES


def test_an_app_that_raises_has_a_cost(spans: Any) -> None:
    def app(*_: Any) -> Any:
        compute(CPU_S)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        wsgi(app)
    (span,) = spans()
    assert span.cost.cpu_ns >= CPU_S * 1e9
    assert span.end_ns


def test_markers_and_files_are_returned_unchanged(spans: Any) -> None:
    class FileWrapper:
        def __init__(self, file: BytesIO) -> None:
            self.file = file

    marker, file = object(), FileWrapper(BytesIO(b"x"))
    assert wsgi(lambda *_: marker, (marker,)) is marker
    assert wsgi(lambda *_: file, **{"wsgi.file_wrapper": FileWrapper}) is file
    assert all(span.cost is not None for span in spans())


@pytest.mark.parametrize(
    ("environ", "route"),
    [
        ({}, 0),
        ({"REQUEST_METHOD": "POST"}, 1),
        ({"PATH_INFO": "/a b", "QUERY_STRING": "x=1"}, 2),
        ({"PATH_INFO": "/é".encode().decode("latin-1")}, 3),
        ({"SCRIPT_NAME": "/a b", "PATH_INFO": "", "QUERY_STRING": "x=1"}, 2),
        ({"PATH_INFO": "/other"}, None),
        ({"QUERY_STRING": "x=1"}, None),
    ],
)
def test_a_wsgi_request_is_assigned_to_its_route(
    spans: Any, environ: dict[str, str], route: int | None
) -> None:
    wsgi(lambda *_: [b"x"], **environ).close()
    assert [span.cost.route for span in spans()] == [route]


def test_requests_beyond_the_capacity_are_not_recorded(spans: Any) -> None:
    for _ in range(10):
        wsgi(lambda *_: [b"x"]).close()
    assert len(spans()) == 8
    assert all(span.cost for span in spans())


# --- ASGI -----------------------------------------------------------------------------------------

Scope = dict[str, Any]


async def no_op(*_: Any) -> None:
    return None


def asgi(app: Callable[..., Awaitable[None]], **scope: Any) -> Any:
    request = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    return costs.wrap_asgi(app)({**request, **scope}, no_op, no_op)


@pytest.mark.parametrize("wrap", [probe.wrap_asgi, costs.wrap_asgi])
def test_the_first_exceptions_of_an_asgi_app_are_in_the_log(
    wrap: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gunicorn's asgi class drops exceptions that follow a complete response."""
    monkeypatch.setattr(probe, "failures", itertools.count())

    async def app(_scope: Scope, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.body"})
        raise KeyError("price")

    for _ in range(probe.MAX_TRACEBACKS + 1):
        with pytest.raises(KeyError):
            asyncio.run(wrap(app)({"type": "http", "headers": []}, no_op, no_op))
    assert capsys.readouterr().err.count("\nKeyError: 'price'\n") == probe.MAX_TRACEBACKS


def test_interleaved_requests_have_their_own_cpu_and_steps_include_blocking(spans: Any) -> None:
    burned_ns = Counter[int]()

    async def app(scope: Scope, _receive: Any, send: Any) -> None:
        for _ in range(2):
            burned_ns[scope["times"]] += compute(CPU_S * scope["times"])
            await asyncio.sleep(SLEEP_S / 2)
        time.sleep(SLEEP_S * (scope["times"] - 1))
        await send({"type": "http.response.body"})

    async def send_both() -> None:
        await asyncio.gather(asgi(app, times=1), asgi(app, times=2))

    began_ns = time.thread_time_ns()
    asyncio.run(send_both())
    thread_ns = time.thread_time_ns() - began_ns
    first, second = spans()
    assert burned_ns[1] <= first.cost.cpu_ns <= thread_ns - second.cost.cpu_ns
    assert burned_ns[2] <= second.cost.cpu_ns
    assert second.cost.steps_ns >= (4 * CPU_S + SLEEP_S) * 1e9
    for span in (first, second):
        assert span.cost.steps_ns >= span.cost.cpu_ns
        # A step that loses its core after its timer was set overlaps with the sleep
        exclusive_ns = span.cost.steps_ns - span.cost.queued_ns
        assert span.end_ns - span.start_ns >= exclusive_ns + (SLEEP_S - 0.001) * 1e9


def test_steps_are_held_up_only_by_those_of_other_requests(spans: Any) -> None:
    """Both yield, then compute in turn: the second is ready while the first computes."""
    times_ns, burned_ns = list[int](), list[int]()

    async def app(*_: Any) -> None:
        times_ns.append(time.monotonic_ns())
        await asyncio.sleep(0)
        times_ns.append(time.monotonic_ns())
        burned_ns.append(compute(CPU_S))

    async def send_both() -> None:
        await asyncio.gather(asgi(app), asgi(app))

    asyncio.run(send_both())
    first, second = (span.cost for span in spans())
    assert second.held_up_ns >= burned_ns[0]
    assert first.held_up_ns <= times_ns[2] - times_ns[0]  # by the other's first step
    asyncio.run(asgi(app))
    assert spans()[2].cost.held_up_ns == 0


def test_cancellation_and_exceptions_pass_through() -> None:
    events = list[str]()

    async def app(*_: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        finally:
            events.append("ended")

    async def cancel() -> None:
        task = asyncio.ensure_future(asgi(app))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def fails(*_: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("price")

    asyncio.run(cancel())
    assert events == ["cancelled", "ended"]
    with pytest.raises(ValueError, match="price"):
        asyncio.run(asgi(fails))


def test_an_abandoned_coroutine_is_closed() -> None:
    events = list[str]()

    async def app(*_: Any) -> None:
        try:
            await Yields()
        finally:
            events.append("closed")

    coroutine = asgi(app)
    coroutine.send(None)
    coroutine.close()
    del coroutine
    gc.collect()
    assert events == ["closed"]


class Yields:
    def __await__(self) -> Generator[int, Any, Any]:
        return (yield 1)


def test_values_sent_to_a_coroutine_arrive() -> None:
    async def receiver() -> Any:
        return await Yields()

    steps = costs.Steps(receiver(), SCRATCH)
    assert next(iter(steps)) == 1
    with pytest.raises(StopIteration, match=r"^a value$"):
        steps.send("a value")


@pytest.mark.parametrize(
    ("scope", "route"),
    [
        ({"method": "POST"}, 1),
        ({"path": "/a b", "query_string": b"x=1"}, 2),
        ({"path": "/é"}, 3),
        ({"path": "/other"}, None),
    ],
)
def test_an_asgi_request_is_assigned_to_its_route(
    spans: Any, scope: Scope, route: int | None
) -> None:
    asyncio.run(asgi(no_op, **scope))
    assert [span.cost.route for span in spans()] == [route]


# --- greenlets ------------------------------------------------------------------------------------


def test_interleaved_greenlets_have_their_own_cpu(spans: Any) -> None:
    greenlet: Any = pytest.importorskip("greenlet")
    trace = greenlet.gettrace()
    clock_kind = costs.clock_for(greenlets=True)
    assert clock_kind is costs.GreenletClock
    burned_ns = Counter[int]()
    began_ns = time.thread_time_ns()
    try:

        def app(environ: dict[str, Any], _start: Any) -> list[bytes]:
            for _ in range(2):
                burned_ns[environ["times"]] += compute(CPU_S * environ["times"])
                hub.switch()
            return [b"x"]

        def serve(times: int) -> None:
            environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "times": times}
            costs.wrap_wsgi(app, (), clock_kind)(environ, None).close()

        hub = greenlet.getcurrent()
        requests = [greenlet.greenlet(serve) for _ in range(2)]
        for turn in range(3):
            for times, request in enumerate(requests, 1):
                request.switch(*[times] * (turn == 0))
            burned_ns[0] += compute(CPU_S)  # by the hub itself
    finally:
        greenlet.settrace(trace)
    thread_ns = time.thread_time_ns() - began_ns
    first, second = spans()
    assert burned_ns[1] <= first.cost.cpu_ns
    assert burned_ns[2] <= second.cost.cpu_ns
    assert first.cost.cpu_ns + second.cost.cpu_ns <= thread_ns - burned_ns[0]
    assert costs.GreenletClock.clocks == {}


# --- tornado's container --------------------------------------------------------------------------


def test_tornados_container_is_recorded(spans: Any) -> None:
    def app(*_: Any) -> list[bytes]:
        compute(CPU_S)
        return [b"x"]

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": ""}
    container = SimpleNamespace(environ=lambda _: environ, wsgi_application=app)
    costs.probe_container(container)
    list(container.wsgi_application(container.environ(SimpleNamespace()), None))
    (span,) = spans()
    assert span.cost.cpu_ns >= CPU_S * 1e9
    assert span.cost.route == 0


def test_a_stopped_probe_records_nothing(spans: Any) -> None:
    costs.stop()
    probe.stop()
    wsgi(lambda *_: [b"x"]).close()
    assert spans() == ()
