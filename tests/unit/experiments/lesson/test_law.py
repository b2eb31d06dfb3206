"""The settings of a server and a load, and the law for them."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.recursion import allen_cunneen
from workerlab.experiments.lesson import settings
from workerlab.experiments.lesson.law import (
    ArrivalsTooMany,
    ClientsWait,
    CpuBound,
    Law,
    SlotsForAll,
    law_of,
    sentence,
    side_view,
)
from workerlab.experiments.lesson.settings import LoadSettings, Refused, ServerSettings
from workerlab.server.worker_classes import ASGI_CLASSES, CLASSES


@pytest.mark.parametrize("name", settings.MAX_VALUES)
def test_numbers_are_bounded(name: str) -> None:
    max_value = settings.MAX_VALUES[name]
    assert json.loads(json.dumps(settings.MAX_VALUES))[name] == max_value
    is_load = hasattr(LoadSettings(), name)
    defaults: Any = LoadSettings() if is_load else ServerSettings()
    change: Any = settings.changed_load if is_load else settings.changed_server
    assert getattr(change(defaults, {name: max_value}), name) == max_value
    too_low = -0.1 if name in settings.DURATION_FIELDS else 0
    for value in (max_value + 1, too_low, "4", None, True, float("nan"), [4]):
        with pytest.raises(Refused) as refused:
            change(defaults, {name: value})
        assert refused.value.field == name
        assert str(refused.value).startswith(f"{name} must be a ")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"worker_class": "snyc"}, f"must be one of {', '.join(CLASSES)}, not 'snyc'"),
        ({"worker_class": 4}, f"must be one of {', '.join(CLASSES)}, not 4"),
        ({"app": "none"}, "must be one of sleep, blocking, imported, not 'none'"),
        ({"app": "blocking"}, "this app is for asgi and uvicorn, not for sync"),
        ({"workers": 2.5}, "must be a whole number from 1 to 16, not 2.5"),
        ({"bind": "0.0.0.0:80"}, "'bind' is not a setting"),
        ({"clients": 4}, "'clients' is not a setting"),  # of a server
        ({"patience_s": 1.0}, "'patience_s' is not a setting"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=re.escape(why)) as refused:
        settings.changed_server(ServerSettings(), changes)
    assert [refused.value.field] == list(changes)
    with pytest.raises(Refused, match="'patience_s' is not a setting"):  # only in a lesson
        settings.changed_load(LoadSettings(), {"patience_s": 1.0})


def test_a_class_that_cannot_serve_the_app_gets_one_that_every_class_serves() -> None:
    changes = {"worker_class": "uvicorn", "app": "blocking"}
    blocking = settings.changed_server(ServerSettings(), changes)
    assert blocking.server().app.target == "apps.blocking_asgi:app"
    assert settings.changed_server(blocking, {"worker_class": "gevent"}).app == "sleep"


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_and_app_makes_a_server(name: str) -> None:
    for app, bundled in settings.BUNDLED_APPS.items():
        if name in bundled.classes:
            server = ServerSettings(worker_class=name, app=app, threads=4).server()
            assert server.app.target == (bundled.asgi if name in ASGI_CLASSES else bundled.wsgi)
            assert server.threads == (4 if name == "gthread" else 1)


@pytest.mark.parametrize(
    ("server", "load", "rps", "knee", "response_s"),
    [
        (ServerSettings(), LoadSettings(clients=8), 4, 4, 2),
        (ServerSettings(), LoadSettings(clients=2, delay_s=0.5), 4, 4, 0.5),
        (ServerSettings("uvicorn"), LoadSettings(clients=100), 100, None, 1),
        (ServerSettings("uvicorn", app="blocking"), LoadSettings(clients=8), 4, 4, 2),
        (ServerSettings(), LoadSettings(delay_s=0), None, None, None),  # nothing to do
        (ServerSettings(), LoadSettings(clients=16, patience_s=2.5), 0, None, None),
    ],
)
def test_the_law_of_a_closed_loop(
    server: ServerSettings, load: LoadSettings,
    rps: float | None, knee: float | None, response_s: float | None,
) -> None:  # fmt: skip
    law = law_of(server, load, 2)
    assert (law.rps, law.knee, law.response_s) == (rps, knee, response_s)


def predictions(law: Law) -> tuple[object, ...]:
    return law.rps, law.knee, law.response, law.queue


def test_the_law_of_clients_that_give_up() -> None:
    server = ServerSettings()
    patient, without_patience = (
        law_of(server, LoadSettings(clients=8, patience_s=patience_s), 2) for patience_s in (2.5, 0)
    )
    assert predictions(patient) == predictions(without_patience)
    law = law_of(server, LoadSettings(clients=16, patience_s=2.5), 2)
    assert (law.response, law.queue) == (
        "law: no response in time",
        "law: it grows until it is full, at 2049",
    )
    assert "16 clients give up after 2.50 s, before their turn" in str(sentence(law))


def test_the_queue_of_random_arrivals_holds_all_waiting_requests() -> None:
    """By Little's law, it is rate x mean wait, although slots are free at other moments."""
    law = law_of(ServerSettings(workers=2), LoadSettings(model="open", rate=16, delay_s=0.1), 2)
    assert law.queue == pytest.approx(16 * allen_cunneen(16, 0.1, 0.01, 2))
    assert law_of(ServerSettings(), LoadSettings(model="open", rate=2), 2).queue == pytest.approx(
        0.087, rel=0.01
    )


