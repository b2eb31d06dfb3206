"""Missing answers are inconclusive. Measurements are repeated if the machine stalled meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workerlab.experiments.scheduler import BarrierStartupTurn, StartupBarrier
from workerlab.experiments.settings.command import SettingLaunches
from workerlab.experiments.settings.common_launches import SettingLaunch
from workerlab.experiments.settings.launches import LAUNCHES
from workerlab.experiments.settings.site import (
    MAX_ATTEMPTS,
    MIN_STALL_S,
    AppReply,
    MachineStalled,
    Site,
    StallDetector,
)
from workerlab.model.plan import App, Cell, Plan, Server, Trial
from workerlab.server.running import StartupTurn

SERVER = Server("sync", 1, 1, 0, 0, app=App("inspected:wsgi"))


@pytest.mark.parametrize("answer", [AppReply(None, 1.0, error="TimeoutError"), AppReply(500, 0.1)])
def test_an_app_that_did_not_answer_is_inconclusive(answer: AppReply) -> None:
    with pytest.raises(ValueError, match=r"expected status 200, got (TimeoutError|500)"):
        _ = answer.about


def test_a_timeout_is_no_refusal() -> None:
    assert AppReply(431, 0.1).conclusive_status == 431
    assert AppReply(None, 0.1, error="ConnectionResetError").conclusive_status is None
    with pytest.raises(ValueError, match="no response in time"):
        _ = AppReply(None, 15.0, error="TimeoutError").conclusive_status


def stalling(*lengths_s: float) -> StallDetector:
    """A detector of stalls of these lengths, one after the other."""
    detector, stalls_s = StallDetector(), iter(lengths_s)
    detector.longest_s = lambda since_s, now_s: next(stalls_s)  # type: ignore[method-assign]
    return detector


def test_a_measurement_during_a_stall_is_repeated_unless_no_stall_can_change_it() -> None:
    outcomes = iter("abcde")
    assert stalling(2.5, MIN_STALL_S, 0.01).repeat(lambda: next(outcomes)) == "c"
    assert stalling(2.5, 2.5).repeat(lambda: next(outcomes), lambda value: value == "e") == "e"
    with pytest.raises(MachineStalled, match="stalled in every attempt"):
        stalling(*[2.5] * MAX_ATTEMPTS).repeat(lambda: 1)


def test_a_stall_is_detected_before_and_after_the_next_tick() -> None:
    detector = StallDetector()
    detector.tick(100.0)
    detector.tick(100.05)
    assert detector.longest_s(100.0, 102.05) == pytest.approx(2.0)
    detector.tick(102.05)
    assert detector.longest_s(100.0, 102.1) == pytest.approx(2.0)
    assert detector.longest_s(102.06, 102.1) == pytest.approx(0.05)


CELL = Cell(SERVER, "", 1, name="sync-stop")
PLAN, TRIAL = Plan("settings", (CELL,), 1, 1, 0, "python", None, {}, ()), Trial(CELL, 1)


def test_a_launch_during_a_stall_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = list[Site]()

    def observe(_: SettingLaunches, site: Site, launch: SettingLaunch) -> None:
        sites.append(site)
        if len(sites) < 3:
            raise MachineStalled

    monkeypatch.setattr(SettingLaunches, "_observe", observe)
    assert SettingLaunches(tmp_path, PLAN).run_launch(TRIAL, StartupTurn()).fault is None
    assert len(sites) == len(set(sites)) == 3


def test_observations_of_a_cancelled_launch_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled server is not killed for being late, which would look like a result."""
    barrier = StartupBarrier()

    def observe(_: Site) -> dict[str, bool]:
        barrier.end_all()
        return {"killed": False}

    @contextmanager
    def start(site: Site) -> Iterator[Site]:
        site.directory.mkdir(parents=True)
        yield site

    monkeypatch.setattr(Site, "start", start)
    monkeypatch.setitem(LAUNCHES, "stop", SettingLaunch("stop", lambda _: {}, observe, 1.0))
    turn = BarrierStartupTurn(barrier, TRIAL.key)
    assert SettingLaunches(tmp_path, PLAN).run_launch(TRIAL, turn).interrupted
    assert list((tmp_path / "raw" / TRIAL.key).iterdir()) == []


def test_a_connection_is_watched_longer_after_a_stall(tmp_path: Path) -> None:
    """The server could not close it during the stall."""
    site = Site(SERVER, "", "", tmp_path, tmp_path, lambda _: {}, StartupTurn())
    site.stalls.longest_s = lambda since_s, now_s: 60.0
    ours, theirs = socket.socketpair()
    with ours, theirs, site.statsd:
        threading.Timer(0.1, theirs.shutdown, [socket.SHUT_RDWR]).start()
        closed_s = site.closed_after_s(ours, 0.01)
    assert closed_s is not None
