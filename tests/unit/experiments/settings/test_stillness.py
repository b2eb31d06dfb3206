"""What was timed while the machine stood still is timed again, or nothing is said of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workerlab.experiments.settings import launching
from workerlab.experiments.settings.launches.common import SettingLaunch
from workerlab.experiments.settings.launching import ParallelLaunches
from workerlab.experiments.settings.site import (
    MIN_STALL_S,
    LaunchCancelled,
    MachineStalled,
    Site,
    StallDetector,
    repeat_if_stalled,
)
from workerlab.model import App, Cell, Plan, Server
from workerlab.plan import trials


def still(*gaps_s: float) -> Iterator[float]:
    yield from gaps_s


def test_it_is_measured_again_where_all_stood_still() -> None:
    gaps, outcomes = still(2.5, MIN_STALL_S, 0.01), iter("abc")
    assert repeat_if_stalled(lambda: next(outcomes), lambda _: next(gaps)) == "c"


def test_what_a_pause_cannot_change_is_so_at_once() -> None:
    outcomes = iter("abc")
    found = repeat_if_stalled(lambda: next(outcomes), lambda _: 2.5, lambda one: one == "b")
    assert found == "b"


def test_nothing_is_said_where_it_always_stood_still() -> None:
    with pytest.raises(MachineStalled, match="stalled in every attempt"):
        repeat_if_stalled(lambda: 1, lambda _: 2.5)


def test_a_gap_is_seen_before_and_after_its_thread_has_noted_it() -> None:
    detector = StallDetector()
    detector.tick(100.0)
    detector.tick(100.05)
    assert detector.longest_s(100.0, 102.05) == pytest.approx(2.0)
    detector.tick(102.05)
    assert detector.longest_s(100.0, 102.1) == pytest.approx(2.0)
    assert detector.longest_s(102.06, 102.1) == pytest.approx(0.05)


def test_a_launch_during_which_it_stood_still_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Site] = []

    def look(_: ParallelLaunches, site: Site, launch: SettingLaunch) -> None:
        made.append(site)
        if len(made) < 3:
            raise MachineStalled

    monkeypatch.setattr(launching.ParallelLaunches, "_look", look)
    server = Server("sync", 1, 1, 0, 0, app=App("inspected:wsgi"))
    cell = Cell(server, "", 1, name="sync-stop")
    plan = Plan("settings", (cell,), 1, 1, 0, "python", None, {}, ())
    (planned,) = trials(plan)
    assert ParallelLaunches(tmp_path, plan).make(planned, lambda _: None).fault is None
    assert len(made) == len(set(made)) == 3


def test_what_is_seen_of_a_server_that_was_ended_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave no answer, and so it was not killed for being late."""
    ended = threading.Event()

    def look(_: Site) -> dict[str, bool]:
        ended.set()
        return {"killed": False}

    @contextmanager
    def up(site: Site) -> Iterator[Site]:
        site.directory.mkdir(parents=True)
        yield site

    monkeypatch.setattr(Site, "up", up)
    server = Server("sync", 1, 1, 0, 0, app=App("inspected:wsgi"))
    site = Site(server, "", "", tmp_path, tmp_path / "site", lambda _: {}, ended)
    plan = Plan("settings", (), 1, 1, 0, "python", None, {}, ())
    with site.statsd, pytest.raises(LaunchCancelled):
        ParallelLaunches(tmp_path, plan)._look(site, SettingLaunch("stop", lambda _: {}, look, 1.0))
    assert list(site.directory.iterdir()) == []


def test_a_connection_is_watched_on_after_a_pause_at_the_end(tmp_path: Path) -> None:
    """Of those seconds the server had none in which it could close it."""
    server = Server("sync", 1, 1, 0, 0, app=App("inspected:wsgi"))
    site = Site(server, "", "", tmp_path, tmp_path, lambda _: {}, threading.Event())
    site.stalls.longest_s = lambda since_s, now_s: 60.0  # type: ignore[method-assign]
    ours, theirs = socket.socketpair()
    with ours, theirs, site.statsd:
        threading.Timer(0.1, theirs.shutdown, [socket.SHUT_RDWR]).start()
        closed_s = site.closed_after_s(ours, 0.01)
    assert closed_s is not None
