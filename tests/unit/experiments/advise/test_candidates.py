"""Which servers are considered, within the limits of machine and app."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from workerlab.experiments.advise.candidates import Limits, candidates, kind_of, worker_counts
from workerlab.model import App
from workerlab.server.worker_classes import CLASSES, configured_slots

ALL = [kind_of(name, App()) for name in CLASSES]


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 12])
def test_the_rule_of_thumb_is_always_among_them(cores: int) -> None:
    for name in CLASSES:
        own = candidates([kind_of(name, App())], Limits(cores))
        assert 2 * cores + 1 in {one.workers for one in own}, name


def test_half_a_core_has_a_worker() -> None:
    assert min(worker_counts(Limits(cores=0.5), one_each=True)) == 1


def test_a_pool_bounds_the_slots() -> None:
    found = candidates(ALL, Limits(2, max_in_flight=6))
    slots = [configured_slots(one) for one in found]
    assert all(one is None or one <= 6 for one in slots)
    assert {one.worker_connections for one in found if one.worker_class == "gevent"} <= {6, 3, 2, 1}


def test_an_app_that_is_not_thread_safe_gets_workers_instead() -> None:
    safe, unsafe = (candidates(ALL, Limits(2, thread_safe=one)) for one in (True, False))
    assert {one.worker_class for one in unsafe} == {"sync", "tornado"}
    assert max(one.workers for one in unsafe) > max(one.workers for one in safe)


def test_workers_that_are_too_many_are_cut_to_the_most() -> None:
    found = candidates(ALL, Limits(8, max_workers=3))
    assert max(one.workers for one in found) == 3


def test_every_class_gets_as_many_workers_as_are_allowed_by_name() -> None:
    for name in CLASSES:
        found = candidates([kind_of(name, App())], Limits(2, max_workers=12))
        assert {5, 8, 12} <= {one.workers for one in found}, name


def test_each_version_has_the_same_candidates() -> None:
    kinds = [kind_of("gthread", App(), gunicorn=version) for version in ("25.3.0", "27.0.1")]
    found = candidates(kinds, Limits(2))
    old, new = ([one for one in found if one.gunicorn == kind.gunicorn] for kind in kinds)
    assert [replace(one, gunicorn="27.0.1") for one in old] == new
    assert len(old) + len(new) == len({one.key for one in found})


def test_no_candidate_comes_twice() -> None:
    found = candidates(ALL, Limits(1, max_workers=2, max_in_flight=2))
    assert len({one.key for one in found}) == len(found)