def test_requests_that_compute_are_limited_by_cores_and_workers() -> None:
    load = LoadSettings(clients=50, delay_s=0, cpu_ms=100)
    assert law_of(ServerSettings("gevent"), load, 2).rps == 20
    assert law_of(ServerSettings("gevent", workers=1), load, 2).rps == 10
    mixed = LoadSettings(clients=50, delay_s=1, cpu_ms=100)
    assert law_of(ServerSettings(workers=4), mixed, 8).rps == pytest.approx(4 / 1.1)


@pytest.mark.parametrize(
    ("server", "load", "text"),
    [
        ({}, {"clients": 4}, "sync with 4 workers serves up to 4 requests at once: with 4 clients"),
        ({}, {"clients": 8}, "of 8 clients, 4 wait in the kernel's accept queue."),
        ({"backlog": 4}, {"clients": 16}, "5 wait in the kernel's accept queue, which is full."),
        ({"worker_class": "gthread", "threads": 2}, {"clients": 9}, "4 workers of 2 threads"),
        ({"worker_class": "gthread"}, {"clients": 9}, "of 9 clients, 5 wait, most of them inside"),
        ({"worker_class": "uvicorn"}, {"clients": 99}, "unlimited number of requests"),
        ({}, {"clients": 4, "cpu_ms": 5.0}, "compute at the same time share 2 cores."),
        ({"worker_class": "uvicorn", "app": "blocking"}, {"clients": 9}, "app blocks its worker"),
        ({"worker_class": "gthread"}, {"clients": 9, "keepalive": True}, "stays with its worker"),
        ({"worker_class": "gevent"}, {"clients": 99, "cpu_ms": 50.0}, "can serve at most 40 req"),
        ({"worker_class": "gevent", "workers": 1}, {"clients": 9, "delay_s": 0.0, "cpu_ms": 20.0},
         "1 worker on 2 cores can serve at most 50 requests/s. Of 9 clients,"),
        ({"worker_class": "gevent", "app": "imported"}, {"clients": 9}, "or inside a worker."),
        ({"worker_class": "asgi", "app": "blocking"}, {"clients": 4}, "has more than 1, some wait"),
        ({"worker_class": "asgi", "app": "blocking"}, {"clients": 1}, "1 client no request waits"),
        ({"worker_class": "gthread", "threads": 2}, {"clients": 8}, "at once, 2 in each worker."),
        ({"worker_class": "gthread", "worker_connections": 1}, {"clients": 4}, "no request waits"),
        ({"worker_class": "gthread", "threads": 2}, {"clients": 99, "patience_s": 2.5},
         "4 workers of 2 threads serves up to 8 requests at once. 99 clients give up"),
        ({}, {"delay_s": 0.0}, "A request has nothing to do"),
        ({}, {"model": "open", "rate": 2.0}, "arrive close together wait, 43.5 ms on"),
        ({"worker_class": "gevent"}, {"model": "open"}, "20 of 4000 slots are busy, so hardly"),
        ({"workers": 10}, {"model": "open", "rate": 1.0}, "1 of 10 slots are busy, so hardly"),
        ({"workers": 9}, {"model": "open", "rate": 3.0}, "On average 33 % of the slots are busy"),
        ({"worker_class": "gevent"}, {"model": "open", "rate": 8.0, "cpu_ms": 50.0},
         "at most 40 can be served. The cores that the server can use are busy 20 % of the time"),
        ({}, {"model": "open", "rate": 8.0}, "at most 4 can be served"),
        ({"worker_class": "asgi"}, {"model": "open"}, "nothing limits how many are served at once"),
    ],
)  # fmt: skip
def test_a_sentence_for_the_settings(
    server: dict[str, Any], load: dict[str, Any], text: str
) -> None:
    law = str(sentence(law_of(ServerSettings(**server), LoadSettings(**load), 2)))
    assert text in law
    assert "None" not in law


