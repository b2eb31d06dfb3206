"""Which servers are considered, within the limits of machine and app."""

import pytest
from msgspec.structs import replace

from workerlab.experiments.advise.candidates import Limits, candidates, kind_of
from workerlab.model.plan import App
from workerlab.server.worker_classes import CLASSES, configured_slots

ALL = [kind_of(name, App()) for name in CLASSES]


@pytest.mark.parametrize(
    ("limits", "workers"),
    [
        *((Limits(cores), {2 * cores + 1}) for cores in (1, 2, 4, 8, 12)),  # the rule of thumb
        (Limits(0.5), {3}),
        (Limits(2, max_workers=12), {5, 8, 12}),  # up to --max-workers
        (Limits(8, max_workers=3), {3}),
    ],
)
def test_candidates_of_every_class_have_these_workers(limits: Limits, workers: set[int]) -> None:
    for kind in ALL:
        counts = {server.workers for server in candidates([kind], limits)}
        assert {1, *workers} <= counts, kind.worker_class
        assert min(counts) == 1
        assert limits.max_workers is None or max(counts) == limits.max_workers


def test_max_in_flight_bounds_the_slots() -> None:
    servers = candidates(ALL, Limits(2, max_in_flight=6))
    assert all((configured_slots(server) or 0) <= 6 for server in servers)
    gevent = [server for server in servers if server.worker_class == "gevent"]
    assert {server.worker_connections for server in gevent} <= {6, 3, 2, 1}


def test_an_app_that_is_not_thread_safe_gets_more_workers() -> None:
    safe, unsafe = (candidates(ALL, Limits(2, thread_safe=flag)) for flag in (True, False))
    assert {server.worker_class for server in unsafe} == {"sync", "tornado"}
    assert max(server.workers for server in unsafe) > max(server.workers for server in safe)


def test_each_version_has_the_same_candidates() -> None:
    kinds = [kind_of("gthread", App(), gunicorn=version) for version in ("25.3.0", "27.0.1")]
    servers = candidates(kinds, Limits(2))
    old, new = (
        [server for server in servers if server.gunicorn == kind.gunicorn] for kind in kinds
    )
    assert [replace(server, gunicorn="27.0.1") for server in old] == new
    assert len(old) + len(new) == len({server.key for server in servers})


def test_candidates_are_unique() -> None:
    servers = candidates(ALL, Limits(1, max_workers=2, max_in_flight=2))
    assert len({server.key for server in servers}) == len(servers)