SERVERS = st.builds(
    ServerSettings,
    worker_class=st.sampled_from(("sync", "gthread", "eventlet", "gevent", "tornado", "uvicorn")),
    workers=st.integers(1, 16), threads=st.integers(1, 64), backlog=st.integers(1, 4096),
    worker_connections=st.integers(64, 2000),  # at least as many as threads
)  # fmt: skip
LOADS = st.builds(
    LoadSettings,
    model=st.sampled_from(("closed", "open")), clients=st.integers(1, 500),
    rate=st.floats(1, 1000), delay_s=st.just(0.0) | st.floats(0.001, 10),
    cpu_ms=st.sampled_from((0.0, 0.0, 5.0, 100.0)), keepalive=st.booleans(),
    patience_s=st.sampled_from((0.0, 2.5)),
)  # fmt: skip


@given(SERVERS, LOADS)
def test_sentence_and_law_agree(server: ServerSettings, load: LoadSettings) -> None:
    law = law_of(server, load, 2)
    finding, service_s = sentence(law), load.service_s
    if law.response_s is not None:
        assert law.rps is not None
        assert law.response_s >= service_s * (1 - 1e-9)
        if load.model == "closed":  # Little's law
            assert law.rps * law.response_s == pytest.approx(load.clients)
    if isinstance(finding, SlotsForAll):
        assert law.response_s == pytest.approx(service_s)
        assert isinstance(law.queue, str) or not law.queue
    elif isinstance(finding, ClientsWait) and finding.where.startswith(" in the kernel"):
        assert law.queue == pytest.approx(finding.waiting)
    elif isinstance(finding, ArrivalsTooMany):
        assert law.response_s is None
    assert "None" not in str(finding)
    if service_s > 0:
        assert (law.response_s is None) == isinstance(law.response, str)


def test_more_workers_than_cores_are_no_remedy() -> None:
    for workers, remedy in ((1, "another worker"), (2, "no other worker class")):
        server = ServerSettings("gevent", workers=workers)
        finding = sentence(law_of(server, LoadSettings(delay_s=0, cpu_ms=20), 2))
        assert isinstance(finding, CpuBound)
        assert finding.remedy == remedy


def test_asyncio_ignores_the_backlog() -> None:
    for name, backlog in (("uvicorn", 4), ("asgi", 100)):
        assert side_view(ServerSettings(name, backlog=4), LoadSettings(), 2)["backlog"] == backlog
